"""A grid made with xy indexing from (height, width): right for square pictures only.

Report: https://github.com/huggingface/pytorch-image-models/pull/2541
"""

import torch
from torch import nn

STYLE = "rope2d_table_fn"
SPEC = {"encoding": "rope2d", "head_dim": 16, "base": 100.0}
EXPECT = "rope2d.axes_swapped"


class AxialRope(nn.Module):
    def __init__(self, head_dim, base):
        super().__init__()
        self.register_buffer("freq", 1.0 / base ** (torch.arange(0, head_dim // 2, 2).float() / (head_dim // 2)))

    def forward(self, h, w):
        sides = (h, w)
        x, y = torch.meshgrid(*[torch.arange(side).float() for side in sides], indexing="xy")
        angles = torch.stack((x, y), dim=-1)[..., None] * self.freq
        return angles.reshape(h * w, -1)


def build():
    return AxialRope(16, 100.0)
