"""Cosines and sines of half the head's width, used for both halves.

Seen in: https://github.com/karpathy/nanochat/pull/299
"""

import torch
from torch import nn

STYLE = "hf_rope"
SPEC = {"encoding": "rope", "head_dim": 32, "base": 10000.0, "layout": "half"}
EXPECT = "pass"


class HalfTables(nn.Module):
    def __init__(self, dim=32, base=10000.0):
        super().__init__()
        self.dim, self.base = dim, base

    def forward(self, x, position_ids):
        inv_freq = torch.pow(self.base, -torch.arange(0, self.dim, 2, device=x.device).float() / self.dim)
        freqs = torch.matmul(position_ids[..., None].float(), inv_freq[None])
        return freqs.cos().to(x.dtype), freqs.sin().to(x.dtype)


def apply(q, k, cos, sin):
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)

    def turn(x):
        d = x.shape[-1] // 2
        x1, x2 = x[..., :d], x[..., d:]
        return torch.cat([x1 * cos - x2 * sin, x1 * sin + x2 * cos], dim=-1)

    return turn(q), turn(k)


def build():
    return HalfTables(), apply
