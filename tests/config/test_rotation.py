"""What a configuration says of the rotation; agreement with transformers is in peers."""

import math

import numpy as np
import pytest

from config_sources import LLAMA, LONG, YARN, llama, refused
from posenc import config, frequencies
from strategies import refuses


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
        ("neomme", {"full_attention": {}, "sliding_attention": {}}, (4, 4), "interleaved"),  # a quarter of the head
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
