"""The code is computed and then left out of the result.

Report: https://github.com/Lightning-AI/pytorch-lightning/pull/20099
"""

import math

import torch
from torch import nn

STYLE = "additive_module"
SPEC = {"encoding": "sinusoidal", "dim": 64, "base": 10000.0, "layout": "interleaved"}
EXPECT = "sinusoidal.not_used"


class PositionalEncoding(nn.Module):
    def __init__(self, dim, max_len=300):
        super().__init__()
        self.drop = nn.Dropout(0.0)
        k = torch.arange(dim // 2)
        angle = torch.arange(max_len)[:, None] * torch.exp(-2 * k * math.log(10000.0) / dim)
        self.register_buffer("code", torch.stack((angle.sin(), angle.cos()), 2).reshape(1, max_len, dim))

    def forward(self, x):
        code = self.code[:, : x.size(1)]
        return self.drop(x).view(len(x), -1, code.size(-1))


def build():
    return PositionalEncoding(64)
