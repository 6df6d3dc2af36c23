"""Files as their publishers spell them, and changes of them."""

LENGTH = "original_max_position_embeddings"
FULL, SLIDING = "full_attention", "sliding_attention"
CSA, HCA = "compressed_sparse_attention", "heavily_compressed_attention"

# a flat DeepSeek-V4 with a layer that predicts a further token, which the list of ratios counts
V4 = {
    "model_type": "deepseek_v4", "hidden_size": 4096, "num_hidden_layers": 7, "num_attention_heads": 64,
    "head_dim": 512, "qk_rope_head_dim": 64, "max_position_embeddings": 1048576, "sliding_window": 128,
    "num_nextn_predict_layers": 1, "rope_theta": 10000, "compress_rope_theta": 160000,
    "compress_ratios": [0, 0, 4, 128, 4, 128, 4, 0],
    "rope_scaling": {"type": "yarn", "factor": 16, "beta_fast": 32, "beta_slow": 1, LENGTH: 65536},
}  # fmt: skip
# Step-3.5: lists for five layers and for two that predict further tokens
STEP = {
    "model_type": "step3p5", "hidden_size": 4096, "num_hidden_layers": 5, "num_attention_heads": 64, "head_dim": 128,
    "max_position_embeddings": 262144, "sliding_window": 512, "num_nextn_predict_layers": 2,
    "layer_types": [FULL, SLIDING, SLIDING, SLIDING, FULL, SLIDING, SLIDING],
    "rope_theta": [5e6, 1e4, 1e4, 1e4, 5e6, 1e4, 1e4], "partial_rotary_factors": [0.5, 1.0, 1.0, 1.0, 0.5, 1.0, 1.0],
    "yarn_only_types": [FULL], "use_rope_layers": [],
    "rope_scaling": {
        "rope_type": "llama3", "factor": 2.0, LENGTH: 131072, "low_freq_factor": 1.0, "high_freq_factor": 32.0,
    },
}  # fmt: skip
HUNYUAN = {
    "model_type": "hunyuan_vl", "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16,
    "head_dim": 128, "max_position_embeddings": 32768, "rope_theta": 10000.0,
    "rope_scaling": {
        "type": "xdrope", "alpha": 1000.0, "factor": 1.0, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0,
        "mscale_all_dim": 1.0, "xdrope_section": [16, 16, 16, 16],
    },
}  # fmt: skip
# params.json of Ministral 3, and of models with latent attention, of windows in turn, and of Meta
PARAMS = {
    "dim": 4096, "n_layers": 8, "head_dim": 128, "hidden_dim": 14336, "n_heads": 32, "n_kv_heads": 8,
    "norm_eps": 1e-5, "vocab_size": 131072, "rope_theta": 1e6, "max_position_embeddings": 262144,
    "llama_4_scaling": {LENGTH: 16384, "beta": 0.1},
    "yarn": {"factor": 16, LENGTH: 16384, "beta": 32, "alpha": 1, "apply_scale": False},
}  # fmt: skip
# params.json of Llama 3.1 8B and of Llama 4 Scout: Meta's code has factor 8 and 16, and 8192 trained positions
META = {"dim": 4096, "n_layers": 8, "n_heads": 32, "n_kv_heads": 8, "rope_theta": 500000.0, "use_scaled_rope": True}
SCOUT = {
    **META, "dim": 5120, "n_heads": 40, "attention_chunk_size": 8192, "nope_layer_interval": 4,
    "moe_args": {"num_experts": 16},
}  # fmt: skip
SCALING = {"rope_type": "linear", "factor": 4.0}
# what the publisher's own code reads, and no class of transformers
DBRX = {
    "model_type": "dbrx", "d_model": 6144, "n_heads": 48, "n_layers": 40, "max_seq_len": 32768,
    "attn_config": {"clip_qkv": 8, "kv_n_heads": 8, "model_type": "", "rope_theta": 500000},
}  # fmt: skip
NOMIC = {
    "model_type": "nomic_bert", "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 2048,
    "rotary_emb_base": 10000.0, "rotary_emb_fraction": 1.0, "rotary_emb_interleaved": False,
    "rotary_emb_scale_base": None, "rotary_scaling_factor": None, "max_trained_positions": 2048,
}  # fmt: skip
VL2 = {
    "model_type": "deepseek_vl_v2",
    "language_config": {
        "model_type": "deepseek_v2", "hidden_size": 1280, "num_hidden_layers": 12, "num_attention_heads": 10,
        "max_position_embeddings": 4096, "kv_lora_rank": None, "qk_nope_head_dim": 0, "qk_rope_head_dim": 0,
        "rope_theta": 10000, "use_mla": False,
    },
}  # fmt: skip
ZAMBA = {
    "model_type": "zamba2", "hidden_size": 2560, "num_hidden_layers": 54, "num_attention_heads": 32,
    "max_position_embeddings": 4096, "rope_theta": 10000, "use_mem_rope": True,
}  # fmt: skip
MPT = {"model_type": "mpt", "d_model": 4096, "n_heads": 32, "n_layers": 32, "max_seq_len": 2048,
    "attn_config": {"alibi": True, "alibi_bias_max": 8, "attn_impl": "torch"}}  # fmt: skip


def without(fields, *keys):
    return {key: value for key, value in fields.items() if key not in keys}


def scaled(fields, **changes):
    return {**fields, "rope_scaling": {**fields["rope_scaling"], **changes}}


def renamed(fields, **more):
    """The parameters under the new key, next to others."""
    return {**without(fields, "rope_scaling"), "rope_parameters": {**fields["rope_scaling"], **more}}


# files that transformers reads without a word, by what they vary
RIGHT = {
    "DeepSeek-V4": V4,
    "DeepSeek-V4, ratios of its layers only": {**V4, "compress_ratios": V4["compress_ratios"][:7]},
    "DeepSeek-V4, the order of its class": without(V4, "compress_ratios"),
    "DeepSeek-V4, kinds": {**without(V4, "compress_ratios"), "layer_types": [SLIDING, CSA, HCA, CSA, HCA, CSA, HCA]},
    "DeepSeek-V4, unscaled": without(V4, "rope_scaling"),
    "DeepSeek-V4, new key": renamed(V4, rope_type="yarn"),
    "DeepSeek-V4, other bases": {**V4, "rope_theta": 50000, "compress_rope_theta": 320000},
    "DeepSeek-V4, its own gain": scaled(V4, attention_factor=1.5),
    "DeepSeek-V4, linear": {**V4, "rope_scaling": {"type": "linear", "factor": 4.0}},
    "DeepSeek-V4, the width of its class": without(V4, "qk_rope_head_dim"),
    "DeepSeek-V4, a share": {**without(V4, "qk_rope_head_dim"), "partial_rotary_factor": 0.25},
    "Step-3.5": STEP,
    "Step-3.7": {"model_type": "step3p7", "text_config": {**STEP, "model_type": "of_the_publisher"}},
    "Step-3.5, one base": {**STEP, "rope_theta": 2e6},
    "Step-3.5, whole heads": without(STEP, "partial_rotary_factors"),
    "Step-3.5, YaRN": {**STEP, "rope_scaling": {"rope_type": "yarn", "factor": 4.0, LENGTH: 65536}},
    "HunyuanOCR": HUNYUAN,
    "HunyuanOCR, nested": {"model_type": "hunyuan_vl", "text_config": without(HUNYUAN, "model_type")},
    "HunyuanOCR, both names": scaled(HUNYUAN, mrope_section=[16, 16, 16, 16]),
    "HunyuanOCR, floats": scaled(HUNYUAN, xdrope_section=[32.0, 16.0, 16.0]),
    "Zamba 2, without its list": ZAMBA,
    "Zamba 2, another width": {**ZAMBA, "attention_head_dim": 80},
    "HunyuanOCR, new key": renamed(without(HUNYUAN, "rope_theta"), rope_theta=10000.0),
}

_LLAMA = {"model_type": "llama", "head_dim": 64, "num_hidden_layers": 2, "max_position_embeddings": 8192}
_GEMMA = {"model_type": "gemma3_text", "head_dim": 64, "num_hidden_layers": 6, "max_position_embeddings": 8192}
_NESTED = {FULL: {**SCALING, "rope_theta": 1e6}, SLIDING: {"rope_type": "default", "rope_theta": 1e4}}
_BASES = {"rope_theta": 1e6, "rope_local_base_freq": 1e4}
# files in both schemas of transformers that mean the same in both
ALIKE = {
    "equal": {**_LLAMA, "rope_theta": 5e5, "rope_scaling": SCALING, "rope_parameters": {**SCALING, "rope_theta": 5e5}},
    "type": {**_LLAMA, "rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 4},
        "rope_parameters": {**SCALING, "type": "linear", "rope_theta": 5e5}},
    "null": {**_LLAMA, "rope_theta": 5e5, "rope_scaling": None, "rope_parameters": {**SCALING, "rope_theta": 5e5}},
    "kinds": {**_GEMMA, **_BASES, "rope_scaling": SCALING, "rope_parameters": _NESTED},
    "Step-3.5": {**STEP, "rope_parameters": {
        FULL: {**STEP["rope_scaling"], "rope_theta": 5e6, "partial_rotary_factor": 0.5},
        SLIDING: {"rope_type": "default", "rope_theta": 1e4}}},
}  # fmt: skip
# and files that do not: the code of a warning about each
APART = {
    "another factor": ({**_LLAMA, "rope_theta": 5e5, "rope_scaling": SCALING,
        "rope_parameters": {**SCALING, "factor": 2.0, "rope_theta": 5e5}}, "two_spellings"),
    "another base": ({**_LLAMA, "rope_theta": 5e5, "rope_scaling": SCALING,
        "rope_parameters": {**SCALING, "rope_theta": 3e5}}, "two_spellings"),
    "a base in one": ({**_LLAMA, "rope_scaling": SCALING, "rope_parameters": {**SCALING, "rope_theta": 3e5}},
        "two_spellings"),
    "another base next to them": ({**_LLAMA, "rope_theta": 5e5, "rope_parameters": {**SCALING, "rope_theta": 3e5}},
        "two_bases"),
    "another factor of a kind": ({**_GEMMA, **_BASES, "rope_scaling": {**SCALING, "factor": 8.0},
        "rope_parameters": _NESTED}, "two_spellings"),
    "two types": ({**_LLAMA, "rope_theta": 5e5, "rope_scaling": {**SCALING, "type": "dynamic"}}, "two_types"),
    "Step-3.5, another factor": ({**ALIKE["Step-3.5"], "rope_scaling": {**STEP["rope_scaling"], "factor": 8.0}},
        "unread"),
    "DeepSeek-V4, a base inside": (renamed(V4, rope_type="yarn", rope_theta=5e5), "unread"),
    "DeepSeek-V4, one of two entries": ({**without(V4, "rope_scaling"),
        "rope_parameters": {"main": {"rope_theta": 7e4}}}, "unread"),
    "DeepSeek-V4, two widths": ({**V4, "partial_rotary_factor": 0.25}, "unread"),
    "DeepSeek-V4, no second base": (without(V4, "compress_rope_theta"), "assumed"),
    "Step-3.5, other kinds scaled": ({**STEP, "yarn_only_types": [SLIDING]}, "unread"),
    "Step-3.5, no kinds to scale": (without(STEP, "yarn_only_types"), "unread"),
    "Step-3.5, layers without rotation": ({**STEP, "use_rope_layers": [True] * 4 + [False]}, "unread"),
    "SmolLM 3, more entries than layers": ({**_LLAMA, "model_type": "smollm3", "rope_theta": 2e6,
        "no_rope_layers": [1, 1, 0]}, "unread"),
    "Ministral 3, no base": ({**_LLAMA, "model_type": "ministral3", "rope_parameters": SCALING}, "theta_missing"),
    "Higgs Audio, no base": ({**_LLAMA, "model_type": "higgs_audio_v2", "rope_scaling": SCALING}, "theta_missing"),
    "Llama, layers without rotation": ({**_LLAMA, "rope_theta": 5e5, "no_rope_layers": [1, 0]}, "unread"),
    "Step-3.5, one object": ({**STEP, "rope_parameters": {**SCALING, "rope_theta": 3e5}}, "unread"),
}  # fmt: skip
