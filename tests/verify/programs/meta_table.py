"""A complex table of the positions up to an end, laid along the sequence of (batch, seq, heads, dim)."""

import torch

STYLE = "meta_complex"
SPEC = {"encoding": "rope", "head_dim": 16, "base": 10000.0, "layout": "interleaved"}
EXPECT = "pass"


def table_of(end):
    inv_freq = 10000.0 ** (-torch.arange(0, 16, 2).float() / 16)
    seq = torch.arange(end).to(torch.float32)
    angles = seq.float()[:, None] * inv_freq
    return torch.polar(torch.ones_like(angles), angles)


def apply(q, k, table):
    table = table[: q.shape[1], None, :]

    def turn(x):
        z = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(z * table).flatten(3).type_as(x)

    return turn(q), turn(k)


def build():
    return table_of, apply
