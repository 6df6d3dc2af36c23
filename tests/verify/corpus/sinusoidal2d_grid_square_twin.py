"""Correct twin of sinusoidal2d_grid_square."""

import math

import torch
from torch import nn

STYLE = "additive_2d_module"
SPEC = {"encoding": "sinusoidal2d", "dim": 32, "base": 10000.0, "variant": "detr", "start": 0}
EXPECT = "pass"


def axis_code(places, width):
    angle = places.reshape(-1, 1) / 10000 ** (torch.arange(width // 2) * 2.0 / width)
    code = torch.zeros(len(angle), width)
    code[:, ::2], code[:, 1::2] = angle.sin(), angle.cos()
    return code


class PatchPositions(nn.Module):
    def forward(self, x):
        _, c, h, w = x.shape
        columns = math.ceil(w)
        token = torch.arange(h * w)
        row, column = torch.div(token, columns, rounding_mode="floor"), token % columns
        code = torch.cat([axis_code(row, c // 2), axis_code(column, c // 2)], dim=1)
        return x + code.t().reshape(c, h, w)


def build():
    return PatchPositions()
