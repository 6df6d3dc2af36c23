"""Correct twin of sinusoidal_precedence_halves."""

import math

import torch
from torch import nn

STYLE = "additive_module"
SPEC = {"encoding": "sinusoidal", "dim": 64, "base": 10000.0, "layout": "half"}
EXPECT = "pass"


class Code(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.rate = torch.exp(torch.arange(dim // 2).float() * (-math.log(10000.0) / (dim // 2)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        angle = torch.outer(torch.arange(x.shape[-2]).float(), self.rate)
        return x + torch.cat((angle.sin(), angle.cos()), dim=1)


def build():
    return Code(64)
