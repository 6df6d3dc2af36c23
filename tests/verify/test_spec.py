"""The words of a specification: those of other libraries are translated, misspelt and unread ones are reported."""

import re
from pathlib import Path

import pytest
import torch

import posenc
from posenc import registry, verify
from posenc.verify import spec

ROPE = {"encoding": "rope", "head_dim": 64, "base": 10000.0, "layout": "half"}
# the words that the issue of this command lists, with the values that it names
LISTED = {
    *("encoding", "kind", "head_dim", "rotary_dim", "base", "layout", "scaling", "config", "dim", "variant", "start"),
    *("heads", "causal", "bidirectional", "num_buckets", "max_distance", "window", "section", "interleaved"),
    *("scale_base", "gamma", "order", "offset", "table_rows", "max_positions", "padding", "packed", "layers"),
    *("activation_dtype", "origin", "direction"),
}
MISSPELT = {
    "a share of nothing": ({"encoding": "rope", "rotary_pct": 0.5}, "rotary_pct must be a share of head_dim"),
    "two shares": ({**ROPE, "rotary_dim": 64, "rotary_pct": 0.5}, "rotary_pct=0.5 contradicts rotary_dim=64"),
    "a factor of nothing": ({**ROPE, "factor": 4.0}, "factor 4.0 needs a scaling"),
    "a letter more": ({**ROPE, "rotary_dims": 32}, "word 'rotary_dims'. Did you mean 'rotary_dim'"),
    "two words for one": ({**ROPE, "theta": 5e5}, "gives 'base' twice, once as 'theta'"),
    "encoding": ({**ROPE, "encoding": "rpoe"}, "encoding cannot be 'rpoe'. Did you mean 'rope'"),
    "version": ({"encoding": "alibi@unknown"}, "unknown definition 'alibi@unknown'. Use one of alibi@"),
    "scaling": ({**ROPE, "scaling": "yarnn"}, "scaling cannot be 'yarnn'. Did you mean 'yarn'"),
    "a scaling without parameters": ({**ROPE, "scaling": "ntk_alpha"}, "'ntk_alpha' needs parameters. Give the model"),
    "layout": ({**ROPE, "layout": "neo"}, "layout cannot be 'neo'. Use 'half' or 'interleaved'"),
    "layout of waves": ({**ROPE, "layout": "cos_first"}, "layout cannot be 'cos_first'"),
}


@pytest.mark.parametrize("name", MISSPELT)
def test_what_is_misspelt_is_refused_by_name(name):
    words, message = MISSPELT[name]
    with pytest.raises(ValueError, match=message):
        verify.check(lambda x, positions: x, convention="rope_fn", spec=words)


ODD = {  # by convention: what a word cannot say, of each kind
    "rope_fn": {"head_dim": [0, -8, "64", 64.0, True, [64], 1 << 20], "base": ["1e4", 0, True, float("nan"), 1e300]}
    | {"max_positions": [0, "4096"], "truncate": ["no", 2], "short_factor": [1.0, ["a"]], "config": ["llama", []]}
    | {"activation_dtype": ["bfloat", 16], "rotary_side": ["left"], "layout": [5], "scaling": [["yarn"], 5]}
    | {"encoding": [5, ["rope"]], "kind": ["position"]},
    "bias_fn": {"heads": ["eight", -1], "window": ["zz", [7], -1], "variant": ["geometrc", 3], "slopes": ["geometrc"]},
    "attention": {"window": ["zz", [7, 7], 0], "order": ["sorted"]},
    "relative_index_fn": {"window": ["zz", [7, 0], [7, 7, 7], -7]},
    "additive_module": {"variant": ["tensor2tensr"], "origin": ["first"], "start": ["one"], "padding_idx": [1.5]},
    "additive_2d_module": {"grid": ["14", [14]], "cls": ["yes"], "normalize": ["yes"]},
    "mrope_fn": {"section": ["2, 3, 3", [2.5, 3, 3]], "interleaved": ["no"]},
    "bucket_fn": {"num_buckets": [0, 1.5], "max_distance": ["far"], "direction": ["up"], "bidirectional": ["yes"]},
    "learned_rows_fn": {"offset": ["two", 0.5], "padding": ["rigth", 1.5], "table_rows": [-1]},
}


@pytest.mark.parametrize(("convention", "word"), [(name, word) for name, words in ODD.items() for word in words])
def test_what_a_word_cannot_say_is_refused_with_what_it_may_say(convention, word):
    for said in ODD[convention][word]:
        with pytest.raises(ValueError, match=rf"^verify: {word} (must be|cannot be) [^\n]*\.$|Did you mean") as refused:
            spec.read({word: said}, convention)
        assert repr(said)[:50] in str(refused.value)


def test_names_of_variants_depend_on_the_convention():
    assert spec.read({"variant": "Falcon", "window": (7, 7)}, "bias_fn")[0] == {"variant": "falcon", "window": (7, 7)}
    assert "'ours' of the specification" in spec.read({"variant": "ours"}, "additive_module")[1][0]


@pytest.mark.parametrize(
    ("word", "said", "ours", "meant"),
    [
        ("theta", 5e5, "base", 5e5),
        ("num_heads", 8, "heads", 8),
        ("n_buckets", 64, "num_buckets", 64),
        ("max_position_embeddings", 4096, "max_positions", 4096),
        ("rope_scaling", {"rope_type": "linear", "factor": 2.0}, "scaling", {"rope_type": "linear", "factor": 2.0}),
        ("layout", "neox", "layout", "half"),
        ("layout", "gptj", "layout", "interleaved"),
        ("pairing", "meta", "layout", "interleaved"),
        ("encoding", "Rotary", "encoding", "rope"),
        ("partial_rotary_factor", 0.25, "rotary_dim", 16),
        ("base", None, "head_dim", 64),  # nothing is said of it
        ("activation_dtype", torch.bfloat16, "activation_dtype", "bfloat16"),
        ("variant", "Original", "variant", "Original"),
        ("truncate", 1, "truncate", True),
    ],
)
def test_what_others_say_is_translated(word, said, ours, meant):
    assert spec.read({"head_dim": 64, word: said}) == ({"head_dim": 64, ours: meant}, [])


def test_a_foreign_base_is_judged_by():
    rope = posenc.RoPE(head_dim=32, base=500000.0)

    def turn(x, positions):
        return rope.rotate(x, x, rope.place(positions))[0]

    words = {"encoding": "rope", "head_dim": 32, "layout": "neox"}
    assert verify.check(turn, convention="rope_fn", spec=words | {"rope_theta": 500000}).status == "pass"
    found = verify.check(turn, convention="rope_fn", spec=words | {"theta": 10000})
    assert found.status == "fail"
    assert "500,000" in found.causes[0].message


def test_what_nobody_reads_is_told():
    words = {"encoding": "alibi", "heads": 8, "comment": "ours", "score_scale": 1.0}
    report = verify.check(lambda n: [2.0 ** -(h + 1) for h in range(n)], convention="slopes_fn", spec=words)
    unread = [f"'{word}' of the specification, which posenc does not know" for word in ("comment", "score_scale")]
    assert report.not_judged[-2:] == tuple(unread)
    assert spec.read({"encoding": "xyzzy"})[1] == [unread[0].replace("comment", "xyzzy")]


@pytest.mark.parametrize(
    ("convention", "word", "value"),
    [
        ("slopes_fn", "scaling", "linear"),
        ("bucket_fn", "rope_parameters", {"rope_type": "linear", "factor": 2.0}),
        ("rope_fn", "section", [2, 3, 3]),
        ("rope2d_table_fn", "scaling", {"rope_type": "linear", "factor": 4.0}),
        ("mrope_fn", "padding", "left"),
    ],
)
def test_a_word_that_changes_what_is_right_is_read_or_refused(convention, word, value):
    with pytest.raises(ValueError, match=f"{convention} does not read '(scaling|{word})'"):
        spec.read({word: value}, convention)


def test_a_word_that_describes_a_model_is_reported_where_nothing_reads_it():
    assert spec.read({"heads": 8}, "rope_fn") == (
        {"heads": 8}, ["'heads' of the specification, which rope_fn does not read"]
    )  # fmt: skip


def test_the_words_are_those_that_some_convention_reads_or_that_describe():
    read = {word for convention, words in spec.READS.items() if convention != "encoding" for word in words.split()}
    assert sorted(read - spec.WORDS) == []
    assert sorted(spec.WORDS - read - spec.DESCRIBE) == []
    assert spec.WORDS >= LISTED
    assert set(spec.READS) == set(verify.FAMILIES)


def test_the_guide_lists_every_word_and_every_value():
    page = (Path(posenc.__file__).parents[2] / "docs" / "verify.md").read_text(encoding="utf-8")
    listed = {*re.findall(r"[\w@.-]+", page.partition("<!-- generated")[2].partition("<!-- end -->")[0])}
    assert {*spec.READS, *spec.ENCODINGS, *spec.SCALINGS, *spec.ONLY_CONFIG, *spec.LAYOUTS} <= listed
    assert spec.WORDS - {"kind"} <= listed


def test_every_encoding_is_known():
    for encoding in (*registry.names(), "learned_1d", "RoPE", "alibi@falcon", *spec.ENCODINGS):
        assert spec.read({"encoding": encoding}) == ({"encoding": encoding.lower()}, [])


@pytest.mark.parametrize("layout", ["half", "interleaved", "half_cos", "cos_first", "blocks", "concat"])
def test_lanes_of_sinusoids_have_more_orders(layout):
    words = {"encoding": "sinusoidal", "layout": layout}
    assert spec.read(words, "additive_module") == (words, [])


def test_scalings_may_be_dicts_and_come_with_a_configuration():
    for scaling in ({"rope_type": "linear", "factor": 2.0}, "none"):
        assert spec.read({**ROPE, "scaling": scaling})[0]["scaling"] == scaling
    for scaling in ("mrope", "xyzzy"):
        assert spec.read({**ROPE, "scaling": scaling, "config": {"head_dim": 64}})[1] == []
    assert spec.read({"encoding": "learned", "padding": 1}) == ({"encoding": "learned", "padding": 1}, [])
    assert spec.read(None) == ({}, [])
