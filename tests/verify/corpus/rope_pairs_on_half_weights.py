"""A Llama rotation that turns neighbouring lanes, while the weights pair lane i with lane i + head_dim / 2.

Report: https://github.com/NeuraLegion/shainet/pull/111
"""

import torch
from torch import nn

STYLE = "hf_rope"
SPEC = {"encoding": "rope", "head_dim": 32, "base": 10000.0, "layout": "half"}
EXPECT = "rope.layout.wrong_pairing"


class Rotary(nn.Module):
    def __init__(self, dim, base=10000.0):
        super().__init__()
        inv_freq = 1.0 / base ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim)
        self.register_buffer("inv_freq", inv_freq, persistent=False)

    @torch.no_grad()
    def forward(self, x, position_ids):
        angles = position_ids[..., None].float() * self.inv_freq
        angles = angles.repeat_interleave(2, dim=-1)
        return angles.cos().to(x.dtype), angles.sin().to(x.dtype)


def quarter_turn(x):
    return torch.stack((-x[..., 1::2], x[..., 0::2]), dim=-1).flatten(-2)


def apply(q, k, cos, sin, unsqueeze_dim=1):
    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
    return q * cos + quarter_turn(q) * sin, k * cos + quarter_turn(k) * sin


def build():
    return Rotary(32), apply
