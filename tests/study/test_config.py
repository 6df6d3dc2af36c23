import pytest

import posenc
from posenc.study.config import make_config

GOOD = {"encodings": (), "train_len": 64, "test_lens": (), "seeds": 2, "budget_s": 240.0}


def test_the_defaults_are_eleven_encodings_two_seeds_and_sixteen_times_the_length():
    config = make_config(**GOOD)
    assert len(config.encodings) == 11
    assert set(config.encodings) <= set(posenc.names())
    assert config.test_lens == (64, 128, 256, 512, 1024)
    assert (config.seeds, config.batch_size, config.target_bytes) == ((0, 1), 64, 32)
    assert config.dims.max_len == 1024


def test_the_trained_length_is_always_tested_and_aliases_become_names():
    assert make_config(**GOOD | {"budget_s": None, "steps": 7}).fixed_steps == 7
    config = make_config(**GOOD | {"test_lens": (256, 100), "encodings": ("rotary", "ALiBi")})
    assert config.test_lens == (64, 100, 256)
    assert config.encodings == ("rope", "alibi")


def test_every_seed_comes_after_the_one_before_it():
    cells = make_config(**GOOD | {"encodings": ("rope", "nope")}).cells()
    assert cells == [("rope", 0), ("nope", 0), ("rope", 1), ("nope", 1)]


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ({"train_len": 1}, r"--train-len must lie in 2..65536.*got 1"),
        ({"train_len": 5000}, r"2..4096 where tests go to 16 times it; got 5000"),
        ({"test_lens": (1,)}, r"--test-len must lie in 2..65536; got 1, 64"),
        ({"test_lens": (10**6,)}, "got 64, 1000000"),
        ({"seeds": 0}, r"--seeds must lie in 1..100; got 0"),
        ({"budget_s": 0.0}, "--budget must be a positive time such as 240s; got 0s"),
        ({"encodings": ("rpoe",)}, "unknown encoding 'rpoe': did you mean 'rope'"),
        ({"encodings": ("rope", "rotary")}, "names rope more than once"),
        ({"encodings": ("no.such.module:Class",)}, "cannot load the encoding 'no.such.module:Class'"),
    ],
)
def test_bad_wishes_are_answered_by_one_clear_line(bad, said):
    with pytest.raises(ValueError, match=said) as caught:
        make_config(**GOOD | bad)
    assert "\n" not in str(caught.value)


def test_a_class_that_is_no_encoding_is_refused():
    with pytest.raises(TypeError, match="not a class derived from posenc.Encoding"):
        make_config(**GOOD | {"encodings": ("collections:Counter",)})


@pytest.mark.parametrize("name", ["learned_2d", "cpvt", "axial_rope"])
def test_encodings_for_images_are_told_from_those_that_lack_an_option(name):
    with pytest.raises(ValueError, match=f"text has one position axis, and {name} works on 2; leave it out"):
        make_config(**GOOD | {"encodings": (name,)})


def test_an_encoding_of_two_axes_is_refused():
    with pytest.raises(ValueError, match="text has one position axis, and study.own:TwoAxes works on 2"):
        make_config(**GOOD | {"encodings": ("study.own:TwoAxes",)})
