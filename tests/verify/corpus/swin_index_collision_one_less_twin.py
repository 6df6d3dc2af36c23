"""Correct twin of swin_index_collision_one_less."""

import torch

STYLE = "relative_index_fn"
SPEC = {"encoding": "swin_bias", "window": (7, 7)}
EXPECT = "pass"


def relative_position_index(h, w):
    rows = torch.arange(h * w) // w
    columns = torch.arange(h * w) % w
    down = rows.unsqueeze(1) - rows.unsqueeze(0) + (h - 1)
    across = columns.unsqueeze(1) - columns.unsqueeze(0) + (w - 1)
    down = down * (2 * w - 1)
    return down + across


def build():
    return relative_position_index
