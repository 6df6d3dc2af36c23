"""Worked out afresh for every input, with one cosine fewer where the width is odd."""

import math

import torch
from torch import nn

STYLE = "additive_module"
SPEC = {"encoding": "sinusoidal", "dim": 33, "base": 10000.0, "layout": "interleaved"}
EXPECT = "pass"


class PositionalEmbedding(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.dim = dim

    def forward(self, x):
        n = x.size(1)
        pos = torch.arange(n, dtype=torch.float32).unsqueeze(1)
        rate = (torch.arange(0, self.dim, 2, dtype=torch.float32) * -(math.log(10000.0) / self.dim)).exp()
        pe = torch.zeros(n, self.dim)
        pe[:, 0::2] = torch.sin(pos * rate)
        pe[:, 1::2] = torch.cos(pos * rate[: self.dim // 2])
        return x + pe


def build():
    return PositionalEmbedding(33)
