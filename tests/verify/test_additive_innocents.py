"""Codes added to a sequence that are unusual and right."""

import math

import pytest
import torch
from torch import nn

from additive_subjects import (
    LOW,
    ODD_BASE,
    PLAIN,
    SIN,
    T2T,
    Adds,
    B,
    Coarse,
    D,
    Drops,
    Grows,
    Trains,
    arange,
    halves,
    judge,
    omega,
    table_module,
    woven,
)


class Oddity(nn.Module):
    """Everything unusual and nothing wrong: lazy, float64, keyword, a view, a cache of one length."""

    def __init__(self):
        super().__init__()
        self.register_buffer("inv", omega(D), persistent=False)
        self.kept = {}

    def forward(self, x, *, scale=1.0):
        n = x.shape[-2]
        if n not in self.kept:
            a = torch.arange(n)[:, None] * self.inv
            self.kept[n] = torch.stack([a.sin(), a.cos()], -1).reshape(1, n, D)
        return (x.transpose(1, 2) + self.kept[n].to(x).transpose(1, 2)).transpose(1, 2)


def complex_code(n):
    z = torch.polar(torch.ones(n, D // 2), torch.outer(torch.arange(n).float(), omega(D).float()))
    return torch.view_as_real(z).flip(-1).flatten(1)


def loop(n):
    return torch.tensor(
        [[(math.cos, math.sin)[j % 2 == 0](p / B ** (2 * (j // 2) / D)) for j in range(D)] for p in range(n)]
    )


SEQUENCE_INNOCENTS = {
    "plain": (Adds(PLAIN), SIN, "pass"),
    "no_dim": (Trains().requires_grad_(False), {"encoding": "sinusoidal"}, "pass"),
    "table": (table_module(D, 5000), SIN, "pass"),
    "short_table": (table_module(D, 30), SIN, "pass"),
    "grows": (Grows(), SIN, "pass"),
    "oddity": (Oddity(), SIN, "pass"),
    "complex": (Adds(complex_code), SIN, "pass"),
    "loop": (Adds(loop), SIN, "pass"),
    "dropout": (Drops(False), SIN, "pass"),
    "frozen": (Trains().requires_grad_(False), SIN, "pass"),
    "base": (Adds(lambda n: woven(arange(n), omega(D, 123456.0), D)), ODD_BASE, "pass"),
    "half": (Adds(lambda n: halves(arange(n), omega(D), D)), {**SIN, "layout": "half"}, "pass"),
    "undeclared": (Adds(lambda n: halves(arange(n), omega(D), D)), SIN, "equivalent"),
    "cos_undeclared": (Adds(lambda n: woven(arange(n), omega(D), D, torch.cos, torch.sin)), SIN, "equivalent"),
    "permuted": (
        Adds(lambda n: PLAIN(n)[:, torch.randperm(D, generator=torch.Generator().manual_seed(1))]),
        SIN,
        "equivalent",
    ),
    "cos_declared": (
        Adds(lambda n: halves(arange(n), omega(D), D, torch.cos, torch.sin)),
        {**SIN, "layout": "half", "order": "cos_sin"},
        "pass",
    ),
    "t2t": (Adds(lambda n: halves(arange(n), T2T, D)), {**SIN, "variant": "tensor2tensor"}, "pass"),
    "origin": (Adds(lambda n: woven(arange(n) + 1, omega(D), D)), {**SIN, "origin": "any"}, "equivalent"),
    "origin_77": (Adds(lambda n: woven(arange(n) + 77, omega(D), D)), {**SIN, "origin": "any"}, "equivalent"),
    "start": (Adds(lambda n: woven(arange(n) + 1, omega(D), D)), {**SIN, "start": 1}, "pass"),
    "odd": (Adds(lambda n: woven(arange(n), omega(15), 15)), {**SIN, "dim": 15}, "pass"),
    "odd_half": (Adds(lambda n: halves(arange(n), omega(15), 15)), {**SIN, "dim": 15, "layout": "half"}, "pass"),
    "float64": (Adds(PLAIN, lambda x, c: x.double() + c.double()), SIN, "pass"),
    "float32_table": (lambda x: x.float() + PLAIN(x.shape[1]), SIN, "pass"),
    "wide": (Adds(lambda n: woven(arange(n), omega(512), 512)), {**SIN, "dim": 512}, "pass"),
    "float32_angles": (Coarse(""), LOW, "pass"),
    "coarse_unasked": (Coarse("p"), SIN, "pass"),
    "max_positions": (table_module(D, 5000), {**SIN, "max_positions": 5000}, "pass"),
    "behind_a_function": ((lambda m: lambda x: m(x))(Drops(False)), SIN, "pass"),
    "bound_method": (Drops(False).forward, SIN, "pass"),
    "in_tuple": (lambda x: (x + PLAIN(x.shape[1]).to(x.dtype),), SIN, "pass"),
}


@pytest.mark.parametrize("name", SEQUENCE_INNOCENTS)
def test_an_innocent_sequence_passes(name):
    subject, spec, expected = SEQUENCE_INNOCENTS[name]
    assert judge(subject, "additive_module", spec)[0] == expected
