"""Odd width, float64 in the output, a table that grows and never shrinks, and an odd base."""

import math

import torch
from torch import nn

STYLE = "additive_module"
SPEC = {"encoding": "sinusoidal", "dim": 31, "base": 123456.0, "layout": "interleaved"}
EXPECT = "pass"


class Growing(nn.Module):
    def __init__(self, *, dim, base):
        super().__init__()
        self.dim, self.base = dim, base
        self.rows = []

    def _row(self, p):
        waves = (math.sin, math.cos)
        return [waves[j % 2](p * self.base ** (-(j - j % 2) / self.dim)) for j in range(self.dim)]

    def forward(self, x):
        while len(self.rows) < x.shape[1]:
            self.rows.append(self._row(len(self.rows)))
        return x + torch.tensor(self.rows[: x.shape[1]], dtype=torch.float64)


def build():
    return Growing(dim=31, base=123456.0)
