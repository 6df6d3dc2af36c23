"""A table that grows with the positions asked for.

The correct twin of rope_table_ends.py.
"""

import torch

STYLE = "rope_fn"
SPEC = {"encoding": "rope", "head_dim": 16, "base": 10000.0, "layout": "half", "max_positions": 4096}
EXPECT = "pass"


class Table:
    def __init__(self, dim, base, rows):
        self.inv_freq = base ** (-torch.arange(0, dim, 2).float() / dim)
        self.fill(rows)

    def fill(self, rows):
        self.rows = rows
        angles = torch.arange(rows).float()[:, None] * self.inv_freq
        self.cos, self.sin = angles.cos(), angles.sin()

    def __call__(self, x, positions):
        last = int(positions.max())
        if last >= self.rows:
            self.fill(last + 1)
        cos, sin = self.cos[positions].to(x.dtype), self.sin[positions].to(x.dtype)
        a, b = x.chunk(2, dim=-1)
        return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1)


def build():
    return Table(16, 10000.0, 512)
