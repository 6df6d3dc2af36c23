"""Angles of an image grid, x in the first half of the pairs."""

import torch


def table(h, w):
    freqs = 100.0 ** (-torch.arange(0, 32, 2).float() / 32)
    gx, gy = torch.meshgrid(torch.arange(w), torch.arange(h), indexing="xy")
    gx, gy = gx.reshape(-1, 1), gy.reshape(-1, 1)
    return torch.cat((gx * freqs, gy * freqs), -1)


def build():
    return table


STYLE = "rope2d_table_fn"
SPEC = {"encoding": "rope2d", "head_dim": 64, "base": 100.0}
EXPECT = "pass"
