"""Angles of an image grid at the resolution of the picture."""

import torch

TRAINED = 16


def table(h, w):
    f = torch.tensor([10000.0 ** (-i / 8) for i in range(8)])
    step = 1.0
    rows = torch.arange(h, dtype=torch.float32) * step
    cols = torch.arange(w, dtype=torch.float32) * step
    ax = (cols[:, None] * f).expand(h, w, 8)
    ay = (rows[:, None] * f)[:, None].expand(h, w, 8)
    return torch.cat((ax, ay), dim=2).flatten(0, 1)


def build():
    return table


STYLE = "rope2d_table_fn"
SPEC = {"encoding": "rope2d", "head_dim": 32, "base": 10000.0}
EXPECT = "pass"
