"""What is said of configurations: complete findings, the codes of `inspect`, and nothing of what is right."""

import json
from pathlib import Path

import pytest

from posenc import inspection
from posenc.config.known import known_models
from posenc.verify import configs, rules
from posenc.verify.configs import judge

LLAMA = {"model_type": "llama", "hidden_size": 256, "num_attention_heads": 4, "num_hidden_layers": 4}
LLAMA |= {"max_position_embeddings": 8192}
LENGTH = "original_max_position_embeddings"
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, LENGTH: 2048}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, LENGTH: 1024}
LLAMA3 |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
LONG = {"rope_type": "longrope", "rope_theta": 1e4, LENGTH: 1024}
LONG |= {"short_factor": [1.0] * 32, "long_factor": [2.0] * 32}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}


def llama(rope, **fields):
    return {**LLAMA, "rope_parameters": rope, **fields}


def with_rope(rope, **changes):
    return llama({**rope, **changes})


# code: the file, the key, what stands there, and a word of what the spellings mean
ODD = {
    "theta_missing": (LLAMA, "rope_theta", None, "the base is 10000"),
    "nested_truncate": (llama({"full_attention": {**YARN, "truncate": False}}), "truncate", False, "rounds them"),
    "attn_factor": (with_rope(YARN, attn_factor=1.5), "attn_factor", 1.5, "cos and sin"),
    "original_missing": (with_rope(YARN, **{LENGTH: None}), LENGTH, None, "2048 positions are stretched to 8192"),
    "original_is_max": (with_rope(YARN, **{LENGTH: 8192}), LENGTH, 8192, "2048 positions are stretched"),
    "original_unread": (with_rope(DYNAMIC, **{LENGTH: 4096}), LENGTH, 4096, "up to 8192 nothing"),
    "dynamic_cache": (llama(DYNAMIC), "rope_type", "dynamic", "cached keys"),
    "list_length": (with_rope(LONG, long_factor=[1.0] * 31), "long_factor", 31, "62 head dimensions"),
    "list_missing": (with_rope(LONG, long_factor=None), "long_factor", None, "longer texts"),
    "long_unread": ({**with_rope(LONG), "model_type": "phimoe"}, "long_factor", [2.0] * 32, "longer"),
    "window_scaled": ({**with_rope(YARN), "layer_types": ["sliding_attention"] * 4, "sliding_window": 512},
        "sliding_window", 512, "only layers without a window"),
    "unscaled": (llama({"rope_theta": 1e4}, **{LENGTH: 4096}), "max_position_embeddings", 8192, "factor 2"),
    "betas_swapped": (with_rope(YARN, beta_fast=1.0, beta_slow=32.0),
        "beta_fast", {"beta_fast": 1, "beta_slow": 32}, "more than 32 times"),
    "betas_equal": (with_rope(YARN, beta_fast=4, beta_slow=4), "beta_fast", {"beta_fast": 4, "beta_slow": 4}, "a step"),
    "turns_equal": (with_rope(LLAMA3, low_freq_factor=4.0),
        "high_freq_factor", {"low_freq_factor": 4, "high_freq_factor": 4}, "a step"),
    "turns_swapped": (with_rope(LLAMA3, low_freq_factor=8.0),
        "high_freq_factor", {"low_freq_factor": 8, "high_freq_factor": 4}, "more than 8"),
    "unknown_type": (llama({"rope_type": "yarm", "rope_theta": 1e4}), "rope_type", "yarm", "divided by factor"),
    "two_spellings": (llama({"rope_theta": 1e4}, rope_scaling={"rope_type": "linear", "factor": 2.0}, rope_theta=1e4),
        "rope_scaling", {"rope_scaling": {"rope_type": "linear", "factor": 2.0},
        "rope_parameters": {"rope_theta": 1e4}}, "factor 2.0, which is used"),
    "factor_missing": (with_rope(YARN, factor=None), "factor", None, "4 here"),
    "factor_differs": (with_rope(YARN, factor=3.0), "factor", 3.0, "stretched to 6144"),
    "share_unread": (llama({"rope_theta": 1e4}, partial_rotary_factor=0.5),
        "partial_rotary_factor", 0.5, "32 of 64 dimensions"),
    "sections_unread": (llama({"rope_theta": 1e4, "mrope_section": [8, 12, 12]}),
        "mrope_section", [8, 12, 12], "time, row and column"),
    "sections_misfit": ({"model_type": "qwen3_vl_text", "head_dim": 64, "num_hidden_layers": 2,
        "rope_parameters": { "rope_theta": 1e6, "mrope_section": [8, 12, 12]}},
        "mrope_section", [8, 12, 12], "time, row and column"),
    "assumed": ({"model_type": "llama", "head_dim": 64, "num_hidden_layers": 2, "rope_parameters": {**DYNAMIC,
        "rope_type": "linear"}},
        "max_position_embeddings", None, "2048"),
    "clockwise": ({**llama({"rope_theta": 1e4}), "model_type": "nanochat"}, "model_type", "nanochat", "same scores"),
    "learned": ({**llama(YARN), "model_type": "mistral_large4_text"}, "model_type", "mistral_large4_text", "weights"),
    "two_types": (with_rope(YARN, type="linear"),
        "rope_type", {"rope_type": "yarn", "type": "linear"}, "all frequencies are divided"),
    "type_missing": (llama({"rope_theta": 1e4, "factor": 4.0}), "rope_type", None, "nothing is scaled"),
    "two_bases": (llama({"rope_theta": 1e4}, rope_theta=5e5),
        "rope_theta", {"rope_parameters.rope_theta": 1e4, "rope_theta": 5e5}, "transformers 5"),
    "mscale_alone": (with_rope(YARN, mscale=0.707), "mscale", 0.707, "DeepSeek's own code"),
    "misspelt": (with_rope(YARN, low_freq_factors=1.0), "low_freq_factors", 1.0, "not read"),
}  # fmt: skip


@pytest.mark.parametrize("code", ODD)
def test_what_is_odd_is_told_with_all_its_parts(code):
    source, key, value, meaning = ODD[code]
    judged = judge(source)
    (finding,) = [one for one in judged.findings if one.code == code][:1]
    assert judged.status == "fail"
    assert (finding.key, finding.value) == (key, value)
    assert meaning in " / ".join(f"{spelling}: {said}" for spelling, said in finding.meanings)
    assert finding.layers


@pytest.mark.parametrize("code", ODD)
def test_codes_are_those_of_inspect(code):
    source = ODD[code][0]
    try:
        reported = {(one["code"], one["key"], one["message"]) for one in inspection.inspect(source)["warnings"]}
    except ValueError:  # its frequencies cannot be formed, and this needs none
        return
    assert {(one.code, one.key, one.message) for one in judge(source).findings} == reported


REFUSED = {
    "base": (llama({"rope_theta": 0.5}), "out_of_range", "rope_theta", 0.5, "above 1 and at most 1e+12"),
    "a text": (llama({"rope_theta": "1e4"}), "wrong_kind", "rope_theta", "1e4", "a number"),
    "an inverse factor": (with_rope(YARN, factor=0.25), "out_of_range", "factor", 0.25, "at least 1"),
    "a float": (with_rope(YARN, **{LENGTH: 2048.0}), "wrong_kind", LENGTH, 2048.0, "an integer"),
    "no factor": (llama({"rope_type": "linear", "rope_theta": 1e4}), "missing", "factor", None, "at least 1"),
    "lanes": ({"model_type": "qwen2_vl_text", "head_dim": 128, "num_hidden_layers": 2,
        "rope_parameters": { "rope_theta": 1e6, "mrope_section": [32, 48, 48]}},
        "out_of_range", "mrope_section", [32, 48, 48], "add up to 64"),
    "layers": (llama({"rope_theta": 1e4}, layer_types=["full_attention"]),
        "out_of_range", "layer_types", ["full_attention"], "a list of 4"),
    "a long value": (llama({"rope_theta": 1e4}, layer_types=["full_attention"] * 5000),
        "out_of_range", "layer_types", "list of 5000 entries", "a list of 4"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_is_a_finding_too(name):
    source, code, key, value, allowed = REFUSED[name]
    judged = judge(source)
    finding = judged.findings[0]
    assert (judged.status, finding.level) == ("fail", "error")
    assert (finding.code, finding.key, finding.value) == (code, key, value)
    assert allowed in finding.allowed


FILES = {
    "NaN": ('{"a": [{"rope_theta": NaN}]}', "unreadable", "a.0.rope_theta", "nan"),
    "infinite": ('{"rope_theta": 1e999}', "unreadable", "rope_theta", "inf"),
    "twice": ('{"rope_theta": 1, "rope_theta": 2}', "key_twice", "rope_theta", [1, 2]),
    "a list": ("[1]", "unreadable", "(file)", None),
    "cut off": ('{"rope_theta": ', "unreadable", "(file)", None),
    "deep": ('{"a":' * 40 + "1" + "}" * 40, "unreadable", "(file)", None),
    "deeper than Python": ("[" * 100_000, "unreadable", "(file)", None),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_cannot_be_read_is_a_finding(name, tmp_path):
    text, code, key, value = FILES[name]
    (tmp_path / "config.json").write_text(text)
    judged = judge(tmp_path)
    (finding,) = judged.findings
    assert (judged.status, finding.code, finding.key, finding.value) == ("fail", code, key, value)
    assert finding.allowed
    assert finding.fix
    assert "\n" not in finding.message


@pytest.mark.parametrize("source", [source for source, *_ in (*ODD.values(), *REFUSED.values())])
def test_findings_are_complete_have_rules_and_are_plain_json(source):
    plain = json.loads(json.dumps(judge(source).to_dict(), allow_nan=False))
    assert plain["schema"] == configs.SCHEMA
    for finding in plain["findings"]:
        assert finding["code"] in rules.known()
        assert set(finding) == {"code", "level", "key", "value", "allowed", "meanings", "fix", "message", "layers"}
        assert all(finding[part] for part in ("key", "allowed", "meanings", "fix", "message"))
        assert all(set(one) == {"spelling", "meaning"} and all(one.values()) for one in finding["meanings"])


def test_kinds_of_layers_that_share_a_fault_are_one_finding():
    both = {"full_attention": {"rope_theta": 0.5}, "sliding_attention": {"rope_theta": 0.5}}
    kinds = ["sliding_attention", "full_attention"] * 2
    (finding,) = judge(llama(both, layer_types=kinds, sliding_window=64)).findings
    assert finding.layers == ("sliding_attention", "full_attention")


# ---- a model type that is not known


def test_what_is_not_known_cannot_be_told():
    judged = judge({"model_type": "xlnet", "hidden_size": 768})
    assert (judged.status, judged.findings) == ("cannot_tell", ())
    assert "model_type 'xlnet' is unknown" in judged.because
    assert judge({"model_type": "lama", "rope_theta": 1e4, "head_dim": 64}).status == "cannot_tell"
    assert judge({}).status == "cannot_tell"


def test_what_no_type_can_mean_is_found_all_the_same_and_a_pairing_settles_it():
    judged = judge({**with_rope(YARN, factor=0.5), "model_type": "lama"})
    assert (judged.status, judged.findings[0].code, "is unknown" in judged.because) == ("fail", "out_of_range", True)
    unknown = {**llama(YARN), "model_type": "lama"}
    assert judge(unknown).status == "cannot_tell"
    assert judge(unknown, pairing="half").status == "pass"


def test_a_model_without_rotation_has_nothing_to_find():
    falcon = {"model_type": "falcon", "alibi": True, "num_hidden_layers": 2}
    judged = judge(falcon | {"hidden_size": 256, "num_attention_heads": 4})
    assert (judged.status, judged.layers) == ("pass", {"layers: alibi": 2})
    assert judge(falcon).status == "cannot_tell"
    assert "num_attention_heads is missing" in judge(falcon).because


# keys of unknown types that state another encoding, or a rotation that is not read
OTHER = [
    {"alibi": True},
    {"position_embedding_type": "alibi"},
    {"position_embedding_type": "relative_key"},
    {"position_embeddings_type": "relative"},
    {"position_embedding_type": "learned"},
    {"attn_type_list": [0, 0, 1]},
    {"mla_use_nope": True},
    {"rotary": {"base": 10000, "type": "dynamic"}},
    {"use_rope": False},
    {"rope_ratio": 50},
    {"use_dynamic_ntk": True},
]
SAME = [
    {"alibi": False},
    {"position_embedding_type": "rope"},
    {"attn_type_list": [1, 1]},
    {"use_rope": True},
    {"rope_pct": 1.0},
    {"max_position_embedding": 65536, "max_position_embeddings": None},
]


@pytest.mark.parametrize("stated", OTHER + SAME, ids=str)
def test_an_unknown_type_that_states_another_encoding_is_not_plain_with_a_pairing(stated):
    unknown = {**LLAMA, "model_type": "strange", "rope_theta": 1e4} | stated
    judged = judge(unknown, pairing="half")
    assert [one.key for one in judged.findings] == ([*stated] if stated in OTHER else [])
    assert judge(unknown).findings == ()


NO_ROTATION = ["whisper", "wav2vec2-conformer"]


@pytest.mark.parametrize("name", NO_ROTATION)
def test_no_width_and_no_pairing_is_asked_of_a_model_that_does_not_rotate(name):
    judged = judge({"model_type": name, "num_hidden_layers": 4}, pairing="half")
    assert (judged.status, judged.findings) == ("cannot_tell", ())
    assert "positions of" in judged.because
    assert "pairing" not in judged.because


META = {"dim": 4096, "n_layers": 4, "n_heads": 32, "rope_theta": 500000.0}


@pytest.mark.parametrize("key", ["rope_scaling_factor", "rope_factor"])
def test_the_scaling_of_meta_s_code_is_in_the_config_next_to_it(key):
    (finding,) = judge(META | {key: 8}, pairing="interleaved").findings
    assert (finding.code, finding.key) == ("unread", key)
    assert "config.json next to params.json" in finding.fix
    assert "remove" not in finding.fix.lower()


# texts of findings: the file, the code, and words that must be in it or, after "not", must not be
TEXTS = [
    (LLAMA, "theta_missing", "not other programs"),
    ({**LLAMA, "model_type": "cohere"}, "theta_missing", "other programs use 10000"),
    (llama({"rope_type": "ntk", "rope_theta": 1e4, "factor": 2.0}), "unknown_type", "not nearest"),
    (llama({"rope_type": "yarm", "rope_theta": 1e4, "factor": 2.0}), "unknown_type", "yarn is the nearest"),
]


@pytest.mark.parametrize(("source", "code", "words"), TEXTS)
def test_texts_advise_nothing_absurd(source, code, words):
    (finding,) = [one for one in judge(source).findings if one.code == code]
    said = f"{finding.message} {finding.meanings} {finding.fix}"
    assert (words.removeprefix("not ") in said) == (not words.startswith("not "))


def test_no_type_is_near_none():
    assert "similar" not in judge({"num_hidden_layers": 2}).because


# the parts about positions of files as they were published, in the spelling of their time
SHIPPED = {  # next to those that come with the package
    "Phi-3.5 mini": {
        "model_type": "phi3", "hidden_size": 3072, "num_attention_heads": 32, "num_hidden_layers": 32,
        "max_position_embeddings": 131072, LENGTH: 4096, "rope_theta": 10000.0, "sliding_window": 262144,
        "rope_scaling": {"type": "longrope", "long_factor": [1.08] * 48, "short_factor": [1.0] * 48},
    },
    "Qwen2-VL 7B": {
        "model_type": "qwen2_vl", "hidden_size": 3584, "num_attention_heads": 28, "num_hidden_layers": 28,
        "max_position_embeddings": 32768, "rope_theta": 1000000.0, "sliding_window": 32768,
        "use_sliding_window": False, "max_window_layers": 28,
        "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
    },
    "YaRN Llama 2 7B 128K": {
        **LLAMA, "max_position_embeddings": 131072, "rope_theta": 10000.0,
        "rope_scaling": {"factor": 32.0, LENGTH: 4096, "type": "yarn", "finetuned": True},
    },
    "Kimi-K2, a step": {
        **LLAMA, "model_type": "deepseek_v3", "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "rope_theta": 50000.0,
        "max_position_embeddings": 131072, "rope_scaling": {"type": "yarn", "factor": 32.0, LENGTH: 4096,
            "beta_fast": 1.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0},
    },
    "Llama 4 Scout": {"model_type": "llama4", "text_config": {
        **LLAMA, "model_type": "llama4_text", "head_dim": 128, "rope_theta": 500000.0, "attention_chunk_size": 8192,
        "max_position_embeddings": 10485760, "no_rope_layers": [], "rope_scaling": {"rope_type": "llama3",
            "factor": 16.0, LENGTH: 8192, "low_freq_factor": 1.0, "high_freq_factor": 1.0},
    }},
    "EXAONE 4 32B": {
        **LLAMA, "model_type": "exaone4", "rope_theta": 1000000, "max_position_embeddings": 131072,
        "sliding_window": 4096, "sliding_window_pattern": "LLLG", "rope_scaling": {"rope_type": "llama3",
            "factor": 16.0, LENGTH: 8192, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    },
    "gpt-oss, with the names of OpenAI's code": {
        **LLAMA, "model_type": "gpt_oss", "head_dim": 64, "rope_theta": 150000, "max_position_embeddings": 131072,
        "sliding_window": 128, "initial_context_length": 4096, "rope_scaling_factor": 32.0, "rope_ntk_alpha": 1,
        "rope_ntk_beta": 32, "rope_scaling": {"rope_type": "yarn", "factor": 32.0, LENGTH: 4096, "beta_fast": 32.0,
            "beta_slow": 1.0, "truncate": False},
    },
    "Qwen2.5 as its page adds YaRN": {
        **LLAMA, "model_type": "qwen2", "rope_theta": 1000000.0, "max_position_embeddings": 32768,
        "rope_scaling": {"type": "yarn", "factor": 4.0, LENGTH: 32768},
    },
    "Qwen3 as its page adds YaRN": {
        **LLAMA, "model_type": "qwen3", "rope_theta": 1000000, "head_dim": 128, "max_position_embeddings": 40960,
        "rope_scaling": {"rope_type": "yarn", "factor": 4.0, LENGTH: 32768},
    },
    "Nemotron-H": {
        **LLAMA, "model_type": "nemotron_h", "hybrid_override_pattern": "M-M*", "rope_theta": 10000,
        "partial_rotary_factor": 1.0,
    },
    "Kimi Linear": {**LLAMA, "model_type": "kimi_linear", "mla_use_nope": True, "rope_theta": 10000.0},
    "Longformer": {**LLAMA, "model_type": "longformer", "max_position_embeddings": 4098, "pad_token_id": 1},
}  # fmt: skip


ROWS = json.loads((Path(__file__).parents[1] / "data" / "rope_configs.json").read_text("utf-8"))["models"]
SIZES = ("head_dim", "max_position_embeddings", "rope_parameters")
OF_ROWS = {r["name"]: {**{k: r[k] for k in SIZES}, "num_hidden_layers": 2, "model_type": "stablelm"} for r in ROWS}
RIGHT = SHIPPED | {name: name for name in known_models()} | {f"reference, {name}": row for name, row in OF_ROWS.items()}


@pytest.mark.parametrize("name", RIGHT)
def test_nothing_is_found_in_models_as_they_were_published(name):
    judged = judge(RIGHT[name])
    assert [(one.code, one.message) for one in judged.findings] == []
    assert judged.status == "pass"


def test_a_longer_file_than_yarn_stretches_to_is_found_in_qwen_too():
    longer = SHIPPED["Qwen3 as its page adds YaRN"] | {"max_position_embeddings": 262144}
    assert [one.code for one in judge(longer).findings] == ["factor_differs"]


def test_a_window_wider_than_the_trained_length_needs_its_scaling():
    wide = SHIPPED["Phi-3.5 mini"]
    assert judge({**wide, "sliding_window": 4096}).findings[0].code == "window_scaled"
    assert judge({**wide, "sliding_window": 4097}).status == "pass"
