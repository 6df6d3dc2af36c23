"""Rotary function, frequencies log-spaced between 1 and the slowest one."""

import math

import torch

D, BASE = 80, 20000.0
RATES = torch.logspace(0.0, -math.log10(BASE) * (1 - 2 / D), D // 2, dtype=torch.float64)


def rope(x, positions):
    turn = positions.double()[:, None] * RATES
    cos, sin = turn.cos().to(x.dtype), turn.sin().to(x.dtype)
    even, odd = x[..., 0::2], x[..., 1::2]
    out = torch.empty_like(x)
    out[..., 0::2] = even * cos - odd * sin
    out[..., 1::2] = even * sin + odd * cos
    return out


def build():
    return rope


STYLE = "rope_fn"
SPEC = {"encoding": "rope", "head_dim": 80, "base": 20000.0, "layout": "interleaved"}
EXPECT = "pass"
