"""Correct twin of sinusoidal_cosine_next_frequency."""

import math

import torch
from torch import nn

STYLE = "additive_module"
SPEC = {"encoding": "sinusoidal", "dim": 24, "base": 10000.0, "layout": "interleaved"}
EXPECT = "pass"


class PositionalEncoder(nn.Module):
    def __init__(self, dim=24, max_len=128):
        super().__init__()
        self.pe = torch.zeros(max_len, dim)
        for p in range(max_len):
            for i in range(0, dim, 2):
                self.pe[p, i] = math.sin(p / 10000 ** (i / dim))
                self.pe[p, i + 1] = math.cos(p / 10000 ** (i / dim))

    def forward(self, x):
        return x + self.pe[: x.shape[1]].to(x)


def build():
    return PositionalEncoder()
