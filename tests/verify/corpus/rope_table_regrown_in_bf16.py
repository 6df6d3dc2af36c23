"""A table made in float32, and made anew from frequencies in the dtype of the input when it must grow.

Report: https://github.com/huggingface/transformers/issues/29496
"""

import torch
from torch import nn

STYLE = "rope_offset_fn"
SPEC = {"encoding": "rope", "head_dim": 32, "base": 10000.0, "layout": "half", "activation_dtype": "bfloat16"}
EXPECT = "rope.precision.cache_rebuilt_in_low_precision"


class GrowingRope(nn.Module):
    def __init__(self, dim, rows=64):
        super().__init__()
        self.register_buffer("inv_freq", 10000.0 ** (-torch.arange(0, dim, 2).float() / dim), persistent=False)
        self.make(rows, torch.float32)

    def make(self, rows, dtype):
        self.rows = rows
        angles = torch.arange(rows).float()[:, None] * self.inv_freq.to(dtype).float()
        self.cos, self.sin = angles.cos(), angles.sin()

    def forward(self, x, offset=0):
        end = offset + x.shape[-2]
        if end > self.rows:
            self.make(2 * end, x.dtype)
        cos, sin = self.cos[offset:end].to(x.dtype), self.sin[offset:end].to(x.dtype)
        a, b = x.chunk(2, dim=-1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


def build():
    return GrowingRope(32)
