"""Builders of M-RoPE's positions: faults and correct variants, written token by token as processors do."""

import numpy as np
import pytest
import torch

from posenc.definitions.positions import mrope_positions
from posenc.verify import check, family_of


def build(
    after="all_axes",
    time=lambda t, step, begin: int(t * step),
    flip=False,
    whole=torch.Tensor.long,
    text=lambda i: (i,) * 3,
    order=lambda cells: cells,
    at=1,
    takes_step=lambda part: True,
):
    """Return positions(segments, time_steps) as a processor writes it, token by token."""

    def positions(segments, time_steps):
        tokens, begin, steps = [], 0, iter(time_steps)
        for part in segments:
            if isinstance(part, int):
                tokens += [[begin + n for n in text(i)] for i in range(part)]
                begin += part - (after == "last")
                continue
            step, (frames, h, w) = next(steps) if takes_step(part) else 1.0, part
            times = [time(t, step, begin) for t in range(frames)]
            sides = [(y, x) if not flip else (x, y) for y in range(h) for x in range(w)]
            cells = order([(t, y, x) for t in times for y, x in sides])
            tokens += [[at * begin + n for n in cell] for cell in cells]
            largest = at * begin + max(map(max, cells))
            ends = {"all_axes": max(begin, largest + 1), "last": largest, "two": largest + 2}
            begin = {**ends, "sides": begin + max(h, w), "one": begin + 1}[after]
        return whole(torch.tensor(tokens).T)

    return positions


def times_in_turn(cells):
    """Return cells whose times are tiled where they should be repeated."""
    times = sorted({t for t, _, _ in cells})
    return [(times[i % len(times)], y, x) for i, (_, y, x) in enumerate(cells)]


BUILDERS = {
    "all axes": (build(), {}, "pass"),
    "sides": (build("sides"), {}, "pass"),
    "the other": (build("sides"), {"next_after": "all_axes"}, "mrope_positions.next_after"),
    "one": (build("one"), {}, "mrope_positions.after_picture"),
    "two": (build("two"), {}, "mrope_positions.after_picture"),
    "patches": (build(order=lambda cells: [(t, 2 * y, 2 * x) for t, y, x in cells]), {}, "mrope_positions.not_merged"),
    "at 0": (build(at=0), {}, "mrope_positions.start"),
    "step floored": (build(time=lambda t, s, b: t * int(s)), {}, "mrope_positions.time_step"),
    "rounded": (build(time=lambda t, s, b: round(t * s)), {}, "mrope_positions.time_step"),
    "pictures take no step": (build(takes_step=lambda part: part[0] > 1), {}, "mrope_positions.time_step"),
    "step rounded": (build(time=lambda t, s, b: t * round(s)), {}, "mrope_positions.time_step"),
    "from the largest": (build("last"), {}, "mrope_positions.after_picture"),
    "text on one axis": (build(text=lambda i: (i, 0, 0)), {}, "mrope_positions.text_axes"),
    "times in turn": (build(order=times_in_turn), {}, "mrope_positions.cell_order"),
    "halved": (build(order=lambda cells: [(t, y // 2, x // 2) for t, y, x in cells]), {}, "mrope_positions.cell_order"),
    "start too": (build(time=lambda t, s, b: int((b + t) * s) - b), {}, "mrope_positions.time_step"),
    "exchanged": (build(flip=True), {}, "mrope_positions.axes_exchanged"),
    "int16": (build(whole=torch.Tensor.short), {}, "mrope_positions.far"),
    "fractions": (build(whole=lambda t: t / 2), {}, "mrope_positions.mismatch"),
    "shape": (lambda s, t: build()(s, t).T, {}, "subject.shape"),
}


@pytest.mark.parametrize("name", BUILDERS)
def test_a_builder(name):
    subject, spec, want = BUILDERS[name]
    report = check(subject, convention="mrope_positions_fn", spec=spec)
    assert (report.causes[0].code if report.causes else report.status) == want, report
    assert not report.causes or "{" not in report.causes[0].message


@pytest.mark.parametrize("after", ["all_axes", "sides"])
def test_the_unfaulted_builder_is_the_definition(after):
    family = family_of("mrope_positions_fn", {"next_after": after})
    for case in family.cases():
        want = mrope_positions(*case.args[:1], case.args[1] or 1.0, next_after=after)
        assert np.array_equal(family.predict(family.truth, case), want)
