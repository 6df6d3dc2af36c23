"""A Llama-3 configuration run through dynamic NTK: plain up to the trained length, a larger base beyond.

Report: https://github.com/ml-explore/mlx-swift-examples/issues/152
"""

import math

import torch
from torch import nn

CONFIG = {
    "model_type": "llama",
    "hidden_size": 128,
    "num_attention_heads": 4,
    "head_dim": 32,
    "rope_theta": 10000.0,
    "max_position_embeddings": 2048,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 256,
    },
}
STYLE = "hf_rope"
SPEC = {"encoding": "rope", "head_dim": 32, "layout": "half", "scaling": "llama3", "config": CONFIG}
EXPECT = "rope.llama3.as_dynamic"


def dynamic(base, dim, s, n):
    length, factor = s["original_max_position_embeddings"], s["factor"]
    if n > length:
        base = base * (factor * n / length - (factor - 1)) ** (dim / (dim - 2))
    return base ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)


def llama3(base, dim, s, n):
    inv_freq = base ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    turns = s["original_max_position_embeddings"] * inv_freq / (2 * math.pi)
    keep = (turns - s["low_freq_factor"]) / (s["high_freq_factor"] - s["low_freq_factor"])
    keep = keep.clamp(0, 1)
    return keep * inv_freq + (1 - keep) * inv_freq / s["factor"]


RECIPES = {"dynamic": dynamic, "llama3": dynamic}


class Rotary(nn.Module):
    def forward(self, x, position_ids):
        scaling = CONFIG["rope_scaling"]
        recipe = RECIPES[scaling["rope_type"]]
        n = int(position_ids.max()) + 1
        inv_freq = recipe(CONFIG["rope_theta"], CONFIG["head_dim"], scaling, n).float()
        angles = position_ids[..., None] * inv_freq
        angles = torch.cat((angles, angles), dim=-1)
        return angles.cos().to(x.dtype), angles.sin().to(x.dtype)


def rotate_half(x):
    a, b = x.chunk(2, dim=-1)
    return torch.cat((-b, a), dim=-1)


def apply(q, k, cos, sin):
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    return q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin


def build():
    return Rotary(), apply
