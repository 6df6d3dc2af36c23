"""Correct twin of sinusoidal_grad_severed."""

import math

import torch
from torch import nn

STYLE = "additive_module"
SPEC = {"encoding": "sinusoidal", "dim": 64, "base": 10000.0, "layout": "interleaved"}
EXPECT = "pass"


class PositionalEncoding(nn.Module):
    """Grow the table on demand; nothing in it is trained."""

    def __init__(self, dim):
        super().__init__()
        self.dim = dim
        self.pe = torch.zeros(0, dim)

    @torch.no_grad()
    def extend(self, n):
        rate = torch.exp(torch.arange(0.0, self.dim, 2.0) * -(math.log(10000.0) / self.dim))
        phase = torch.arange(0.0, n).unsqueeze(1) * rate
        self.pe = torch.zeros(n, self.dim)
        self.pe[:, 0::2], self.pe[:, 1::2] = torch.sin(phase), torch.cos(phase)

    def forward(self, x):
        if self.pe.size(0) < x.size(1):
            self.extend(x.size(1))
        return x + self.pe[: x.size(1)]


def build():
    return PositionalEncoding(64)
