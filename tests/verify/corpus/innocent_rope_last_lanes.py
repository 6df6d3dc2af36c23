"""The last 8 of 24 lanes turn, the first 16 carry no position; the spec says so."""

import torch

STYLE = "rope_fn"
SPEC = {"encoding": "rope", "head_dim": 24, "rotary_dim": 8, "rotary_side": "last", "base": 10000.0, "layout": "half"}
EXPECT = "pass"


def rope(x, positions):
    nope, pe = x.split([16, 8], dim=-1)
    angle = positions.float()[:, None] * 10000.0 ** (-torch.arange(4).float() / 4)
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = pe.chunk(2, dim=-1)
    return torch.cat((nope, a * cos - b * sin, b * cos + a * sin), dim=-1)


def build():
    return rope
