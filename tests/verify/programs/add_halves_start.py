"""Sines then cosines, counted from 1 as the spec says, in one phase-shifted sine."""

import math

import torch


class Shifted(torch.nn.Module):
    def forward(self, x):
        n, d = x.shape[1:]
        p = torch.linspace(1, n, n, dtype=torch.float64, device=x.device)
        f = 123456.0 ** (-torch.arange(d // 2, device=x.device).double() / (d // 2))
        a = torch.cat((p[:, None] * f, p[:, None] * f + math.pi / 2), 1)
        return (x.double() + a.sin()).to(x.dtype)


def build():
    return Shifted()


STYLE = "additive_module"
SPEC = {"encoding": "sinusoidal", "dim": 48, "base": 123456.0, "layout": "half", "start": 1}
EXPECT = "pass"
