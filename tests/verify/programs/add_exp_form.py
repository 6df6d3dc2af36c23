"""Sinusoidal code with the frequencies as an exponential; sines first, cosines after."""

import math

import torch
from torch import nn


class SinCos(nn.Module):
    def __init__(self, dim):
        super().__init__()
        rate = torch.exp(torch.arange(dim // 2).float() * (-math.log(10000.0) / (dim // 2)))
        self.register_buffer("rate", rate)

    def forward(self, x):
        angle = torch.arange(x.shape[1], device=x.device)[:, None] * self.rate
        return x + torch.cat((angle.sin(), angle.cos()), -1).to(x.dtype)


def build():
    return SinCos(40)


STYLE = "additive_module"
SPEC = {"encoding": "sinusoidal", "dim": 40, "base": 10000.0, "layout": "half"}
EXPECT = "pass"
