"""Angles of an image grid as a broadcast sum of two padded tables, float64, not contiguous."""

import torch
import torch.nn.functional as F


def table(h, w):
    f = 123456.0 ** -(torch.arange(20, dtype=torch.float64) / 20)
    x = F.pad(torch.arange(w).double()[:, None] * f, (0, 20))
    y = F.pad(torch.arange(h).double()[:, None] * f, (20, 0))
    lanes_first = (x.t()[:, None, :] + y.t()[:, :, None]).reshape(40, h * w)
    return lanes_first.t()


def build():
    return table


STYLE = "rope2d_table_fn"
SPEC = {"encoding": "rope2d", "head_dim": 80, "base": 123456.0}
EXPECT = "pass"
