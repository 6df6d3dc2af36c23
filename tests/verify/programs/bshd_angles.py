"""Rotary layer taken from a code base with (batch, heads, seq, dim), used on (batch, seq, heads, dim)."""

import torch
from torch import nn


class Rotary(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.register_buffer("inv_freq", 10000.0 ** (-torch.arange(0, dim, 2).float() / dim))

    def angles(self, x):
        t = torch.arange(x.shape[-3], device=x.device).float()
        a = torch.outer(t, self.inv_freq)
        return torch.cat((a, a), -1)[:, None, :]

    def turn(self, x):
        a = self.angles(x)
        l, r = x.chunk(2, -1)
        return x * a.cos().to(x.dtype) + torch.cat((-r, l), -1) * a.sin().to(x.dtype)

    def forward(self, q, k):
        return self.turn(q), self.turn(k)


def build():
    return Rotary()


STYLE = "bshd_module"
SPEC = {"encoding": "rope", "head_dim": 32, "base": 10000.0, "layout": "half"}
EXPECT = "pass"
