"""Rotary layer with a table of 512 rows that is made anew when a longer sequence comes."""

import torch
from torch import nn


class Regrown(nn.Module):
    def __init__(self):
        super().__init__()
        inv = 1e6 ** -(torch.arange(0, 64, 2, dtype=torch.float32) / 64)
        self.fill(inv, 512)
        self.register_buffer("inv_freq", inv)

    def fill(self, inv, rows):
        angle = torch.arange(rows, dtype=torch.float32)[:, None] * inv.float()
        self.cos, self.sin = angle.cos(), angle.sin()

    def forward(self, q, k):
        need = max(q.size(1), k.size(1))
        if need > self.cos.size(0):
            self.fill(self.inv_freq, need)
        return self.one(q), self.one(k)

    def one(self, x):
        c, s = self.cos[: x.size(1), None], self.sin[: x.size(1), None]
        a, b = x.float()[..., :32], x.float()[..., 32:]
        return torch.cat([a * c - b * s, b * c + a * s], -1).type_as(x)


def build():
    return Regrown()


STYLE = "bshd_module"
SPEC = {"encoding": "rope", "head_dim": 64, "base": 1000000.0, "layout": "half", "max_positions": 4096}
EXPECT = "pass"
