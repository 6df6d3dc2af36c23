"""All sines, then all cosines, where no order of the lanes was asked for: a permutation of lanes."""

import torch
from torch import nn

STYLE = "additive_module"
SPEC = {"encoding": "sinusoidal", "dim": 64, "base": 10000.0}
EXPECT = "equivalent"


class Blocks(nn.Module):
    def __init__(self, dim, rows=700):
        super().__init__()
        k = torch.arange(dim // 2)
        phase = torch.arange(rows).unsqueeze(1) / 10000.0 ** (k / (dim // 2))
        self.register_buffer("pe", torch.hstack([phase.sin(), phase.cos()]))

    def forward(self, x):
        return x + self.pe[: x.shape[-2]]


def build():
    return Blocks(64)
