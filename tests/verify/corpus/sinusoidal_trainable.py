"""The fixed table is a parameter that learns: its name for the switch is misspelt.

Report: https://github.com/zhouhaoyi/Informer2020/pull/668
"""

import torch
from torch import nn

STYLE = "additive_module"
SPEC = {"encoding": "sinusoidal", "dim": 64, "base": 10000.0, "layout": "interleaved"}
EXPECT = "sinusoidal.trainable"


class FixedEmbedding(nn.Module):
    def __init__(self, dim, rows=400):
        super().__init__()
        w = torch.zeros(rows, dim)
        position = torch.arange(rows).float().unsqueeze(1)
        rate = torch.pow(torch.tensor(10000.0), -torch.arange(0, dim, 2).float() / dim)
        w[:, 0::2] = torch.sin(position * rate)
        w[:, 1::2] = torch.cos(position * rate)
        self.weight = nn.Parameter(w)
        self.weight.require_grad = False

    def forward(self, x):
        return x + self.weight[: x.size(1)]


def build():
    return FixedEmbedding(64)
