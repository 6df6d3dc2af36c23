"""The table of positive distances, and its complex conjugate for the keys ahead; float64."""

import torch

STYLE = "relative_table_fn"
SPEC = {"encoding": "relative_sinusoid", "dim": 32, "base": 10000.0, "layout": "interleaved"}
EXPECT = "pass"


def table(n, dim=32):
    rate = torch.tensor([10000.0 ** (-k / dim) for k in range(0, dim, 2)], dtype=torch.float64)
    back = torch.polar(torch.ones(n, dim // 2, dtype=torch.float64), torch.arange(n).double()[:, None] * rate)
    both = torch.cat([back.flip(0), back.conj()[1:].resolve_conj()])
    return torch.view_as_real(both).flip(-1).reshape(2 * n - 1, dim)


def build():
    return table
