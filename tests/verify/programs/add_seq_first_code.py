"""Sinusoidal code; the table is (rows, 1, dim), the input (batch, seq, dim)."""

import math

import torch
from torch import nn


class PositionalEncoding(nn.Module):
    def __init__(self, d_model=36, max_len=5000):
        super().__init__()
        position = torch.arange(max_len).unsqueeze(1)
        div_term = torch.exp(torch.arange(0, d_model, 2) * (-math.log(10000.0) / d_model))
        pe = torch.zeros(max_len, 1, d_model)
        pe[:, 0, 0::2] = torch.sin(position * div_term)
        pe[:, 0, 1::2] = torch.cos(position * div_term)
        self.register_buffer("pe", pe)

    def forward(self, x):
        return x + self.pe[: x.size(1)].transpose(0, 1).to(x.dtype)


def build():
    return PositionalEncoding()


STYLE = "additive_module"
SPEC = {"encoding": "sinusoidal", "dim": 36, "base": 10000.0, "layout": "interleaved"}
EXPECT = "pass"
