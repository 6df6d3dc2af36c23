"""A grid made with xy indexing from (width, height).

The correct twin of rope2d_grid_for_squares_only.py.
"""

import torch
from torch import nn

STYLE = "rope2d_table_fn"
SPEC = {"encoding": "rope2d", "head_dim": 16, "base": 100.0}
EXPECT = "pass"


class AxialRope(nn.Module):
    def __init__(self, head_dim, base):
        super().__init__()
        self.register_buffer("freq", 1.0 / base ** (torch.arange(0, head_dim // 2, 2).float() / (head_dim // 2)))

    def forward(self, h, w):
        sides = (w, h)
        x, y = torch.meshgrid(*[torch.arange(side).float() for side in sides], indexing="xy")
        angles = torch.stack((x, y), dim=-1)[..., None] * self.freq
        return angles.reshape(h * w, -1)


def build():
    return AxialRope(16, 100.0)
