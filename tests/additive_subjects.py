"""What the tests of added codes share: right parts to spoil, and `judge`."""

import torch
from torch import nn

from posenc.verify import guard
from posenc.verify.additive import check as additive
from posenc.verify.codes import rules

D = 16
B = 10000.0
SIN = {"encoding": "sinusoidal", "dim": D}
LOW = {**SIN, "activation_dtype": "bfloat16"}
ODD_BASE = {**SIN, "base": 123456.0}


def judge(subject, convention, spec):
    """Return the status, and the first code, which must be listed, or why nothing can be told."""
    try:
        report = additive.check(subject, convention, spec).report(convention)
        status, because, found = report.status, report.because, [cause.code for cause in report.causes]
    except guard.SubjectError as error:
        status, because, found = "fail", "", [error.cause.code]
    assert set(found) <= set(rules()), found
    return status, found[0] if found else because


def omega(d, base=10000.0, k=None):
    return base ** (-2 * torch.arange((d + 1) // 2, dtype=torch.float64) / d)


def woven(p, w, d, first=torch.sin, second=torch.cos):
    out = torch.zeros(len(p), d, dtype=torch.float64)
    angle = p.double()[:, None] * w
    out[:, 0::2], out[:, 1::2] = first(angle), second(angle)[:, : d // 2]
    return out.float()


def halves(p, w, d, first=torch.sin, second=torch.cos):
    angle = p.double()[:, None] * w
    return torch.cat([first(angle), second(angle)[:, : d // 2]], 1).float()


def arange(n):
    return torch.arange(n)


class Adds(nn.Module):
    """x + code(seq) with a code from a function."""

    def __init__(self, code, tail=lambda x, c: x + c):
        super().__init__()
        self.code, self.tail = code, tail

    def forward(self, x):
        return self.tail(x, self.code(x.shape[1]).to(x.dtype))


def table_module(d, max_len=64, make=woven, w=None, cut=lambda pe, x: pe[: x.size(1)]):
    pe = make(torch.arange(max_len), omega(d) if w is None else w, d)

    def forward(x):
        return x + cut(pe, x).to(x.dtype)

    return forward


class Grows(nn.Module):
    """A table that grows when it is too short; `past` says where new rows start."""

    def __init__(self, past=True):
        super().__init__()
        self.past = past
        self.pe = woven(torch.arange(8), omega(D), D)

    def forward(self, x):
        n, have = x.shape[1], len(self.pe)
        if n > have:
            more = torch.arange(n - have) + (have if self.past else 0)
            self.pe = torch.cat([self.pe, woven(more, omega(D), D)])
        return x + self.pe[:n].to(x.dtype)


class Trains(nn.Module):
    def __init__(self):
        super().__init__()
        self.pe = nn.Parameter(woven(torch.arange(700), omega(D), D))

    def forward(self, x):
        return x + self.pe[: x.shape[1]]


class Coarse(nn.Module):
    """Forms positions, frequencies or angles in the dtype of x."""

    def __init__(self, what):
        super().__init__()
        self.what = what

    def forward(self, x):
        p, w = torch.arange(x.shape[1]).float()[:, None], omega(D).float()
        if "p" in self.what:
            p = p.to(x.dtype).float()
        if "w" in self.what:
            w = w.to(x.dtype).float()
        a = p * w
        if "a" in self.what:
            a = a.to(x.dtype).float()
        return x + torch.stack([a.sin(), a.cos()], -1).flatten(-2).to(x.dtype)


class Drops(nn.Module):
    def __init__(self, always):
        super().__init__()
        self.always = always

    def forward(self, x):
        y = x + woven(torch.arange(x.shape[1]), omega(D), D).to(x.dtype)
        return nn.functional.dropout(y, 0.1, training=self.always or self.training)


PLAIN = lambda n: woven(arange(n), omega(D), D)  # noqa: E731
T2T = B ** (-torch.arange(D // 2, dtype=torch.float64) / (D // 2 - 1))
