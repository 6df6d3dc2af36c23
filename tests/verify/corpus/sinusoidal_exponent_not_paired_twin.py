"""Correct twin of sinusoidal_exponent_not_paired."""

import torch
from torch import nn

STYLE = "additive_module"
SPEC = {"encoding": "sinusoidal", "dim": 48, "base": 10000.0, "layout": "interleaved"}
EXPECT = "pass"


def angles(position: int, dim: int) -> list[float]:
    return [position / 10000 ** (2 * (lane // 2) / dim) for lane in range(dim)]


class PositionTable(nn.Module):
    def __init__(self, dim: int, n_positions: int = 256):
        super().__init__()
        table = torch.tensor([angles(p, dim) for p in range(n_positions)], dtype=torch.float64)
        table[:, 0::2] = table[:, 0::2].sin()
        table[:, 1::2] = table[:, 1::2].cos()
        self.register_buffer("table", table.float()[None])

    def forward(self, x):
        return x + self.table[:, : x.size(1)].detach()


def build():
    return PositionTable(48)
