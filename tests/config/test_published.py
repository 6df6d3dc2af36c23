"""Files as their publishers spell them: numbers by hand. That classes of transformers agree is in peers."""

import json

import pytest

import posenc
from config_sources import LLAMA, refused
from posenc import config, frequencies, inspection
from posenc.verify.configs import judge
from published_sources import (
    ALIKE,
    APART,
    CSA,
    FULL,
    HCA,
    HUNYUAN,
    LENGTH,
    PARAMS,
    RIGHT,
    SLIDING,
    STEP,
    V4,
    scaled,
    without,
)

# the file, a kind of layer, its number of layers, base, rotating dimensions, type, gain, and the slowest pair
KINDS = [
    (V4, SLIDING, 2, 1e4, 64, "default", 1.0, 1e4 ** (-62 / 64)),
    (V4, CSA, 3, 1.6e5, 64, "yarn", 1.0, 1.6e5 ** (-62 / 64) / 16),
    (V4, HCA, 2, 1.6e5, 64, "yarn", 1.0, 1.6e5 ** (-62 / 64) / 16),
    (STEP, FULL, 2, 5e6, 64, "llama3", 1.0, 5e6 ** (-62 / 64) / 2),
    (STEP, SLIDING, 3, 1e4, 128, "default", 1.0, 1e4 ** (-126 / 128)),
    (HUNYUAN, FULL, 24, 1e4, 128, "ntk_alpha", 1.0, 11158839.925 ** (-126 / 128)),
    (PARAMS, FULL, 8, 1e6, 128, "yarn", 1.0, 1e6 ** (-126 / 128) / 16),
    ({**PARAMS, "yarn": {**PARAMS["yarn"], "apply_scale": True}}, FULL, 8, 1e6, 128, "yarn", 1.2772588722239782,
        1e6 ** (-126 / 128) / 16),
    # Ministral 8B: a window in three of four layers
    ({**without(PARAMS, "yarn", "llama_4_scaling"), "_sliding_window": [None, 32768, 32768, 32768]}, SLIDING, 6, 1e6,
        128, "default", 1.0, 1e6 ** (-126 / 128)),
    # Mistral Large 3: latent attention
    ({**PARAMS, "head_dim": 192, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128}, FULL, 8, 1e6, 64, "yarn", 1.0,
        1e6 ** (-62 / 64) / 16),
    # types that transformers does not know, with lists as in DeepSeek-V4 and Step-3.5
    ({**V4, "model_type": "deepseek_v9"}, SLIDING, 2, 1e4, 64, "default", 1.0, 1e4 ** (-62 / 64)),
    ({**V4, "model_type": "deepseek_v9"}, HCA, 2, 1.6e5, 64, "yarn", 1.0, 1.6e5 ** (-62 / 64) / 16),
    ({**STEP, "model_type": "step9"}, FULL, 2, 5e6, 64, "llama3", 1.0, 5e6 ** (-62 / 64) / 2),
    # more entries than layers
    ({**LLAMA, "model_type": "smollm3", "rope_theta": 2e6, "no_rope_layers": [1, 1, 1, 0, 0, 0]}, FULL, 3, 2e6, 64,
        "default", 1.0, 2e6 ** (-62 / 64)),
    ({**STEP, "model_type": "step9", "use_rope_layers": [1, 1, 0, 1, 1, 1, 1]}, "nope", 1, *[None] * 5),
]  # fmt: skip


@pytest.mark.parametrize(("source", "kind", "count", "base", "rotary_dim", "name", "gain", "slowest"), KINDS)
def test_a_kind_of_layer(source, kind, count, base, rotary_dim, name, gain, slowest):
    assert config.layer_types(source)[kind] == count
    if base is None:
        return
    rotary = config.rotary(source, kind, pairing="interleaved")
    found = frequencies.from_config(source, kind, pairing="interleaved")
    assert (rotary.base, rotary.rotary_dim, rotary.rope_type) == (base, rotary_dim, name)
    assert found.gain * found.score_factor == pytest.approx(gain, rel=1e-12)
    assert float(found.inv_freq[-1]) == pytest.approx(slowest, rel=1e-9)


def test_layers_are_constructed_in_their_order():
    assert posenc.PerLayer.from_config(V4).index == (0, 0, 1, 1, 1, 1, 1)  # both compressed kinds rotate alike
    assert posenc.PerLayer.from_config(STEP).index == (0, 1, 1, 1, 0)
    assert config.rotary(HUNYUAN).sections == (16, 16, 16, 16)
    assert config.rotary(V4, CSA).rotary_side == "last"


@pytest.mark.parametrize("name", RIGHT | ALIKE)
def test_nothing_is_found_in_a_right_file(name):
    judged = judge((RIGHT | ALIKE)[name])
    assert [(one.code, one.message) for one in judged.findings] == []
    assert not any("does not know" in line for line in judged.not_judged)


@pytest.mark.parametrize("source", [V4, STEP])
def test_nothing_is_found_in_a_file_of_a_similar_type(source):
    assert judge({**source, "model_type": "mine"}, pairing="half").findings == ()


@pytest.mark.parametrize("name", APART)
def test_what_is_not_read_is_found(name):
    fields, code = APART[name]
    assert code in {one.code for one in judge(fields).findings}


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ({**V4, "compress_ratios": [8] * 7}, "0, 4 or 128 for each layer"),
        ({**V4, "compress_ratios": [0] * 6}, "one entry for each of the 7 layers; got 6"),
        ({**STEP, "rope_theta": [5e6] * 4}, "rope_theta must have one entry for each of the 5 layers; got 4"),
        ({**STEP, "rope_theta": [1e6 + k for k in range(7)]}, "rope_theta must agree among layers of sliding"),
        (without(STEP, "num_nextn_predict_layers"), "one entry for each of the 5 layers; got 7"),
        (scaled(HUNYUAN, mrope_section=[32, 32]), "xdrope_section and mrope_section must agree"),
        ({**PARAMS, "llama_4_scaling": {LENGTH: 8192, "beta": 0.1}}, "must have the same original_max_position"),
        ({**PARAMS, "sliding_window": [None, 512, 1024, 512]}, "sliding_window must be one window, or a list"),
        ({**PARAMS, "sliding_window": [None, 512, 512]}, "that divides the 8 layers"),
    ],
)
def test_lists_that_do_not_agree(source, words):
    with pytest.raises(ValueError, match=words):
        inspection.inspect(source, pairing="interleaved")


def test_params_need_a_pairing_and_their_scaling_is_named(tmp_path):
    (tmp_path / "params.json").write_text(json.dumps(PARAMS), encoding="utf-8")
    refused(tmp_path, "pairing must be given for params.json", "--pairing interleaved", "consolidated")
    assert "--pairing interleaved" in judge(PARAMS).because
    judged = judge(tmp_path, pairing="interleaved")
    assert (judged.status, judged.layers) == ("pass", {FULL: 8})
    assert any("yarn and llama_4_scaling" in line for line in judged.not_judged)
    (layer,) = inspection.inspect(tmp_path, pairing="interleaved")["layers"]
    assert layer["also"] == {"query_temperature": {"law": "ministral", "original_max_len": 16384, "weight": 0.1}}


PLAIN = without(PARAMS, "yarn", "llama_4_scaling")


@pytest.mark.parametrize(
    ("source", "key"),
    [
        ({**PARAMS, "yarn": without(PARAMS["yarn"], "apply_scale")}, "yarn.apply_scale"),
        ({**PARAMS, "yarn": {**PARAMS["yarn"], "gamma": 3}}, "yarn.gamma"),
        (without(PARAMS, "yarn"), "max_position_embeddings"),
        (without(PLAIN, "rope_theta"), "rope_theta"),
        ({**PLAIN, "use_scaled_rope": True}, "use_scaled_rope"),  # Meta's, whose parameters are in its code
        ({**PLAIN, "rope_factor": 40, "original_seq_len": 4096}, "rope_factor"),  # DeepSeek's
        ({**LLAMA, "rope_theta": 1e4, "model_type": "mine", "rope_scaling_factor": 32.0}, "rope_scaling_factor"),
        ({**LLAMA, "rope_theta": 1e4, "model_type": "mine", "rope_ratio": 500}, "rope_ratio"),
        ({**LLAMA, "rope_theta": 1e4, "yarn": PARAMS["yarn"]}, "yarn"),
    ],
)
def test_a_scaling_in_another_spelling_is_never_passed_over(source, key):
    found = inspection.inspect(source, pairing="interleaved")
    assert key in {one["key"] for one in found["warnings"]}
    assert key in {one.key for one in judge(source, pairing="interleaved").findings}


@pytest.mark.parametrize("neutral", [{"use_scaled_rope": False}, {"rope_ratio": 1}, {"yarn": None}, {"rope_factor": 1}])
def test_a_scaling_that_changes_nothing_is_not_noted(neutral):
    source = {**LLAMA, "rope_theta": 1e4, "model_type": "mine", **neutral}
    assert judge(source, pairing="half").findings == ()
