"""A module that looks the angles up by position_ids.

The correct twin of rope_ids_ignored.py.
"""

import torch
from torch import nn

STYLE = "hf_rope"
SPEC = {"encoding": "rope", "head_dim": 16, "base": 10000.0, "layout": "half"}
EXPECT = "pass"


class CachedRotary(nn.Module):
    def __init__(self, dim=16, base=10000.0, rows=2048):
        super().__init__()
        self.dim, self.base = dim, base
        self.fill(rows)

    def fill(self, rows):
        inv_freq = 1.0 / self.base ** (torch.arange(0, self.dim, 2).float() / self.dim)
        angles = torch.outer(torch.arange(rows).float(), inv_freq)
        self.register_buffer("table", torch.cat((angles, angles), dim=-1), persistent=False)

    def forward(self, x, position_ids):
        last = int(position_ids.max())
        if last >= self.table.shape[0]:
            self.fill(2 * last)
        angles = self.table[position_ids]
        return angles.cos().to(x.dtype), angles.sin().to(x.dtype)


def rotate_half(x):
    a, b = x.chunk(2, dim=-1)
    return torch.cat((-b, a), dim=-1)


def apply(q, k, cos, sin):
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    return q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin


def build():
    return CachedRotary(), apply
