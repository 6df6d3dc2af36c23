"""Sinusoids that are added to images, and tables of sinusoids of distances: faults and unusual right code."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from posenc import definitions, verify
from posenc.verify.engine import Seen
from posenc.verify.engine.judge import explains, settle
from posenc.verify.families import added
from posenc.verify.rules import known

D, B, TAU = 16, 10000.0, 2 * math.pi
TWO = {"encoding": "sinusoidal2d", "dim": D}
REL = {"encoding": "relative_sinusoid", "dim": D}
DETR = {**TWO, "variant": "detr_normalised", "base": 10000.0}


def named(subject, convention, spec):
    report = verify.check(subject, convention=convention, spec=spec)
    assert {cause.code for cause in report.causes} <= set(known())
    return report.causes[0].code if report.causes else report.status


def omega(d, base=B):
    return base ** (-2 * torch.arange((d + 1) // 2).double() / d)


def waves(p, w, half=False):
    """Return sines and cosines (..., 2 * len(w)) of positions, in two blocks or alternating."""
    angle = p.double()[..., None] * w
    both = [angle.sin(), angle.cos()]
    return torch.cat(both, -1) if half else torch.stack(both, -1).flatten(-2)


def image(grid=None, base=B, w=None, join="yx", start=0.0, norm=None, c=D, half=False):
    """Return x + code; `grid` and `norm` make positions of cells."""

    def forward(x):
        h, wide = x.shape[2:]
        i, j = torch.meshgrid(torch.arange(h).double(), torch.arange(wide).double(), indexing="ij")
        y, z = (p + start for p in (grid(i, j, h, wide) if grid else (i, j)))
        if norm is not None:
            y, z = norm(y, h, wide), norm(z, wide, h)
        rates = omega(c // 2, base) if w is None else w
        runs = [waves(p, rates, half)[..., : c // 2] for p in (y, z)]
        runs = runs if join == "yx" else runs[::-1]
        if join == "woven":
            runs = [torch.stack([r.reshape(h, wide, -1, 2) for r in runs], -2).reshape(h, wide, c)]
        return x + torch.cat(runs, -1).permute(2, 0, 1)[None].to(x.dtype)

    return forward


def summed(x):
    rows, columns = (waves(torch.arange(n), omega(D)) for n in x.shape[2:])
    return x + (rows[:, None] + columns).permute(2, 0, 1)


def refusing(subject, error=AssertionError, fits=lambda h, w: h == w):
    """Return code that refuses an image of another size."""

    def forward(x):
        if not fits(*x.shape[2:]):
            raise error("another size")
        return subject(x)

    return forward


def at_14(h, w):
    return h == w == 14


def through_numpy(x):
    """Fail in an operation, not by a refusal, where an image is not square."""
    square = image()(torch.zeros(1, D, x.shape[2], x.shape[2])).numpy()
    return x + torch.from_numpy(square.reshape(1, *x.shape[1:]))


def of_14(x):
    return x + image()(torch.zeros(1, D, 14, 14))


def to_size(p, n, other):
    return p / (n + 1e-6) * TAU


LOFTR = {**TWO, "variant": "loftr", "start": 1}
Q = torch.arange(4, dtype=torch.float64)
ROWS_FIRST = {**TWO, "layout": "interleaved", "order": "yx"}
BLOCKS = {**TWO, "layout": "half", "order": "yx"}
CASES = [
    ("sinusoidal2d.axes_swapped", image(join="xy"), ROWS_FIRST),
    ("sinusoidal2d.axes_swapped", image(start=1.0, join="xy", norm=to_size), {**DETR, "order": "yx"}),
    ("sinusoidal2d.axes_summed", summed, TWO),
    ("sinusoidal2d.axis_repeated", image(lambda i, j, h, w: (i, i)), TWO),
    ("sinusoidal2d.grid_flattened_wrong", image(lambda i, j, h, w: ((i * w + j) % h, (i * w + j) // h)), TWO),
    ("sinusoidal2d.grid_shape_square", image(lambda i, j, h, w: ((i * w + j) // 16, (i * w + j) % 16)), TWO),
    ("sinusoidal2d.grid_shape_square", lambda x: x + image()(torch.zeros(1, D, x.shape[2], x.shape[2])), TWO),
    ("sinusoidal2d.grid_shape_square", through_numpy, TWO),
    ("sinusoidal2d.axes_swapped", refusing(image(join="xy")), ROWS_FIRST),
    ("sinusoidal2d.start", refusing(image(start=5.0), fits=at_14), TWO),
    ("sinusoidal2d.start", lambda x: of_14(x) + image(start=5.0)(0 * x) - image()(0 * x), {**TWO, "grid": [14, 14]}),
    ("sinusoidal.frequency.base", image(base=777.0), TWO),
    ("sinusoidal.frequency.divisor", image(w=B ** (-2 * Q / D)), TWO),
    ("sinusoidal.frequency.precedence", image(w=torch.exp(-Q * 2), join="woven", start=1.0), LOFTR),
    ("sinusoidal2d.start", image(start=5.0), TWO),
    ("sinusoidal2d.start", image(norm=lambda p, n, o: p / n * TAU), DETR),
    ("sinusoidal2d.normalise_missing", image(start=1.0), DETR),
    ("sinusoidal2d.normalise_divisor", image(norm=lambda p, n, o: p / n * TAU), TWO),
    ("sinusoidal2d.scale_missing", image(start=1.0, norm=lambda p, n, o: p / (n + 1e-6)), DETR),
    ("sinusoidal2d.normalise_divisor", image(start=1.0, norm=lambda p, n, o: p / (o + 1e-6) * TAU), DETR),
    ("sinusoidal2d.normalise_misplaced_half", image(start=1.0, norm=lambda p, n, o: (p - 0.5) / n * TAU), DETR),
    ("sinusoidal.not_used", lambda x: x * 1, TWO),
    ("sinusoidal2d.mismatch", image(lambda i, j, h, w: (i + j / 3, j - i / 5)), TWO),
    # two at once: the first one named is one of them
    ("sinusoidal.frequency.base", image(base=1000.0, join="xy", half=True), BLOCKS),
    ("sinusoidal2d.axes_swapped", image(start=1.0, join="xy", half=True), BLOCKS),
    ("sinusoidal2d.start", image(start=1.0, base=1000.0, half=True), BLOCKS),
    ("sinusoidal2d.axes_swapped", image(join="xy"), BLOCKS),
    # nothing wrong
    ("pass", image(), TWO),
    ("pass", image(c=10), {**TWO, "dim": 10}),
    *[("pass", image(), {**ROWS_FIRST, "order": said}) for said in ("yx", "hw", "rows first", "row-major", "y,x")],
    *[("pass", image(join="xy"), {**ROWS_FIRST, "order": said}) for said in ("xy", "wh", "columns first", "x,y")],
    ("equivalent", image(join="xy"), TWO),
    ("equivalent", image(join="woven"), TWO),
    ("pass", image(half=True), {**TWO, "layout": "half"}),
    ("pass", image(join="woven", start=1.0), {**TWO, "variant": "loftr"}),
    ("pass", image(start=1.0, norm=to_size), DETR),
    ("pass", image(start=1.0, norm=to_size), {**TWO, "variant": "detr"}),
    ("pass", image(start=1.0), {**TWO, "variant": "detr_unnormalised"}),
    ("equivalent", image(start=1.0), {**TWO, "origin": "any"}),
    ("pass", image(norm=lambda p, n, o: p / max(n - 1, 1e-6) * TAU), {**TWO, "variant": "normalised"}),
]


@pytest.mark.sample(16)
@pytest.mark.parametrize(("want", "subject", "spec"), CASES)
def test_an_image_is_judged(want, subject, spec):
    assert named(subject, "additive_2d_module", spec) == want


LEFT = [
    (refusing(image()), {"dim": D}, "images that are not square: "),
    (refusing(image(), ValueError), {}, "images that are not square: "),
    (refusing(image(), NotImplementedError, at_14), {"dim": D}, "images of other sizes than 14 x 14: "),
    (of_14, {"dim": D, "grid": [14, 14]}, "images of other sizes than 14 x 14: "),
    (refusing(image()), {"dim": D, "grid": 6}, "images of other sizes than 6 x 6: "),
    (
        refusing(image(), fits=lambda h, w: (h, w) == (4, 6)),
        {"grid": [4, 6], "dim": D},
        "images of other sizes than 4 x 6",
    ),
]


@pytest.mark.parametrize(("subject", "spec", "words"), LEFT)
def test_images_that_code_refuses_are_not_judged(subject, spec, words):
    spec = {"encoding": "sinusoidal2d", "layout": "interleaved", "order": "yx", **spec}
    report = verify.check(subject, convention="additive_2d_module", spec=spec)
    assert (report.status, report.not_judged[0].startswith(words)) == ("pass", True), report


def fixed(x):
    """Add one image of 6 x 6, and crash on others."""
    return x + image()(torch.zeros(1, D, 6, 6))


@pytest.mark.parametrize(("spec", "words"), [({"dim": D}, 'declare "grid": 6'), ({}, 'declare "d_model" and "grid"')])
def test_a_fixed_table_that_crashes_names_what_to_declare(spec, words):
    spec = {"encoding": "sinusoidal2d", "layout": "interleaved", "order": "yx", **spec}
    (cause,) = verify.check(fixed, convention="additive_2d_module", spec=spec).causes
    assert (cause.code, cause.message.endswith(words)) == ("subject.raises", True), cause.message
    assert verify.check(fixed, convention="additive_2d_module", spec=spec | {"grid": 6}).status == "pass"


@pytest.mark.parametrize("d", [16, 10])
def test_the_right_image_is_the_definition(d):
    family = added.family("additive_2d_module", {"dim": d})
    case = next(case for case in family.cases() if case.kind == "near")
    h, w = case.args[0][1:]
    pos = np.array([(i, j) for i in range(h) for j in range(w)], dtype=float)
    exact = definitions.find("sinusoidal_nd")(pos, d_model=d)
    np.testing.assert_allclose(family.predict(family.truth, case)[: h * w], exact, atol=1e-13)


def signed(f=lambda d: d, w=None, half=False):
    return lambda n: waves(f(n - 1 - torch.arange(2 * n - 1)), omega(D) if w is None else w, half)


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
    ("relative_sinusoid.sign_lost", signed(abs, half=True), {**REL, "layout": "half"}),
    ("relative_sinusoid.absolute_used", lambda n: waves(torch.arange(2 * n - 1), omega(D)), REL),
    ("relative_sinusoid.off_by_one", signed(lambda d: d + 3), REL),
    ("relative_sinusoid.slice_of_reversed_table", Cut("start"), REL),
    ("sinusoidal.state_kept", Cut("kept"), REL),
    ("sinusoidal.frequency.inverted", signed(w=1 / omega(D)), REL),
    ("sinusoidal.position.other", signed(lambda d: d * d / 3), REL),
    ("cannot_tell", signed(), {**REL, "encoding": "learned"}),
]


@pytest.mark.parametrize(("want", "subject", "spec"), TABLES)
def test_a_table_of_distances_is_judged(want, subject, spec):
    assert named(subject, "relative_table_fn", spec) == want


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
        if explains(family, family.truth, seen):
            continue  # coarse only at far positions, or another name of the definition
        verdict = settle(family, seen)
        assert verdict.status == "fail", fault
        equal = {f.code for f in faults if explains(family, {**family.truth, **f.change}, seen)}
        assert verdict.faults[0].code in equal | {fault.code}, fault
