"""A picture's table with rows and columns counted from 1: distances, and so scores, stay."""

import torch

STYLE = "rope2d_table_fn"
SPEC = {"encoding": "rope2d", "head_dim": 24, "base": 10000.0}
EXPECT = "equivalent"


def table(h, w):
    rate = [10000.0 ** (-k / 6) for k in range(6)]
    rows = []
    for y in range(1, h + 1):
        for x in range(1, w + 1):
            rows.append([x * r for r in rate] + [y * r for r in rate])
    return torch.tensor(rows)


def build():
    return table
