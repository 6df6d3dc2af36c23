"""Each row is the one before it, turned by one step: angle addition instead of a product."""

import torch
from torch import nn

STYLE = "additive_module"
SPEC = {"encoding": "sinusoidal", "dim": 32, "base": 10000.0, "layout": "interleaved"}
EXPECT = "pass"


class Turning(nn.Module):
    def __init__(self, dim):
        super().__init__()
        w = 10000.0 ** (-torch.arange(dim // 2, dtype=torch.float64) * 2 / dim)
        self.step = torch.stack([torch.stack([w.cos(), w.sin()], -1), torch.stack([-w.sin(), w.cos()], -1)], -2)

    def forward(self, x):
        row = torch.tensor([0.0, 1.0], dtype=torch.float64).repeat(len(self.step), 1)
        rows = []
        for _ in range(x.shape[1]):
            rows.append(row.flatten())
            row = torch.einsum("kab,kb->ka", self.step, row)
        return x + torch.stack(rows).to(x.dtype)


def build():
    return Turning(32)
