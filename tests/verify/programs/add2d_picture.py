"""Two-dimensional sinusoidal code: rows in the first half of the channels, columns in the second."""

import torch
from torch import nn


def line(p, width):
    f = 10000.0 ** (-torch.arange(0, width, 2, dtype=torch.float32) / width)
    a = p.reshape(-1, 1) * f
    return torch.stack((a.sin(), a.cos()), -1).flatten(1)


class Code2D(nn.Module):
    def forward(self, x):
        n, c, h, w = x.shape
        gy, gx = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
        code = torch.cat((line(gy.float(), c // 2), line(gx.float(), c // 2)), 1)
        return x + code.t().reshape(1, c, h, w).to(x.dtype)


def build():
    return Code2D()


STYLE = "additive_2d_module"
SPEC = {"encoding": "sinusoidal2d", "dim": 32, "base": 10000.0, "layout": "interleaved", "order": "yx"}
EXPECT = "pass"
