"""A function that turns by the token positions that it takes.

The correct twin of rope_positions_argument_unused.py.
"""

import torch
from torch import nn

STYLE = "rope_fn"
SPEC = {"encoding": "rope", "head_dim": 32, "base": 10000.0, "layout": "interleaved"}
EXPECT = "pass"


class RoPE(nn.Module):
    def __init__(self, theta, d_k):
        super().__init__()
        self.register_buffer("freq", theta ** (-torch.arange(0, d_k, 2).float() / d_k), persistent=False)

    def forward(self, x, token_positions):
        where = token_positions
        angle = where.float()[..., None] * self.freq
        even, odd = x[..., 0::2], x[..., 1::2]
        cos, sin = torch.cos(angle), torch.sin(angle)
        out = torch.empty_like(x)
        out[..., 0::2] = even * cos - odd * sin
        out[..., 1::2] = even * sin + odd * cos
        return out


def build():
    return RoPE(10000.0, 32)
