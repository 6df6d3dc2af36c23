"""Relative sinusoids for distances n-1 .. -(n-1): past and future parts joined."""

import torch

DIM = 28


def part(distance):
    f = 10000.0 ** -(torch.arange(0, DIM, 2, dtype=torch.float64) / DIM)
    a = distance.double()[:, None] * f
    out = torch.zeros(len(distance), DIM, dtype=torch.float64)
    out[:, 0::2], out[:, 1::2] = a.sin(), a.cos()
    return out


def table(n):
    past = part(torch.arange(n)).flip(0)
    future = part(-torch.arange(n))[1:]
    return torch.cat((past, future)).float()


def build():
    return table


STYLE = "relative_table_fn"
SPEC = {"encoding": "relative_sinusoid", "dim": 28, "base": 10000.0, "layout": "interleaved"}
EXPECT = "pass"
