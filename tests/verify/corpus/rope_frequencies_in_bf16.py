"""Frequencies that are rounded to bfloat16 before they meet the positions.

Report: https://github.com/Modalities/modalities/pull/462
"""

import torch
from torch import nn

STYLE = "hf_rope"
SPEC = {"encoding": "rope", "head_dim": 32, "base": 10000.0, "layout": "half", "activation_dtype": "bfloat16"}
EXPECT = "rope.precision.frequencies_bf16"


class Rotary(nn.Module):
    def __init__(self, dim, base):
        super().__init__()
        self.register_buffer("inv_freq", base ** (-torch.arange(0, dim, 2).float() / dim), persistent=False)

    def forward(self, x, position_ids):
        inv_freq = self.inv_freq.to(x.dtype)
        angles = position_ids[..., None].float() * inv_freq.float()
        angles = torch.cat((angles, angles), dim=-1)
        return angles.cos().to(x.dtype), angles.sin().to(x.dtype)


def rotate_half(x):
    a, b = x.chunk(2, dim=-1)
    return torch.cat((-b, a), dim=-1)


def apply(q, k, cos, sin):
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    return q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin


def build():
    return Rotary(32, 10000.0), apply
