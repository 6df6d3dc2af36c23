"""Codes of far tokens, faults in the part of one axis, and fits that their own numbers refute."""

import numpy as np
import pytest
import torch

from posenc import verify
from posenc.verify.codes import rules

DIM = 32


def code(subject, spec, convention="additive_module"):
    report = verify.check(subject, convention=convention, spec=spec)
    assert all(cause.code in rules() for cause in report.causes)
    return (report.causes[0].code if report.causes else report.status), report


class Waves(torch.nn.Module):
    """The sinusoid, with positions and frequencies of its own."""

    def __init__(self, place=lambda p: p, frequency=lambda k, d: 10000.0 ** (-2 * k / d), longest=10**9):
        super().__init__()
        self.place, self.frequency, self.longest = place, frequency, longest

    def forward(self, x):
        n, d = x.shape[1:]
        if n > self.longest:
            raise ValueError("too long")
        a = self.place(torch.arange(n)).double()[:, None] * self.frequency(torch.arange(d // 2).double(), d)
        return x + torch.stack((a.sin(), a.cos()), -1).flatten(-2).to(x)


class Rows(torch.nn.Module):
    def __init__(self, n, place=lambda p: p, longest=10**9):
        super().__init__()
        self.table, self.place, self.longest = torch.nn.Parameter(torch.randn(n, 8)), place, longest

    def forward(self, x):
        if x.shape[1] > self.longest:
            raise ValueError("too long")
        return x + self.table[self.place(torch.arange(x.shape[1]))]


def short(p):
    return p.to(torch.int16).long()


SIN = {"encoding": "sinusoidal", "dim": DIM, "layout": "interleaved"}
LEARNED = {"encoding": "learned", "dim": 8}


@pytest.mark.parametrize("words", [{}, {"max_positions": 131072}])
def test_positions_in_16_bits_are_found_out(words):
    got, report = code(Waves(short), {**SIN, **words})
    assert got == "sinusoidal.position.wrapped", report
    assert "row 32768 has position -32768: positions are formed in 16 bits" in report.causes[0].message
    assert code(Waves(), {**SIN, **words})[0] == "pass"


def test_a_table_that_starts_again_far_out_is_named():
    assert code(Waves(lambda p: p % 20_000), SIN)[0] == "sinusoidal.table.growth_ignores_past"
    assert code(Waves(lambda p: p.clamp(max=20_000)), SIN)[0] == "sinusoidal.table.too_short"
    assert code(Waves(longest=5000), SIN)[0] == "pass"
    assert code(Waves(lambda p: p % 20_000), {**SIN, "max_positions": 20_000})[0] == "pass"


@pytest.mark.parametrize("words", [{}, {"max_positions": 40_000}])
def test_far_rows_of_a_trained_table_are_asked_for(words):
    got, report = code(Rows(40_000, short), {**LEARNED, **words})
    assert got == "learned.wrapped", report
    assert "token 32768 gets row 7232 of the table, where row 32768 is its own" in report.causes[0].message
    assert code(Rows(40_000), {**LEARNED, **words})[0] == "pass"


def test_a_trained_table_may_end_before_its_rows_do():
    assert code(Rows(40_000, longest=30_000), LEARNED)[0] == "pass"
    assert code(Rows(40_000, longest=30_000), {**LEARNED, "max_positions": 40_000})[0] == "learned.table_too_short"


def image(rows, columns):
    """Return a code whose first half shows the row by two waves, and whose second half the column by two."""

    class Grid(torch.nn.Module):
        def forward(self, x):
            _, c, h, w = x.shape
            f = 10000.0 ** (-torch.arange(0, c // 2, 2).double() / (c // 2))
            y, z = torch.arange(h).double()[:, None] * f, torch.arange(w).double()[:, None] * f
            top = torch.cat([wave(y) for wave in rows], -1)[:, None].expand(h, w, -1)
            side = torch.cat([wave(z) for wave in columns], -1)[None].expand(h, w, -1)
            return x + torch.cat((top, side), -1).permute(2, 0, 1).to(x)

    return Grid()


S, C, RIGHT = torch.sin, torch.cos, (torch.sin, torch.cos)
PARTS = {
    "sines": ((S, S), "sinusoidal.layout.one_wave"),
    "cosines": ((C, C), "sinusoidal.layout.one_wave"),
    "swapped": ((C, S), "sinusoidal.layout.halves_swapped"),
    "negated": ((lambda a: -a.sin(), C), "sinusoidal.sign"),
    "empty": ((S, lambda a: 0 * a), "sinusoidal.layout.half_empty"),
}


@pytest.mark.parametrize("name", PARTS)
def test_a_wrong_part_of_one_axis_is_named(name):
    waves, want = PARTS[name]
    words = {"encoding": "sinusoidal2d", "dim": DIM, "base": 10000.0, "layout": "half", "order": "yx"}
    for subject, axis in ((image(waves, RIGHT), "rows"), (image(RIGHT, waves), "columns")):
        got, report = code(subject, words, "additive_2d_module")
        assert got == want, report
        assert f"in the part of the {axis} alone" in report.causes[0].message
    assert code(image(waves, waves), words, "additive_2d_module")[0] == want
    assert code(image(RIGHT, RIGHT), words, "additive_2d_module")[0] == "pass"


def test_a_divisor_that_is_multiplied_out_is_named():
    for k in (0, 1):
        wrong = Waves(frequency=lambda i, d, k=k: torch.nan_to_num(d / (10000.0**2 * (i + k)), posinf=0.0))
        assert code(wrong, SIN)[0] == "sinusoidal.frequency.precedence"


def test_a_fit_that_its_own_numbers_refute_is_dropped():
    got, report = code(Waves(frequency=lambda k, d: 5e-7 / (1 + k) ** 1.5), SIN)
    assert got == "sinusoidal.mismatch", report
    got, report = code(Waves(frequency=lambda k, d: 0.3 * 700.0 ** (-2 * k / d)), SIN)
    assert got == "sinusoidal.frequency.factor", report
    assert np.isclose(float(report.causes[0].message.split()[3]), 0.3)
