"""Sinusoidal code of odd width: one sine more than cosines."""

import torch
from torch import nn


class Odd(nn.Module):
    def __init__(self, d=37, rows=1000):
        super().__init__()
        lane = torch.arange(d)
        rate = 10000.0 ** (-(lane - lane % 2).double() / d)
        a = torch.arange(rows).double().outer(rate)
        self.register_buffer("pe", torch.where(lane % 2 == 0, a.sin(), a.cos()).float())

    def forward(self, x):
        return torch.add(self.pe[None].to(x.dtype).narrow(1, 0, x.size(1)), x)


def build():
    return Odd()


STYLE = "additive_module"
SPEC = {"encoding": "sinusoidal", "dim": 37, "base": 10000.0, "layout": "interleaved"}
EXPECT = "pass"
