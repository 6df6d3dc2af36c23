"""Rotary function written like a fused kernel: buffers filled in a loop."""

import torch


def rope(x, offset):
    half = x.size(-1) // 2
    source = x
    lanes = [None] * x.size(-1)
    p = torch.arange(offset, offset + x.size(-2), dtype=torch.float64)
    for i in range(half):
        angle = p * 500.0 ** (-i / half)
        c, s = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        lanes[i] = source[..., i] * c - source[..., i + half] * s
        lanes[i + half] = source[..., i] * s + source[..., i + half] * c
    return torch.stack(lanes, -1)


def build():
    return rope


STYLE = "rope_offset_fn"
SPEC = {"encoding": "rope", "head_dim": 16, "base": 500.0, "layout": "half"}
EXPECT = "pass"
