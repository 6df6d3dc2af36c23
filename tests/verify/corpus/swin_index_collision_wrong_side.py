"""The row offset is multiplied by the window's other side: offsets share a number when the sides differ.

Report: https://github.com/282857341/nnFormer/issues/8
"""

import torch

STYLE = "relative_index_fn"
SPEC = {"encoding": "swin_bias", "window": (3, 6)}
EXPECT = "swin.index.collision"


def index(h, w):
    grid = torch.stack(torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")).flatten(1)
    delta = grid[:, :, None] - grid[:, None, :]
    dy, dx = delta[0] + h - 1, delta[1] + w - 1
    return dy * (2 * h - 1) + dx


def build():
    return index
