"""Cosines stand in the first half of the lanes, where the model was trained with sines.

Report: https://github.com/huggingface/diffusers/pull/1369
"""

import math

import torch
from torch import nn

STYLE = "additive_module"
SPEC = {"encoding": "sinusoidal", "dim": 64, "base": 10000.0, "layout": "half"}
EXPECT = "sinusoidal.layout.halves_swapped"


class StepCode(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.half = dim // 2

    def forward(self, x):
        steps = torch.arange(x.shape[1], dtype=torch.float32, device=x.device)
        rate = torch.exp(-math.log(10000.0) * torch.arange(self.half, dtype=torch.float32, device=x.device) / self.half)
        phase = steps[:, None] * rate[None, :]
        code = torch.cat([torch.cos(phase), torch.sin(phase)], dim=-1)
        return x + code


def build():
    return StepCode(64)
