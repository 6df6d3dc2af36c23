"""Rotation the other way round, on queries and keys alike (negative frequencies)."""

import torch

RATES = -(10000.0 ** (-torch.arange(20, dtype=torch.float64) / 20))


def rope(x, positions):
    w = torch.polar(torch.ones(len(positions), 20, dtype=torch.float64), positions.double().outer(RATES))
    z = torch.view_as_complex(x.double().reshape(*x.shape[:-1], 20, 2))
    return torch.view_as_real(z.mul(w)).flatten(-2).to(x.dtype)


def build():
    return rope


STYLE = "rope_fn"
SPEC = {"encoding": "rope", "head_dim": 40, "base": 10000.0, "layout": "interleaved"}
EXPECT = "equivalent"
