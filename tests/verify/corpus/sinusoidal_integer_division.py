"""The exponent is an integer quotient, 0 for every pair, so all pairs turn at one rate.

Report: https://github.com/Kyubyong/transformer/pull/81
"""

import torch
from torch import nn

STYLE = "additive_module"
SPEC = {"encoding": "sinusoidal", "dim": 64, "base": 10000.0, "layout": "interleaved"}
EXPECT = "sinusoidal.frequency.integer_division"


def wave_table(n_positions, dim, base=10000.0):
    table = torch.empty(n_positions, dim)
    position = torch.arange(n_positions, dtype=torch.float32)
    for k in range(dim // 2):
        divisor = base ** (2 * k // dim)
        table[:, 2 * k] = torch.sin(position / divisor)
        table[:, 2 * k + 1] = torch.cos(position / divisor)
    return table


class AddPosition(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.register_buffer("waves", wave_table(512, dim), persistent=False)

    def forward(self, x):
        return x + self.waves.narrow(0, 0, x.size(1))


def build():
    return AddPosition(64)
