"""A table for sequence-first data is given batch-first data: all tokens of a sequence share a code.

Report: https://github.com/NeuracoreAI/neuracore/pull/154
"""

import math

import torch
from torch import nn

STYLE = "additive_module"
SPEC = {"encoding": "sinusoidal", "dim": 64, "base": 10000.0, "layout": "interleaved"}
EXPECT = "sinusoidal.axis.batch"


class PositionalEncoding(nn.Module):
    def __init__(self, dim, max_len=1024):
        super().__init__()
        position = torch.arange(max_len, dtype=torch.float32).unsqueeze(1)
        rate = torch.exp(torch.arange(0, dim, 2, dtype=torch.float32) * (-math.log(10000.0) / dim))
        table = torch.zeros(max_len, dim)
        table[:, 0::2] = torch.sin(position * rate)
        table[:, 1::2] = torch.cos(position * rate)
        self.register_buffer("table", table)

    def forward(self, x):
        return x + self.table[: x.size(0)].unsqueeze(1)


def build():
    return PositionalEncoding(64)
