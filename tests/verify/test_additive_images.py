"""Codes added to an image: faults and innocent oddities."""

import math

import pytest
import torch

from additive_subjects import B, D, halves, judge, omega, woven

TWO = {"encoding": "sinusoidal2d", "dim": D}
DETR = {**TWO, "variant": "detr_normalised", "base": 10000.0}
EITHER = {**TWO, "variant": "detr"}
TAU = 2 * math.pi
q = torch.arange(4, dtype=torch.float64)


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


@pytest.mark.sample(6)
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
