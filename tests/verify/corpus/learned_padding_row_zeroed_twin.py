"""Correct twin of learned_padding_row_zeroed."""

import torch
from torch import nn

STYLE = "additive_module"
SPEC = {"encoding": "learned", "dim": 32, "table_rows": 64, "max_positions": 64, "offset": 0}
EXPECT = "pass"


class LearnedPositions(nn.Module):
    def __init__(self, rows, dim):
        super().__init__()
        self.table = nn.Embedding(rows, dim)

    def forward(self, x):
        return x + self.table(torch.arange(x.size(1), device=x.device))


def build():
    torch.manual_seed(0)
    return LearnedPositions(64, 32)
