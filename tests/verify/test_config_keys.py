"""Keys about positions that nothing reads, or that contradict each other; and their innocent twins."""

import pytest

from posenc.verify import rules
from posenc.verify.configs import judge

FULL, SLIDING, LENGTH = "full_attention", "sliding_attention", "original_max_position_embeddings"
LINEAR = {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6}
YARN = {"rope_type": "yarn", "factor": 4.0, LENGTH: 8192}
LOCAL = {"rope_type": "default", "rope_theta": 1e4}
SIZES = {"head_dim": 64, "num_hidden_layers": 2, "max_position_embeddings": 32768}


def flat(name, **fields):
    return {"model_type": name, **SIZES, "rope_theta": 1e4, **fields}


def nested(name, entries, **fields):
    two = {"layer_types": [SLIDING, FULL], "sliding_window": 512}
    return {"model_type": name, **SIZES, **two, "rope_parameters": entries, **fields}


def vision(text, **outer):
    return {"model_type": "qwen3_vl", "text_config": flat("qwen3_vl_text", **text), **outer}


def long(name, n, **fields):
    lists = {"type": "longrope", "short_factor": [1.0] * n, "long_factor": [4.0] * n}
    return flat(name, head_dim=128, rope_scaling=lists, **{LENGTH: 4096}, **fields)


BERT = {"model_type": "bert", "hidden_size": 64, "num_hidden_layers": 2, "max_position_embeddings": 512}
BOTH = {FULL: LINEAR, SLIDING: LOCAL}
PLAIN = {"rope_type": "default", "mrope_section": [12, 10, 10], "mrope_interleaved": True}
STACKS = {"model_type": "t5gemma2", "decoder": nested("t5gemma2_decoder", BOTH)}
STACKS["encoder"] = {"model_type": "t5gemma2_encoder", "text_config": nested("t5gemma2_text", BOTH)}
THREE = {"mrope_section": [12, 10, 10], "mrope_interleaved": True}
# the file; code and key of each finding; words of the first one's message
FOUND = {
    # a number that the type reads under another name, or does not read
    "width of Llama": (flat("llama", rotary_dim=32), [("unread", "rotary_dim")], ["64 of the 64 dimensions"]),
    "width of Phi": (flat("phi", rotary_dim=48), [("unread", "rotary_dim")], ["32 of the 64"]),
    "share of Llama": (flat("llama", rotary_pct=0.25), [("unread", "rotary_pct")], ["does not read it"]),
    "share of Pythia": (flat("gpt_neox", partial_rotary_factor=0.5, rotary_emb_base=1e4),
                        [("unread", "partial_rotary_factor")], ["16 of the 64"]),
    "base of Pythia": ({"model_type": "gpt_neox", **SIZES, "rope_theta": 5e5},
                       [("unread", "rope_theta"), ("theta_missing", "rotary_emb_base")], ["the base is 10000"]),
    "base of GPT-J": ({"model_type": "gptj", **SIZES, "rotary_dim": 64, "rope_theta": 5e5},
                      [("unread", "rope_theta")], ["base is 10000"]),
    "base of windows in Llama": (flat("llama", rope_local_base_freq=5e5), [("unread", "rope_local_base_freq")], []),
    "scaling of GPT-J": ({"model_type": "gptj", **SIZES, "rotary_dim": 64, "rope_scaling": LINEAR},
                         [("unread", "rope_scaling")], ["gptj"]),
    "scaling of GPT-2": ({"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_positions": 64, "rope_scaling": YARN},
                         [("unread", "rope_scaling")], ["a learned table"]),
    "ALiBi of BERT": (BERT | {"position_embedding_type": "alibi"}, [("unread", "position_embedding_type")], ["alibi"]),
    "distances of BERT": (BERT | {"position_embedding_type": "relative_key_query"},
                          [("unread", "position_embedding_type")], ["a learned table"]),
    "slopes of BERT": (BERT | {"alibi_starting_size": 512}, [("unread", "alibi_starting_size")], ["a learned table"]),
    # two keys that contradict each other
    "MiniMax, both": (flat("minimax_m2", rotary_dim=32, partial_rotary_factor=1.0), [("two_widths", "rotary_dim")],
                      ["rotary_dim 32 and partial_rotary_factor contradict each other", "64 of the 64"]),
    "Pythia, both": (flat("gpt_neox", rotary_pct=0.5, rotary_dim=64, rotary_emb_base=1e4),
                     [("two_widths", "rotary_dim")], ["rotary_pct"]),
    "base inside and outside": (flat("qwen2", rope_parameters={"rope_theta": 1e6}), [("two_bases", "rope_theta")], []),
    "base of a kind and outside": (nested("gemma3_text", BOTH, rope_theta=5e5), [("two_bases", "rope_theta")],
                                   [FULL, "1000000.0", "500000.0"]),
    # entries for kinds of layers
    "no such kind": (nested("gemma3_text", {SLIDING: LOCAL, "global_attention": LINEAR}),
                     [("kind_unread", "rope_parameters.global_attention"),
                      ("kind_missing", f"rope_parameters.{FULL}")], ["factor 8.0", "is ignored"]),
    "no entry": (nested("gemma3_text", {SLIDING: LOCAL}), [("kind_missing", f"rope_parameters.{FULL}")],
                 [f"no entry for {FULL}", "base 1e+06"]),
    "one for all": (nested("gemma3_text", LINEAR), [("unread", "rope_parameters")], ["one entry for each kind"]),
    "kinds of Llama": (flat("llama", rope_parameters={FULL: LINEAR | {"rope_theta": 1e4}}),
                       [("unread", "rope_parameters")], ["one object for all layers"]),
    "mapping of bases": (nested("gemma3_text", BOTH, rope_theta={FULL: 1e6, SLIDING: 1e4}), [("unread", "rope_theta")],
                         ["does not read it"]),
    "next to the kinds": (nested("gemma3_text", {**BOTH, "factor": 4.0}), [("unread", "rope_parameters.factor")], []),
    "scaling outside": (vision({"rope_scaling": PLAIN}, rope_scaling=YARN), [("unread", "rope_scaling")],
                        ["outside text_config", "rope_type 'yarn'"]),
    "base outside": (vision({"rope_scaling": PLAIN}, rope_theta=5e6), [("unread", "rope_theta")], ["outside text"]),
    "length outside": (vision({"rope_scaling": PLAIN}, max_position_embeddings=262144),
                       [("unread", "max_position_embeddings")], ["32768"]),
    "sections outside": (vision({}, mrope_section=[16, 8, 8]), [("unread", "mrope_section")], []),
    "share outside": ({"model_type": "llava", "text_config": flat("phi"), "partial_rotary_factor": 0.25},
                      [("unread", "partial_rotary_factor")], ["outside text_config", "32 of the 64"]),
    "two levels outside": ({"model_type": "qwen2_5_omni", "rope_scaling": YARN, "thinker_config": {
        "text_config": flat("qwen2_5_omni_text", head_dim=128)}}, [("unread", "rope_scaling")], ["outside thinker"]),
    "outside of two stacks": (STACKS | {"rope_theta": 5e5}, [("unread", "rope_theta")], ["outside encoder and"]),
    "sections at the top": (flat("qwen3_vl_text", mrope_section=[16, 8, 8]), [("unread", "mrope_section")], []),
    "type at the top": (flat("llama", rope_type="yarn"), [("unread", "rope_type")], ["rope_type default"]),
    "factor of none": (flat("llama", rope_scaling={"rope_type": "default", "factor": 4.0}),
                       [("unread", "rope_scaling.factor")], ["no such parameter"]),
    "gain of linear": (flat("llama", rope_scaling=LINEAR | {"rope_theta": 1e4, "attention_factor": 1.2}),
                       [("unread", "rope_scaling.attention_factor")], ["rope_type linear"]),
    "length of two": (flat("llama", **{LENGTH: 8192}, rope_scaling=YARN | {LENGTH: 4096}),
                      [("unread", f"rope_scaling.{LENGTH}")], ["8192"]),
    # a width that lists imply
    "share lost": (long("phi3", 48), [("width_implied", "partial_rotary_factor")],
                   ["48 entries", "partial_rotary_factor: 0.75 is missing"]),
    "head lost": (long("qwen2", 40), [("width_implied", "head_dim")], ["head_dim: 80 would fit"]),
    "sections of a part": ({**flat("glm4v_text"), "rope_scaling": {"mrope_section": [8, 4, 4]}},
                           [("out_of_range", "mrope_section")], ["partial_rotary_factor: 0.5"]),
    # sections that MRoPE refuses
    "taking turns": (vision({"head_dim": 128, "rope_scaling": {**PLAIN, "mrope_section": [16, 24, 24]}}),
                     [("sections_misfit", "mrope_section")], ["[22, 21, 21]"]),
    "rows and columns of Ernie": (flat("ernie4_5_vl_moe_text", rope_scaling={"mrope_section": [14, 10, 8]}),
                                  [("sections_misfit", "mrope_section")], ["their numbers must be equal"]),
}  # fmt: skip


OF_NO_KIND = ("bert", "gpt2", "t5gemma2")


@pytest.mark.parametrize("name", FOUND)
def test_what_is_not_read_is_found(name):
    source, found, words = FOUND[name]
    judged = judge(source)
    assert [(one.code, one.key) for one in judged.findings] == found
    assert all(word in judged.findings[0].message for word in words)
    for one in judged.findings:
        assert one.code in rules.known()
        assert all((one.key, one.allowed, one.meanings, one.fix, one.layers or judged.model_type in OF_NO_KIND))


SILENT = {
    "MiniMax M2": flat("minimax_m2", rotary_dim=32),
    "Llama, whole head": flat("llama", rotary_dim=64, partial_rotary_factor=1.0, rotary_pct=1.0),
    "GPT-NeoX": flat("gpt_neox", rotary_pct=0.25, rotary_emb_base=1e4, rotary_dim=16),
    "DeepSeek": flat("deepseek_v3", qk_rope_head_dim=32, qk_nope_head_dim=32, rotary_dim=32),
    "base twice": flat("qwen2", rope_parameters={"rope_theta": 1e4, "rope_type": "default"}),
    "two stacks": STACKS,
    "no layer without a window": nested("gemma3_text", None, rope_theta=1e6, rope_local_base_freq=1e4,
                                        layer_types=[SLIDING, SLIDING]),
    "kinds and their bases": nested("gemma3_text", BOTH, rope_theta=1e6, rope_local_base_freq=1e4),
    "a usual kind without layers": nested("olmo3", BOTH, layer_types=[SLIDING, SLIDING]),
    "a rest next to the kinds": nested("zaya", {"hybrid": LOCAL, "rope_type": "default"}, layer_types=["hybrid"] * 2),
    "the same outside": vision({"rope_scaling": YARN | THREE}, rope_scaling=YARN | {"type": "yarn"}, rope_theta=1e4),
    "plain outside": vision({"rope_scaling": PLAIN}, rope_scaling={"type": "mrope"}, max_position_embeddings=32768),
    "old flat Qwen2-VL": {**flat("qwen2_vl", head_dim=128), "rope_scaling": {"type": "mrope",
                                                                             "mrope_section": [16, 24, 24]}},
    "Phi-4 mini": long("phi3", 48, partial_rotary_factor=0.75),
    "M-RoPE, longer than its factor": vision({"max_position_embeddings": 100000, "rope_scaling": YARN | THREE}),
    "BERT": BERT | {"position_embedding_type": "absolute"},
    "Falcon with ALiBi": {"model_type": "falcon", "alibi": True, "num_hidden_layers": 2, "hidden_size": 64,
                          "num_attention_heads": 4, "rope_theta": 5e5},
}  # fmt: skip


@pytest.mark.parametrize("name", SILENT)
def test_innocent_twins_stay_silent(name):
    judged = judge(SILENT[name])
    assert [(one.code, one.message) for one in judged.findings] == []
    assert judged.status == "pass"
    assert judged.not_judged


def test_a_finding_about_one_kind_of_layer_names_it():
    lost = nested("gemma3_text", {FULL: LINEAR, SLIDING: LOCAL | {"rope_theta": 0.5}})
    (finding,) = judge(lost).findings
    assert (finding.layers, finding.message.startswith(f"{SLIDING}: ")) == ((SLIDING,), True)
    (of_all,) = judge(flat("llama", rope_theta=0.5)).findings
    assert FULL not in of_all.message


NOT_JUDGED = {
    "pairing": (flat("llama"), "the pairing of the weights"),
    "another part": (vision({}, vision_config={"model_type": "qwen3_vl", "rope_theta": 1.0}), "vision_config"),
    "an unknown key": (flat("llama", rope_magic=3), "keys that posenc does not know: rope_magic"),
    "an unknown parameter": (flat("llama", rope_scaling=LINEAR | {"rope_theta": 1e4, "curve": 3}), "curve"),
    "axes": (SILENT["M-RoPE, longer than its factor"], "positions do not count tokens"),
    "lists": (SILENT["Phi-4 mini"], "which of its two lists"),
    "no rotation": ({"model_type": "bloom", "n_layer": 2, "n_head": 4}, "the weights"),
}


@pytest.mark.parametrize("name", NOT_JUDGED)
def test_what_was_not_judged_is_said(name):
    source, words = NOT_JUDGED[name]
    judged = judge(source)
    assert judged.status == "pass"
    assert words in "; ".join(judged.to_dict()["not_judged"])
