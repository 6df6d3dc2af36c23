"""Sines and cosines as the parts of a complex exponential."""

import torch
from torch import nn

STYLE = "additive_module"
SPEC = {"encoding": "sinusoidal", "dim": 64, "base": 10000.0, "layout": "interleaved"}
EXPECT = "pass"


class ComplexWaves(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.rate = torch.logspace(0, -4 * (dim - 2) / dim, dim // 2, dtype=torch.float64)

    def forward(self, x):
        turn = torch.exp(1j * torch.arange(x.size(1), dtype=torch.float64)[:, None] * self.rate)
        code = torch.stack([turn.imag, turn.real], dim=-1).flatten(-2)
        return x + code.to(x.dtype)


def build():
    return ComplexWaves(64)
