"""A grid's angles, row and column by turns, with one series of frequencies over all pairs."""

import torch

STYLE = "rope2d_table_fn"
SPEC = {"encoding": "rope2d", "head_dim": 32, "base": 10000.0, "order": "yx", "interleaved": True}
EXPECT = "pass"


def table(h, w):
    freq = 10000.0 ** (-torch.arange(0, 32, 2).float() / 32)
    y = torch.arange(h).repeat_interleave(w)[:, None]
    x = torch.arange(w).repeat(h)[:, None]
    return torch.where(torch.arange(16) % 2 == 0, y, x) * freq


def build():
    return table
