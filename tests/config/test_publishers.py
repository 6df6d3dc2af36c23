"""Files as their publishers spell them: numbers by hand. That classes of transformers agree is in peers."""

import json

import pytest

import posenc
from config_sources import LLAMA, LONG, refused
from posenc import config, frequencies, inspection
from posenc.verify.configs import judge
from published_sources import (
    ALIKE,
    APART,
    CSA,
    DBRX,
    FULL,
    HCA,
    HUNYUAN,
    LENGTH,
    META,
    MPT,
    NOMIC,
    PARAMS,
    RIGHT,
    SCOUT,
    SLIDING,
    STEP,
    V4,
    VL2,
    ZAMBA,
    scaled,
    without,
)


def mine(**fields):
    """A file for code that posenc does not know."""
    return {**LLAMA, "model_type": "mine", **fields}


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
    # Meta's code: factor 8, in Llama 4 16; every fourth layer of Llama 4 does not rotate
    (META, FULL, 8, 5e5, 128, "llama3", 1.0, 5e5 ** (-126 / 128) / 8),
    (SCOUT, "chunked_attention", 6, 5e5, 128, "llama3", 1.0, 5e5 ** (-126 / 128) / 16),
    ({**SCOUT, "rope_scaling_factor": 8.0}, "chunked_attention", 6, 5e5, 128, "llama3", 1.0, 5e5 ** (-126 / 128) / 8),
    (without(SCOUT, "use_scaled_rope"), "chunked_attention", 6, 5e5, 128, "default", 1.0, 5e5 ** (-126 / 128)),
    (SCOUT, "nope", 2, *[None] * 5),
    (DBRX, FULL, 40, 5e5, 128, "default", 1.0, 5e5 ** (-126 / 128)),
    (NOMIC, FULL, 12, 1e4, 64, "default", 1.0, 1e4 ** (-62 / 64)),
    (VL2, FULL, 12, 1e4, 128, "default", 1.0, 1e4 ** (-126 / 128)),
    (ZAMBA, "hybrid", 9, 1e4, 160, "default", 1.0, 1e4 ** (-158 / 160)),
    ({**ZAMBA, "num_hidden_layers": 4, "layers_block_type": list("mmgm")}, "hybrid", 1, 1e4, 160, "default", 1.0,
        1e4 ** (-158 / 160)),
    (mine(rope_theta=1e4, no_rope_layer_interval=2), "nope", 2, *[None] * 5),
    # files for other code: Phi-3-small, StableLM's first, OpenELM, lit-gpt, GRIN
    (mine(rope_embedding_base=1e6), FULL, 4, 1e6, 64, "default", 1.0, 1e6 ** (-62 / 64)),
    (mine(rope_theta=1e4, rope_pct=0.25), FULL, 4, 1e4, 16, "default", 1.0, 1e4 ** (-14 / 16)),
    (mine(rope_freq_constant=1e5, rope_max_length=4096), FULL, 4, 1e5, 64, "default", 1.0, 1e5 ** (-62 / 64)),
    (mine(rope_base=5e5, head_size=128, rope_condense_ratio=1), FULL, 4, 5e5, 128, "default", 1.0,
        5e5 ** (-126 / 128)),
    (mine(rope_theta=1e4, rope_scaling={**LONG, "short_mscale": 1.25, "long_mscale": 1.5}), FULL, 4, 1e4, 64,
        "longrope", 1.25, 1e4 ** (-62 / 64)),
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
        ({**META, "dim": 2048}, "use_scaled_rope"),  # Llama 3.2 1B: 8 in Meta's code, 32 in transformers' converter
        ({**META, "use_scaled_rope": False, "rope_scaling_factor": 8.0}, "rope_scaling_factor"),
        ({**PLAIN, "rope_factor": 40, "original_seq_len": 4096}, "rope_factor"),  # DeepSeek's
        (mine(rope_theta=1e4, rope_scaling_factor=32.0), "rope_scaling_factor"),
        (mine(rope_theta=1e4, rope_ratio=500), "rope_ratio"),
        ({**LLAMA, "rope_theta": 1e4, "yarn": PARAMS["yarn"]}, "yarn"),
    ],
)
def test_a_scaling_in_another_spelling_is_never_passed_over(source, key):
    found = inspection.inspect(source, pairing="interleaved")
    assert key in {one["key"] for one in found["warnings"]}
    assert key in {one.key for one in judge(source, pairing="interleaved").findings}


NEUTRAL = [{"use_scaled_rope": False}, {"rope_ratio": 1}, {"yarn": None}, {"rope_factor": 1}, {"use_logn_attn": False}]
NEUTRAL += [{"rope": True, "alibi": False, "alibi_bias_max": 8.0}, {"rope_full_precision": True}, {"rope_3d": False}]
NEUTRAL += [{"rope_impl": "torch"}, {"position_embedding": "rope"}, {"nope": False}]
NEUTRAL += [{"properties": {"a": 1}}, {"interleave_moe_layer_step": 2}, {"drop_europe": True}, {"tie_rotary": True}]
NEUTRAL += [{"attn_config": {"rope": True, "rope_theta": 1e4, "alibi": False}}]


@pytest.mark.parametrize("neutral", NEUTRAL, ids=str)
def test_a_scaling_that_changes_nothing_is_not_noted(neutral):
    assert judge(mine(rope_theta=1e4, **neutral), pairing="half").findings == ()


OWN = {**LLAMA, "rope_theta": 1e4, "auto_map": {"AutoModel": "modeling.Model"}}
BERT = {**LLAMA, "model_type": "bert"}
# files of which something is only in their publishers' code, and the key of a warning
OF_THEIR_CODE = [
    (mine(rope_theta=1e4, use_logn_attn=True), "use_logn_attn"),  # Qwen
    (mine(rope_theta=1e4, rope_3d=True), "rope_3d"),  # Ernie 4.5 VL
    (mine(rope_theta=1e4, position_encoding_2d=True), "position_encoding_2d"),  # ChatGLM
    (mine(rope_theta=1e4, position_embedding="nope"), "position_embedding"),
    (mine(rope_theta=1e4, nope_layers=[1, 3]), "nope_layers"),
    ({**LLAMA, "rope_theta": 1e4, "nope_layer_interval": 4}, "nope_layer_interval"),
    (mine(rope_theta=1e4, rope_impl="yarn"), "rope_impl"),
    (mine(rope_theta=1e4, rope_adjustments={"factor": 8.0}), "rope_adjustments"),  # lit-gpt
    (mine(rope_theta=1e4, use_interpolated_rotary_pos_emb=True), "use_interpolated_rotary_pos_emb"),  # StripedHyena
    (mine(rope_theta=1e4, attn_config={"rope_theta": 5e5}), "attn_config.rope_theta"),
    (mine(rope_theta=1e4, attn_config={"alibi": True}), "attn_config.alibi"),
    (mine(rope_theta=1e4, attn_cfg={"rotary_emb_dim": 32}), "attn_cfg.rotary_emb_dim"),  # Mamba 2 with attention
    ({**OWN, "rope_3d": True}, "rope_3d"),  # a known type, but its publisher's code
    ({**OWN, "position_embedding_type": "alibi"}, "position_embedding_type"),
    ({**BERT, "position_embedding_type": "alibi"}, "position_embedding_type"),  # Jina's
    ({**ZAMBA, "use_long_context": True}, "use_long_context"),
    ({**MPT, "attn_config": {"alibi": False, "rope": True, "rope_theta": 10000}}, "attn_config.rope"),
    ({**MPT, "attn_config": {"alibi": False}}, "attn_config.alibi"),
    ({**MPT, "attn_config": {"alibi": True, "alibi_bias_max": 16}}, "attn_config.alibi_bias_max"),
    ({**NOMIC, "rotary_scaling_factor": 2}, "rotary_scaling_factor"),
    ({**NOMIC, "rotary_emb_fraction": 0.0}, "rotary_emb_fraction"),
    ({**NOMIC, "rotary_emb_interleaved": True}, "rotary_emb_interleaved"),
    (NOMIC, "rotary_emb_base"),
    (DBRX, "attn_config.rope_theta"),
    ({"model_type": "deepseek_v2", **VL2["language_config"], "qk_rope_head_dim": 64}, "use_mla"),
    ({**LLAMA, "rope_theta": 1e4, "rope_scaling": {"scaling_factor": 4.0}}, "rope_scaling.scaling_factor"),
    (mine(rope_theta=1e4, rope_scaling={"rope_type": "default", "rope_ratio": 3}), "rope_scaling.rope_ratio"),
    ({**LLAMA, "model_type": "phi3", "rope_theta": 1e4, "rope_scaling": {**LONG, "short_mscale": 1.2}},
        "rope_scaling.short_mscale"),
]  # fmt: skip


@pytest.mark.parametrize(("source", "key"), OF_THEIR_CODE, ids=str)
def test_what_only_their_code_reads_is_never_passed_over(source, key):
    found = inspection.inspect(source, pairing="half" if source.get("model_type") == "mine" else None)
    assert key in {one["key"] for one in found["warnings"]}
    assert key in {one.key for one in judge(source, pairing="half").findings}


@pytest.mark.parametrize("source", [MPT, {**NOMIC, "rotary_emb_base": 1000}, VL2, ZAMBA, META, SCOUT])
def test_nothing_is_found_in_what_is_read_as_in_their_code(source):
    assert judge(source, pairing="half").findings == ()


@pytest.mark.parametrize("key", ["head_size", "hidden_size_per_head", "kv_channels"])
def test_a_known_type_reads_no_width_of_other_code(key):
    """Llama's class in transformers divides the width of the model by the heads."""
    known = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "rope_theta": 1e4}
    assert inspection.inspect(known | {key: 32})["layers"][0]["head_dim"] == 16
    assert inspection.inspect({**known, "model_type": "mine", key: 32}, pairing="half")["layers"][0]["head_dim"] == 32


def test_without_latent_attention_the_pairing_is_llama_s():
    assert (config.rotary(VL2).pairing, config.rotary(VL2).rotary_side) == ("half", "first")
    latent = {**VL2["language_config"], "use_mla": True, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64}
    assert (config.rotary(latent).pairing, config.rotary(latent).rotary_dim) == ("interleaved", 64)


def test_a_missing_list_of_scaled_kinds_is_a_sentence():
    (finding,) = judge(without(STEP, "yarn_only_types")).findings
    assert finding.message.startswith("yarn_only_types is missing, and is not read by step3p5 in transformers: only")


@pytest.mark.parametrize(("base", "codes"), [(1e6, []), (1e4, ["two_files"])])
def test_two_files_of_one_model(base, codes, tmp_path):
    both = {"config": {**LLAMA, "model_type": "mistral", "rope_theta": base}, "params": PLAIN}
    for name, fields in both.items():
        (tmp_path / f"{name}.json").write_text(json.dumps({**fields, "head_dim": 128}), encoding="utf-8")
    assert [one["code"] for one in inspection.inspect(tmp_path)["warnings"]] == codes
    assert [one.code for one in judge(tmp_path).findings] == codes
    assert config.rotary(tmp_path).base == base


@pytest.mark.parametrize("source", [DBRX, {**MPT, "attn_config": {"alibi": False}}, LLAMA])
def test_encodings_of_layers_warn_of_what_inspect_does(source):
    stated = [one["message"] for one in inspection.inspect(source)["warnings"]]
    with pytest.warns(UserWarning, match="PerLayer.from_config") as caught:
        posenc.PerLayer.from_config(source)
    assert len(caught) == len(stated) > 0
    assert all(text in str(one.message) for text, one in zip(stated, caught, strict=True))
    assert {one.filename for one in caught} == {__file__}


@pytest.mark.parametrize(
    "listed", [{"layers_block_type": ["mamba", "moe", "attention"]}, {"hybrid_override_pattern": "ME*"}]
)
def test_nemotron_h_lists_its_layers_without_their_number(listed):
    (layer,) = inspection.inspect({"model_type": "nemotron_h", **listed})["layers"]
    assert (layer["encoding"], layer["count"]) == ("nope", 3)
