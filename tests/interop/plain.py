"""Queries and keys of a plain model, small enough to write their rows out."""

import torch

LLAMA = {
    "model_type": "llama", "hidden_size": 12, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 6,
    "num_hidden_layers": 2, "rope_theta": 1e4,
}  # fmt: skip
ATTENTION = "model.layers.0.self_attn"


def llama(**more):
    """Return queries and keys of one layer, their rows numbered."""
    rows = torch.arange(12.0)[:, None] + torch.zeros(12, 3)
    return {f"{ATTENTION}.q_proj.weight": rows, f"{ATTENTION}.k_proj.weight": rows[:6]} | more


def renamed(**names):
    """Return those of `llama` under other names."""
    return {f"{ATTENTION}.{names.get(name.split('.')[4], name.split('.')[4])}.weight": t for name, t in llama().items()}
