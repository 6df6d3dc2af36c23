"""Measure which positions the rows of a sinusoid encode, whatever they are, and describe them in words."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from posenc.verify.engine import Fault, Seen
from posenc.verify.engine.records import Array, Model
from posenc.verify.families import added_faults

if TYPE_CHECKING:
    from posenc.verify.families.added import Sinusoid
    from posenc.verify.families.images import Image

NEAR = 2e-3  # tolerance of a measured position, as a share of it
Length = Callable[[int, int], float]
LENGTHS: Mapping[
    str, Length
] = {  # numbers of an axis of n cells, whose other axis has m, by which positions are divided
    "": lambda n, m: 1.0,
    " / n": lambda n, m: n,
    " / (n - 1)": lambda n, m: n - 1,
    " / (n + 1)": lambda n, m: n + 1,
    " / (the other axis's n)": lambda n, m: m,
    " / (the other axis's n - 1)": lambda n, m: m - 1,
    " / (the longer side)": max,
    " / (the shorter side)": min,
    " / (the number of cells)": lambda n, m: n * m,
}
CENTRES: Mapping[str, Length] = {"(n - 1) / 2": lambda n, m: (n - 1) / 2, "n // 2": lambda n, m: n // 2}
KNOWN = {2 * math.pi: "2 pi", math.pi: "pi", math.pi / 2: "pi/2", math.pi / 180: "pi/180"}


def _unwound(model: Model, value: Array) -> Array:
    """Return the position of each row: the slowest pair shows it roughly, faster ones more and more exactly."""
    d = value.shape[-1]
    lanes = added_faults.layouts(d)[model["order"]].lanes[:d]
    omega = added_faults.waves(model["rule"], model["order"], d, model["base"])[0] * model["factor"]
    where = {lane: at for at, lane in enumerate(lanes)}
    pairs = [(omega[at], at, where["c", k]) for (name, k), at in where.items() if name == "s" and ("c", k) in where]
    found = np.full(len(value), np.nan)
    for speed, sine, cosine in sorted(pairs):
        angle = np.arctan2(value[:, sine], value[:, cosine])
        turns = np.where(np.isnan(found), 0.0, np.round((found * speed - angle) / (2 * np.pi)))
        found = (angle + 2 * np.pi * turns) / speed
    return found


def places(family: "Sinusoid", s: Seen, model: Model) -> list[Array] | None:
    """Return the positions on each axis that an answer encodes; None if it is not the encoding of any."""
    grid = family.grid(s.case.args[-1])
    parts = family.parts({**model, "gain": 1.0})
    found = [_unwound(model, s.value[:, lanes]).reshape(grid) for lanes in parts]
    if not found or not all(np.isfinite(each).all() for each in found):
        return None
    code, slack = (a.reshape(s.value.shape) for a in family.code(model, tuple(found)))
    return found if (np.abs(code - s.value) <= slack + NEAR).all() else None


def measured(family: "Sinusoid", near: Sequence[Seen], models: Sequence[Model]) -> Iterator[tuple[Model, list[Any]]]:
    """Yield the models by which all answers encode positions, with the positions."""
    for model in models:
        found = [places(family, s, model) for s in near]
        if all(each is not None for each in found):
            yield model, found


def of_text(family: "Sinusoid", near: Sequence[Seen], models: Sequence[Model]) -> Fault | None:
    """Return which positions the tokens of texts have."""
    for model, found in measured(family, near, models):
        shapes = [s.case.args[-1] for s in near]
        lines = [each[0].reshape(-1, each[0].shape[-1])[0] for each in found]
        want = [
            family.positions(model, shape)[0].reshape(-1, len(line))[0]
            for shape, line in zip(shapes, lines, strict=True)
        ]
        return _affine([len(line) for line in lines], lines, want) or _listed(family, shapes[-1], lines[-1], want[-1])
    return None


def _affine(sizes: Sequence[int], lines: Sequence[Array], want: Sequence[Array]) -> Fault | None:
    """Return a constant step, or one that depends on the length, from the first position on."""
    fits = [fit for line, right in zip(lines, want, strict=True) if (fit := _line(line, right)) is not None]
    if len(fits) < max(len(lines), 2):
        return None
    steps, moved = np.array(fits).T
    if same(steps, steps[0]) and same(moved, 0.0):
        return Fault("sinusoidal.frequency.factor", {}, {"words": _number(steps[0])})
    for words, less in ((" / n", 0), (" / (n - 1)", 1)):
        whole = steps * (np.array(sizes) - less)
        if same(whole, whole[0]) and same(moved, 0.0):
            times = "t" if same(whole, 1.0) else f"{_number(whole[0])} t"
            return Fault("sinusoidal.position.normalised", {}, {"words": f"row t of n has position {times}{words}"})
    ends = moved + np.array(sizes)
    if same(steps, 1.0) and same(ends, ends[0]):
        words = f"row t of n has position {ends[0]:.0f} - n + t: the rows are taken from the end of the table"
        return Fault("sinusoidal.slice.tail", {}, {"words": words})
    for words, centre in CENTRES.items():
        if same(steps, 1.0) and same(moved, np.array([-centre(n, n) for n in sizes])):
            return Fault("sinusoidal.position.centred", {}, {"words": f"row t of n has position t - {words}"})
    return None


def _listed(family: "Sinusoid", shape: tuple[int, ...], line: Array, want: Array) -> Fault | None:
    """Return the first wrong positions of a text that no formula describes."""
    wrong = np.flatnonzero(np.abs(line - want) > NEAR * np.maximum(np.abs(want), 1.0))
    if not len(wrong):
        return None
    some = slice(wrong[0], wrong[0] + 8)
    found, right = (", ".join(f"{p:.4g}" for p in each[some]) for each in (line, want))
    number = "distances" if family.calls.table else "positions"
    words = (
        f"in {family.calls.words(shape)} the rows from {wrong[0]} on have the {number} {found}; they should be {right}"
    )
    fix = "Let row r of 2n - 1 hold the distance (n - 1) - r." if family.calls.table else ""
    return Fault("sinusoidal.position.other", {}, {"words": words, "fix": fix})


def _line(found: Array, want: Array) -> tuple[float, float] | None:
    """Return by how much positions grow for each of the right ones, and what is added."""
    if len(found) < 2:
        return None
    step = (found[1] - found[0]) / (want[1] - want[0])
    moved = found[0] - step * want[0]
    return (step, moved) if same(found, step * want + moved) else None


def same(some: Array, other: Array | float) -> bool:
    """Return whether measured numbers agree."""
    return bool((np.abs(some - other) <= NEAR * np.maximum(np.abs(other), 0.01)).all())


def _number(value: float) -> str:
    return next((words for known, words in KNOWN.items() if abs(value / known - 1) < 1e-4), f"{value:.5g}")


Formula = tuple[str, str, float]  # added to the number of a cell, by what the sum is divided, the factor


def of_image(family: "Image", near: Sequence[Seen], models: Sequence[Model]) -> Fault | None:
    """Return which positions the rows and columns of images have."""
    for model, found in measured(family, near, models):
        shapes = [s.case.args[-1][1:] for s in near]
        axes = [[_axis(part[0]) for part in each] for each in found]
        if "" in axes[0] or any(each != axes[0] for each in axes):
            continue
        lines = [[part[n][0][0] if axes[0][n] == "column" else part[n][0][:, 0] for part in found] for n in (0, 1)]
        formulas = (_formula(lines[0], shapes), _formula(lines[1], [shape[::-1] for shape in shapes]))
        return _crossed(*axes[0]) or _named(model, *formulas)
    return None


def _crossed(first: str, second: str) -> Fault | None:
    """Return parts that encode the wrong axis."""
    if "none" in (first, second):
        return Fault(
            "sinusoidal2d.axis_missing", {}, {"words": f"all {'rows' if first == 'none' else 'columns'} are alike"}
        )
    if first == second:
        return Fault("sinusoidal2d.axis_repeated", {}, {"words": f"both parts encode the {first}"})
    words = {"words": "columns first, where rows should be first, or the reverse"}
    return Fault("sinusoidal2d.axes_swapped", {}, words) if first == "column" else None


def _axis(place: Array) -> str:
    """Return the axis along which a position changes: "row" with the row, "none", or empty if with both."""
    if same(place, place[0, 0]):
        return "none"
    return "row" if same(place, place[:, :1]) else "column" if same(place, place[:1]) else ""


def _formula(lines: Sequence[Any], shapes: Sequence[tuple[int, int]]) -> Formula | None:
    """Return the formula of the positions on one axis of images; None if it is unknown."""
    some = [(line, shape) for line, shape in zip(lines, shapes, strict=True) if len(line) > 1]
    steps, firsts = (np.array([line[1] - line[0] for line, _ in some]), np.array([line[0] for line, _ in some]))
    if len(some) < 2 or not all(
        same(line, line[0] + step * np.arange(len(line))) for (line, _), step in zip(some, steps, strict=True)
    ):
        return None
    starts = firsts / steps
    begin = next(
        (f"- {w}" for w, of in CENTRES.items() if same(starts, np.array([-of(*size) for _, size in some]))), ""
    )
    if not begin and not same(starts, starts[0]):
        return None
    for words, length in LENGTHS.items():
        factor = steps * np.array([length(*size) for _, size in some])
        if same(factor, factor[0]):
            return begin or f"+ {round(float(starts[0]), 3) + 0.0:g}", words, float(factor[0])
    return None


def _words(formula: Formula) -> str:
    begin, over, factor = formula
    number = "i" if begin == "+ 0" else f"(i {begin})"
    return number + over + ("" if same(np.array([factor]), 1.0) else f" * {_number(factor)}")


def _named(model: Model, rows: Formula | None, columns: Formula | None) -> Fault | None:
    """Return the fault of two formulas of positions."""
    if rows is None or columns is None:
        return None
    over = {
        "": "",
        "size": " / n",
        "other": " / (the other axis's n)",
        "last": " / n" if model["start"] else " / (n - 1)",
    }
    right: Formula = f"+ {model['start']:g}", over[model["over"]], model["scale"]
    found = _words(rows) if _words(rows) == _words(columns) else f"{_words(rows)}, and column i {_words(columns)}"
    wrong = [f for f in (rows, columns) if _words(f) != _words(right)]
    values = {"found": found, "asked": _words(right), "words": f"row i of n has position {found}"}
    if any(f[0].startswith("-") for f in wrong):
        return Fault("sinusoidal.position.centred", {}, values)
    if other := [f for f in wrong if f[1] != right[1]]:
        plain = all(not f[1] and same(np.array([f[2]]), 1.0) for f in other)
        return Fault(f"sinusoidal2d.normalise_{'missing' if plain and right[1] else 'divisor'}", {}, values)
    if other := [f for f in wrong if not same(np.array([f[2]]), right[2])]:
        factor = _number(other[0][2] / right[2])
        code = "sinusoidal2d.scale_missing" if right[1] or len(other) == 1 else "sinusoidal.frequency.factor"
        return Fault(code, {}, {**values, "words": factor})
    return (
        Fault("sinusoidal2d.start", {}, {"message": f"{values['words']}; it should be {_words(right)}"})
        if wrong
        else None
    )
