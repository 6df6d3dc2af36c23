"""The sinusoidal table, extended by whole blocks when a longer text comes."""

import torch
from torch import nn

STYLE = "additive_module"
SPEC = {"encoding": "sinusoidal", "dim": 32, "base": 10000.0, "layout": "half"}
EXPECT = "pass"


class Grown(nn.Module):
    def __init__(self, dim, block=16):
        super().__init__()
        self.dim, self.block = dim, block
        self.table = self.rows(0)

    def rows(self, begin):
        rate = 10000.0 ** (-torch.arange(0, self.dim, 2) / self.dim)
        angle = torch.arange(begin, begin + self.block)[:, None] * rate
        return torch.cat((angle.sin(), angle.cos()), 1)

    def forward(self, x):
        while len(self.table) < x.size(1):
            self.table = torch.cat((self.table, self.rows(len(self.table))))
        return x + self.table[: x.size(1)]


def build():
    return Grown(32)
