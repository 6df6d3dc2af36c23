"""A learned table with random rows, more rows than anyone asks for."""

import torch
from torch import nn


class Learned(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.weight = nn.Parameter(torch.randn(300, 24) * 0.3)

    def forward(self, x):
        rows = torch.arange(x.shape[-2], device=x.device)
        return x + nn.functional.embedding(rows, self.weight).to(x.dtype)


def build():
    return Learned()


STYLE = "additive_module"
SPEC = {"encoding": "learned", "dim": 24, "table_rows": 300}
EXPECT = "pass"
