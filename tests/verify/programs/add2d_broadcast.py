"""Rows, then columns, each through its own broadcast; a table larger than the picture, cut to it."""

import torch
from torch import nn

STYLE = "additive_2d_module"
SPEC = {"encoding": "sinusoidal2d", "dim": 24, "base": 10000.0, "variant": "detr", "start": 0}
EXPECT = "pass"


class AxialSines(nn.Module):
    def __init__(self, channels, side=128):
        super().__init__()
        w = channels // 2
        angle = (
            torch.arange(side, dtype=torch.float64)[None] * 10000.0 ** (-torch.arange(0, w, 2) / w)[:, None].double()
        )
        self.register_buffer("wave", torch.stack([angle.sin(), angle.cos()], dim=1).reshape(w, side))

    def forward(self, x):
        h, w = x.shape[-2:]
        out = x.clone()
        half = self.wave.shape[0]
        out[:, :half] += self.wave[:, :h, None].to(x.dtype)
        out[:, half:] += self.wave[:, None, :w].to(x.dtype)
        return out


def build():
    return AxialSines(24)
