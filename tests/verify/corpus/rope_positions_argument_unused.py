"""A function that takes token positions and counts from 0 all the same.

Report: https://github.com/stanford-cs336/assignment1-basics/issues/28
"""

import torch
from torch import nn

STYLE = "rope_fn"
SPEC = {"encoding": "rope", "head_dim": 32, "base": 10000.0, "layout": "interleaved"}
EXPECT = "positions.given_ignored"


class RoPE(nn.Module):
    def __init__(self, theta, d_k):
        super().__init__()
        self.register_buffer("freq", theta ** (-torch.arange(0, d_k, 2).float() / d_k), persistent=False)

    def forward(self, x, token_positions):
        where = torch.arange(x.shape[-2])
        angle = where.float()[..., None] * self.freq
        even, odd = x[..., 0::2], x[..., 1::2]
        cos, sin = torch.cos(angle), torch.sin(angle)
        out = torch.empty_like(x)
        out[..., 0::2] = even * cos - odd * sin
        out[..., 1::2] = even * sin + odd * cos
        return out


def build():
    return RoPE(10000.0, 32)
