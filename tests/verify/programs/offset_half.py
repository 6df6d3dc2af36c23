"""A function of x and an offset, with the positions of one token and of several written apart."""

import torch

STYLE = "rope_offset_fn"
SPEC = {"encoding": "rope", "head_dim": 16, "base": 10000.0, "layout": "half"}
EXPECT = "pass"


def positions_of(n, offset):
    if n == 1:
        return torch.full((1,), float(offset))
    return torch.arange(offset, offset + n, dtype=torch.float32)


def rope(x, offset=0):
    half = x.shape[-1] // 2
    inv_freq = 10000.0 ** (-torch.arange(half) / half)
    angle = positions_of(x.shape[-2], offset)[:, None] * inv_freq
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    x1, x2 = x[..., :half], x[..., half:]
    return torch.cat((x1 * cos - x2 * sin, x1 * sin + x2 * cos), dim=-1)


def build():
    return rope
