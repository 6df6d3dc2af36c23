"""Each fault and each oddity is planted here, in code of its own, and judged by code and status."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from posenc import definitions
from posenc.verify import additive, additive_asked, additive_models, additive_variants, guard
from posenc.verify.codes import rules
from posenc.verify.report import Cause


def judge(subject, convention, spec):
    try:
        findings = additive.check(subject, convention, spec)
    except guard.SubjectError as error:
        return "fail", error.cause.code
    report = findings.report(convention)
    return report.status, report.causes[0].code if report.causes else report.because


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


SINUSOIDAL = definitions.find("sinusoidal")
D = 16
SIN = {"encoding": "sinusoidal", "dim": D}
LOW = {**SIN, "activation_dtype": "bfloat16"}
ODD_BASE = {**SIN, "base": 123456.0}
k = torch.arange(D // 2, dtype=torch.float64)
B = 10000.0


def arange(n):
    return torch.arange(n)


def by_rule(ws, wc, d=D, make=None):
    def code(n):
        p = torch.arange(n, dtype=torch.float64)[:, None]
        out = torch.zeros(n, d, dtype=torch.float64)
        out[:, 0::2], out[:, 1::2] = torch.sin(p * ws), torch.cos(p * wc)
        return out.float()

    return Adds(code)


def rows_for_columns(n):
    angle = torch.arange(n, dtype=torch.float64)[:, None] * omega(D).repeat_interleave(2)
    angle[0::2], angle[1::2] = torch.sin(angle[0::2]), torch.cos(angle[1::2])
    return angle.float()


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


class KeepsFirst(nn.Module):
    """Keeps the code of the longest call and takes its end."""

    pe = None

    def forward(self, x):
        n = x.shape[1]
        if self.pe is None or len(self.pe) < n:
            self.pe = woven(torch.arange(n), omega(D), D)
        return x + self.pe[-n:].to(x.dtype)


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


class Counts(nn.Module):
    """Goes on counting where the last call ended."""

    past = 0

    def forward(self, x):
        p = torch.arange(x.shape[1]) + self.past
        self.past += x.shape[1]
        return x + woven(p, omega(D), D)


def keeps_in_closure():
    kept = []

    def forward(x):
        if not kept or len(kept[0]) < x.shape[1]:
            kept[:] = [woven(torch.arange(x.shape[1]), omega(D), D)]
        return x + kept[0][-x.shape[1] :]

    return forward


PLAIN = lambda n: woven(arange(n), omega(D), D)  # noqa: E731
t2t = B ** (-k / (D // 2 - 1))

SEQUENCE_FAULTS = {
    "axis_batch": (table_module(D, cut=lambda pe, x: pe[: x.size(0)][:, None]), SIN, "sinusoidal.axis.batch"),
    "axis_batch_raises": (table_module(D, cut=lambda pe, x: pe[: x.size(0)]), SIN, "sinusoidal.axis.batch"),
    "single_row": (table_module(D, cut=lambda pe, x: pe[x.size(1)]), SIN, "sinusoidal.slice.single_row"),
    "last_row": (table_module(D, cut=lambda pe, x: pe[x.size(1) - 1]), SIN, "sinusoidal.slice.single_row"),
    "tail": (
        table_module(D, cut=lambda pe, x: pe[-x.size(1) :]),
        SIN,
        "sinusoidal.slice.tail",
    ),
    "precedence": (by_rule(*[torch.exp(-2 * k)] * 2), SIN, "sinusoidal.frequency.precedence"),
    "precedence_exp_k": (by_rule(*[torch.exp(-k)] * 2), SIN, "sinusoidal.frequency.precedence"),
    "not_paired": (
        by_rule(B ** (-2 * (2 * k) / D), B ** (-2 * (2 * k + 1) / D)),
        SIN,
        "sinusoidal.frequency.exponent_not_paired",
    ),
    "not_paired_own": (
        by_rule(B ** (-2 * k / D), B ** (-(2 * k + 1) / D)),
        SIN,
        "sinusoidal.frequency.exponent_not_paired",
    ),
    "not_paired_cos": (
        by_rule(B ** (-2 * k / D), B ** (-2 * (k + 1) / D)),
        SIN,
        "sinusoidal.frequency.exponent_not_paired",
    ),
    "divisor": (by_rule(*[B ** (-k / D)] * 2), SIN, "sinusoidal.frequency.divisor"),
    "divisor_half": (by_rule(*[B ** (-4 * k / D)] * 2), SIN, "sinusoidal.frequency.divisor"),
    "divisor_t2t": (by_rule(t2t, t2t), {**SIN, "variant": "paper"}, "sinusoidal.frequency.divisor"),
    "divisor_paper": (by_rule(omega(D), omega(D)), {**SIN, "variant": "tensor2tensor"}, "sinusoidal.frequency.divisor"),
    "inverted": (by_rule(*[B ** (2 * k / D)] * 2), SIN, "sinusoidal.frequency.inverted"),
    "integer": (by_rule(*[B ** (0 * k)] * 2), SIN, "sinusoidal.frequency.integer_division"),
    "swapped": (
        Adds(lambda n: halves(arange(n), omega(D), D, torch.cos, torch.sin)),
        {**SIN, "layout": "half"},
        "sinusoidal.layout.halves_swapped",
    ),
    "cos_first": (
        Adds(lambda n: woven(arange(n), omega(D), D, torch.cos, torch.sin)),
        {**SIN, "layout": "interleaved"},
        "sinusoidal.layout.cos_first",
    ),
    "halves": (
        Adds(lambda n: halves(arange(n), omega(D), D)),
        {**SIN, "layout": "interleaved"},
        "sinusoidal.layout.halves",
    ),
    "interleaved": (Adds(PLAIN), {**SIN, "layout": "half"}, "sinusoidal.layout.interleaved"),
    "one_wave": (
        Adds(lambda n: woven(arange(n), omega(D), D, torch.sin, torch.sin)),
        SIN,
        "sinusoidal.layout.one_wave",
    ),
    "rows": (Adds(rows_for_columns), SIN, "sinusoidal.axis.rows_for_columns"),
    "base": (Adds(PLAIN), ODD_BASE, "sinusoidal.temperature_hardwired"),
    "other_base": (Adds(lambda n: woven(arange(n), omega(D, 777.0), D)), SIN, "sinusoidal.frequency.base"),
    "start": (Adds(lambda n: woven(arange(n) + 1, omega(D), D)), SIN, "sinusoidal.start"),
    "start_2": (Adds(lambda n: woven(arange(n), omega(D), D)), {**SIN, "start": 2}, "sinusoidal.start"),
    "start_9": (Adds(lambda n: woven(arange(n) + 9, omega(D), D)), SIN, "sinusoidal.start"),
    "reversed": (Adds(lambda n: woven(n - 1 - arange(n), omega(D), D)), SIN, "sinusoidal.position.reversed"),
    "normalised": (Adds(lambda n: woven(arange(n) / n, omega(D), D)), SIN, "sinusoidal.position.normalised"),
    "twice": (Adds(PLAIN, lambda x, c: x + c + c), SIN, "sinusoidal.added_twice"),
    "scaled": (Adds(PLAIN, lambda x, c: x + c * D**-0.5), SIN, "sinusoidal.scaled"),
    "x_scaled": (Adds(PLAIN, lambda x, c: x * D**0.5 + c), SIN, "sinusoidal.input.scaled"),
    "sum_scaled": (Adds(PLAIN, lambda x, c: (x + c) * D**0.5), SIN, "sinusoidal.input.scaled"),
    "x_lost": (Adds(PLAIN, lambda x, c: c.expand_as(x)), SIN, "sinusoidal.input.lost"),
    "not_used": (Adds(PLAIN, lambda x, c: x), SIN, "sinusoidal.not_used"),
    "severed": (Adds(PLAIN, lambda x, c: x.detach() + c), SIN, "sinusoidal.grad.severed"),
    "trains": (Trains(), SIN, "sinusoidal.trainable"),
    "grows": (Grows(past=False), SIN, "sinusoidal.table.growth_ignores_past"),
    "keeps": (KeepsFirst(), SIN, "sinusoidal.state_kept"),
    "drops": (Drops(True), SIN, "sinusoidal.dropout_in_eval"),
    "clamped": (
        table_module(D, 32, cut=lambda pe, x: pe[torch.arange(x.size(1)).clamp(max=31)]),
        SIN,
        "sinusoidal.table.too_short",
    ),
    "wrapped": (
        table_module(D, 32, cut=lambda pe, x: pe[torch.arange(x.size(1)) % 32]),
        SIN,
        "sinusoidal.table.growth_ignores_past",
    ),
    "too_short": (table_module(D, 32), {**SIN, "max_positions": 64}, "sinusoidal.table.too_short"),
    "positions_bf16": (Coarse("p"), LOW, "sinusoidal.precision.positions_bf16"),
    "frequencies_bf16": (Coarse("w"), LOW, "sinusoidal.precision.frequencies_bf16"),
    "product_bf16": (Coarse("a"), LOW, "sinusoidal.precision.product_bf16"),
    "in_place": (lambda x: x.add_(PLAIN(x.shape[1])), SIN, "subject.writes_input"),
    "odd": (
        Adds(lambda n: torch.zeros(n, 15).index_copy_(1, torch.arange(1, 15, 2), torch.zeros(n, 8))),
        {**SIN, "dim": 15},
        "sinusoidal.width.odd",
    ),
    "unknown": (Adds(lambda n: woven(arange(n) ** 1.5, omega(D), D)), SIN, "sinusoidal.mismatch"),
    "unknown_lane": (Adds(lambda n: PLAIN(n) * (1 + 0.3 * (torch.arange(D) == 5))), SIN, "sinusoidal.mismatch"),
    "x_changed": (Adds(PLAIN, lambda x, c: torch.relu(x + c)), SIN, "sinusoidal.input.changed"),
    "infinite": (Adds(lambda n: PLAIN(n) + math.inf), SIN, "subject.not_finite"),
    "float_factor": (by_rule(*[2 * math.pi * omega(D)] * 2), SIN, "sinusoidal.frequency.factor"),
    "table_fp16": (Adds(lambda n: PLAIN(n).half().float()), SIN, "sinusoidal.precision.table_fp16"),
    "inv_freq_fp16": (by_rule(*[omega(D).half().double()] * 2), SIN, "sinusoidal.precision.frequencies_fp16"),
    "positions_always_bf16": (
        Adds(lambda n: woven(arange(n).bfloat16(), omega(D), D)),
        SIN,
        "sinusoidal.precision.positions_bf16",
    ),
    "positions_always_fp16": (
        Adds(lambda n: woven(arange(n).half(), omega(D), D)),
        SIN,
        "sinusoidal.precision.positions_fp16",
    ),
    "width_hardwired": (by_rule(*[B ** (-2 * k / 50)] * 2), SIN, "sinusoidal.frequency.divisor"),
    "two_faults": (
        Adds(lambda n: woven(arange(n), omega(D, B), D, torch.cos, torch.sin)),
        {**ODD_BASE, "layout": "interleaved"},
        "sinusoidal.layout.cos_first",
    ),
    "counter": (Counts(), SIN, "sinusoidal.state_kept"),
    "closure": (keeps_in_closure(), SIN, "sinusoidal.state_kept"),
    "log10": (by_rule(*[torch.exp(-2 * k * math.log10(B) / D)] * 2), SIN, "sinusoidal.frequency.logarithm"),
}


@pytest.mark.parametrize("name", SEQUENCE_FAULTS)
def test_a_fault_of_a_sequence_is_named(name):
    subject, spec, expected = SEQUENCE_FAULTS[name]
    assert judge(subject, "additive_module", spec) in [("fail", code) for code in expected.split("|")]


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
    "t2t": (Adds(lambda n: halves(arange(n), t2t, D)), {**SIN, "variant": "tensor2tensor"}, "pass"),
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


def image(grid=None, base=B, freq=None, join="yx", start=0.0, make=woven, norm=None, c=D):
    """x + code of an image; `grid(h, w)` gives rows and columns of its cells."""
    m = c // 2

    def forward(x):
        h, w = x.shape[2:]
        i, j = torch.meshgrid(torch.arange(h).double(), torch.arange(w).double(), indexing="ij")
        y, xx = (i, j) if grid is None else grid(i, j, h, w)
        y, xx = y + start, xx + start
        if norm is not None:
            y, xx = norm(y, h, w), norm(xx, w, h)
        f = omega(m, base) if freq is None else freq
        runs = [make(p.reshape(-1), f, m).reshape(h, w, m) for p in ((y, xx) if join == "yx" else (xx, y))]
        if join == "woven":
            runs = [torch.stack([r.reshape(h, w, -1, 2) for r in runs], -2).reshape(h, w, c)]
        return x + torch.cat(runs, -1).permute(2, 0, 1)[None].to(x.dtype)

    return forward


TWO = {"encoding": "sinusoidal2d", "dim": D}
DETR = {**TWO, "variant": "detr_normalised", "base": 10000.0}
EITHER = {**TWO, "variant": "detr"}
TAU = 2 * math.pi
q = torch.arange(4, dtype=torch.float64)

IMAGE_FAULTS = {
    "swapped": (image(join="xy"), {**TWO, "layout": "interleaved", "order": "yx"}, "sinusoidal2d.axes_swapped"),
    "flat": (image(lambda i, j, h, w: ((i * w + j) % h, (i * w + j) // h)), TWO, "sinusoidal2d.grid_flattened_wrong"),
    "square": (
        image(lambda i, j, h, w: ((i * w + j) // math.isqrt(h * w), (i * w + j) % math.isqrt(h * w))),
        TWO,
        "sinusoidal2d.grid_shape_square",
    ),
    "square_raises": (
        lambda x: x + image()(torch.zeros(1, D, x.shape[2], x.shape[2])),
        TWO,
        "sinusoidal2d.grid_shape_square",
    ),
    "square_16": (
        image(lambda i, j, h, w: ((i * w + j) // 16, (i * w + j) % 16)),
        TWO,
        "sinusoidal2d.grid_shape_square",
    ),
    "ceil": (
        image(lambda i, j, h, w: ((i * w + j) // math.ceil((h * w) ** 0.5), (i * w + j) % math.ceil((h * w) ** 0.5))),
        TWO,
        "sinusoidal2d.grid_shape_square",
    ),
    "base": (image(base=B), {**TWO, "base": 123456.0}, "sinusoidal.temperature_hardwired"),
    "base_777": (image(base=777.0), TWO, "sinusoidal.frequency.base"),
    "width_128": (image(freq=B ** (-2 * q / 50)), TWO, "sinusoidal.frequency.divisor"),
    "summed": (
        lambda x: (
            x
            + (
                woven(torch.arange(x.shape[2]), omega(D), D)[:, None] + woven(torch.arange(x.shape[3]), omega(D), D)
            ).permute(2, 0, 1)
        ),
        TWO,
        "sinusoidal2d.axes_summed",
    ),
    "repeated": (image(lambda i, j, h, w: (i, i)), TWO, "sinusoidal2d.axis_repeated"),
    "precedence": (image(freq=torch.exp(-q * 2)), TWO, "sinusoidal.frequency.precedence"),
    "loftr": (
        image(freq=torch.exp(-q * 2), join="woven", start=1.0),
        {**TWO, "variant": "loftr", "start": 1},
        "sinusoidal.frequency.precedence",
    ),
    "divisor": (image(freq=B ** (-2 * q / D)), TWO, "sinusoidal.frequency.divisor"),
    "start": (image(start=1.0), TWO, "sinusoidal2d.start"),
    "detr_start": (image(norm=lambda p, n, o: p / n * TAU), DETR, "sinusoidal2d.start"),
    "detr_plain": (image(start=1.0), DETR, "sinusoidal2d.normalise_missing"),
    "detr_scale": (image(start=1.0, norm=lambda p, n, o: p / (n + 1e-6)), DETR, "sinusoidal2d.scale_missing"),
    "detr_other": (image(start=1.0, norm=lambda p, n, o: p / (o + 1e-6) * TAU), DETR, "sinusoidal2d.normalise_swapped"),
    "detr_half": (
        image(start=1.0, norm=lambda p, n, o: (p - 0.5) / (n + 1e-6) * TAU),
        DETR,
        "sinusoidal2d.normalise_misplaced_half",
    ),
    "detr_base": (
        image(start=1.0, norm=lambda p, n, o: p / (n + 1e-6) * TAU),
        {**DETR, "base": 20.0},
        "sinusoidal.temperature_hardwired",
    ),
    "detr_swapped": (
        image(start=1.0, join="xy", norm=lambda p, n, o: p / (n + 1e-6) * TAU),
        {**DETR, "order": "yx"},
        "sinusoidal2d.axes_swapped",
    ),
    "batch": (lambda x: x + torch.arange(x.shape[0]).float()[:, None, None, None], TWO, "sinusoidal2d.mismatch"),
    "unused": (lambda x: x * 1, TWO, "sinusoidal.not_used"),
    "unknown": (image(lambda i, j, h, w: (i + j / 3, j - i / 5)), TWO, "sinusoidal2d.mismatch"),
}


@pytest.mark.parametrize("name", IMAGE_FAULTS)
def test_a_fault_of_an_image_is_named(name):
    subject, spec, expected = IMAGE_FAULTS[name]
    assert judge(subject, "additive_2d_module", spec) == ("fail", expected)


IMAGE_INNOCENTS = {
    "plain": (image(), TWO, "pass"),
    "ten": (image(c=10), {**TWO, "dim": 10}, "pass"),
    "yx": (image(), {**TWO, "order": "yx", "layout": "interleaved"}, "pass"),
    "names_swapped": (image(join="xy"), TWO, "equivalent"),
    "halves": (image(make=halves), TWO, "equivalent"),
    "halves_declared": (image(make=halves), {**TWO, "layout": "half"}, "pass"),
    "woven": (image(join="woven"), TWO, "equivalent"),
    "loftr": (image(join="woven", start=1.0), {**TWO, "variant": "loftr"}, "pass"),
    "detr": (image(start=1.0, norm=lambda p, n, o: p / (n + 1e-6) * TAU), DETR, "pass"),
    "detr_either": (image(start=1.0, norm=lambda p, n, o: p / (n + 1e-6) * TAU), EITHER, "pass"),
    "detr_either_raw": (image(start=1.0), EITHER, "pass"),
    "detr_20": (image(base=20.0, start=1.0, norm=lambda p, n, o: p / (n + 1e-6) * TAU), {**DETR, "base": 20.0}, "pass"),
    "detr_raw": (image(start=1.0), {**TWO, "variant": "detr_unnormalised"}, "pass"),
    "origin": (image(start=1.0), {**TWO, "origin": "any"}, "equivalent"),
    "normalised": (image(norm=lambda p, n, o: p / max(n - 1, 1e-6) * TAU), {**TWO, "variant": "normalised"}, "pass"),
}


@pytest.mark.parametrize("name", IMAGE_INNOCENTS)
def test_an_innocent_image_passes(name):
    subject, spec, expected = IMAGE_INNOCENTS[name]
    assert judge(subject, "additive_2d_module", spec)[0] == expected


def signed(f=lambda d: d, make=woven, w=None):
    return lambda n: make(f(n - 1 - torch.arange(2 * n - 1)), omega(D) if w is None else w, D)


class Reversed(nn.Module):
    """A table over the longest length, cut from its middle (right) or from its start (wrong)."""

    def __init__(self, right, longest=50):
        super().__init__()
        self.right, self.longest = right, longest
        self.pe = signed()(longest)

    def forward(self, n):
        at = self.longest - n if self.right else 0
        return self.pe[at : at + 2 * n - 1]


class Cached:
    pe, n = None, 0

    def __call__(self, n):
        if self.pe is None or n > self.n:
            self.pe, self.n = signed()(n), n
        return self.pe[: 2 * n - 1]


REL = {"encoding": "relative_sinusoid", "dim": D}
TABLES = {
    "plain": (signed(), REL, ("pass",)),
    "batch_of_one": (lambda n: signed()(n)[None], REL, ("pass",)),
    "half": (signed(make=halves), REL, ("equivalent",)),
    "half_declared": (signed(make=halves), {**REL, "layout": "half"}, ("pass",)),
    "from_the_middle": (Reversed(True), REL, ("pass",)),
    "any_direction": (signed(lambda d: -d), {**REL, "direction": "any"}, ("equivalent",)),
    "direction": (signed(lambda d: -d), REL, ("fail", "relative_sinusoid.direction")),
    "sign_lost": (signed(abs), REL, ("fail", "relative_sinusoid.sign_lost")),
    "absolute": (
        lambda n: woven(torch.arange(2 * n - 1), omega(D), D),
        REL,
        ("fail", "relative_sinusoid.absolute_used"),
    ),
    "one_side": (lambda n: woven(torch.arange(n), omega(D), D), REL, ("fail", "relative_sinusoid.absolute_used")),
    "clamped": (signed(lambda d: d.clamp(min=0)), REL, ("fail", "relative_sinusoid.future_clamped")),
    "off_by_one": (signed(lambda d: d + 1), REL, ("fail", "relative_sinusoid.off_by_one")),
    "from_the_start": (Reversed(False), REL, ("fail", "relative_sinusoid.slice_of_reversed_table")),
    "cached": (Cached(), REL, ("fail", "sinusoidal.state_kept")),
    "inverted": (signed(w=1 / omega(D)), REL, ("fail", "sinusoidal.frequency.inverted")),
    "sign_lost_half": (signed(abs, halves), {**REL, "layout": "half"}, ("fail", "relative_sinusoid.sign_lost")),
    "sign_lost_undeclared": (signed(abs, halves), REL, ("fail", "relative_sinusoid.sign_lost")),
    "unknown": (signed(lambda d: d * d / 3), REL, ("fail", "relative_sinusoid.mismatch")),
}


@pytest.mark.parametrize("name", TABLES)
def test_a_table_of_distances_is_judged(name):
    subject, spec, expected = TABLES[name]
    status, code = judge(subject, "relative_table_fn", spec)
    assert status == expected[0]
    if status == "fail":
        assert code in expected[1].split("|")


class Learned(nn.Module):
    def __init__(
        self, rows=40, at=lambda x: torch.arange(x.shape[1]), tail=lambda x, c: x + c, padding=None, zeros=False
    ):
        super().__init__()
        self.table = nn.Embedding(rows, D, padding_idx=padding)
        self.at, self.tail = at, tail
        if zeros:
            nn.init.zeros_(self.table.weight)

    def forward(self, x):
        return self.tail(x, self.table(self.at(x)))


class Flat(nn.Module):
    def __init__(self):
        super().__init__()
        self.pe = nn.Parameter(torch.zeros(1, 40, D))

    def forward(self, x):
        return x + self.pe[:, : x.shape[1]]


LEARNED = {"encoding": "learned", "dim": D}
LEARNED_CASES = {
    "plain": (Learned(), LEARNED, ("pass",)),
    "zeros": (Learned(zeros=True), LEARNED, ("pass",)),
    "parameter": (Flat(), LEARNED, ("pass",)),
    "opt": (Learned(at=lambda x: torch.arange(x.shape[1]) + 2), {**LEARNED, "offset": 2}, ("pass",)),
    "roberta": (Learned(at=lambda x: torch.arange(x.shape[1]) + 2, padding=1), {**LEARNED, "padding": 1}, ("pass",)),
    "dropout": (Learned(tail=lambda x, c: nn.functional.dropout(x + c, 0.0)), LEARNED, ("pass",)),
    "offset_missing": (Learned(), {**LEARNED, "offset": 2}, ("fail", "learned.offset_missing")),
    "offset_hardwired": (
        Learned(at=lambda x: torch.arange(x.shape[1]) + 2),
        LEARNED,
        ("fail", "learned.offset_hardwired"),
    ),
    "padding_as_offset": (
        Learned(at=lambda x: torch.arange(x.shape[1]) + 1, padding=0),
        LEARNED,
        ("fail", "learned.padding_idx_as_offset"),
    ),
    "start": (Learned(at=lambda x: torch.arange(x.shape[1]) + 1), LEARNED, ("fail", "learned.start")),
    "batch": (Learned(at=lambda x: torch.arange(x.shape[0])[:, None]), LEARNED, ("fail", "learned.axis.batch")),
    "batch_raises": (Learned(at=lambda x: torch.arange(x.shape[0])), LEARNED, ("fail", "learned.axis.batch")),
    "single": (Learned(at=lambda x: torch.tensor([x.shape[1]])), LEARNED, ("fail", "learned.slice.single_row")),
    "padding_row": (Learned(padding=0), LEARNED, ("fail", "learned.padding_row_zeroed")),
    "padding_row_3": (Learned(padding=3), LEARNED, ("fail", "learned.padding_row_zeroed")),
    "too_short": (Learned(rows=20), {**LEARNED, "max_positions": 20, "offset": 2}, ("fail", "learned.offset_missing")),
    "too_short_offset": (
        Learned(rows=20, at=lambda x: torch.arange(x.shape[1]) + 2),
        {**LEARNED, "max_positions": 20, "offset": 2},
        ("fail", "learned.table_too_short"),
    ),
    "rows": (Learned(rows=20), {**LEARNED, "table_rows": 22}, ("fail", "learned.table_too_short")),
    "clamped": (
        Learned(at=lambda x: torch.arange(x.shape[1]).clamp(max=39)),
        LEARNED,
        ("fail", "learned.table_too_short"),
    ),
    "frozen": (Learned().requires_grad_(False), LEARNED, ("fail", "learned.frozen")),
    "severed": (Learned(tail=lambda x, c: x.detach() + c), LEARNED, ("fail", "learned.grad.severed")),
    "table_severed": (Learned(tail=lambda x, c: x + c.detach()), LEARNED, ("fail", "learned.frozen")),
    "twice": (Learned(tail=lambda x, c: x + 2 * c), LEARNED, ("fail", "learned.added_twice")),
    "unused": (Learned(tail=lambda x, c: x * 1), LEARNED, ("fail", "learned.not_used")),
    "reversed": (
        Learned(at=lambda x: torch.arange(x.shape[1]).flip(0)),
        LEARNED,
        ("fail", "learned.position.reversed"),
    ),
}


@pytest.mark.parametrize("name", LEARNED_CASES)
def test_a_learned_table_is_judged(name):
    subject, spec, expected = LEARNED_CASES[name]
    status, code = judge(subject, "additive_module", spec)
    assert status == expected[0]
    if status == "fail":
        assert code == expected[1]


@pytest.mark.parametrize(
    ("d", "layout", "variant", "base"),
    [
        (16, "interleaved", "paper", 1e4),
        (15, "half", "paper", 777.0),
        (12, "half", "tensor2tensor", 1e4),
        (7, "interleaved", "paper", 50.0),
    ],
)
def test_the_right_model_is_the_definition(d, layout, variant, base):
    asked = additive_asked.read({"dim": d, "layout": layout, "variant": variant, "base": base}, "additive_module")
    code, _ = additive_models.truths(asked, d)[0].predict((1, 9))
    order = {"interleaved": "alternating", "half": "concatenated"}[layout]
    exact = SINUSOIDAL(np.arange(9.0), d_model=d, base=base, order=order, exponent=variant)
    np.testing.assert_allclose(code[0], exact, atol=1e-13)


@pytest.mark.parametrize("d", [16, 12, 10])
def test_the_right_image_is_the_definition(d):
    asked = additive_asked.read({"dim": d}, "additive_2d_module")
    code, _ = additive_models.truths(asked, d)[0].predict((1, 3, 5))
    pos = np.array([(i, j) for i in range(3) for j in range(5)], dtype=float)
    np.testing.assert_allclose(
        code[0].reshape(15, -1)[:, :d], definitions.find("sinusoidal_nd")(pos, d_model=d), atol=1e-13
    )


def test_the_right_table_is_the_definition_of_distances():
    asked = additive_asked.read({"dim": 8}, "relative_table_fn")
    code, _ = additive_models.truths(asked, 8)[0].predict((4,))
    np.testing.assert_allclose(code[0], SINUSOIDAL(np.arange(3.0, -4, -1), d_model=8), atol=1e-13)


def test_a_mismatch_shows_its_smallest_case_with_true_numbers():
    subject = Adds(lambda n: PLAIN(n) + (torch.arange(n) >= 3)[:, None] * torch.arange(D) * 0.01)
    cause = additive.check(subject, "additive_module", SIN).causes[0]
    assert cause.code == "sinusoidal.mismatch"
    assert cause.smallest_case["x"] == [1, 4, D]
    assert cause.smallest_case["index"] == [0, 3, D - 1]
    got, right = cause.smallest_case["got"], cause.smallest_case["expected"]
    assert got - right == pytest.approx(0.15, abs=1e-5)
    assert right == pytest.approx(SINUSOIDAL(np.arange(4.0), d_model=D)[3, D - 1])
    assert cause.evidence == pytest.approx(0.15, abs=1e-5)


def test_a_build_that_raises_for_an_odd_width_is_named():
    raised = Cause("subject.raises", "build() raised RuntimeError: sizes differ", 1.0)
    assert additive.refused("additive_module", {"dim": 15}, raised).code == "sinusoidal.width.odd"
    assert additive.refused("additive_module", {"dim": 16}, raised) is raised


def test_every_code_that_these_tests_see_is_listed():
    cases = [*SEQUENCE_FAULTS.values(), *IMAGE_FAULTS.values()]
    codes = {c for _, _, expected in cases for c in expected.split("|")}
    codes |= {c for _, _, e in (*TABLES.values(), *LEARNED_CASES.values()) if len(e) > 1 for c in e[1].split("|")}
    assert codes <= set(rules())


@pytest.mark.parametrize("convention", additive.CONVENTIONS)
@pytest.mark.parametrize("spec", [{}, {"variant": "detr_normalised"}, {"layout": "half"}, {"dim": 15}])
def test_every_planted_model_has_a_listed_code(convention, spec):
    asked = additive_asked.read({"dim": 16, **spec}, convention)
    for truth in additive_models.truths(asked, asked.dim):
        for model in additive_variants.one_fault_each(truth, asked):
            for code, words, mend in model.faults:
                assert additive_asked.coded(asked.family, code) in rules()
                assert words
                assert mend


@pytest.mark.parametrize(
    ("convention", "encoding"),
    [("additive_module", "time2vec"), ("additive_module", "sinusoidal2d"), ("relative_table_fn", "learned")],
)
def test_what_has_no_definition_is_not_passed(convention, encoding):
    assert judge(Adds(PLAIN), convention, {"encoding": encoding, "dim": D})[0] == "cannot_tell"
