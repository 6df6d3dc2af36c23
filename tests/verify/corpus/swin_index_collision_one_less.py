"""A multiplier of 2 w - 2: the last column's offset meets the first of the next row.

Report: https://github.com/microsoft/Swin-Transformer/issues/367
"""

import torch

STYLE = "relative_index_fn"
SPEC = {"encoding": "swin_bias", "window": (7, 7)}
EXPECT = "swin.index.collision"


def relative_position_index(h, w):
    rows = torch.arange(h * w) // w
    columns = torch.arange(h * w) % w
    down = rows.unsqueeze(1) - rows.unsqueeze(0) + (h - 1)
    across = columns.unsqueeze(1) - columns.unsqueeze(0) + (w - 1)
    down = down * (2 * w - 2)
    return down + across


def build():
    return relative_position_index
