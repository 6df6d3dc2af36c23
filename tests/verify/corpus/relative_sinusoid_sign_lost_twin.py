"""Correct twin of relative_sinusoid_sign_lost."""

import math

import torch

STYLE = "relative_table_fn"
SPEC = {"encoding": "relative_sinusoid", "dim": 32, "base": 10000.0, "layout": "interleaved"}
EXPECT = "pass"


def make_table(n, dim=32):
    steps = torch.arange(n, dtype=torch.float32).unsqueeze(-1)
    rate = torch.exp(torch.arange(0, dim, 2, dtype=torch.float32) * -(math.log(10000.0) / dim))
    past, ahead = torch.empty(n, dim), torch.empty(n, dim)
    past[:, 0::2] = torch.sin(steps * rate)
    past[:, 1::2] = torch.cos(steps * rate)
    ahead[:, 0::2] = torch.sin(-steps * rate)
    ahead[:, 1::2] = torch.cos(steps * rate)
    return torch.cat([past.flip(0), ahead[1:]], dim=0)


def build():
    return make_table
