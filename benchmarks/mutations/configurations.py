"""Configurations of models, as `check` reads them in the specs of subjects: every scaling, and their edges."""

LLAMA = {"model_type": "llama", "hidden_size": 128, "num_attention_heads": 4, "head_dim": 32, "rope_theta": 10000.0}
LLAMA |= {"max_position_embeddings": 4096}
TRAINED = {"original_max_position_embeddings": 256}
YARN = {"rope_type": "yarn", "factor": 8.0, **TRAINED}
LONGROPE = {
    "type": "longrope",
    "short_factor": [1 + i / 50 for i in range(16)],
    "long_factor": [1 + i / 3 for i in range(16)],
}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, **TRAINED}
DEEPSEEK = {"type": "yarn", "factor": 40.0, "mscale": 0.707, "mscale_all_dim": 1.2, "beta_fast": 32, "beta_slow": 1}
PHI3 = {"model_type": "phi3", "eos_token_id": 1, "original_max_position_embeddings": 64, "max_position_embeddings": 512}
PHIMOE = {"short_mscale": 1.1, "long_mscale": 1.3, "original_max_position_embeddings": 64}
CONFIGS = {
    "plain": LLAMA,
    "linear": LLAMA | {"rope_scaling": {"rope_type": "linear", "factor": 4.0}},
    "dynamic": LLAMA | {"max_position_embeddings": 64, "rope_scaling": {"rope_type": "dynamic", "factor": 2.0}},
    "yarn": LLAMA | {"rope_theta": 150000.0, "rope_scaling": YARN | {"truncate": False}},
    "yarn, whole pairs": LLAMA | {"rope_theta": 1e6, "rope_scaling": YARN | {"beta_fast": 24.0, "beta_slow": 2.0}},
    "yarn, stated gain": LLAMA | {"rope_scaling": YARN | {"attention_factor": 1.3}},
    "yarn, mscale": LLAMA | {"rope_scaling": DEEPSEEK | TRAINED},
    "yarn, a step": LLAMA | {"rope_scaling": YARN | {"beta_fast": 2.0, "beta_slow": 2.0, "truncate": False}},
    "yarn, a small base": LLAMA
    | {"rope_theta": 10.0, "rope_scaling": YARN | {"original_max_position_embeddings": 4096}},
    "yarn, many turns": LLAMA
    | {"rope_theta": 10.0, "rope_scaling": YARN | {"original_max_position_embeddings": 4096, "beta_fast": 200.0}},
    "yarn, a small factor": LLAMA | {"rope_scaling": YARN | {"factor": 1.5}},
    "yarn, no factor": LLAMA | {"rope_scaling": YARN | {"factor": 1.0}},
    "llama3": LLAMA | {"rope_theta": 5e5, "rope_scaling": LLAMA3},
    "llama3, a step": LLAMA | {"rope_scaling": LLAMA3 | {"low_freq_factor": 2.0, "high_freq_factor": 2.0}},
    "llama3, backwards": LLAMA | {"rope_scaling": LLAMA3 | {"low_freq_factor": 4.0, "high_freq_factor": 2.0}},
    "yarn, one weight": LLAMA
    | {"rope_scaling": {name: value for name, value in (DEEPSEEK | TRAINED).items() if name != "mscale"}},
    "yarn, by lengths": LLAMA | {"rope_scaling": {name: value for name, value in YARN.items() if name != "factor"}},
    "clockwise": LLAMA | {"model_type": "nanochat"},
    "longrope, two gains": LLAMA | PHI3 | {"model_type": "phimoe", "rope_scaling": LONGROPE | PHIMOE},
    "ntk": LLAMA
    | {"model_type": "hunyuan_v1_dense", "rope_scaling": {"type": "dynamic", "alpha": 50.0, "factor": 1.0}},
    "longrope": LLAMA | PHI3 | {"rope_scaling": LONGROPE},
    "longrope, gains": LLAMA | PHI3 | {"rope_scaling": LONGROPE | {"attention_factor": 1.25}},
    "longrope, a small factor": LLAMA | PHI3 | {"rope_scaling": LONGROPE, "max_position_embeddings": 96},
    "longrope, no factor": LLAMA | PHI3 | {"rope_scaling": LONGROPE, "max_position_embeddings": 64},
    "proportional": {name: value for name, value in LLAMA.items() if name != "rope_theta"}
    | {"rope_parameters": {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25}},
    "partial": LLAMA | {"model_type": "gpt_neox", "rotary_pct": 0.5, "rotary_emb_base": 10000},
}
DEEPSEEK_V3 = {"model_type": "deepseek_v3", "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "rope_theta": 10000.0}
DEEPSEEK_V3 |= {"max_position_embeddings": 4096, "rope_scaling": DEEPSEEK | TRAINED}
