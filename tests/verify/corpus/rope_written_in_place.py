"""The turned lanes are stored into q and k themselves: who uses q again turns it twice.

Report: https://github.com/unslothai/unsloth/issues/5001
"""

import torch
from torch import nn

STYLE = "bshd_module"
SPEC = {"encoding": "rope", "head_dim": 16, "base": 10000.0, "layout": "half"}
EXPECT = "rope.input.mutated"


class InPlaceRope(nn.Module):
    def __init__(self, dim, base):
        super().__init__()
        self.register_buffer("inv_freq", base ** (-torch.arange(0, dim, 2).float() / dim))

    def turn_(self, x):
        angle = torch.arange(x.shape[1]).float()[:, None, None] * self.inv_freq
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        half = x.shape[-1] // 2
        a, b = x[..., :half].clone(), x[..., half:].clone()
        x[..., :half] = a * cos - b * sin
        x[..., half:] = b * cos + a * sin
        return x

    def forward(self, q, k):
        return self.turn_(q), self.turn_(k)


def build():
    return InPlaceRope(16, 10000.0)
