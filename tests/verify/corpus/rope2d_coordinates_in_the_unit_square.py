"""A picture's table on coordinates normalised to -1 .. 1, while the model counts patches.

Report: https://github.com/huggingface/pytorch-image-models/pull/2692
"""

import torch

STYLE = "rope2d_table_fn"
SPEC = {"encoding": "rope2d", "head_dim": 32, "base": 100.0}
EXPECT = "rope2d.coordinates_wrong"


def coordinates(n):
    return (torch.arange(n) + 0.5) / n * 2 - 1


def table(h, w):
    period = 100.0 ** (torch.arange(8).float() / 8)
    across = coordinates(w)[None, :, None].expand(h, w, 1) / period
    down = coordinates(h)[:, None, None].expand(h, w, 1) / period
    return torch.cat((across, down), dim=-1).flatten(0, 1)


def build():
    return table
