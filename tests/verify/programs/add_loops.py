"""Sinusoidal code filled in by two loops, after a well-known tutorial."""

import math

import torch


class Code(torch.nn.Module):
    def __init__(self):
        super().__init__()
        d, rows = 50, 600
        pe = torch.zeros(rows, d)
        for pos in range(rows):
            for i in range(0, d, 2):
                pe[pos, i] = math.sin(pos / 1000 ** (i / d))
                pe[pos, i + 1] = math.cos(pos / 1000 ** (i / d))
        self.register_buffer("pe", pe[None], persistent=False)

    def forward(self, x):
        return x + self.pe[:, : x.size(1)].to(x.dtype)


def build():
    return Code()


STYLE = "additive_module"
SPEC = {"encoding": "sinusoidal", "dim": 50, "base": 1000.0, "layout": "interleaved"}
EXPECT = "pass"
