"""Positions are counted along the batch instead of along the sequence.

Report: https://github.com/cmu-l3/anlp-fall2025-code/issues/1
"""

import torch
from torch import nn

STYLE = "additive_module"
SPEC = {"encoding": "sinusoidal", "dim": 32, "base": 10000.0, "layout": "half"}
EXPECT = "sinusoidal.axis.batch"


class Sinusoids(nn.Module):
    """Waves worked out afresh for every input, sines in the first half of the lanes."""

    def __init__(self, dim, base=10000.0):
        super().__init__()
        self.dim, self.base = dim, base

    def forward(self, x):
        rate = self.base ** (-torch.arange(0, self.dim, 2, device=x.device).float() / self.dim)
        pos = torch.arange(x.size(0), device=x.device)[:, None]
        angle = pos[..., None] * rate
        return x + torch.cat([angle.sin(), angle.cos()], dim=-1).to(x.dtype)


def build():
    return Sinusoids(32)
