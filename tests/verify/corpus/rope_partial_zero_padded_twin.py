"""A partial rotation in which lane i meets lane i + rotary_dim / 2.

The correct twin of rope_partial_zero_padded.py.
"""

import torch
from torch import nn

STYLE = "hf_rope"
SPEC = {"encoding": "rope", "head_dim": 64, "rotary_dim": 16, "base": 10000.0, "layout": "half"}
EXPECT = "pass"


HEAD_DIM, ROTARY_DIM = 64, 16


class PartialRotary(nn.Module):
    def __init__(self):
        super().__init__()
        inv_freq = 10000.0 ** (-torch.arange(0, ROTARY_DIM, 2).float() / ROTARY_DIM)
        padding = torch.zeros(0)
        self.register_buffer("inv_freq", torch.cat((inv_freq, padding)), persistent=False)

    def forward(self, x, position_ids):
        angles = position_ids[..., None].float() * self.inv_freq
        angles = torch.cat((angles, angles), dim=-1)
        return angles.cos().to(x.dtype), angles.sin().to(x.dtype)


def turn(x, cos, sin):
    width = cos.shape[-1]
    x, rest = x[..., :width], x[..., width:]
    a, b = x.chunk(2, dim=-1)
    return torch.cat((x * cos + torch.cat((-b, a), dim=-1) * sin, rest), dim=-1)


def apply(q, k, cos, sin):
    cos, sin = cos[:, None], sin[:, None]
    return turn(q, cos, sin), turn(k, cos, sin)


def build():
    return PartialRotary(), apply
