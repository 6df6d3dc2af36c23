"""Indexing instead of slicing: the row that follows the last position is added to all tokens.

Report: https://github.com/DiffPoseTalk/DiffPoseTalk/issues/20
"""

import torch
from torch import nn

STYLE = "additive_module"
SPEC = {"encoding": "sinusoidal", "dim": 64, "base": 10000.0, "layout": "interleaved"}
EXPECT = "sinusoidal.slice.single_row"


class PositionalEncoding(nn.Module):
    def __init__(self, dim, dropout=0.0, max_len=600):
        super().__init__()
        self.dropout = nn.Dropout(p=dropout)
        rate = 1.0 / 10000.0 ** (torch.arange(0, dim, 2) / dim)
        angle = torch.einsum("p,f->pf", torch.arange(max_len, dtype=torch.float32), rate)
        pe = torch.zeros(1, max_len, dim)
        pe[0, :, 0::2] = angle.sin()
        pe[0, :, 1::2] = angle.cos()
        self.register_buffer("pe", pe)

    def forward(self, x):
        return self.dropout(x + self.pe[:, x.shape[1], :])


def build():
    return PositionalEncoding(64)
