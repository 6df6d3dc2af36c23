import json
import re

import pytest

import posenc
from posenc.study.config import Cell, Config, make_config, read_size

GOOD = {"encodings": (), "train_len": 64, "test_lens": (), "seeds": 2, "budget_s": 240.0}


def test_the_defaults_are_eight_encodings_two_seeds_and_sixteen_times_the_length():
    config = make_config(**GOOD)
    assert len(config.encodings) == 8
    assert set(config.encodings) <= set(posenc.names())
    assert config.test_lens == (64, 128, 256, 512, 1024)
    assert (config.seeds, config.target_bytes, config.tasks, config.sizes) == ((0, 1), 32, ("text",), ("64x2x4",))
    assert config.dims("64x2x4", 1024, 64).head_dim == 16


def test_the_trained_length_is_always_tested_and_aliases_become_names():
    assert make_config(**GOOD | {"budget_s": None, "steps": 7}).fixed_steps == 7
    config = make_config(**GOOD | {"test_lens": (256, 100), "encodings": ("rotary", "ALiBi")})
    assert config.test_lens == (64, 100, 256)
    assert config.encodings == ("rope", "alibi")


def test_every_seed_comes_after_the_one_before_it():
    cells = make_config(**GOOD | {"encodings": ("rope", "nope"), "task": ("text", "copy"), "sizes": ("32x2",)}).cells()
    assert [tuple(cell) for cell in cells[:5]] == [
        ("rope", "text", "32x2x2", 0), ("nope", "text", "32x2x2", 0), ("rope", "copy", "32x2x2", 0),
        ("nope", "copy", "32x2x2", 0), ("rope", "text", "32x2x2", 1),
    ]  # fmt: skip


def test_a_configuration_comes_back_from_json():
    asked = {
        "task": ("copy@index", "addition:all_reversed@abacus"),
        "lengths": {"copy": {"train": [3, 2], "test": [3, 9]}},
    }
    config = make_config(**GOOD | asked)
    assert config.tasks == ("copy", "addition:all_reversed@abacus")
    again = Config.from_dict(json.loads(json.dumps(config.as_dict())))
    assert again.as_dict() == config.as_dict()
    assert again.cells() == config.cells()
    assert again.lengths_of("copy") == ((2, 3), (3, 9))
    assert again.lengths_of("addition:all_reversed@abacus") == config.lengths_of("addition:all_reversed@abacus")


@pytest.mark.parametrize(
    ("cell", "wanted"),
    [
        (Cell("rope", "text", "64x2x4", 1), r"rope-text-64x2x4-s1"),
        (Cell("rope", "addition:all_reversed@abacus", "64x2x4", 1), r"rope-addition\.all_reversed@abacus-64x2x4-s1"),
        (Cell("my.pe:MyPE", "text", "64x2x4", 1), r"my\.pe_MyPE-\w{8}-text-64x2x4-s1"),
        (Cell("../../x:Y", "text", "64x2x4", 1), r"_\.\._x_Y-\w{8}-text-64x2x4-s1"),
        (Cell("a/b:<C>", "text", "64x2x4", 1), r"a_b__C_-\w{8}-text-64x2x4-s1"),
    ],
)
def test_cell_names_stay_inside_the_directory(cell, wanted):
    assert re.fullmatch(wanted, cell.name)


def test_two_names_never_share_a_cell():
    names = ("a_B:C", "a:B_C", "a_B_C", "a.é:C", "a.è:C")
    assert len({Cell(name, "text", "64x2x4", 0).name for name in names}) == 5


def test_a_size_has_a_head_for_each_sixteen_of_its_width():
    assert read_size("128x4") == (128, 4, 8)
    assert str(read_size(" 64x2x2 ")) == "64x2x2"


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ({"train_len": 1}, r"--train-len must lie in 2..65536.*got 1"),
        ({"train_len": 5000}, r"2..4096 if --test-len is left out; got 5000"),
        ({"test_lens": (1,)}, r"--test-len must lie in 2..65536; got 1, 64"),
        ({"test_lens": (10**6,)}, "got 64, 1000000"),
        ({"seeds": 0}, r"--seeds must lie in 1..100; got 0"),
        ({"budget_s": 0.0}, "--budget must be a positive time such as 240s; got 0s"),
        ({"encodings": ("rpoe",)}, "unknown encoding 'rpoe': did you mean 'rope'"),
        ({"encodings": ("rope", "rotary")}, "lists rope more than once"),
        ({"task": ("copi",)}, "unknown task 'copi': did you mean 'copy'"),
        ({"task": ("copy@abacus",)}, "copy has no stream 'abacus'. Known: index, randomised"),
        ({"task": ("copy", "copy@index")}, "--task lists copy more than once"),
        ({"sizes": ("64",)}, "must be WIDTHxLAYERS or WIDTHxLAYERSxHEADS, such as 64x2x4.*got '64'"),
        ({"sizes": ("64x2x7",)}, "twice the number of heads; got '64x2x7'"),
        ({"sizes": ("64x2", "64x2x4")}, "--size lists 64x2x4 more than once"),
        ({"lengths": {"copy": {"train": [2]}}}, "of a task of this study"),
        (
            {"task": ("copy",), "lengths": {"copy": {"trian": [2]}}},
            "text use --train-len and --test-len\\); got 'copy'",
        ),
        ({"task": ("copy",), "lengths": {"copy": {"test": [0]}}}, r"lengths\.copy\.test must list lengths of copy"),
        (
            {"task": ("copy",), "lengths": {"copy": {"test": [2]}}},
            "trained up to 20 but tested only up to 2. Test longer",
        ),
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
    with pytest.raises(ValueError, match=f"text has one position axis, but {name} needs 2. Leave it out"):
        make_config(**GOOD | {"encodings": (name,)})


def test_an_encoding_of_two_axes_is_refused():
    with pytest.raises(ValueError, match="text has one position axis, but study.own:TwoAxes needs 2"):
        make_config(**GOOD | {"encodings": ("study.own:TwoAxes",)})
