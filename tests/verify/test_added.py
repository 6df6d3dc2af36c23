"""Sinusoids that are added to texts: faults and unusual right code.

The subjects are written from the papers, with a switch for each fault; none uses the checks' own formulas.
"""

import math

import numpy as np
import pytest
import torch
from torch import nn

from posenc import definitions, verify
from posenc.verify.families import added
from posenc.verify.report import Cause
from posenc.verify.rules import known

D, B, TAU = 16, 10000.0, 2 * math.pi
SIN = {"encoding": "sinusoidal", "dim": D}
LOW = {**SIN, "activation_dtype": "bfloat16"}
HALF, WOVEN = {**SIN, "layout": "half"}, {**SIN, "layout": "interleaved"}
K = torch.arange(D // 2, dtype=torch.float64)
SINCOS = (torch.sin, torch.cos)


def judge(subject, convention, spec):
    report = verify.check(subject, convention=convention, spec=spec)
    assert {cause.code for cause in report.causes} <= set(known())
    return report.causes[0].code if report.causes else report.status


def omega(d, base=B):
    return base ** (-2 * torch.arange((d + 1) // 2, dtype=torch.float64) / d)


def waves(p, d=D, w=None, wc=None, half=False, order=SINCOS):
    """Return sines and cosines (n, d) of positions; `w` and `wc` are the frequencies of the first and second wave."""
    w = omega(d) if w is None else w
    first, second = order[0](p.double()[:, None] * w), order[1](p.double()[:, None] * (w if wc is None else wc))
    if half:
        return torch.cat([first, second[:, : d // 2]], 1).float()
    out = torch.zeros(len(p), d, dtype=torch.float64)
    out[:, 0::2], out[:, 1::2] = first, second[:, : d // 2]
    return out.float()


class Adds(nn.Module):
    """x + code: `place` makes positions of rows, `code` takes the place of the waves, `tail` adds."""

    def __init__(self, place=lambda p: p, tail=lambda x, c: x + c, code=None, **how):
        super().__init__()
        self.place, self.tail, self.code, self.how = place, tail, code, how

    def forward(self, x):
        n = x.shape[1]
        code = self.code(n) if self.code else waves(self.place(torch.arange(n)), **self.how)
        return self.tail(x, code.to(x.dtype))


class Table(nn.Module):
    """A table of `rows` rows from which `cut(table, x)` takes some; `trains` keeps it as a parameter."""

    def __init__(self, cut=lambda pe, x: pe[: x.size(1)], rows=64, trains=None):
        super().__init__()
        pe = waves(torch.arange(rows))
        self.pe = pe if trains is None else nn.Parameter(pe, requires_grad=trains)
        self.cut = cut

    def forward(self, x):
        return x + self.cut(self.pe, x).to(x.dtype)


class Grows(nn.Module):
    """A table of 8 rows that grows where it is too short: the first new row is that of position 8 + `gap`."""

    def __init__(self, gap=0, past=True, rows=8):
        super().__init__()
        self.pe, self.gap, self.past = waves(torch.arange(rows)), gap, past

    def forward(self, x):
        n, have = x.shape[1], len(self.pe)
        if n > have:
            more = torch.arange(n - have) + (have + self.gap if self.past else 0)
            self.pe = torch.cat([self.pe, waves(more)])
        return x + self.pe[:n].to(x.dtype)


class Keeps(nn.Module):
    """Keeps something from call to call: the longest table, whose end it takes, or a count of tokens."""

    def __init__(self, what):
        super().__init__()
        self.what, self.pe, self.past = what, waves(torch.arange(0)), 0

    def forward(self, x):
        n = x.shape[1]
        self.pe = waves(torch.arange(n)) if len(self.pe) < n else self.pe
        self.past += n
        return x + (self.pe[-n:] if self.what == "table" else waves(torch.arange(n) + self.past - n))


class Coarse(nn.Module):
    """Forms the stages in `what` in the dtype of x: p positions, w frequencies, a angles."""

    def __init__(self, what):
        super().__init__()
        self.what = what

    def forward(self, x):
        def held(t, stage):
            return t.to(x.dtype).float() if stage in self.what else t

        p, w = held(torch.arange(x.shape[1]).float()[:, None], "p"), held(omega(D).float(), "w")
        a = held(p * w, "a")
        return x + torch.stack([a.sin(), a.cos()], -1).flatten(-2).to(x.dtype)


class Drops(nn.Module):
    def __init__(self, always):
        super().__init__()
        self.always = always

    def forward(self, x):
        y = x + waves(torch.arange(x.shape[1])).to(x.dtype)
        return nn.functional.dropout(y, 0.1, training=self.always or self.training)


def branch(short, long, at):
    """Return a module that is `long` for texts of more than `at` tokens."""
    return lambda x: (long if x.shape[1] > at else short)(x)


T2T_RATES = B ** (-K / (D // 2 - 1))
SWAPPED = (torch.cos, torch.sin)
permuted = torch.randperm(D, generator=torch.Generator().manual_seed(1))
FAULTS = [
    ("axis.batch", Table(lambda pe, x: pe[: x.size(0)][:, None]), SIN),
    ("slice.tail", Table(lambda pe, x: pe[-x.size(1) :]), SIN),
    ("frequency.exponent_not_paired", Adds(w=omega(D), wc=B ** (-(2 * K + 1) / D)), SIN),
    ("frequency.divisor", Adds(w=B ** (-K / D)), SIN),
    ("frequency.divisor", Adds(w=B ** (-2 * K / 50)), SIN),
    ("frequency.divisor", Adds(w=T2T_RATES), {**SIN, "variant": "paper"}),
    ("frequency.divisor", Adds(), {**SIN, "variant": "tensor2tensor"}),
    ("frequency.factor", Adds(w=TAU * omega(D)), SIN),
    ("frequency.base", Adds(w=omega(D, 777.0)), SIN),
    ("temperature_hardwired", Adds(), {**SIN, "base": 123456.0}),
    ("layout.halves_swapped", Adds(half=True, order=SWAPPED), HALF),
    ("layout.cos_first", Adds(order=SWAPPED), WOVEN),
    ("layout.halves", Adds(half=True), WOVEN),
    ("layout.interleaved", Adds(), HALF),
    ("layout.one_wave", Adds(order=(torch.sin, torch.sin)), SIN),
    ("temperature_hardwired", Adds(order=SWAPPED), {**WOVEN, "base": 123456.0}),  # and the cosines come first
    ("start", Adds(lambda p: p + 1000), SIN),
    ("position.reversed", Adds(lambda p: len(p) - 1 - p), SIN),
    ("position.normalised", Adds(lambda p: p / len(p)), SIN),
    ("position.wrapped", Adds(lambda p: p.to(torch.int16)), WOVEN),
    ("position.missing", Adds(tail=lambda x, c: torch.cat((x[:, :1], x[:, 1:] + c[:-1]), 1)), SIN),
    ("position.missing", Adds(tail=lambda x, c: torch.cat((x[:, :-1] + c[:-1], x[:, -1:]), 1)), SIN),
    ("position.missing", Adds(tail=lambda x, c: torch.cat((x[:1] + c, x[1:]))), SIN),
    ("layout.half_empty", Adds(tail=lambda x, c: x + c * (torch.arange(D) < D - 2)), SIN),
    ("layout.half_empty", Adds(tail=lambda x, c: x + c * (torch.arange(D) < D // 2), half=True), HALF),
    ("start", Adds(lambda p: p + 1, w=T2T_RATES, half=True), {**SIN, "variant": "fairseq", "padding_idx": 1}),
    ("start", Adds(w=T2T_RATES, half=True), {**SIN, "variant": "fairseq", "padding_idx": 1}),
    ("added_twice", Adds(tail=lambda x, c: x + c + c), SIN),
    ("scaled", Adds(tail=lambda x, c: x + c * D**-0.5), SIN),
    ("input.scaled", Adds(tail=lambda x, c: x * D**0.5 + c), SIN),
    ("input.scaled", Adds(tail=lambda x, c: (x + c) * D**0.5), SIN),
    ("input.lost", Adds(tail=lambda x, c: c.expand_as(x)), SIN),
    ("input.changed", Adds(tail=lambda x, c: torch.relu(x + c)), SIN),
    ("not_used", Adds(tail=lambda x, c: x), SIN),
    ("random", Adds(tail=lambda x, c: x + c + 0.01 * torch.randn(c.shape)), SIN),
    ("dropout_in_eval", Drops(True), SIN),
    ("table.growth_ignores_past", Grows(past=False), SIN),
    ("table.growth_ignores_past", Grows(past=False, rows=0), SIN),  # later calls of one object only
    ("table.growth_ignores_past", Table(lambda pe, x: pe[torch.arange(x.size(1)) % 32]), SIN),
    ("table.growth_ignores_past", Adds(lambda p: p % 20_000), WOVEN),
    ("table.row_skipped", Grows(gap=1), SIN),
    ("table.row_skipped", Grows(gap=-1), SIN),
    ("table.too_short", Table(lambda pe, x: pe[torch.arange(x.size(1)).clamp(max=31)]), SIN),
    ("table.too_short", Adds(lambda p: p.clamp(max=20_000)), WOVEN),
    ("table.too_short", Table(rows=32), {**SIN, "max_positions": 64}),
    ("state_kept", Keeps("table"), SIN),
    ("state_kept", Keeps("count"), SIN),
    ("precision.positions_bf16", Coarse("p"), LOW),
    ("precision.frequencies_bf16", Coarse("w"), LOW),
    ("precision.product_bf16", Coarse("a"), LOW),
    ("precision.table_fp16", Adds(code=lambda n: waves(torch.arange(n)).half().float()), SIN),
    ("width.odd", Adds(code=lambda n: torch.zeros(n, 15)[:, :14] + torch.zeros(n, 15)), {**SIN, "dim": 15}),
    ("position.other", Adds(lambda p: p**1.5), SIN),
    ("mismatch", Adds(lambda p: p + (p > 20_000) * 0.5), WOVEN),
    # a second wrong branch does not hide the first
    ("layout.halves", branch(Adds(half=True), Adds(lambda p: p + 7), 20), WOVEN),
    ("frequency.base", branch(Adds(w=omega(D, 777.0)), Adds(tail=lambda x, c: x + c**2), 9), WOVEN),
]


TEXTS = [
    ("pass", Adds(), SIN),
    ("pass", Table(rows=700, trains=False), {"encoding": "sinusoidal"}),
    ("pass", Table(rows=30), SIN),
    ("pass", Table(rows=5000), {**SIN, "max_positions": 5000}),
    ("pass", Grows(), SIN),
    ("pass", Drops(False), SIN),
    ("pass", Adds(half=True), HALF),
    ("equivalent", Adds(half=True), SIN),
    ("equivalent", Adds(code=lambda n: waves(torch.arange(n))[:, permuted]), SIN),
    ("pass", Adds(half=True, order=SWAPPED), {**HALF, "order": "cos_sin"}),
    ("pass", Adds(w=T2T_RATES, half=True), {**SIN, "variant": "tensor2tensor"}),
    ("equivalent", Adds(w=T2T_RATES), {**SIN, "variant": "tensor2tensor"}),
    ("pass", Adds(lambda p: p + 2, w=T2T_RATES, half=True), {**SIN, "variant": "fairseq"}),
    ("pass", Adds(lambda p: p + 3, w=T2T_RATES, half=True), {**SIN, "variant": "fairseq", "padding_idx": 2}),
    ("equivalent", Adds(lambda p: p + 77), {**SIN, "origin": "any"}),
    ("pass", Adds(lambda p: p + 1), {**SIN, "start": 1}),
    ("pass", Adds(d=15, w=omega(15)), {**SIN, "dim": 15}),
    ("pass", Adds(d=15, w=omega(15), half=True), {**HALF, "dim": 15}),
    ("subject.writes_input", lambda x: x.add_(waves(torch.arange(x.shape[1]))), SIN),
    ("subject.not_finite", Adds(tail=lambda x, c: x + c + math.inf), SIN),
    ("cannot_tell", Adds(), {**SIN, "encoding": "time2vec"}),
    ("cannot_tell", Adds(), {**SIN, "encoding": "sinusoidal2d"}),
    ("pass", Adds(tail=lambda x, c: (x + c,)), SIN),
    ("equivalent", Adds(code=lambda n: waves(torch.arange(n), 512)[:, torch.arange(512) ^ 37]), {**SIN, "dim": 512}),
    ("pass", Coarse(""), LOW),  # angles in float32, only cosines and sines rounded
    ("pass", Coarse("p"), SIN),  # half precision is not asked for
    ("pass", Adds(lambda p: p % 20_000), {**WOVEN, "max_positions": 20_000}),
]


@pytest.mark.parametrize(("want", "subject", "spec"), TEXTS + [(f"sinusoidal.{code}", *rest) for code, *rest in FAULTS])
def test_a_text_is_judged(want, subject, spec):
    assert judge(subject, "additive_module", spec) == want


REFUSED = [
    ("variant", "tensor2tensr", r"variant cannot be 'tensor2tensr'\. Did you mean 'tensor2tensor'"),
    ("order", "rows first", "names axes, but a text has only one"),
    ("order", "zigzag", "order cannot be 'zigzag'"),
]


@pytest.mark.parametrize(("word", "said", "message"), REFUSED)
def test_a_word_that_is_not_known_is_refused(word, said, message):
    with pytest.raises(ValueError, match=message):
        judge(Adds(), "additive_module", {**SIN, word: said})


def test_a_disputed_definition_names_the_other():
    for code, asked, other in ((T2T_RATES, "paper", "tensor2tensor"), (omega(D), "tensor2tensor", "paper")):
        report = verify.check(Adds(w=code), convention="additive_module", spec={**SIN, "variant": asked})
        assert f'variant="{other}"' in report.causes[0].message


def test_a_pass_says_what_was_not_judged():
    report = verify.check(Table(rows=100), convention="additive_module", spec=SIN)
    assert "positions beyond 39" in report.not_judged
    assert any(line.startswith("130 tokens: ") for line in report.not_judged)
    assert any("half precision" in line for line in report.not_judged)


@pytest.mark.parametrize(
    ("d", "layout", "variant", "base"),
    [(16, "interleaved", "paper", 1e4), (15, "half", "paper", 777.0), (12, "half", "tensor2tensor", 1e4)],
)
def test_the_right_model_is_the_definition(d, layout, variant, base):
    family = added.family("additive_module", {"dim": d, "layout": layout, "variant": variant, "base": base})
    case = next(case for case in family.cases() if case.kind == "near")
    order = {"interleaved": "alternating", "half": "concatenated"}[layout]
    n = case.args[0][1]
    exact = definitions.find("sinusoidal")(np.arange(float(n)), d_model=d, base=base, order=order, exponent=variant)
    np.testing.assert_allclose(family.predict(family.truth, case)[:n], exact, atol=1e-13)


def test_a_mismatch_shows_a_case_with_true_numbers():
    subject = Adds(code=lambda n: waves(torch.arange(n)) + (torch.arange(n) >= 3)[:, None] * torch.arange(D) * 0.01)
    cause = verify.check(subject, convention="additive_module", spec=SIN).causes[0]
    case = cause.smallest_case
    assert (cause.code, case["x"], case["index"]) == ("sinusoidal.mismatch", [1, 4, D], [0, 3, D - 1])
    assert case["found"] - case["expected"] == pytest.approx(0.15, abs=1e-5)
    assert case["expected"] == pytest.approx(definitions.find("sinusoidal")(np.arange(4.0), d_model=D)[3, D - 1])


def test_a_build_that_raises_for_an_odd_width_is_named():
    raised = Cause("subject.raises", "build() raised RuntimeError: sizes differ", 1.0)
    assert added.refused("additive_module", {"dim": 15}, raised).code == "sinusoidal.width.odd"
    assert added.refused("additive_module", {"dim": 16}, raised) is raised
