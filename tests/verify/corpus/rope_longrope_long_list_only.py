"""LongRoPE that takes the long list at every length.

Report: https://github.com/lablup/mlxcel/issues/1358
"""

import math

import torch
from torch import nn

CONFIG = {
    "model_type": "phi3",
    "hidden_size": 64,
    "num_attention_heads": 4,
    "head_dim": 16,
    "rope_theta": 10000.0,
    "max_position_embeddings": 512,
    "original_max_position_embeddings": 64,
    "rope_scaling": {
        "type": "longrope",
        "short_factor": [1.0, 1.05, 1.1, 1.2, 1.3, 1.4, 1.6, 1.8],
        "long_factor": [1.1, 1.5, 2.2, 3.7, 6.0, 9.0, 14.0, 21.0],
    },
}
STYLE = "hf_rope"
SPEC = {"encoding": "rope", "head_dim": 16, "layout": "half", "scaling": "longrope", "config": CONFIG}
EXPECT = "rope.longrope.always_long"


class Phi3Rotary(nn.Module):
    def __init__(self, config):
        super().__init__()
        dim = config["head_dim"]
        scaling = config["rope_scaling"]
        self.trained = config["original_max_position_embeddings"]
        stretch = config["max_position_embeddings"] / self.trained
        self.gain = math.sqrt(1 + math.log(stretch) / math.log(self.trained))
        period = config["rope_theta"] ** (torch.arange(0, dim, 2).float() / dim)
        self.register_buffer("short", 1.0 / (torch.tensor(scaling["short_factor"]) * period), persistent=False)
        self.register_buffer("long", 1.0 / (torch.tensor(scaling["long_factor"]) * period), persistent=False)

    def forward(self, x, position_ids):
        length = position_ids.max() + 1
        inv_freq = torch.where(length > 0, self.long, self.short)
        angles = position_ids[..., None].float() * inv_freq
        angles = torch.cat((angles, angles), dim=-1)
        return (self.gain * angles.cos()).to(x.dtype), (self.gain * angles.sin()).to(x.dtype)


def rotate_half(x):
    a, b = x.chunk(2, dim=-1)
    return torch.cat((-b, a), dim=-1)


def apply(q, k, cos, sin):
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    return q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin


def build():
    return Phi3Rotary(CONFIG), apply
