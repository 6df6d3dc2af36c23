"""Converted weights give the same logits where lanes are paired the other way, model type by model type."""

import pytest
import torch

pytest.importorskip("transformers")

from transformers.models.mllama.modeling_mllama import MllamaForCausalLM

from interop.models import OWN, apart, build, configuration, paired_as, read, weights
from posenc.interop import MODEL_TYPES, convert_pairing
from posenc.interop.layouts import REMOTE

OTHER = {"half": "interleaved", "interleaved": "half"}
LATENT = {"head_dim": OWN, "num_key_value_heads": 4}  # their classes compute head_dim
SECTIONS = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]}, "head_dim": 8}
MAMBA = {
    "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_expand": 2, "mamba_chunk_size": 8,
    "time_step_limit": (0.0, 100.0),
}  # fmt: skip
ONE_LINEAR = {"layer_types": ["linear_attention", "full_attention", "full_attention"]}
SHORT_WINDOW = {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}

# The families: model type, fields besides the sizes, the type's own pairing, and how many tensors hold lanes.
FAMILIES = {
    "llama": ("llama", {}, "half", 6),
    "llama with biases": ("llama", {"attention_bias": True}, "half", 12),
    "GPT-J": ("gptj", {"rotary_dim": 4}, "interleaved", 6),
    "GPT-NeoX": ("gpt_neox", {"rotary_pct": 0.5}, "half", 6),
    "Cohere": ("cohere", {}, "interleaved", 6),
    "Cohere with norms of all heads": ("cohere", {"use_qk_norm": True}, "interleaved", 12),
    "Cohere 2, where full layers do not turn": ("cohere2", SHORT_WINDOW, "interleaved", 4),
    "DeepSeek-V2": ("deepseek_v2", {**LATENT, "topk_method": "greedy"}, "interleaved", 6),
    "DeepSeek-V2 without compressed queries": (
        "deepseek_v2", {**LATENT, "topk_method": "greedy", "q_lora_rank": None}, "interleaved", 6,
    ),
    "DeepSeek-V3": ("deepseek_v3", LATENT, "interleaved", 6),
    "Phi-3": ("phi3", {}, "half", 3),
    "Phi, of whose lanes half turn": ("phi", {"qk_layernorm": True, "num_key_value_heads": 4}, "half", 24),
    "Qwen2": ("qwen2", {}, "half", 12),
    "Qwen3": ("qwen3", {}, "half", 12),
    "Qwen3-Next, with gates among queries": ("qwen3_next", ONE_LINEAR, "half", 8),
    "Qwen2-VL's text": ("qwen2_vl_text", SECTIONS, "half", 12),
    "GLM": ("glm", {}, "interleaved", 12),
    "Falcon-7B": ("falcon", {}, "half", 3),
    "Falcon-40B": ("falcon", {"new_decoder_architecture": True, "num_kv_heads": 2, "bias": True}, "half", 6),
    "Falcon of one key a head": ("falcon", {"multi_query": False}, "half", 3),
    "CodeGen": ("codegen", {"rotary_dim": 4}, "interleaved", 3),
    "OLMo 2, normed over all heads": ("olmo2", {}, "half", 12),
    "StableLM, a norm a head": (
        "stablelm", {"partial_rotary_factor": 0.5, "qk_layernorm": True, "use_qkv_bias": True}, "half", 30,
    ),
    "SmolLM3, with a layer that does not turn": (
        "smollm3", {"no_rope_layers": [1, 0, 1]}, "half", 4,
    ),
    "Llama 4": ("llama4_text", {"intermediate_size_mlp": 32, "no_rope_layers": [1, 0, 1]}, "interleaved", 4),
    "Gemma 4, with wider heads in full layers": ("gemma4_text", SHORT_WINDOW, "half", 12),
    "Gemma 4, where keys are values": (
        "gemma4_text", {**SHORT_WINDOW, "attention_k_eq_v": True, "num_global_key_value_heads": 1}, "half", 14,
    ),
    "ModernBERT": ("modernbert", {}, "half", 3),
    "RoFormer": ("roformer", {}, "interleaved", 12),
}  # fmt: skip

# What other types need, that their models can be built at this size and that some lanes turn in pairs that differ.
OTHERS = {
    **dict.fromkeys(("axk1", "glm4_moe_lite", "minicpm3", "mistral4", "youtu"), LATENT),
    **dict.fromkeys(("qwen2_5_vl_text", "glm4v_text"), SECTIONS),
    **dict.fromkeys(
        ("glm4v_moe_text", "glm_image_text", "glm_ocr_text"), SECTIONS | {"head_dim": 16, "partial_rotary_factor": 0.5}
    ),
    **dict.fromkeys(("qwen3_5_text", "qwen3_5_moe_text", "olmo_hybrid"), ONE_LINEAR),
    "bamba": {**MAMBA, "attn_layer_indices": [1]},
    "dbrx": {
        "attn_config": {"kv_n_heads": 2, "rope_theta": 1e4, "clip_qkv": 8.0},
        "ffn_config": {"hidden_size": 32, "ffn_hidden_size": 16, "moe_num_experts": 2, "moe_top_k": 1},
    },
    "esm": {"position_embedding_type": "rotary"},
    "falcon_h1": {**MAMBA, "mamba_d_ssm": 64},
    "flint": {"layer_types": ["sliding_attention"] * 3},
    "gemma3n_text": {"layer_types": ["sliding_attention"] * 2 + ["full_attention"], "num_kv_shared_layers": 0},
    "granitemoehybrid": {
        **MAMBA,
        "layer_types": ["attention", "mamba", "attention"],
        "position_embedding_type": "rope",
    },
    "helium": {"head_dim": 8},
    "hunyuan_vl_text": {"rope_parameters": SECTIONS["rope_parameters"], "head_dim": 8},
    "lfm2_moe": {"layer_types": ["conv", "full_attention", "conv"], "num_dense_layers": 1},
    "longcat_flash": {
        "head_dim": 8,
        "num_key_value_heads": 4,
        "expert_ffn_hidden_size": 16,
        "zero_expert_num": 2,
        "moe_topk": 2,
    },
    "mimo_v2_flash": {
        "rope_parameters": {
            kind: {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
            for kind in ("full_attention", "sliding_attention")
        },
        **SHORT_WINDOW,
    },
    "mllama_text_model": {"cross_attention_layers": [1]},
}


def convert_and_compare(model, fields, of, clockwise=False):
    """Convert a model, hold its logits against the unconverted ones, and return the converted weights."""
    before, to, own = read(model), OTHER[of], weights(model)
    with paired_as(model, of, clockwise):
        assert apart(read(model), before) < 1e-5  # the literal rotation is this model's, so the pairing is named right
    converted = convert_pairing(own, fields, to)
    with paired_as(model, to, clockwise):
        assert apart(read(model), before) > 1e-3  # unconverted weights are wrong there
        model.load_state_dict(converted)
        assert apart(read(model), before) < 1e-5
    back = convert_pairing(converted, fields, of, of=to)
    assert back.keys() == own.keys()
    assert all(torch.equal(back[name], own[name]) for name in own)
    return {name for name in own if not torch.equal(converted[name], own[name])}


@pytest.mark.parametrize("name", FAMILIES)
def test_the_logits_of_a_family_stay(name):
    model_type, fields, of, n_turned = FAMILIES[name]
    config = configuration(model_type, **fields)
    changed = convert_and_compare(build(config), config.to_dict(), of)
    assert len(changed) == n_turned, sorted(changed)


@pytest.mark.parametrize("rank", [24, None])
def test_transformers_itself_runs_a_converted_deepseek_v3(rank):
    config = configuration("deepseek_v3", **LATENT, q_lora_rank=rank)
    model = build(config)
    before, own = read(model), weights(model)
    config.rope_interleave = False
    other = build(config)
    other.load_state_dict(own)
    assert apart(read(other), before) > 1e-3
    config.rope_interleave = True
    other.load_state_dict(convert_pairing(own, config.to_dict(), "half"))
    config.rope_interleave = False
    assert apart(read(other), before) < 1e-5


@pytest.mark.sample(15)
@pytest.mark.parametrize("model_type", sorted(set(MODEL_TYPES) - set(REMOTE) - {"phi4_multimodal"}))
def test_the_logits_of_every_type_stay(model_type):
    from posenc.config.models import TYPES

    family = next((fields for name, fields, _, _ in FAMILIES.values() if name == model_type), {})
    config = configuration(model_type, **OTHERS.get(model_type, family))
    model = build(config, MllamaForCausalLM if model_type == "mllama_text_model" else None)
    convert_and_compare(model, config.to_dict(), TYPES[model_type].pairing, clockwise=model_type == "nanochat")
