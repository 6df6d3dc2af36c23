"""Models that differ from the definition: every known fault of frequencies, lanes and positions, one at a time."""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from posenc.verify.additive import waves
from posenc.verify.additive.asked import Asked
from posenc.verify.additive.distances import distances
from posenc.verify.additive.grid import Scaling, cells
from posenc.verify.additive.models import Model
from posenc.verify.additive.places import rows
from posenc.verify.additive.waves import Layout
from posenc.verify.additive.wrong import WRONG


def _rules(model: Model) -> Iterator[Model]:
    for rule in WRONG:
        yield replace(model, rule=rule, faults=((rule.code, f"angles are {rule.words}", rule.mend),))
    for base in {10000.0, 1000.0, 100.0, 20.0, 100000.0, 500000.0, 1e6} - {model.base}:
        code = "temperature_hardwired" if base == 10000.0 else "frequency.base"
        words = f"the base is {base:g}, where {model.base:g} was asked for"
        yield replace(model, base=base, faults=((code, words, "Use the base that the configuration gives."),))


def _lanes(model: Model, asked: Asked) -> Iterator[Model]:
    orders = waves.layouts(len(model.layout.lanes))
    two_axes = asked.family == "sinusoidal2d"
    for join in ("yx", "xy", "woven_yx", "woven_xy") if two_axes else ("yx",):
        for layout in orders.values():
            moved = sorted(layout.lanes) == sorted(model.layout.lanes) and not layout.by_row
            if layout.lanes == model.layout.lanes and join == model.join and not layout.by_row:
                continue
            if join.startswith("woven") and len(layout.lanes) % 2:
                continue
            said = asked.layout_said and layout.lanes != model.layout.lanes
            said |= asked.join_said and join[-2:] != model.join[-2:]
            said |= asked.layout_said and asked.join_said and join != model.join
            free, fault = moved and not said, _lane_fault(model, layout, join)
            yield replace(model, layout=layout, join=join, lanes_moved=free, faults=(fault,))
    if two_axes:
        words = "the codes of row and column are added, each as wide as the channels"
        fault = ("axes_summed", words, "Give each axis half of the channels, side by side.")
        yield replace(model, layout=waves.layouts(model.dim or 4)["interleaved"], join="sum", faults=(fault,))


def _lanes_of_one_axis(model: Model) -> Iterator[Model]:
    """Give the rows or the columns of an image a wrong order of lanes, and leave the others right."""
    for layout in waves.layouts(len(model.layout.lanes)).values():
        if layout.by_row or layout.lanes == model.layout.lanes:
            continue
        code, words, mend = _lane_fault(model, layout, model.join)
        for axis, orders in (("rows", (layout, model.layout)), ("columns", (model.layout, layout))):
            fault = code, f"in the part of the {axis} alone {words}", mend
            yield replace(model, layout=orders[0], second=orders[1], faults=(fault,))


def _lane_fault(model: Model, layout: Layout, join: str) -> tuple[str, str, str]:
    words = f"the lanes are {layout.words}"
    code = layout.code
    swapped = join[-2:] != model.join[-2:]
    if layout.by_row:
        return code, words, "Take the sine of columns 0::2 and the cosine of columns 1::2: code[:, 0::2]."
    if layout.lanes == model.layout.lanes and swapped:
        return "axes_swapped", f"the {'rows come' if join.endswith('yx') else 'columns come'} first in the lanes", (
            "Put the axes' lanes in the declared order.")  # fmt: skip
    if join != model.join:
        words += {"yx": ", rows first", "xy": ", columns first"}.get(join, ", the axes taking turns")
    if not code or sorted(layout.lanes) == sorted(model.layout.lanes):
        first = layout.lanes[0][0]
        blocks = len(layout.lanes) > 2 and layout.lanes[1][0] == first
        code = ("layout.halves_swapped" if blocks else "layout.cos_first") if first == "c" else (
            "layout.halves" if blocks else "layout.interleaved")  # fmt: skip
        if layout.lanes[0][0] == "s" == model.layout.lanes[0][0] or first == model.layout.lanes[0][0] == "c":
            code = "layout.halves" if blocks else "layout.interleaved"
    return code, words, f"Order the lanes as {model.layout.words}."


def shifts(model: Model, asked: Asked) -> Iterator[Model]:
    """Give a model every wrong map of positions in turn."""
    if asked.family == "relative_sinusoid":
        for place in distances():
            turned = place.code == "direction"
            yield replace(model, place=place, turned=turned, faults=((place.code, place.words, place.mend),))
    elif asked.family == "sinusoidal2d":
        yield from _grids(model, asked)
    else:
        start = asked.starts[0]
        for place in rows(start):
            shift = float(place.at((1, 1))[0].item() - start) if place.code == "start" else 0.0
            yield replace(model, place=place, shift=shift, faults=((place.code, place.words, place.mend),))


def _grids(model: Model, asked: Asked) -> Iterator[Model]:
    right = asked.scalings[0]
    for place in cells(right)[1:]:
        yield replace(model, place=place, faults=((place.code, place.words, place.mend),))
    starts, overs = (0.0, 1.0, 0.5, 2.0, -1.0), ("", "size", "last", "less", "beyond", "other")
    scales = dict.fromkeys((right.scale, 1.0, 2 * math.pi, math.pi)) if right.over else (1.0,)
    halves = ((0.0, 0.0), (0.5, 0.0), (0.0, 0.5), (-0.5, 0.0), (1.0, 0.0))
    for start, over, scale, (inner, outer) in itertools.product(starts, overs, scales, halves):
        tried = Scaling(start, over, scale, inner, outer)
        differ = (start != right.start) + (over != right.over) + (scale != right.scale) + bool(inner or outer)
        if 0 < differ <= 2 and tried not in asked.scalings:
            fault = _scaling_fault(tried, right)
            yield replace(model, place=cells(tried)[0], faults=(fault,), shift=_shift(tried, right))


def _shift(found: Scaling, right: Scaling) -> float:
    """Return how much later the first position is, where nothing else differs."""
    by_start = replace(found, start=right.start) == right
    return found.start - right.start if by_start and not right.over else 0.0


def _scaling_fault(found: Scaling, right: Scaling) -> tuple[str, str, str]:
    words = f"row i of n has position {found.words}, where {right.words} is right"
    mend = f"Make it {right.words}."
    if found.inner or found.outer:
        return "normalise_misplaced_half", words, mend
    if found.over == "other" and right.over != "other":
        return "normalise_swapped", words, mend
    if right.over and not found.over:
        return "normalise_missing", words, mend
    if found.over and not right.over:
        return "normalise_unasked", words, mend
    if found.scale != right.scale:
        return "scale_missing", words, mend
    if found.over == right.over or ((found.over, right.over) == ("last", "size") and found.start != right.start):
        return "start", words, mend
    return "normalise_divisor", words, mend


def merged(a: Model, b: Model, truth: Model) -> Model:
    """Return a model with the parts of `a` that differ from the truth, and those of `b`."""
    parts = ("rule", "layout", "second", "place", "base", "gain", "join", "lanes_moved", "shift", "turned", "dim")
    new = {name: getattr(b if getattr(b, name) != getattr(truth, name) else a, name) for name in parts}
    return Model(**new, faults=(*a.faults, *b.faults))


def one_fault_each(truth: Model, asked: Asked) -> list[Model]:
    """Return every model that differs from the definition in one part."""
    found = [model for part in parts_of(truth, asked) for model in part]
    return found + (list(_lanes_of_one_axis(truth)) if asked.family == "sinusoidal2d" else [])


def parts_of(truth: Model, asked: Asked) -> list[list[Model]]:
    """Return the models with one wrong part: lanes, frequencies, positions; what is likeliest goes first."""
    parts = [list(_lanes(truth, asked)), list(_rules(truth)), list(shifts(truth, asked))]
    order = {"sinusoidal2d": (0, 2, 1), "relative_sinusoid": (2, 0, 1)}.get(asked.family, (0, 1, 2))
    return [parts[i] for i in order]


def renamed(right: Sequence[Model], asked: Asked) -> list[Model]:
    """Return the models whose lanes only stand in another order, where the spec declares none."""
    return [m for truth in right for m in _lanes(truth, asked) if m.lanes_moved]
