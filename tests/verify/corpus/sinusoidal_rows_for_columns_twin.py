"""Correct twin of sinusoidal_rows_for_columns."""

import torch
from torch import nn

STYLE = "additive_module"
SPEC = {"encoding": "sinusoidal", "dim": 64, "base": 10000.0, "layout": "interleaved"}
EXPECT = "pass"


class Encoding(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.dim = dim

    def forward(self, x):
        lane = torch.arange(self.dim)
        code = torch.arange(x.shape[1])[:, None] * 10000.0 ** (-(lane - lane % 2) / self.dim)[None]
        code[:, 0::2] = torch.sin(code[:, 0::2])
        code[:, 1::2] = torch.cos(code[:, 1::2])
        return x + code.to(x)


def build():
    return Encoding(64)
