"""A code over pictures with four lanes to a frequency, counted from 1, as in LoFTR."""

import math

import torch
from torch import nn

STYLE = "additive_2d_module"
SPEC = {"encoding": "sinusoidal2d", "dim": 32, "base": 10000.0, "variant": "loftr", "start": 1}
EXPECT = "pass"


class SineCode2d(nn.Module):
    """Four lanes to a frequency: sin x, cos x, sin y, cos y; pixels are counted from 1."""

    def __init__(self, channels, largest=96):
        super().__init__()
        rate = torch.exp(torch.arange(0, channels // 2, 2) * (-math.log(10000.0) / (channels // 2)))
        along = torch.outer(rate, torch.arange(1, largest + 1).float())
        y = along[:, :, None].expand(-1, -1, largest)
        x = along[:, None, :].expand(-1, largest, -1)
        self.register_buffer("code", torch.stack([x.sin(), x.cos(), y.sin(), y.cos()], dim=1).flatten(0, 1))

    def forward(self, x):
        return x + self.code[:, : x.size(2), : x.size(3)]


def build():
    return SineCode2d(32)
