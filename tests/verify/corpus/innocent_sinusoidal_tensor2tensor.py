"""Exponents divided by half - 1, from wavelength 2 pi to 10000 times it, as the variant says."""

import math

import torch
from torch import nn

STYLE = "additive_module"
SPEC = {"encoding": "sinusoidal", "dim": 30, "base": 10000.0, "layout": "half", "variant": "tensor2tensor"}
EXPECT = "pass"


class Signal(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.n_scales = dim // 2

    def forward(self, x):
        step = math.log(1.0e4) / (self.n_scales - 1)
        scaled = torch.arange(x.size(1)).unsqueeze(1) * torch.exp(torch.arange(self.n_scales) * -step)
        return x + torch.cat([scaled.sin(), scaled.cos()], dim=1).to(x)


def build():
    return Signal(30)
