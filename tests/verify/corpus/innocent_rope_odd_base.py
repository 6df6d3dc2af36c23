"""A base of 123456 and 12 lanes."""

import torch

STYLE = "meta_complex"
SPEC = {"encoding": "rope", "head_dim": 12, "base": 123456.0, "layout": "interleaved"}
EXPECT = "pass"


class Table:
    """Made once for the longest end, in double precision, and sliced."""

    def __init__(self):
        self.angles = torch.empty(0, 6, dtype=torch.float64)

    def __call__(self, *, end):
        if end > len(self.angles):
            rate = torch.tensor([123456.0 ** (-i / 6) for i in range(6)], dtype=torch.float64)
            self.angles = torch.arange(end, dtype=torch.float64)[:, None] * rate
        return torch.polar(torch.ones_like(self.angles[:end]), self.angles[:end]).to(torch.complex64)


def apply(q, k, table):
    def turn(x):
        f = table[: x.shape[1]].view(1, x.shape[1], 1, -1)
        re, im = x[..., 0::2], x[..., 1::2]
        return torch.stack((re * f.real - im * f.imag, re * f.imag + im * f.real), dim=-1).flatten(3).type_as(x)

    return turn(q), turn(k)


def build():
    return Table(), apply
