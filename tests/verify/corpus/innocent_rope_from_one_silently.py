"""Positions are counted from 1: no score changes, because only distances count."""

import torch
from torch import nn

STYLE = "bshd_module"
SPEC = {"encoding": "rope", "head_dim": 24, "base": 10000.0, "layout": "half"}
EXPECT = "equivalent"


class OneBased(nn.Module):
    def forward(self, q, k):
        t = torch.ones(q.shape[1], dtype=torch.float64).cumsum(0)
        angle = t[:, None] * 10000.0 ** (-torch.arange(12, dtype=torch.float64) / 12)
        cos, sin = (f(torch.cat((angle, angle), dim=-1)).float()[:, None, :] for f in (torch.cos, torch.sin))
        return self.turn(q, cos, sin), self.turn(k, cos, sin)

    def turn(self, x, cos, sin):
        left, right = x.split(12, dim=-1)
        return (x * cos + torch.cat((-right, left), dim=-1) * sin).type_as(x)


def build():
    return OneBased()
