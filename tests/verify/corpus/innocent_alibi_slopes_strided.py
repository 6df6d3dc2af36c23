"""Every other slope of the next power of two first, then the rest: the authors' list by another way."""

import math

import torch

STYLE = "slopes_fn"
SPEC = {"encoding": "alibi", "heads": 20}
EXPECT = "pass"


def slopes(n_heads):
    up = 2 ** math.ceil(math.log2(n_heads))
    values = 1.0 / torch.pow(2, torch.arange(1, up + 1, dtype=torch.float64) * 8 / up)
    if up != n_heads:
        values = torch.cat([values[1::2], values[::2]])[:n_heads]
    return tuple(values.tolist())


def build():
    return slopes
