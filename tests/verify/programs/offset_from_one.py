"""Counts from 1; the spec leaves the origin free."""

import torch


def rope(x, offset=0):
    n, d = x.shape[-2:]
    count = torch.ones(n, dtype=torch.float64).cumsum(0) + offset
    a = count[:, None] * torch.pow(torch.tensor(50000.0, dtype=torch.float64), -torch.arange(0, d, 2) / d)
    c, s = a.cos().type_as(x), a.sin().type_as(x)
    first, second = x.split(d // 2, dim=-1)
    return torch.cat((torch.addcmul(first * c, second, s, value=-1), torch.addcmul(second * c, first, s)), dim=-1)


def build():
    return rope


STYLE = "rope_offset_fn"
SPEC = {"encoding": "rope", "head_dim": 32, "base": 50000.0, "layout": "half", "origin": "any"}
EXPECT = "pass"
