"""Loops over positions and pairs with the mathematics of the standard library."""

import math

import torch

STYLE = "rope_fn"
SPEC = {"encoding": "rope", "head_dim": 8, "base": 10000.0, "layout": "interleaved"}
EXPECT = "pass"


def rope(x, positions):
    dim = x.shape[-1]
    rows = []
    for s, p in enumerate(positions.tolist()):
        lanes = [None] * dim
        for i in range(dim // 2):
            angle = p / math.pow(10000.0, 2 * i / dim)
            c, s_ = math.cos(angle), math.sin(angle)
            a, b = x[..., s, 2 * i], x[..., s, 2 * i + 1]
            lanes[2 * i], lanes[2 * i + 1] = a * c - b * s_, a * s_ + b * c
        rows.append(torch.stack(lanes, dim=-1))
    return torch.stack(rows, dim=-2)


def build():
    return rope
