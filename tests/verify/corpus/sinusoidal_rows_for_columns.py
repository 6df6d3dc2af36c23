"""The sine is taken of every other row and the cosine of the rest, instead of columns.

Report: https://github.com/gmongaras/Diffusion_models_from_scratch/issues/10
"""

import torch
from torch import nn

STYLE = "additive_module"
SPEC = {"encoding": "sinusoidal", "dim": 64, "base": 10000.0, "layout": "interleaved"}
EXPECT = "sinusoidal.axis.rows_for_columns"


class Encoding(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.dim = dim

    def forward(self, x):
        lane = torch.arange(self.dim)
        code = torch.arange(x.shape[1])[:, None] * 10000.0 ** (-(lane - lane % 2) / self.dim)[None]
        code[0::2] = torch.sin(code[0::2])
        code[1::2] = torch.cos(code[1::2])
        return x + code.to(x)


def build():
    return Encoding(64)
