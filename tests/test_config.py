"""Configurations read within limits, and what they say of the rotation; agreement with transformers is in peers."""

import copy
import json
import math
import os
import random
import tracemalloc

import numpy as np
import pytest
import torch

import sampling
from posenc import config, frequencies
from posenc.config.values import short
from strategies import refuses

LLAMA = {
    "model_type": "llama",
    "hidden_size": 256,
    "num_attention_heads": 4,
    "num_hidden_layers": 4,
    "max_position_embeddings": 8192,
}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 2048}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "original_max_position_embeddings": 1024}
LLAMA3 |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
LONG = {"rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 1024}
LONG |= {"short_factor": [1.0] * 32, "long_factor": [2.0] * 32}


def llama(rope=None, **fields):
    return {**LLAMA, "rope_parameters": {"rope_theta": 1e4} if rope is None else rope, **fields}


def refused(source, *words, layer_type=None, pairing=None, kind=ValueError, **options):
    """Expect one line of an error from the reading of the rotation, or from its frequencies."""
    with refuses(kind, *words) as caught:
        frequencies.from_config(source, layer_type, pairing=pairing, **options)
    return caught


# ---- reading


def test_a_file_its_directory_and_a_mapping_are_the_same(tmp_path):
    source = {"model_type": "llama", "unknown": [None, True, 1, 2.5, "é", {"a": []}], "auto_map": {"A": "evil--x.Y"}}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(source), encoding="utf-8")
    assert config.read(path) == config.read(str(tmp_path)) == config.read(source) == source


def test_a_mapping_is_copied_to_plain_values():
    class Whole(int):
        pass

    inner = {"tuple": (1, 2), 0: "LABEL_0", "whole": Whole(3)}
    out = config.read({"inner": inner})
    assert out == {"inner": {"tuple": [1, 2], "0": "LABEL_0", "whole": 3}}
    assert type(out["inner"]["whole"]) is int
    inner["tuple"] = None
    assert out["inner"]["tuple"] == [1, 2]


def test_nothing_is_imported_or_written(tmp_path):
    before = set(os.listdir(tmp_path))
    (tmp_path / "config.json").write_text('{"auto_map": {"AutoConfig": "code.C"}, "model_type": "x"}', encoding="utf-8")
    (tmp_path / "code.py").write_text("raise SystemExit", encoding="utf-8")
    config.read(tmp_path)
    assert set(os.listdir(tmp_path)) - before == {"config.json", "code.py"}


DEEP = '{"a":' * 40 + "1" + "}" * 40
BAD_FILES = {
    "2 MiB": (b'{"a": "' + b"x" * (2 << 20) + b'"}', "over 1048576 bytes"),
    "deep": (DEEP.encode(), "deeper than 32"),
    "deeper than Python": (b"[" * 500_000, "deeper than 32"),
    "twice": (b'{"rope_theta": 1, "rope_theta": 2}', "'rope_theta' twice"),
    "twice inside": (b'{"a": [{"b": 1, "b": 2}]}', "'b' twice"),
    "NaN": (b'{"rope_theta": NaN}', "NaN"),
    "Infinity": (b'{"a": [Infinity]}', "Infinity"),
    "-Infinity": (b'{"a": -Infinity}', "-Infinity"),
    "beyond float64": (b'{"a": 1e999}', "finite"),
    "many digits": (b'{"a": ' + b"1" * 5000 + b"}", "5000 digits"),
    "a list": (b"[1]", "JSON object"),
    "a number": (b"1", "JSON object"),
    "empty": (b"", "not JSON"),
    "cut off": (b'{"a": ', "not JSON"),
    "latin": (b'{"a": "\xff"}', "not JSON in UTF-8"),
    "long string": (b'{"a": "' + b"x" * 70_000 + b'"}', "65536 characters"),
    "long key": (b'{"' + b"k" * 600 + b'": 1}', "512 characters"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_files_beyond_the_limits_are_refused(name, tmp_path):
    data, words = BAD_FILES[name]
    (tmp_path / "config.json").write_bytes(data)
    with pytest.raises(ValueError, match="config.read: ") as caught:
        config.read(tmp_path)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_just_within_the_limits(tmp_path):
    path = tmp_path / "config.json"
    path.write_text('{"a":' * 32 + "1" + "}" * 32, encoding="utf-8")
    config.read(path)
    head, tail = '{"a": 1, "b": "', '"}'
    blank = " " * ((1 << 20) - len(head) - len(tail) - 10)
    path.write_text(head + "x" * 10 + tail + blank, encoding="utf-8")
    assert path.stat().st_size == 1 << 20
    assert config.read(path)["b"] == "x" * 10


def test_missing_files_and_other_kinds(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no file"):
        config.read(tmp_path)
    with pytest.raises(FileNotFoundError, match="there is no file"):
        config.read(tmp_path / "no.json")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FileNotFoundError):
        config.read(tmp_path / "pipe")
    with pytest.raises(FileNotFoundError):
        config.read("a\0b")
    with pytest.raises(ValueError, match="cannot be read"):
        config.read("a" * 5000)
    with refuses(TypeError, "path or a mapping"):
        config.read(3)


def test_mappings_beyond_the_limits():
    many = []
    for _ in range(30):  # one list many times: a file cannot hold it
        many = [many, many]
    endless = {}
    endless["a"] = endless
    for source, kind, words in [
        ({"a": many}, ValueError, "values"),
        (endless, ValueError, "deeper than 32"),
        ({"a": float("nan")}, ValueError, "finite"),
        ({"a": 10**400}, ValueError, "finite"),
        ({"a": {1, 2}}, TypeError, "JSON values"),
        ({"a": {None: 1}}, TypeError, "keys must be strings"),
        ({"a": {0: 1, "0": 2}}, ValueError, "two keys are the same string"),
        ({"a": torch.zeros(2)}, TypeError, "JSON values"),
    ]:
        with pytest.raises(kind) as caught:
            config.read(source)
        assert words in str(caught.value)


# ---- layers


def test_layer_types():
    assert config.layer_types(LLAMA) == {"full_attention": 4}
    assert config.layer_types({**LLAMA, "layer_types": ["sliding_attention"] * 3 + ["full_attention"]}) == {
        "sliding_attention": 3,
        "full_attention": 1,
    }
    gemma = {"model_type": "gemma3_text", "num_hidden_layers": 12}
    assert config.layer_types(gemma) == {"sliding_attention": 10, "full_attention": 2}
    assert config.layer_types({**gemma, "sliding_window_pattern": 4}) == {"sliding_attention": 9, "full_attention": 3}
    exaone = {"model_type": "exaone4", "num_hidden_layers": 8, "sliding_window": 64, "sliding_window_pattern": "LLLG"}
    assert config.layer_types(exaone) == {"sliding_attention": 6, "nope": 2}
    assert config.layer_types({**exaone, "sliding_window": None}) == {"full_attention": 8}
    scout = {"model_type": "llama4_text", "num_hidden_layers": 48}
    assert config.layer_types(scout) == {"chunked_attention": 36, "nope": 12}
    listed = {**scout, "num_hidden_layers": 3, "no_rope_layers": [0, 1, 1]}  # 0 says that there is no rotation
    assert config.layer_types(listed) == {"nope": 1, "chunked_attention": 2}
    cohere = {"model_type": "cohere2", "num_hidden_layers": 8, "sliding_window": 4096}
    assert config.layer_types(cohere) == {"sliding_attention": 6, "nope": 2}
    assert config.layer_types({"model_type": "falcon", "num_hidden_layers": 2, "alibi": True}) == {"nope": 2}
    swa = {"model_type": "granite_swa", "num_hidden_layers": 4, "layer_rope_theta": [0, 1e4, 1e4, 1e4]}
    assert config.layer_types(swa) == {"nope": 1, "sliding_attention": 3}
    beam = {"model_type": "beam", "num_hidden_layers": 6}
    beam["rope_parameters"] = {"sliding_attention": {"rope_theta": 1e4}, "full_attention": None}
    assert config.layer_types(beam) == {"sliding_attention": 5, "nope": 1}
    assert config.layer_types({**beam, "rope_parameters": None}) == {"sliding_attention": 5, "nope": 1}
    mistral = {"model_type": "mistral", "num_hidden_layers": 2, "sliding_window": 4096}
    assert config.layer_types(mistral) == {"sliding_attention": 2}
    assert config.rotary({**LLAMA, **mistral}).window == 4096
    next_ = {"model_type": "qwen3_next", "num_hidden_layers": 8, "full_attention_interval": 2}
    assert config.layer_types(next_) == {"linear_attention": 4, "full_attention": 4}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"num_hidden_layers": None}, "num_hidden_layers is missing"),
        ({"num_hidden_layers": 10_001}, "from 1 to 10000"),
        ({"num_hidden_layers": 10**30}, "from 1 to 10000"),
        ({"num_hidden_layers": 0}, "from 1 to 10000"),
        ({"layer_types": ["full_attention"] * 3}, "one entry for each of the 4 layers; got 3"),
        ({"layer_types": []}, "empty list"),
        ({"layer_types": ["x" * 100] * 4}, "names of kinds"),
        ({"num_hidden_layers": 70, "layer_types": [f"kind_{i}" for i in range(70)]}, "at most 64 kinds of layers; got"),
        (
            {"model_type": "cohere2_moe", "mlp_layer_types": ["dense"]},
            "mlp_layer_types must have one entry for each of the 4 layers",
        ),
        ({"model_type": "cohere2_moe", "first_k_dense_replace": 5}, "first_k_dense_replace must be from 0 to 4; got 5"),
        ({"model_type": "mllama_text_model", "cross_attention_layers": [-1]}, "entry must be from 0"),
        ({"model_type": "hrm_text", "num_hidden_layers": 2000}, "over all cycles must be from 1 to 10000; got 16000"),
        ({"no_rope_layers": [1, 0]}, "one entry for each of the 4 layers; got 2"),
        ({"num_hidden_layers": None, "layer_types": ["full_attention"] * 10_001}, "at most 10000"),
    ],
)
def test_layers_that_do_not_agree(fields, words):
    with pytest.raises(ValueError, match=words):
        config.layer_types({**LLAMA, **fields})


# ---- the rotation


def test_kinds_that_differ_must_be_named():
    gemma = {"model_type": "gemma3_text", "num_hidden_layers": 6, "rope_theta": 1e6, "rope_local_base_freq": 1e4}
    refused(gemma, "layer_type must be given", "'sliding_attention', 'full_attention'")
    assert config.rotary(gemma, "full_attention").base == 1e6
    assert config.rotary(gemma, "sliding_attention").base == 1e4
    refused(LLAMA, "here 'full_attention'", layer_type="nope")
    still = {"model_type": "smollm3", "num_hidden_layers": 2, "no_rope_layers": [0, 0]}
    refused(still, "no layer of this model rotates")
    nested = llama({"full_attention": {"rope_theta": 1e4}, "sliding_attention": {"rope_theta": 2e4}})
    assert config.rotary(nested, "sliding_attention").base == 2e4
    four = ["full_attention"] * 3 + ["chunked_attention"]
    refused({**nested, "layer_types": four}, "none for chunked_attention", layer_type="chunked_attention")


def test_an_unknown_model_type_and_a_pairing_of_the_callers():
    odd = {**LLAMA, "model_type": "lama"}
    refused(odd, "model_type must be one of", "near llama", "Pass pairing=")
    refused({**LLAMA, "model_type": None}, "model_type must be one of")
    assert config.rotary(odd, pairing="interleaved").pairing == "interleaved"
    assert config.rotary(LLAMA, pairing="interleaved").pairing == "interleaved"
    assert frequencies.from_config(odd, pairing="half").rotary_dim == 64
    with refuses(ValueError, "'half' or 'interleaved'"):
        config.rotary(LLAMA, pairing="neox")


def test_pairing_by_type():
    for name, pairing in {
        "llama": "half",
        "gptj": "interleaved",
        "codegen": "interleaved",
        "gpt_neox": "half",
        "cohere": "interleaved",
        "glm": "interleaved",
        "glm4_moe": "half",
        "ernie4_5": "interleaved",
        "llama4_text": "interleaved",
        "helium": "interleaved",
        "deepseek_v2": "interleaved",
        "qwen3": "half",
        "minicpm3": "half",
        "roformer": "interleaved",
    }.items():
        assert config.rotary({"model_type": name, "head_dim": 64}).pairing == pairing, name
    assert config.rotary({"model_type": "deepseek_v3"}).pairing == "interleaved"
    assert config.rotary({"model_type": "deepseek_v3", "rope_interleave": False}).pairing == "half"
    refused({"model_type": "deepseek_v3", "rope_interleave": 1}, "true or false", kind=TypeError)


def test_parts_of_a_head():
    neox = {"model_type": "gpt_neox", "hidden_size": 6144, "num_attention_heads": 64}
    assert config.rotary(neox).rotary_dim == 24
    assert config.rotary({**neox, "rotary_pct": 0.5}).rotary_dim == 48
    assert config.rotary({**LLAMA, "model_type": "phi", "partial_rotary_factor": 0.667}).rotary_dim == 42  # of 42.7
    gptj = {"model_type": "gptj", "n_embd": 4096, "n_head": 16}
    found = config.rotary({**gptj, "rotary_dim": 32, "n_positions": 2048})
    assert (found.head_dim, found.rotary_dim, found.rotary_side, found.max_len) == (256, 32, "first", 2048)
    assert config.rotary(gptj).rotary_dim == 64
    latent = config.rotary({"model_type": "deepseek_v2", "qk_rope_head_dim": 32, "qk_nope_head_dim": 96})
    assert (latent.head_dim, latent.rotary_dim, latent.rotary_side) == (128, 32, "last")
    whole = config.rotary(llama({"rope_type": "proportional", "rope_theta": 1e4, "partial_rotary_factor": 0.25}))
    assert (whole.rotary_dim, whole.parameters["share"]) == (64, 0.25)
    single = {"model_type": "gemma4_text", "head_dim": 64, "num_hidden_layers": 2}
    single |= {"layer_types": ["sliding_attention", "full_attention"], "per_layer_config": {"01": {"head_dim": 128}}}
    both = {"sliding_attention": {"rope_theta": 1e4}, "full_attention": {"rope_theta": 1e6, "rope_type": "default"}}
    single["rope_parameters"] = both
    assert config.rotary(single, "full_attention").head_dim == 128
    assert config.rotary(single, "sliding_attention").head_dim == 64
    outer = {**single, "per_layer_config": None, "global_head_dim": 256}
    assert config.rotary(outer, "full_attention").head_dim == 256


def test_a_text_inside_a_model_of_several_parts():
    omni = {"model_type": "qwen2_5_omni", "thinker_config": {"text_config": {**LLAMA, "rope_theta": 123.0}}}
    assert config.rotary(omni).base == 123
    flat = {**LLAMA, "model_type": "qwen2_vl", "rope_theta": 1e6}
    flat["rope_scaling"] = {"type": "mrope", "mrope_section": [8, 12, 12]}
    found = config.rotary(flat)
    assert (found.rope_type, found.spelling) == ("default", "rope_scaling")
    assert (found.sections, found.layout) == ((8, 12, 12), "blocks")
    flat["rope_scaling"]["mrope_section"] = [8, 12, 13]
    refused(flat, "add up to the 32 pairs", "got 33")


@pytest.mark.parametrize(
    ("name", "own", "sections", "layout"),
    [
        ("qwen2_vl", {}, None, None),  # 16, 24, 24 in 32 pairs: it does not run
        ("qwen2_vl", {"mrope_section": [8, 12, 12], "mrope_interleaved": True}, (8, 12, 12), "blocks"),
        ("glm4v", {}, (8, 12, 12), "blocks"),
        ("qwen3_vl", {}, (11, 11, 10), "interleaved"),
        ("qwen3_vl", {"mrope_section": [16, 8, 8]}, (16, 8, 8), "interleaved"),
        ("ernie4_5_vl_moe", {"mrope_section": [13, 13, 6]}, (6, 13, 13), "time_last"),  # written row, column, time
        ("neomme", {"full_attention": {}, "sliding_attention": {}}, (16, 16), "interleaved"),
        ("hunyuan_vl", {"mrope_section": [8, 8, 8, 8]}, (8, 8, 8, 8), "doubled"),
        ("hunyuan_vl", {}, None, None),
        ("llama", {"mrope_section": [8, 12, 12]}, None, None),  # which does not read it
        ("mine", {"mrope_section": [8, 12, 12]}, (8, 12, 12), "blocks"),
        ("mine", {"mrope_section": [12, 10, 10], "mrope_interleaved": True}, (12, 10, 10), "interleaved"),
        ("mine", {}, None, None),
    ],
)
def test_the_axes_of_a_type(name, own, sections, layout):
    kind = "full_attention" if name == "neomme" else None
    fields = {"model_type": name, "head_dim": 64, "num_hidden_layers": 2, "rope_parameters": own}
    found = config.rotary(fields, kind, pairing="half" if name == "mine" else None)
    assert (found.sections, found.layout) == (sections, layout)


@pytest.mark.parametrize("bad", [[8, 12, "12"], [8, 12, 12.0], [True] * 32, "8"])
def test_sections_of_another_kind(bad):
    refused(
        {**LLAMA, "model_type": "qwen2_vl", "rope_scaling": {"mrope_section": bad}}, "mrope_section", kind=TypeError
    )


@pytest.mark.parametrize("bad", [{}, [-8, 20, 20], [32] + [0] * 64, [], [16, 8, 7], [16, 16], [8, 8, 8, 8]])
def test_sections_that_cannot_be(bad):
    refused({**LLAMA, "model_type": "qwen2_vl", "rope_scaling": {"mrope_section": bad}}, "mrope_section")


def test_frequencies_by_hand():
    plain = frequencies.from_config(llama())
    assert plain.inv_freq.dtype == np.float64
    assert plain.inv_freq.tolist() == pytest.approx([1e4 ** (-k / 32) for k in range(32)], rel=1e-14)
    assert (plain.gain, plain.score_factor, plain.rotary_dim, plain.pairing) == (1.0, 1.0, 64, "half")
    linear = frequencies.from_config(llama({"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}))
    np.testing.assert_array_equal(linear.inv_freq, plain.inv_freq / 4)
    dynamic = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
    np.testing.assert_array_equal(frequencies.from_config(llama(dynamic)).inv_freq, plain.inv_freq)
    longer = frequencies.from_config(llama(dynamic), seq_len=16384).inv_freq
    assert float(longer[-1]) == pytest.approx(float(plain.inv_freq[-1]) / 3, rel=1e-12)  # 2 * 2 - 1
    yarn = frequencies.from_config(llama(YARN))
    assert yarn.gain == pytest.approx(1 + 0.1 * math.log(4), rel=1e-14)
    assert float(yarn.inv_freq[-1]) == pytest.approx(float(plain.inv_freq[-1]) / 4, rel=1e-14)
    long = [frequencies.from_config(llama(LONG), seq_len=n) for n in (None, 1024, 1025)]
    assert [float(one.inv_freq[0]) for one in long] == [1.0, 1.0, 0.5]
    assert long[0].gain == pytest.approx(math.sqrt(1 + math.log(8) / math.log(1024)), rel=1e-14)


def test_deepseek_multiplies_all_scores():
    rope = {**YARN, "factor": 40.0, "mscale": 1.0, "mscale_all_dim": 1.0}
    found = frequencies.from_config({**LLAMA, "model_type": "deepseek_v3", "rope_parameters": rope})
    assert (found.gain, found.score_factor) == (1.0, pytest.approx(1.3688879454113936**2, rel=1e-12))
    assert frequencies.from_config(llama(rope)).score_factor == 1.0
    kimi = {**LLAMA, "model_type": "kimi", "qk_nope_head_dim": 64, "qk_rope_head_dim": 64, "rope_parameters": rope}
    assert frequencies.from_config(kimi, pairing="interleaved").score_factor > 1.8


# ---- ranges


def with_rope(rope, **changes):
    return llama({**rope, **changes})


REFUSED = {
    "base 1": (llama({"rope_theta": 1.0}), ValueError, "rope_theta must be above 1"),
    "base 0": (llama({"rope_theta": 0}), ValueError, "rope_theta must be above 1"),
    "base negative": (llama({"rope_theta": -1e4}), ValueError, "rope_theta must be above 1"),
    "base large": (llama({"rope_theta": 1.1e12}), ValueError, "at most 1e+12"),
    "base true": (llama({"rope_theta": True}), TypeError, "must be a number; got True"),
    "base text": (llama({"rope_theta": "1e4"}), TypeError, "must be a number; got '1e4'"),
    "factor below 1": (with_rope(YARN, factor=0.5), ValueError, "factor must be at least 1"),
    "factor large": (with_rope(YARN, factor=10_001), ValueError, "at most 10000"),
    "factor missing": (llama({"rope_type": "linear", "rope_theta": 1e4}), ValueError, "factor is missing"),
    "gain zero": (with_rope(YARN, attention_factor=0.0), ValueError, "attention_factor must be above 0"),
    "beta zero": (with_rope(YARN, beta_slow=0), ValueError, "beta_slow must be above 0"),
    "beta negative": (with_rope(YARN, beta_fast=-1), ValueError, "beta_fast must be above 0"),
    "truncate": (with_rope(YARN, truncate=0), TypeError, "truncate must be true or false"),
    "turns missing": (with_rope(LLAMA3, low_freq_factor=None), ValueError, "low_freq_factor is missing"),
    "turns zero": (with_rope(LLAMA3, low_freq_factor=0), ValueError, "low_freq_factor must be above 0"),
    "trained float": (with_rope(YARN, original_max_position_embeddings=2048.0), TypeError, "must be an integer"),
    "trained true": (with_rope(YARN, original_max_position_embeddings=True), TypeError, "must be an integer"),
    "trained 1": (with_rope(LONG, original_max_position_embeddings=1), ValueError, "from 2 to"),
    "short list": (with_rope(LONG, short_factor=[1.0] * 31), ValueError, "short_factor must have 32 entries"),
    "long list": (with_rope(LONG, short_factor=[1.0] * 33), ValueError, "short_factor must have 32 entries"),
    "no list": (with_rope(LONG, short_factor=None), ValueError, "got 0"),
    "a zero in the list": (with_rope(LONG, short_factor=[0.0] * 32), ValueError, "at least 1e-06"),
    "a word in the list": (with_rope(LONG, long_factor=["2"] * 32), TypeError, "must be a number"),
    "no list at all": (with_rope(LONG, long_factor=2.0), TypeError, "must be a list"),
    "endless list": (with_rope(LONG, long_factor=[1.0] * 5000), ValueError, "at most 4096"),
    "head odd": (llama(head_dim=65), ValueError, "because they rotate in pairs; got 65 of 65"),
    "head wide": (llama(head_dim=8194), ValueError, "from 1 to 8192"),
    "head wide by division": (llama(hidden_size=1 << 20, num_attention_heads=1), ValueError, "at most 8192"),
    "head true": (llama(head_dim=True), TypeError, "must be an integer"),
    "no heads": (llama(num_attention_heads=0), ValueError, "num_attention_heads must be from 1"),
    "no width": ({"model_type": "blt", "num_hidden_layers": 1}, ValueError, "got neither head_dim nor both"),
    "part zero": ({**llama(), "model_type": "phi", "partial_rotary_factor": 0.0}, ValueError, "must be above 0"),
    "part above 1": ({**llama(), "model_type": "phi", "partial_rotary_factor": 1.5}, ValueError, "at most 1"),
    "part odd": ({**llama(), "model_type": "phi", "partial_rotary_factor": 0.3}, ValueError, "got 19 of 64"),
    "more than the head": ({"model_type": "gptj", "head_dim": 32, "rotary_dim": 64}, ValueError, "got 64 of 32"),
    "no object": (llama([1]), TypeError, "rope_parameters must be an object"),
    "type no string": (llama({"rope_type": 3}), TypeError, "rope_type must be a string"),
    "type unknown": (llama({"rope_type": "magic", "rope_theta": 1e4}), ValueError, "got 'magic'"),
    "model type": ({"model_type": ["llama"]}, TypeError, "model_type must be a string"),
    "max below trained": (with_rope(LONG, original_max_position_embeddings=10**5), ValueError, "over the trained"),
    "scaling of its own": ({"model_type": "gpt_oss", "head_dim": 64}, ValueError, "rope_parameters is missing"),
    "bases differ": (
        {**LLAMA, "model_type": "granite_swa", "layer_rope_theta": [1e4, 2e4], "layer_types": ["full_attention"] * 2}
        | {"num_hidden_layers": 2},
        ValueError,
        "got 2 bases",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_out_of_range(name):
    source, kind, words = REFUSED[name]
    with pytest.raises(kind) as caught:
        frequencies.from_config(source)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith(".")


def test_a_list_is_needed_only_at_its_lengths():
    wrong = with_rope(LONG, long_factor=[1.0] * 31)
    assert frequencies.from_config(wrong, seq_len=1024).gain > 1
    refused(wrong, "long_factor must have 32 entries", "got 31", seq_len=1025)


def test_lengths_of_the_caller():
    refused(llama(), "seq_len must be from 1", seq_len=0)
    refused(llama(), "seq_len must be from 1", seq_len=10**400)
    refused(llama(), "seq_len must be an integer", seq_len=1.5, kind=TypeError)
    refused(llama(), "seq_len must be an integer", seq_len=True, kind=TypeError)


# ---- warnings

SLIDING = ["sliding_attention", "full_attention"] * 2
WARNINGS = {
    "theta_missing": (LLAMA, "rope_theta is missing; 10000 is used."),
    "nested_truncate": (llama({"full_attention": {**YARN, "truncate": False}}), "no effect"),
    "attn_factor": (with_rope(YARN, attn_factor=1.5), "not read"),
    "original_missing": (with_rope(YARN, original_max_position_embeddings=None), "8192 is used"),
    "original_is_max": (with_rope(YARN, original_max_position_embeddings=8192), "equals"),
    "original_unread": (
        llama({"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 4096}),
        "reads 8192",
    ),
    "list_length": (with_rope(LONG, long_factor=[1.0] * 31), "32 entries"),
    "list_missing": (with_rope(LONG, long_factor=None), "missing"),
    "long_unread": ({**with_rope(LONG), "model_type": "phimoe"}, "every length"),
    "dynamic_cache": (llama({"rope_type": "dynamic", "factor": 2.0}), "cache"),
    "window_scaled": (
        {**with_rope(YARN), "layer_types": ["sliding_attention"] * 4, "sliding_window": 512},
        "never sees beyond 512",
    ),
    "unscaled": (llama(original_max_position_embeddings=4096), "8192 is above the trained length 4096"),
    "betas_swapped": (with_rope(YARN, beta_fast=1.0, beta_slow=32.0), "reversed"),
    "betas_equal": (with_rope(YARN, beta_fast=4, beta_slow=4), "above"),
    "turns_equal": (with_rope(LLAMA3, low_freq_factor=4.0), "above"),
    "turns_swapped": (with_rope(LLAMA3, low_freq_factor=8.0), "above"),
    "unknown_type": (llama({"rope_type": "magic"}), "unknown"),
    "two_spellings": (llama(rope_scaling={"rope_type": "linear", "factor": 2.0}), "rope_scaling is used"),
    "factor_missing": (with_rope(YARN, factor=None), "over the trained length"),
    "factor_differs": (with_rope(YARN, factor=3.0), "factor 3 is used"),
    "share_unread": (llama(partial_rotary_factor=0.5), "the whole head rotates"),
    "sections_unread": (llama({"rope_theta": 1e4, "mrope_section": [8, 12, 12]}), "all pairs read one position"),
    "sections_misfit": (
        {**llama({"mrope_section": [8, 12, 12]}, head_dim=64), "model_type": "qwen3_vl_text"},
        "gives the axes [11, 11, 10] pairs",
    ),
    "assumed": ({"model_type": "llama"}, "4096 is used"),
    "clockwise": ({**LLAMA, "model_type": "nanochat"}, "clockwise"),
    "learned": ({**LLAMA, "model_type": "mistral_large4_text", "rope_parameters": YARN}, "learns"),
}


@pytest.mark.parametrize("code", WARNINGS)
def test_warnings(code):
    source, words = WARNINGS[code]
    kind = "full_attention" if code == "nested_truncate" else None
    found = [one for one in config.rotary(source, kind).warnings if one.code == code]
    assert len(found) >= 1
    assert words in found[0].message
    assert found[0].key
    assert "\n" not in found[0].message
    good = llama(LONG if "list" in code else LLAMA3 if "turns" in code else YARN)
    assert code not in [one.code for one in config.rotary(good).warnings]


def test_a_sound_file_has_no_warnings():
    for rope in (None, YARN, LONG):
        assert config.rotary(llama(rope)).warnings == ()


def test_an_unknown_type_lists_the_known():
    with pytest.raises(ValueError, match="got 'lama', near .*llama") as caught:
        config.rotary({"model_type": "lama", "num_hidden_layers": 2})
    assert str(caught.value).endswith(f"Known: {', '.join(sorted(config.MODEL_TYPES))}.")


def test_a_sliding_layer_that_is_scaled_is_odd_whether_or_not_its_window_is_told():
    own = {
        "sliding_attention": YARN | {"rope_theta": 1e4},
        "full_attention": {"rope_type": "default", "rope_theta": 1e6},
    }
    gemma = {"model_type": "gemma3_text", "num_hidden_layers": 6, "head_dim": 64, "rope_parameters": own}
    for window in ({}, {"sliding_window": 512}):
        found = config.rotary(gemma | window, "sliding_attention")
        assert "window_scaled" in [one.code for one in found.warnings]
        assert "window_scaled" not in [one.code for one in config.rotary(gemma | window, "full_attention").warnings]


def test_the_old_spelling_is_taken_where_both_stand():
    found = config.rotary(WARNINGS["two_spellings"][0])
    assert (found.rope_type, found.factor, found.spelling) == ("linear", 2.0, "rope_scaling")


def test_what_a_sliding_layer_does_not_say():
    sliding = {**with_rope(YARN), "layer_types": SLIDING, "sliding_window": 512}
    assert "window_scaled" not in [one.code for one in config.rotary(sliding).warnings]  # of full attention
    assert config.rotary(sliding).window is None
    assert config.rotary(sliding, "sliding_attention").window == 512


def test_short():
    assert short("a\nb") == "'a\\nb'"
    assert short(10**5000) == "an integer of 16610 bits"
    assert short([1] * 10**6) == "list of 1000000 entries"
    assert len(short("x" * 10**6)) < 60


# ---- fuzz

SEEDS = [
    LLAMA,
    llama(YARN),
    llama(LLAMA3),
    llama(LONG),
    llama({"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}),
    llama({"rope_type": "proportional", "rope_theta": 1e4, "partial_rotary_factor": 0.25}),
    llama({"full_attention": YARN, "sliding_attention": {"rope_theta": 1e4}}, layer_types=SLIDING, sliding_window=64),
    {**LLAMA, "model_type": "gpt_neox", "rotary_pct": 0.25, "rotary_emb_base": 10000},
    {"model_type": "gptj", "n_embd": 256, "n_head": 4, "n_layer": 2, "rotary_dim": 32, "n_positions": 64},
    {"model_type": "deepseek_v3", "rope_scaling": {**YARN, "mscale": 1, "mscale_all_dim": 1}, "num_hidden_layers": 2},
    {"model_type": "llama4_text", "num_hidden_layers": 4, "no_rope_layers": [1, 0, 1, 0], "attention_chunk_size": 8},
    {"model_type": "gemma3_text", "num_hidden_layers": 6, "sliding_window_pattern": 6, "sliding_window": 32},
    {"model_type": "exaone4", "num_hidden_layers": 6, "sliding_window_pattern": "LLLG", "sliding_window": 32},
    {"model_type": "qwen2_vl", "text_config": llama({"type": "mrope", "mrope_section": [8, 12, 12]})},
    {**LLAMA, "model_type": "phi3", "rope_scaling": {**LONG, "rope_type": "su"}},
    {**LLAMA, "model_type": "granite_swa", "layer_rope_theta": [0, 1e4, 1e4, 1e4]},
    {**LLAMA, "model_type": "gemma4_text", "per_layer_config": {"3": {"head_dim": 32}}, "global_head_dim": 64},
    {**LLAMA, "model_type": "qwen2", "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 2},
    {**LLAMA, "model_type": "hunyuan_v1_dense", "rope_scaling": {"type": "dynamic", "alpha": 1000.0, "factor": 1.0}},
    {**LLAMA, "model_type": "bamba", "attn_layer_indices": [1, 3]},
]  # fmt: skip
NASTY = [
    None,
    True,
    False,
    0,
    1,
    2,
    -1,
    3,
    7,
    64,
    8192,
    10_000,
    10_001,
    2**31,
    2**63,
    10**18,
    10**300,
    10**400,
    10**5000,
]
NASTY += [0.0, -0.0, 0.5, 1.0, 1.5, -2.5, 1e-320, 1e-5, 1e12, 1.0000000000000002, 1e308, math.inf, math.nan, "", "x"]
NASTY += [
    "yarn",
    "longrope",
    "su",
    "mrope",
    "default",
    "llama",
    "a\nb",
    "\0",
    "é" * 300,
    "x" * 70_000,
    [],
    {},
    [1],
    [[]],
]
NASTY += [[1.0] * 32, [0] * 4, ["full_attention"] * 4, [None] * 10_001, {"full_attention": {}}, {"a": None}, object()]
NASTY += [{"full_attention": {"rope_theta": 5.0}}, {"rope_type": "yarn", "factor": 2}, {"": {}}, (1, 2), b"x", 1j]


def places(value, path=()):
    """Every place in nested values."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in list(items):
        yield (*path, key)
        yield from places(inner, (*path, key))


KEYS = [key for seed in SEEDS for path in places(seed) if isinstance(key := path[-1], str)]


def mangle(source, rng):
    """Change, drop, move or add a few values anywhere."""
    out = copy.deepcopy(source)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        spots = list(places(out))
        if not spots:
            break
        *path, last = rng.choice(spots)
        inner = out
        for key in path:
            inner = inner[key]
        way = rng.random()
        if way < 0.6:
            inner[last] = copy.deepcopy(rng.choice(NASTY))
        elif way < 0.75:
            del inner[last]
        elif isinstance(inner, dict):
            inner[rng.choice(KEYS)] = inner[last] if way < 0.85 else copy.deepcopy(rng.choice(NASTY))
    return out


def outcome(source, rng):
    """Whether a configuration is valid; an error must be clean."""
    kind = rng.choice([None] * 7 + ["full_attention"] * 7 + ["sliding_attention", "x" * 500])
    pairing, seq_len = rng.choice([None, None, "half"]), rng.choice([None, 1, 5000, 10**12])
    try:
        config.layer_types(source)
    except (ValueError, TypeError) as error:
        clean(error)
    try:
        rotary = config.rotary(source, kind, pairing=pairing)
        found = frequencies.from_config(source, kind, pairing=pairing, seq_len=seq_len)
    except (ValueError, TypeError) as error:
        clean(error)
        return False
    assert found.inv_freq.shape == (rotary.rotary_dim // 2,)
    assert np.isfinite(found.inv_freq).all()
    assert (found.inv_freq >= 0).all()
    assert 0 < found.gain < math.inf
    assert 0 < found.score_factor < math.inf
    assert 2 <= rotary.rotary_dim <= rotary.head_dim <= 8192
    return True


def clean(error):
    assert type(error) in (ValueError, TypeError), repr(error)
    message = str(error)
    assert "\n" not in message
    assert 20 < len(message.partition(" Known: ")[0]) < 600, message  # an unknown type lists the known
    assert message.endswith("."), message


def test_mangled_configurations_are_valid_or_cleanly_refused():
    rng = random.Random(0)
    tries = round(10_000 * sampling.property_share)
    valid = sum(outcome(mangle(rng.choice(SEEDS), rng), rng) for _ in range(tries))
    assert 0.15 * tries < valid < 0.8 * tries


@pytest.mark.slow
def test_mangled_configurations_take_little_memory():
    rng = random.Random(1)
    sources = [mangle(rng.choice(SEEDS), rng) for _ in range(1000)]
    tracemalloc.start()
    try:
        for source in sources:
            outcome(source, rng)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 8 << 20


def test_the_seeds_are_valid():
    for source in SEEDS:
        kinds = [kind for kind in config.layer_types({"num_hidden_layers": 4, **source}) if kind != "nope"]
        assert kinds
        rng = random.Random(0)
        for kind in kinds:
            if kind != "linear_attention" and source.get("model_type") != "gemma4_text":
                frequencies.from_config(source, kind)
        outcome(source, rng)
