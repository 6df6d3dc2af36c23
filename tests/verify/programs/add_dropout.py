"""A dropout of one half, idle because the module is in evaluation mode; positions from 1, as asked."""

import math

import torch
from torch import nn

STYLE = "additive_module"
SPEC = {"encoding": "sinusoidal", "dim": 32, "base": 10000.0, "layout": "interleaved", "start": 1}
EXPECT = "pass"


class PositionalEncoding(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.dropout = nn.Dropout(0.5)
        self.scale = nn.Parameter(torch.ones(1), requires_grad=False)
        self.rate = nn.Parameter(10000.0 ** (-torch.arange(0, dim, 2) / dim), requires_grad=False)

    def forward(self, x, mask=None):
        places = torch.ones_like(x[..., 0]).cumsum(1)
        phase = places.unsqueeze(-1) * self.rate
        code = torch.view_as_real(torch.polar(torch.ones_like(phase), math.pi / 2 - phase)).flatten(-2)
        return self.dropout(x + self.scale * code)


def build():
    return PositionalEncoding(32).eval()
