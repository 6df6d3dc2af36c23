"""Sine and cosine of single positions by math and lru_cache; huge base."""

import functools
import math

import torch


@functools.cache
def row(position):
    angles = [position * 1e12 ** (-i / 8) for i in range(8)]
    return tuple(map(math.cos, angles)), tuple(map(math.sin, angles))


def rope(x, positions):
    rows = [row(int(p)) for p in positions]
    cos = torch.tensor([r[0] for r in rows]).to(torch.float32)
    sin = torch.tensor([r[1] for r in rows]).to(torch.float32)
    out = x.to(torch.float32, copy=True)
    even, odd = out[..., ::2].clone(), out[..., 1::2].clone()
    out[..., ::2] = even.mul_(cos).sub_(out[..., 1::2] * sin)
    out[..., 1::2] = odd * cos + x[..., ::2].float() * sin
    return out.to(x.dtype)


def build():
    return rope


STYLE = "rope_fn"
SPEC = {"encoding": "rope", "head_dim": 16, "base": 1e12, "layout": "interleaved"}
EXPECT = "pass"
