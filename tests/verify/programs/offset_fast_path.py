"""Rotary function with an offset and a fast path for one token."""

import torch

FREQS = 10000.0 ** (-torch.arange(32, dtype=torch.float32) / 32)


def rope(x, offset=0):
    n = x.shape[-2]
    if n == 1:
        angle = offset * FREQS
        out = x.clone()
        rows = out.unflatten(-1, (32, 2))
        a, b = rows[..., 0].clone(), rows[..., 1].clone()
        out[:] = torch.stack((a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()), -1).flatten(-2)
        return out
    angle = (torch.arange(n) + offset).float()[:, None] * FREQS
    pairs = x.unflatten(-1, (32, 2))
    a, b = pairs.unbind(-1)
    return (
        torch.stack((a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()), -1).flatten(-2).to(x.dtype)
    )


def build():
    return rope


STYLE = "rope_offset_fn"
SPEC = {"encoding": "rope", "head_dim": 64, "base": 10000.0, "layout": "interleaved"}
EXPECT = "pass"
