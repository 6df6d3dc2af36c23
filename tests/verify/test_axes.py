"""Rotations over several axes: faults and correct variants of tables, of functions, and of M-RoPE's sections."""

import numpy as np
import pytest
import torch

from posenc.definitions.positions import mrope_positions
from posenc.verify import check, family_of
from posenc.verify.engine import Seen
from posenc.verify.engine.judge import settle

SECTION = [8, 12, 12]


def of_pairs(order="xy", alternate=False, ladder="axis", n=16, base=10000.0):
    """Return angles(row, column): each pair of dimensions reads one of them at a frequency of its own."""
    pair = torch.arange(n).double()
    first = pair % 2 == 0 if alternate else pair < n // 2
    number = pair // 2 if alternate else pair % (n // 2)
    exponents = {"axis": 2 * number, "shared": pair, "dealt": 2 * number + (pair >= n // 2), "width": number}
    freq = base ** (-exponents[ladder] / n)

    def angles(row, column):
        one, other = (row, column) if order == "yx" else (column, row)
        return torch.where(first, one[..., None].double(), other[..., None].double()) * freq

    return angles


def table(*switches, place=lambda t, h, w: (t // w, t % w), **more):
    """Return table(h, w), the angles of all patches."""
    angles = of_pairs(*switches, **more)
    return lambda h, w: angles(*place(torch.arange(h * w), h, w))


def rotate(order="yx", base=100.0, pairing="block", graded=True, clockwise=False):
    """Return rope(x, positions) on rows and columns, as vision towers write it."""
    angles = of_pairs(order=order, base=base)

    def rope(x, positions):
        angle = angles(positions[..., 0], positions[..., 1])[:, None].to(x.dtype) * (-1 if clockwise else 1)
        cos, sin = angle.cos(), angle.sin()
        x = x if graded else x.detach()
        if pairing == "head":
            u, v = x.chunk(2, -1)
            return torch.cat((u * cos - v * sin, v * cos + u * sin), -1)
        if pairing == "interleaved":
            u, v = x[..., ::2], x[..., 1::2]
            return torch.stack((u * cos - v * sin, v * cos + u * sin), -1).flatten(-2)
        parts = []
        for part, c, s in zip(x.chunk(2, -1), cos.chunk(2, -1), sin.chunk(2, -1), strict=True):
            u, v = part.chunk(2, -1)
            parts.append(torch.cat((u * c - v * s, v * c + u * s), -1))
        return torch.cat(parts, -1)

    return rope


ROPE2D = {"encoding": "rope2d", "head_dim": 32, "base": 10000.0}
ROWS, WOVEN = ROPE2D | {"order": "yx"}, ROPE2D | {"order": "yx", "interleaved": True}
TABLES = {
    "columns first": (table(), ROPE2D, "pass"),
    "rows first": (table("yx"), ROWS, "pass"),
    "alternating": (table("yx", True), WOVEN, "pass"),
    "alternating, one series": (table("yx", True, "shared"), WOVEN, "pass"),
    "one series in blocks": (table("yx", False, "shared"), ROWS | {"ladder": "shared"}, "pass"),
    "dealt": (table("yx", False, "dealt"), ROWS | {"ladder": "dealt"}, "pass"),
    "from 1": (table(place=lambda t, h, w: (t // w + 1, t % w + 1)), ROPE2D, "equivalent"),
    "rows first, not asked": (table("yx"), ROPE2D, "rope2d.axes_swapped"),
    "blocks for alternating": (table("yx", False, "shared"), WOVEN, "rope2d.interleaved_axes"),
    "alternating for blocks": (table("yx", True), ROWS, "rope2d.interleaved_axes"),
    "one series, not asked": (table("yx", False, "shared"), ROWS, "rope2d.frequency.shared"),
    "down columns": (table(place=lambda t, h, w: (t % h, t // h)), ROPE2D, "rope2d.grid_transposed"),
    "flat": (table(place=lambda t, h, w: (t, t)), ROPE2D, "rope2d.flat_index"),
    "whole rotations off": (lambda h, w: table()(h, w) % (2 * np.pi), ROPE2D, "pass"),
    "halved": (table(place=lambda t, h, w: (t // w / 2, t % w / 2)), ROPE2D, "rope2d.coordinates_wrong"),
    "base": (table(base=500000.0), ROPE2D, "rope2d.config.theta_not_read"),
    "odd base": (table(base=777.0), ROPE2D, "rope2d.frequency.mismatch"),
    "over all pairs": (table(ladder="width"), ROPE2D, "rope2d.frequency.width"),
    "raises": (lambda h, w: torch.zeros(h, 3) @ torch.zeros(w, 2), ROPE2D, "subject.raises"),
}
PLACED = ROPE2D | {"base": 100.0, "order": "yx"}
FUNCTIONS = {
    "blocks": (rotate(), PLACED, "pass"),
    "pairs over the head": (rotate(pairing="head"), PLACED, "pass"),
    "interleaved": (rotate(pairing="interleaved"), PLACED | {"layout": "interleaved"}, "pass"),
    "clockwise": (rotate(clockwise=True), PLACED, "equivalent"),
    "places from 1": (lambda x, p: rotate()(x, p + 1), PLACED, "equivalent"),
    "columns first": (rotate("xy"), PLACED, "rope2d.axes_swapped"),
    "exponents": (rotate(base=0.01), PLACED, "rope2d.frequency.exponents"),
    "base": (rotate(base=1e4), PLACED, "rope2d.config.theta_not_read"),
    "one axis": (lambda x, p: rotate()(x, p[..., :1].expand_as(p)), PLACED, "rope2d.axis_repeated"),
    "double steps": (lambda x, p: rotate()(x, p * 2), PLACED, "rope2d.coordinates_wrong"),
    "double steps over the head": (lambda x, p: rotate(pairing="head")(x, p * 2), PLACED, "rope2d.coordinates_wrong"),
    "rows share": (lambda x, p: rotate()(x, p[:1].expand_as(p)), PLACED, "rope.batch.rows_share"),
    "over the head": (rotate(pairing="head"), PLACED | {"layout": "interleaved"}, "rope2d.layout.wrong_pairing"),
    "rows first, not asked": (rotate(), {n: v for n, v in PLACED.items() if n != "order"}, "pass"),
    "columns first, not asked": (rotate("xy"), {n: v for n, v in PLACED.items() if n != "order"}, "pass"),
    "other pairs": (rotate(pairing="interleaved"), PLACED, "rope2d.layout.wrong_pairing"),
    "no gradient": (rotate(graded=False), PLACED, "rope2d.grad.severed"),
}


def mrope(axis, freq=None, base=50000.0):
    n = len(axis)
    freq = base ** (-torch.arange(n).double() / n) if freq is None else freq
    return lambda ids: ids.double()[torch.as_tensor(axis)].T * freq


BLOCKS = np.repeat(range(3), SECTION)
WEAVE = np.array([i % 3 if i < 3 * SECTION[i % 3] else 0 for i in range(32)])
NUMBER = torch.cat([torch.arange(s) for s in SECTION]).double()
MROPE = {"encoding": "mrope", "head_dim": 64, "base": 50000.0, "section": SECTION}
SCALED = {"encoding": "mrope", "head_dim": 64, "base": 50000.0}
PARAMETERS = {"mrope_interleaved": True, "mrope_section": SECTION}
SECTIONS = {
    "blocks": (mrope(BLOCKS), MROPE, "pass"),
    "interleaved": (mrope(WEAVE), MROPE | {"mrope_interleaved": True}, "pass"),
    "whole rotations off": (lambda ids: mrope(BLOCKS)(ids) % (2 * np.pi), MROPE, "pass"),
    "rope_scaling": (mrope(BLOCKS), SCALED | {"rope_scaling": {"type": "mrope", "mrope_section": SECTION}}, "pass"),
    "rope_parameters": (mrope(WEAVE), SCALED | {"config": {"rope_parameters": PARAMETERS}}, "pass"),
    "interleaved for blocks": (mrope(WEAVE), MROPE, "mrope.interleaved_where_blocked"),
    "blocks for interleaved": (mrope(BLOCKS), MROPE | {"interleaved": True}, "mrope.interleaving_ignored"),
    "one axis": (mrope(BLOCKS * 0 + 1), MROPE, "mrope.axes_collapsed"),
    "columns before rows": (mrope(np.array([0, 2, 1])[BLOCKS]), MROPE, "mrope.section_order"),
    "restart": (mrope(BLOCKS, 50000.0 ** (-NUMBER / 32)), MROPE, "mrope.frequency.restart"),
    "base": (mrope(BLOCKS, base=1e6), MROPE, "mrope.config.theta_not_read"),
    "exponents": (mrope(BLOCKS, base=50000.0**0.5), MROPE, "mrope.frequency.exponents"),
    "odd base": (mrope(BLOCKS, base=777.0), MROPE, "mrope.frequency.mismatch"),
    "one pair": (mrope(np.where(np.arange(32) == 9, 2, BLOCKS)), MROPE, "mrope.mismatch"),
    "rounded, in two ways": (lambda i: mrope(BLOCKS, None, 1e4)(i.bfloat16()), MROPE, "mrope.precision.positions_bf16"),
    "rounded": (lambda ids: mrope(BLOCKS)(ids.bfloat16()), MROPE, "mrope.precision.positions_bf16"),
}


def build(after="all_axes", time=lambda t, step, begin: int(t * step), flip=False, whole=torch.Tensor.long):
    """Return positions(segments, time_steps) as a processor writes it, token by token."""

    def positions(segments, time_steps):
        tokens, begin, steps = [], 0, iter(time_steps)
        for part in segments:
            if isinstance(part, int):
                tokens += [[begin + i] * 3 for i in range(part)]
                begin += part
                continue
            step, (frames, h, w) = next(steps), part
            times = [time(t, step, begin) for t in range(frames)]
            sides = [(y, x) if not flip else (x, y) for y in range(h) for x in range(w)]
            tokens += [[begin + t, begin + y, begin + x] for t in times for y, x in sides]
            begin += max(times[-1] + 1, h, w) if after == "all_axes" else max(h, w) if after == "sides" else 1
        return whole(torch.tensor(tokens).T)

    return positions


BUILDERS = {
    "all axes": (build(), {}, "pass"),
    "sides": (build("sides"), {}, "pass"),
    "the other": (build("sides"), {"next_after": "all_axes"}, "mrope_positions.next_after"),
    "one": (build("one"), {}, "mrope_positions.after_picture"),
    "step floored": (build(time=lambda t, s, b: t * int(s)), {}, "mrope_positions.time_step"),
    "rounded": (build(time=lambda t, s, b: round(t * s)), {}, "mrope_positions.time_step"),
    "start too": (build(time=lambda t, s, b: int((b + t) * s) - b), {}, "mrope_positions.time_step"),
    "exchanged": (build(flip=True), {}, "mrope_positions.axes_exchanged"),
    "int16": (build(whole=torch.Tensor.short), {}, "mrope_positions.far"),
    "fractions": (build(whole=lambda t: t / 2), {}, "mrope_positions.mismatch"),
    "shape": (lambda s, t: build()(s, t).T, {}, "subject.shape"),
}
CASES = [
    pytest.param(convention, *case, id=f"{convention}: {name}")
    for convention, cases in (
        ("rope2d_table_fn", TABLES),
        ("rope_axes_fn", FUNCTIONS),
        ("mrope_fn", SECTIONS),
        ("mrope_positions_fn", BUILDERS),
    )
    for name, case in cases.items()
]


@pytest.mark.parametrize(("convention", "subject", "spec", "want"), CASES)
def test_axes(convention, subject, spec, want):
    report = check(subject, convention=convention, spec=spec)
    assert (report.causes[0].code if report.causes else report.status) == want, report
    assert not report.causes or "{" not in report.causes[0].message


def test_what_is_not_asked_for_is_not_judged():
    report = check(rotate(), convention="rope_axes_fn", spec={**ROPE2D, "base": 100.0})
    assert any("declare order" in line for line in report.not_judged)
    report = check(table("yx", True, "shared"), convention="rope2d_table_fn", spec=WOVEN)
    assert any("ladder" in line for line in report.not_judged)
    assert report.measured["ladder"] == "shared"
    assert report.measured["frequencies"]["0"][:2] == pytest.approx([1.0, 10000.0 ** (-2 / 16)], rel=1e-5)


@pytest.mark.parametrize(
    ("convention", "spec"),
    [("rope2d_table_fn", ROWS), ("rope_axes_fn", PLACED), ("mrope_fn", MROPE), ("mrope_positions_fn", {})],
)
def test_every_fault_is_named_or_an_earlier_one_predicts_the_same(convention, spec):
    family = family_of(convention, spec)
    cases, named = [c for c in family.cases() if c.kind != "grad"], []
    for fault in family.faults():
        seen = [Seen(c, family.predict({**family.truth, **fault.change}, c)) for c in cases]
        verdict = settle(family, seen)
        if verdict.status != "fail":
            continue  # it changes nothing with these numbers
        first = verdict.faults[0]
        same = all(np.allclose(family.predict({**family.truth, **first.change}, s.case), s.value) for s in seen)
        assert first.code == fault.code or same, (fault.code, first)
        named.append(first.code)
    assert len(set(named)) > 3


@pytest.mark.parametrize("after", ["all_axes", "sides"])
def test_the_unfaulted_builder_is_the_definition(after):
    family = family_of("mrope_positions_fn", {"next_after": after})
    for case in family.cases():
        want = mrope_positions(*case.args[:1], case.args[1] or 1.0, next_after=after)
        assert np.array_equal(family.predict(family.truth, case), want)


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("section", [1, 2, 3]),
        ("scaling", {"rope_type": "yarn", "factor": 4.0}),
        ("order", "rows"),
        ("ladder", "both"),
        ("padding", "left"),
    ],
)
def test_a_specification_that_says_something_impossible_is_refused(word, value):
    convention, spec = ("mrope_fn", MROPE) if word in ("section", "scaling") else ("rope2d_table_fn", ROPE2D)
    with pytest.raises(ValueError, match=word):
        check(table(), convention=convention, spec=spec | {word: value})
