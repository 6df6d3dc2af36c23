"""Correct twin of sinusoidal_halves_swapped."""

import math

import torch
from torch import nn

STYLE = "additive_module"
SPEC = {"encoding": "sinusoidal", "dim": 64, "base": 10000.0, "layout": "half"}
EXPECT = "pass"


class StepCode(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.half = dim // 2

    def forward(self, x):
        steps = torch.arange(x.shape[1], dtype=torch.float32, device=x.device)
        rate = torch.exp(-math.log(10000.0) * torch.arange(self.half, dtype=torch.float32, device=x.device) / self.half)
        phase = steps[:, None] * rate[None, :]
        code = torch.cat([torch.sin(phase), torch.cos(phase)], dim=-1)
        return x + code


def build():
    return StepCode(64)
