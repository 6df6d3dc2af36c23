"""Correct twin of swin_index_collision_wrong_side."""

import torch

STYLE = "relative_index_fn"
SPEC = {"encoding": "swin_bias", "window": (3, 6)}
EXPECT = "pass"


def index(h, w):
    grid = torch.stack(torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")).flatten(1)
    delta = grid[:, :, None] - grid[:, None, :]
    dy, dx = delta[0] + h - 1, delta[1] + w - 1
    return dy * (2 * w - 1) + dx


def build():
    return index
