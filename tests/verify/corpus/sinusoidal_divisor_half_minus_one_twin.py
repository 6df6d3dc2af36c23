"""Correct twin of sinusoidal_divisor_half_minus_one."""

import math

import torch
from torch import nn

STYLE = "additive_module"
SPEC = {"encoding": "sinusoidal", "dim": 20, "base": 10000.0, "layout": "half", "variant": "paper"}
EXPECT = "pass"


class TimeCode(nn.Module):
    def __init__(self, dim):
        super().__init__()
        half = dim // 2
        exponent = torch.arange(half) / half
        self.register_buffer("rate", torch.exp(-math.log(10000.0) * exponent))

    def forward(self, x):
        phase = torch.arange(x.size(-2)).unsqueeze(-1) * self.rate
        return x + torch.cat([phase.sin(), phase.cos()], dim=-1)


def build():
    return TimeCode(20)
