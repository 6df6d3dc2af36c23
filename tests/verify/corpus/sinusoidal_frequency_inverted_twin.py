"""Correct twin of sinusoidal_frequency_inverted."""

import math

import torch
from torch import nn

STYLE = "additive_module"
SPEC = {"encoding": "sinusoidal", "dim": 64, "base": 10000.0, "layout": "interleaved"}
EXPECT = "pass"


class PositionalEncoding(nn.Module):
    def __init__(self, dim, max_len=512):
        super().__init__()
        position = torch.arange(max_len, dtype=torch.float64)[:, None]
        div_term = torch.exp(-torch.arange(0, dim, 2, dtype=torch.float64) / dim * math.log(10000.0))
        phase = position * div_term
        self.register_buffer("pe", torch.stack([phase.sin(), phase.cos()], dim=-1).flatten(1).float())

    def forward(self, x):
        return x + self.pe[: x.size(1)]


def build():
    return PositionalEncoding(64)
