"""A complex table laid along the sequence of (batch, seq, heads, dim).

The correct twin of rope_complex_table_by_head.py.
"""

import torch

STYLE = "meta_complex"
SPEC = {"encoding": "rope", "head_dim": 16, "base": 10000.0, "layout": "interleaved"}
EXPECT = "pass"


def table_of(end):
    powers = torch.arange(8).float() / 8
    angles = torch.arange(end)[:, None] * 10000.0**-powers
    return torch.complex(angles.cos(), angles.sin())


def laid_along(table, x):
    axis = 1
    shape = [1, 1, 1, table.shape[-1]]
    shape[axis] = x.shape[axis]
    return table[: x.shape[axis]].view(shape)


def turn(x, table):
    z = torch.view_as_complex(x.float().reshape(x.shape[0], x.shape[1], x.shape[2], -1, 2))
    z = z * laid_along(table, x)
    return torch.view_as_real(z).reshape(x.shape).type_as(x)


def apply(q, k, table):
    return turn(q, table), turn(k, table)


def build():
    return table_of, apply
