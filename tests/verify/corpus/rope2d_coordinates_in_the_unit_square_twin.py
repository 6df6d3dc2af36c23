"""A picture's table on whole patch numbers.

The correct twin of rope2d_coordinates_in_the_unit_square.py.
"""

import torch

STYLE = "rope2d_table_fn"
SPEC = {"encoding": "rope2d", "head_dim": 32, "base": 100.0}
EXPECT = "pass"


def coordinates(n):
    return torch.arange(n).float()


def table(h, w):
    period = 100.0 ** (torch.arange(8).float() / 8)
    across = coordinates(w)[None, :, None].expand(h, w, 1) / period
    down = coordinates(h)[:, None, None].expand(h, w, 1) / period
    return torch.cat((across, down), dim=-1).flatten(0, 1)


def build():
    return table
