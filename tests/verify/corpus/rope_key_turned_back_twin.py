"""Queries and keys turn the same way.

The correct twin of rope_key_turned_back.py.
"""

import torch
from torch import nn

STYLE = "hf_rope"
SPEC = {"encoding": "rope", "head_dim": 24, "base": 500000.0, "layout": "half"}
EXPECT = "pass"


class Rotary(nn.Module):
    def __init__(self, dim, base):
        super().__init__()
        self.dim, self.base = dim, base

    def forward(self, x, position_ids):
        powers = torch.arange(self.dim // 2, dtype=torch.float32) / (self.dim // 2)
        angles = position_ids.unsqueeze(-1) / self.base**powers
        angles = torch.cat([angles, angles], dim=-1)
        return torch.cos(angles).to(x.dtype), torch.sin(angles).to(x.dtype)


def rotate_half(x):
    a, b = x.chunk(2, dim=-1)
    return torch.cat((-b, a), dim=-1)


def apply(q, k, cos, sin):
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    q_out = q * cos + rotate_half(q) * sin
    k_out = k * cos + rotate_half(k) * sin
    return q_out, k_out


def build():
    return Rotary(24, 500000.0), apply
