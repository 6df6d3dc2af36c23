"""The sinusoidal table of the tutorials, made once and cut to the length of x."""

import torch
from torch import nn

STYLE = "additive_module"
SPEC = {"encoding": "sinusoidal", "dim": 64, "base": 10000.0, "layout": "interleaved"}
EXPECT = "pass"


class PositionalEncoding(nn.Module):
    def __init__(self, dim, max_len=1024):
        super().__init__()
        position = torch.arange(max_len, dtype=torch.float32).unsqueeze(1)
        rate = 10000.0 ** (-torch.arange(0, dim, 2) / dim)
        table = torch.zeros(max_len, dim)
        table[:, 0::2] = torch.sin(position * rate)
        table[:, 1::2] = torch.cos(position * rate[: dim // 2])
        self.register_buffer("table", table)

    def forward(self, x):
        return x + self.table[: x.size(1)]


def build():
    return PositionalEncoding(64)
