"""The position table is told of a padding row: position 1 has a zero code that never learns.

Report: https://github.com/huggingface/transformers/pull/10200
"""

import torch
from torch import nn

STYLE = "additive_module"
SPEC = {"encoding": "learned", "dim": 32, "table_rows": 64, "max_positions": 64, "offset": 0}
EXPECT = "learned.padding_row_zeroed"


class LearnedPositions(nn.Module):
    def __init__(self, rows, dim):
        super().__init__()
        self.table = nn.Embedding(rows, dim, padding_idx=1)

    def forward(self, x):
        return x + self.table(torch.arange(x.size(1), device=x.device))


def build():
    torch.manual_seed(0)
    return LearnedPositions(64, 32)
