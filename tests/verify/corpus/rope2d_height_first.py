"""A picture's table whose first half of the lanes turns by the row and the second by the column.

Report: https://github.com/ggml-org/llama.cpp/pull/13282
"""

import torch

STYLE = "rope2d_table_fn"
SPEC = {"encoding": "rope2d", "head_dim": 32, "base": 10000.0}
EXPECT = "rope2d.axes_swapped"


def table(h, w):
    freq = 10000.0 ** (-torch.arange(0, 16, 2).float() / 16)
    index = torch.arange(h * w)
    x, y = index % w, index // w
    first, second = y, x
    return torch.cat((first[:, None] * freq, second[:, None] * freq), dim=-1)


def build():
    return table
