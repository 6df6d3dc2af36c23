"""Correct twin of relative_sinusoid_precedence."""

import math

import torch

STYLE = "relative_table_fn"
SPEC = {"encoding": "relative_sinusoid", "dim": 40, "base": 10000.0, "layout": "half"}
EXPECT = "pass"


def relative_table(n, *, dim=40):
    step = -math.log(10000.0) / (dim // 2)
    frequencies = [math.exp(k * step) for k in range(dim // 2)]
    rows = []
    for r in range(2 * n - 1):
        d = (n - 1) - r
        rows.append([math.sin(d * f) for f in frequencies] + [math.cos(d * f) for f in frequencies])
    return torch.tensor(rows)


def build():
    return relative_table
