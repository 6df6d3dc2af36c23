"""Every position's whole rotation matrix, applied by einsum to a transposed view; the output is not contiguous."""

import torch


def matrices(positions):
    m = torch.zeros(len(positions), 24, 24, dtype=torch.float64)
    for i in range(12):
        a = positions.double() * 10.0 ** (-i / 12)
        m[:, i, i] = m[:, i + 12, i + 12] = a.cos()
        m[:, i, i + 12] = -a.sin()
        m[:, i + 12, i] = a.sin()
    return m


def rope(x, positions):
    m = matrices(positions)
    turned = torch.einsum("sij,...sj->...is", m, x.double())
    return turned.transpose(-1, -2).to(x.dtype)


def build():
    return rope


STYLE = "rope_fn"
SPEC = {"encoding": "rope", "head_dim": 24, "base": 10.0, "layout": "half"}
EXPECT = "pass"
