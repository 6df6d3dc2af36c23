"""Columns in the first half of the lanes under the name of the rows, sines before cosines: values as released."""

import torch
from torch import nn

STYLE = "additive_2d_module"
SPEC = {"encoding": "sinusoidal2d", "dim": 32, "base": 10000.0, "variant": "mae", "layout": "half", "start": 0}
EXPECT = "pass"


def one_axis(width, place):
    rate = 1.0 / 10000 ** (torch.arange(width // 2, dtype=torch.float64) / (width / 2.0))
    phase = place.reshape(-1)[:, None] * rate[None]
    return torch.cat([torch.sin(phase), torch.cos(phase)], dim=1)


class GridCode(nn.Module):
    def forward(self, x):
        _, c, n_rows, n_columns = x.shape
        grid_w, grid_h = torch.meshgrid(torch.arange(n_columns), torch.arange(n_rows), indexing="xy")
        emb_h = one_axis(c // 2, grid_w)
        emb_w = one_axis(c // 2, grid_h)
        code = torch.cat([emb_h, emb_w], dim=1)
        return x + code.T.reshape(c, n_rows, n_columns).to(x)


def build():
    return GridCode()
