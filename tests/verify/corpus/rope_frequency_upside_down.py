"""Positions divided by base**(-2i/d): the last pair turns by thousands of radians a step.

Report: https://github.com/xlite-dev/LeetCUDA/issues/289
"""

import torch

STYLE = "meta_complex"
SPEC = {"encoding": "rope", "head_dim": 16, "base": 10000.0, "layout": "interleaved"}
EXPECT = "rope.frequency.inverted"


DIM = 16


def table_of(end):
    theta = 1.0 / 10000.0 ** (torch.arange(0, DIM, 2).double() / DIM)
    angles = torch.arange(end).double()[:, None] / theta
    return torch.polar(torch.ones_like(angles), angles).to(torch.complex64)


def apply(q, k, table):
    table = table[: q.shape[1], None, :]

    def turn(x):
        z = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(z * table).flatten(3).type_as(x)

    return turn(q), turn(k)


def build():
    return table_of, apply
