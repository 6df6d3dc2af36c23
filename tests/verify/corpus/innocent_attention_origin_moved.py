"""Positions are counted from 100 on both sides; float64 inside."""

import torch

STYLE = "attention"
SPEC = {"encoding": "rope", "head_dim": 16, "base": 10000.0, "layout": "half", "causal": False}
EXPECT = "pass"


class Attend(torch.nn.Module):
    def forward(self, q, k, v, positions):
        width = q.size(-1)
        rate = 10000.0 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
        angle = (positions.double() + 100)[:, None] * torch.cat([rate, rate])
        swap = torch.zeros(width, width, dtype=torch.float64)
        for i in range(width // 2):
            swap[i, i + width // 2], swap[i + width // 2, i] = 1.0, -1.0
        q, k = (x.double() * angle.cos() + x.double() @ swap * angle.sin() for x in (q, k))
        return ((q @ k.mT / width**0.5).softmax(-1) @ v.double()).to(v.dtype)


def build():
    return Attend()
