"""Correct twin of sinusoidal_axis_batch_arange."""

import torch
from torch import nn

STYLE = "additive_module"
SPEC = {"encoding": "sinusoidal", "dim": 32, "base": 10000.0, "layout": "half"}
EXPECT = "pass"


class Sinusoids(nn.Module):
    """Waves worked out afresh for every input, sines in the first half of the lanes."""

    def __init__(self, dim, base=10000.0):
        super().__init__()
        self.dim, self.base = dim, base

    def forward(self, x):
        rate = self.base ** (-torch.arange(0, self.dim, 2, device=x.device).float() / self.dim)
        pos = torch.arange(x.size(1), device=x.device)[None]
        angle = pos[..., None] * rate
        return x + torch.cat([angle.sin(), angle.cos()], dim=-1).to(x.dtype)


def build():
    return Sinusoids(32)
