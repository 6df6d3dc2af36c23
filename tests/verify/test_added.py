"""Sinusoids that are added to texts and images, and tables of sinusoids of distances: faults and unusual right code.

The subjects are written from the papers, with a switch for each fault; none uses the checks' own formulas.
"""

import math

import numpy as np
import pytest
import torch
from torch import nn

from posenc import definitions, verify
from posenc.verify.engine import Seen
from posenc.verify.engine.judge import settle
from posenc.verify.families import added
from posenc.verify.report import Cause
from posenc.verify.rules import known

D, B, TAU = 16, 10000.0, 2 * math.pi
SIN = {"encoding": "sinusoidal", "dim": D}
LOW = {**SIN, "activation_dtype": "bfloat16"}
HALF, WOVEN = {**SIN, "layout": "half"}, {**SIN, "layout": "interleaved"}
TWO = {"encoding": "sinusoidal2d", "dim": D}
DETR = {**TWO, "variant": "detr_normalised", "base": 10000.0}
REL = {"encoding": "relative_sinusoid", "dim": D}
K = torch.arange(D // 2, dtype=torch.float64)
SINCOS = (torch.sin, torch.cos)


def judge(subject, convention, spec):
    report = verify.check(subject, convention=convention, spec=spec)
    assert {cause.code for cause in report.causes} <= set(known())
    return report.status, report.causes[0].code if report.causes else report.because


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


def rows_for_columns(n):
    angle = torch.arange(n, dtype=torch.float64)[:, None] * omega(D).repeat_interleave(2)
    angle[0::2], angle[1::2] = torch.sin(angle[0::2]), torch.cos(angle[1::2])
    return angle.float()


def branch(short, long, at):
    """Return a module that is `long` for texts of more than `at` tokens."""
    return lambda x: (long if x.shape[1] > at else short)(x)


T2T_RATES = B ** (-K / (D // 2 - 1))
SWAPPED = (torch.cos, torch.sin)
permuted = torch.randperm(D, generator=torch.Generator().manual_seed(1))
TEXT_FAULTS = [
    ("axis.batch", Table(lambda pe, x: pe[: x.size(0)][:, None]), SIN),
    ("axis.batch", Table(lambda pe, x: pe[: x.size(0)]), SIN),
    ("axis.rows_for_columns", Adds(code=rows_for_columns), SIN),
    ("slice.single_row", Table(lambda pe, x: pe[x.size(1)]), SIN),
    ("slice.single_row", Table(lambda pe, x: pe[x.size(1) - 1]), SIN),
    ("slice.tail", Table(lambda pe, x: pe[-x.size(1) :]), SIN),
    ("frequency.precedence", Adds(w=torch.exp(-2 * K)), SIN),
    ("frequency.precedence", Adds(w=torch.exp(-K)), SIN),
    ("frequency.exponent_not_paired", Adds(w=omega(D), wc=B ** (-(2 * K + 1) / D)), SIN),
    ("frequency.exponent_not_paired", Adds(w=omega(D), wc=B ** (-2 * (K + 1) / D)), SIN),
    ("frequency.divisor", Adds(w=B ** (-K / D)), SIN),
    ("frequency.divisor", Adds(w=B ** (-2 * K / 50)), SIN),
    ("frequency.divisor", Adds(w=T2T_RATES), {**SIN, "variant": "paper"}),
    ("frequency.divisor", Adds(), {**SIN, "variant": "tensor2tensor"}),
    ("frequency.inverted", Adds(w=1 / omega(D)), SIN),
    ("frequency.integer_division", Adds(w=B ** (0 * K)), SIN),
    ("frequency.precedence", Adds(w=torch.exp(-2 * K * math.log10(B) / D)), SIN),
    ("frequency.factor", Adds(w=TAU * omega(D)), SIN),
    ("frequency.base", Adds(w=omega(D, 777.0)), SIN),
    ("temperature_hardwired", Adds(), {**SIN, "base": 123456.0}),
    ("layout.halves_swapped", Adds(half=True, order=SWAPPED), HALF),
    ("layout.cos_first", Adds(order=SWAPPED), WOVEN),
    ("layout.halves", Adds(half=True), WOVEN),
    ("layout.interleaved", Adds(), HALF),
    ("layout.one_wave", Adds(order=(torch.sin, torch.sin)), SIN),
    ("layout.permuted", Adds(code=lambda n: waves(torch.arange(n))[:, permuted]), WOVEN),
    ("layout.cos_first", Adds(order=SWAPPED), {**WOVEN, "base": 123456.0}),  # and the base
    ("start", Adds(lambda p: p + 1), SIN),
    ("start", Adds(lambda p: p + 1000), SIN),
    ("position.reversed", Adds(lambda p: len(p) - 1 - p), SIN),
    ("position.normalised", Adds(lambda p: p / len(p)), SIN),
    ("position.wrapped", Adds(lambda p: p.to(torch.int16)), WOVEN),
    ("added_twice", Adds(tail=lambda x, c: x + c + c), SIN),
    ("scaled", Adds(tail=lambda x, c: x + c * D**-0.5), SIN),
    ("input.scaled", Adds(tail=lambda x, c: x * D**0.5 + c), SIN),
    ("input.scaled", Adds(tail=lambda x, c: (x + c) * D**0.5), SIN),
    ("input.lost", Adds(tail=lambda x, c: c.expand_as(x)), SIN),
    ("input.changed", Adds(tail=lambda x, c: torch.relu(x + c)), SIN),
    ("not_used", Adds(tail=lambda x, c: x), SIN),
    ("random", Adds(tail=lambda x, c: x + c + 0.01 * torch.randn(c.shape)), SIN),
    ("dropout_in_eval", Drops(True), SIN),
    ("grad.severed", Adds(tail=lambda x, c: x.detach() + c), SIN),
    ("trainable", Table(rows=700, trains=True), SIN),
    ("table.growth_ignores_past", Grows(past=False), SIN),
    ("table.growth_ignores_past", Grows(past=False, rows=0), SIN),  # later calls of one object only
    ("table.growth_ignores_past", Table(lambda pe, x: pe[torch.arange(x.size(1)) % 32]), SIN),
    ("table.growth_ignores_past", Adds(lambda p: p % 20_000), WOVEN),
    ("table.row_skipped", Grows(gap=1), SIN),
    ("table.row_repeated", Grows(gap=-1), SIN),
    ("table.too_short", Table(lambda pe, x: pe[torch.arange(x.size(1)).clamp(max=31)]), SIN),
    ("table.too_short", Adds(lambda p: p.clamp(max=20_000)), WOVEN),
    ("table.too_short", Table(rows=32), {**SIN, "max_positions": 64}),
    ("state_kept", Keeps("table"), SIN),
    ("state_kept", Keeps("count"), SIN),
    ("precision.positions_bf16", Coarse("p"), LOW),
    ("precision.frequencies_bf16", Coarse("w"), LOW),
    ("precision.product_bf16", Coarse("a"), LOW),
    ("precision.table_fp16", Adds(code=lambda n: waves(torch.arange(n)).half().float()), SIN),
    ("precision.positions_fp16", Adds(lambda p: p.half()), SIN),
    ("width.odd", Adds(code=lambda n: torch.zeros(n, 15)[:, :14] + torch.zeros(n, 15)), {**SIN, "dim": 15}),
    ("mismatch", Adds(lambda p: p**1.5), SIN),
    ("mismatch", Adds(tail=lambda x, c: x + c + 0.3), SIN),
    ("mismatch", Adds(lambda p: p + (p > 20_000) * 0.5), WOVEN),
    # a second wrong branch does not hide the first
    ("layout.halves", branch(Adds(half=True), Adds(lambda p: p + 7), 20), WOVEN),
    ("frequency.base", branch(Adds(w=omega(D, 777.0)), Adds(tail=lambda x, c: x + c**2), 9), WOVEN),
]


@pytest.mark.parametrize(("code", "subject", "spec"), TEXT_FAULTS)
def test_a_fault_of_a_text_is_named(code, subject, spec):
    assert judge(subject, "additive_module", spec) == ("fail", f"sinusoidal.{code}")


def test_what_cannot_be_added_is_a_finding():
    assert judge(lambda x: x.add_(waves(torch.arange(x.shape[1]))), "additive_module", SIN)[1] == "subject.writes_input"
    assert judge(Adds(tail=lambda x, c: x + c + math.inf), "additive_module", SIN)[1] == "subject.not_finite"


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


def by_complex(n):
    z = torch.polar(torch.ones(n, D // 2), torch.outer(torch.arange(n).float(), omega(D).float()))
    return torch.view_as_real(z).flip(-1).flatten(1)


TEXT_RIGHT = [
    ("pass", Adds(), SIN),
    ("pass", Table(rows=700, trains=False), {"encoding": "sinusoidal"}),
    ("pass", Table(rows=30), SIN),
    ("pass", Table(rows=5000), {**SIN, "max_positions": 5000}),
    ("pass", Grows(), SIN),
    ("pass", Oddity(), SIN),
    ("pass", Adds(code=by_complex), SIN),
    ("pass", Drops(False), SIN),
    ("pass", (lambda m: lambda x: m(x))(Drops(False)), SIN),
    ("pass", Adds(half=True), HALF),
    ("equivalent", Adds(half=True), SIN),
    ("equivalent", Adds(code=lambda n: waves(torch.arange(n))[:, permuted]), SIN),
    ("pass", Adds(half=True, order=SWAPPED), {**HALF, "order": "cos_sin"}),
    ("pass", Adds(w=T2T_RATES, half=True), {**SIN, "variant": "tensor2tensor"}),
    ("pass", Adds(lambda p: p + 2, w=T2T_RATES, half=True), {**SIN, "variant": "fairseq"}),
    ("equivalent", Adds(lambda p: p + 77), {**SIN, "origin": "any"}),
    ("pass", Adds(lambda p: p + 1), {**SIN, "start": 1}),
    ("pass", Adds(d=15, w=omega(15)), {**SIN, "dim": 15}),
    ("pass", Adds(d=15, w=omega(15), half=True), {**HALF, "dim": 15}),
    ("pass", Adds(tail=lambda x, c: (x + c,)), SIN),
    ("equivalent", Adds(code=lambda n: waves(torch.arange(n), 512)[:, torch.arange(512) ^ 37]), {**SIN, "dim": 512}),
    ("pass", Coarse(""), LOW),  # angles in float32, only cosines and sines rounded
    ("pass", Coarse("p"), SIN),  # half precision is not asked for
    ("pass", Adds(lambda p: p % 20_000), {**WOVEN, "max_positions": 20_000}),
]


@pytest.mark.parametrize(("status", "subject", "spec"), TEXT_RIGHT)
def test_unusual_right_texts_are_not_accused(status, subject, spec):
    assert judge(subject, "additive_module", spec)[0] == status


def test_a_disputed_definition_names_the_other():
    asked = verify.check(Adds(w=T2T_RATES), convention="additive_module", spec={**SIN, "variant": "paper"})
    assert 'variant="tensor2tensor"' in asked.causes[0].message
    assert 'variant="tensor2tensor"' in judge(Adds(half=True), "additive_module", SIN)[1]
    asked = verify.check(Adds(), convention="additive_module", spec={**SIN, "variant": "tensor2tensor"})
    assert 'variant="paper"' in asked.causes[0].message


def test_a_pass_says_what_was_not_judged():
    report = verify.check(Table(rows=100), convention="additive_module", spec=SIN)
    assert "positions beyond 39: a text of 130 tokens raises an error" in report.not_judged
    assert any("half precision" in line for line in report.not_judged)


def image(grid=None, base=B, w=None, join="yx", start=0.0, norm=None, c=D, parts=({}, {})):
    """Return x + code; `grid` and `norm` make positions of cells, `parts` are options for rows and for columns."""
    m = c // 2

    def forward(x):
        h, wide = x.shape[2:]
        i, j = torch.meshgrid(torch.arange(h).double(), torch.arange(wide).double(), indexing="ij")
        y, z = (p + start for p in (grid(i, j, h, wide) if grid else (i, j)))
        if norm is not None:
            y, z = norm(y, h, wide), norm(z, wide, h)
        rates = omega(m, base) if w is None else w
        runs = [waves(p.reshape(-1), m, rates, **how).reshape(h, wide, m) for p, how in zip((y, z), parts, strict=True)]
        runs = runs if join == "yx" else runs[::-1]
        if join == "woven":
            runs = [torch.stack([r.reshape(h, wide, -1, 2) for r in runs], -2).reshape(h, wide, c)]
        return x + torch.cat(runs, -1).permute(2, 0, 1)[None].to(x.dtype)

    return forward


def summed(x):
    rows, columns = (waves(torch.arange(n)) for n in x.shape[2:])
    return x + (rows[:, None] + columns).permute(2, 0, 1)


def to_size(p, n, other):
    return p / (n + 1e-6) * TAU


LOFTR = {**TWO, "variant": "loftr", "start": 1}
Q = torch.arange(4, dtype=torch.float64)
ROWS_FIRST = {**TWO, "layout": "interleaved", "order": "yx"}
BLOCKS = {**TWO, "base": B, "layout": "half", "order": "yx"}
BAD = {"half": True, "order": (torch.sin, torch.sin)}
IMAGE_FAULTS = [
    ("sinusoidal2d.axes_swapped", image(join="xy"), ROWS_FIRST),
    ("sinusoidal2d.axes_swapped", image(start=1.0, join="xy", norm=to_size), {**DETR, "order": "yx"}),
    ("sinusoidal2d.axes_summed", summed, TWO),
    ("sinusoidal2d.axis_repeated", image(lambda i, j, h, w: (i, i)), TWO),
    ("sinusoidal2d.grid_flattened_wrong", image(lambda i, j, h, w: ((i * w + j) % h, (i * w + j) // h)), TWO),
    ("sinusoidal2d.grid_shape_square", image(lambda i, j, h, w: ((i * w + j) // 16, (i * w + j) % 16)), TWO),
    ("sinusoidal2d.grid_shape_square", lambda x: x + image()(torch.zeros(1, D, x.shape[2], x.shape[2])), TWO),
    ("sinusoidal.temperature_hardwired", image(), {**TWO, "base": 123456.0}),
    ("sinusoidal.frequency.base", image(base=777.0), TWO),
    ("sinusoidal.frequency.divisor", image(w=B ** (-2 * Q / D)), TWO),
    ("sinusoidal.frequency.precedence", image(w=torch.exp(-Q * 2), join="woven", start=1.0), LOFTR),
    ("sinusoidal2d.start", image(start=5.0), TWO),
    ("sinusoidal2d.start", image(norm=lambda p, n, o: p / n * TAU), DETR),
    ("sinusoidal2d.normalise_missing", image(start=1.0), DETR),
    ("sinusoidal2d.normalise_unasked", image(norm=lambda p, n, o: p / n * TAU), TWO),
    ("sinusoidal2d.scale_missing", image(start=1.0, norm=lambda p, n, o: p / (n + 1e-6)), DETR),
    ("sinusoidal2d.normalise_swapped", image(start=1.0, norm=lambda p, n, o: p / (o + 1e-6) * TAU), DETR),
    ("sinusoidal2d.normalise_misplaced_half", image(start=1.0, norm=lambda p, n, o: (p - 0.5) / n * TAU), DETR),
    ("sinusoidal.layout.one_wave", image(parts=(BAD, {"half": True})), BLOCKS),
    ("sinusoidal.layout.one_wave", image(parts=({"half": True}, BAD)), BLOCKS),
    ("sinusoidal.not_used", lambda x: x * 1, TWO),
    ("sinusoidal2d.mismatch", image(lambda i, j, h, w: (i + j / 3, j - i / 5)), TWO),
]


@pytest.mark.sample(8)
@pytest.mark.parametrize(("code", "subject", "spec"), IMAGE_FAULTS)
def test_a_fault_of_an_image_is_named(code, subject, spec):
    assert judge(subject, "additive_2d_module", spec) == ("fail", code)


IMAGE_RIGHT = [
    ("pass", image(), TWO),
    ("pass", image(c=10), {**TWO, "dim": 10}),
    *[("pass", image(), {**ROWS_FIRST, "order": said}) for said in ("yx", "hw", "rows first", "row-major", "y,x")],
    *[("pass", image(join="xy"), {**ROWS_FIRST, "order": said}) for said in ("xy", "wh", "columns first", "x,y")],
    ("equivalent", image(join="xy"), TWO),
    ("equivalent", image(join="woven"), TWO),
    ("pass", image(parts=({"half": True},) * 2), {**TWO, "layout": "half"}),
    ("pass", image(join="woven", start=1.0), {**TWO, "variant": "loftr"}),
    ("pass", image(start=1.0, norm=to_size), DETR),
    ("pass", image(start=1.0, norm=to_size), {**TWO, "variant": "detr"}),
    ("pass", image(start=1.0), {**TWO, "variant": "detr_unnormalised"}),
    ("equivalent", image(start=1.0), {**TWO, "origin": "any"}),
    ("pass", image(norm=lambda p, n, o: p / max(n - 1, 1e-6) * TAU), {**TWO, "variant": "normalised"}),
]


@pytest.mark.parametrize(("status", "subject", "spec"), IMAGE_RIGHT)
def test_unusual_right_images_are_not_accused(status, subject, spec):
    assert judge(subject, "additive_2d_module", spec)[0] == status


def test_an_order_that_names_no_axis_is_refused():
    with pytest.raises(ValueError, match="order cannot be 'zigzag'"):
        judge(image(), "additive_2d_module", {**TWO, "order": "zigzag"})


def signed(f=lambda d: d, **how):
    return lambda n: waves(f(n - 1 - torch.arange(2 * n - 1)), **how)


class Cut(nn.Module):
    """A table of the longest length, cut from its middle (right), from its start, or kept by length."""

    def __init__(self, where, longest=50):
        super().__init__()
        self.where, self.longest, self.pe = where, longest, signed()(longest)

    def forward(self, n):
        if self.where == "kept":
            self.longest = n if self.longest in (50, n) or n > self.longest else self.longest
            return signed()(self.longest)[: 2 * n - 1]
        at = self.longest - n if self.where == "middle" else 0
        return self.pe[at : at + 2 * n - 1]


TABLES = [
    ("pass", signed(), REL),
    ("pass", lambda n: signed()(n)[None], REL),
    ("equivalent", signed(half=True), REL),
    ("pass", Cut("middle"), REL),
    ("equivalent", signed(lambda d: -d), {**REL, "direction": "any"}),
    ("relative_sinusoid.direction", signed(lambda d: -d), REL),
    ("relative_sinusoid.sign_lost", signed(abs), REL),
    ("relative_sinusoid.sign_lost", signed(abs, half=True), {**REL, "layout": "half"}),
    ("relative_sinusoid.absolute_used", lambda n: waves(torch.arange(2 * n - 1)), REL),
    ("subject.shape", lambda n: waves(torch.arange(n)), REL),
    ("relative_sinusoid.off_by_one", signed(lambda d: d + 3), REL),
    ("relative_sinusoid.slice_of_reversed_table", Cut("start"), REL),
    ("sinusoidal.state_kept", Cut("kept"), REL),
    ("sinusoidal.frequency.inverted", signed(w=1 / omega(D)), REL),
    ("relative_sinusoid.mismatch", signed(lambda d: d * d / 3), REL),
]


@pytest.mark.parametrize(("want", "subject", "spec"), TABLES)
def test_a_table_of_distances_is_judged(want, subject, spec):
    status, code = judge(subject, "relative_table_fn", spec)
    assert want == (code if status == "fail" else status)


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


@pytest.mark.parametrize("d", [16, 10])
def test_the_right_image_is_the_definition(d):
    family = added.family("additive_2d_module", {"dim": d})
    case = next(case for case in family.cases() if case.kind == "near")
    h, w = case.args[0][1:]
    pos = np.array([(i, j) for i in range(h) for j in range(w)], dtype=float)
    exact = definitions.find("sinusoidal_nd")(pos, d_model=d)
    np.testing.assert_allclose(family.predict(family.truth, case)[: h * w], exact, atol=1e-13)


CONFUSED = [
    ("additive_module", {"dim": D, "layout": "interleaved"}),
    ("relative_table_fn", {"dim": D, "layout": "interleaved"}),
    pytest.param("additive_2d_module", {"dim": 8, "layout": "interleaved", "order": "yx"}, marks=pytest.mark.slow),
]


@pytest.mark.sample(3)
@pytest.mark.parametrize(("convention", "spec"), CONFUSED)
def test_each_fault_is_named_by_its_own_prediction_or_by_an_equal_one(convention, spec):
    family = added.family(convention, spec)
    near = [case for case in family.cases() if case.kind in ("tokens", "near")]
    faults = list(family.faults())
    for fault in faults:
        model = {**family.truth, **fault.change}
        seen = [Seen(case, family.predict(model, case)) for case in near]
        if family.fits(family.truth, seen):
            continue  # coarse only at far positions, or another name of the definition
        verdict = settle(family, seen)
        assert verdict.status == "fail", fault
        equal = {f.code for f in faults if family.fits({**family.truth, **f.change}, seen)}
        assert verdict.faults[0].code in equal | {fault.code}, fault


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


@pytest.mark.parametrize(
    ("convention", "encoding"),
    [("additive_module", "time2vec"), ("additive_module", "sinusoidal2d"), ("relative_table_fn", "learned")],
)
def test_what_has_no_definition_is_not_passed(convention, encoding):
    assert judge(Adds(), convention, {"encoding": encoding, "dim": D})[0] == "cannot_tell"
