"""First looks at an additive subject: the calls that are made, and what it means where one of them fails."""

import math
from typing import Any

import numpy as np

from posenc.verify import guard
from posenc.verify.additive.asked import Asked, coded
from posenc.verify.additive.models import Model, Seen
from posenc.verify.additive.places import Shape
from posenc.verify.additive.probe import Probe, smallest
from posenc.verify.additive.waves import Array
from posenc.verify.report import Cause

# sizes all differ, so that no axis can stand for another; one token and many
SHAPES: dict[str, list[Shape]] = {
    "additive_module": [(2, 5), (3, 7), (1, 1), (1, 24)],
    "additive_2d_module": [(2, 3, 5), (3, 4, 2), (1, 9, 4), (1, 5, 5)],
    "relative_table_fn": [(5,), (3,), (1,), (12,)],
}
_SMALL: dict[str, list[Shape]] = {
    "additive_module": [(b, n) for b in (1, 2) for n in range(1, 8)],
    "additive_2d_module": [(1, 1, 1), (1, 1, 2), (1, 2, 1), (1, 2, 2), (1, 2, 3), (1, 3, 2), (1, 3, 5), (2, 1, 1)],
    "relative_table_fn": [(n,) for n in range(1, 9)],
}


def look(probe: Probe, asked: Asked) -> tuple[Seen, Cause | None]:
    """Return what calls of several shapes add; or why they cannot be made."""
    seen: Seen = {}
    shapes = [s for s in SHAPES[probe.kind] if not asked.max_positions or s[-1] <= asked.max_positions]
    for shape in shapes:
        try:
            seen[shape] = probe.code(shape)
        except guard.SubjectError as error:
            # a table may end, if it says so: long calls are asked for elsewhere
            if shape == shapes[0] or (shape[-1] <= 9 and math.prod(shape) > 1):
                return seen, _refused(probe, asked, shape, error.cause)
    return seen, None


def works(probe: Probe, shape: Shape) -> bool:
    """Say whether a fresh object takes a call of this shape."""
    try:
        probe.raw(shape)
    except guard.SubjectError:
        return False
    return True


def _refused(probe: Probe, asked: Asked, shape: Shape, cause: Cause) -> Cause:
    """Return the fault behind a call that raises or returns another shape, if other calls show it."""
    if cause.code not in {"subject.raises", "subject.shape"}:
        return cause
    case = {**call(probe, shape), "raised": cause.message[:200]}
    if probe.kind == "additive_module" and works(probe, (1, shape[1])) and not works(probe, (2, 9)):
        message = (
            f"{probe.say(shape)} fails and one of batch 1 works: the code is cut by the batch, not by the sequence"
        )
        help_ = "Index the table by the sequence: table[: x.size(1)] for x of (batch, seq, dim)."
        return Cause(coded(asked.family, "axis.batch"), message, 1.0, case, help_, (cause.code,))
    if probe.kind == "additive_2d_module" and works(probe, (2, 4, 4)):
        message = f"{probe.say(shape)} fails and a square image works: the grid is taken to be square"
        help_ = "Build the grid with the height and the width of this image, height first."
        return Cause(f"{asked.family}.grid_shape_square", message, 1.0, case, help_, (cause.code,))
    if probe.kind == "relative_table_fn" and cause.code == "subject.shape":
        return _rows_missing(probe, asked, shape, cause)
    if probe.dim % 2 or (probe.kind == "additive_2d_module" and probe.dim % 4):
        return odd_width(asked, cause, probe.dim)
    return cause


def odd_width(asked: Asked, cause: Cause, dim: int) -> Cause:
    """Return the finding for a code that cannot be made for a width that halves do not divide."""
    message = f"a width of {dim} fails ({cause.message[:160]}): sines and cosines are taken to be equally many"
    help_ = "Make ceil(d/2) sines and cut the cosines to floor(d/2): cos(angles)[:, : d // 2]."
    return Cause(coded(asked.family, "width.odd"), message, float(dim), {"dim": dim}, help_, (cause.code,))


def _rows_missing(probe: Probe, asked: Asked, shape: Shape, cause: Cause) -> Cause:
    n = shape[0]
    found = guard.call(probe.fresh(), n, what=probe.say(shape))
    sizes = [s for s in getattr(found, "shape", ()) if s != 1]
    if len(sizes) != 2 or sizes[1] != probe.dim or sizes[0] == 2 * n - 1:
        return cause
    code = {n: "absolute_used", 2 * n: "off_by_one", 2 * n - 2: "off_by_one", 2 * n + 1: "off_by_one"}.get(sizes[0])
    if code is None:
        return cause
    message = f"table({n}) has {sizes[0]} rows; the signed distances from {n - 1} to {1 - n} are {2 * n - 1}"
    help_ = "Make one row for each signed distance, (n - 1) - r for row r of 2n - 1."
    return Cause(f"{asked.family}.{code}", message, float(sizes[0]), {"n": n}, help_, (cause.code,))


def call(probe: Probe, shape: Shape) -> dict[str, Any]:
    """Return a call as a case of a finding."""
    return {"n": shape[0]} if probe.kind == "relative_table_fn" else {"x": list(probe.full(shape))}


def at(case: dict[str, Any]) -> str:
    """Return a case in words."""
    what = f"n = {case['n']}" if "n" in case else f"x of {tuple(case['x'])}"
    return f"{what}, index {tuple(case['index'])}"


def worst(probe: Probe, truth: Model, seen: Seen) -> dict[str, Any]:
    """Return the smallest call that shows a difference: the largest one in it, where, and both numbers."""

    def off(shape: Shape, found: Array) -> Array:
        code, slack = truth.predict(shape)
        return np.asarray(np.where(np.abs(found - code) > slack + 2e-5, np.abs(found - code), 0.0))

    wrong = next((s for s in seen if off(s, seen[s]).any()), next(iter(seen)))
    shape = smallest(lambda s: bool(off(s, probe.code(s)).any()), _SMALL[probe.kind], wrong)
    found = seen[shape] if shape in seen else probe.code(shape)
    size = off(shape, found)
    index = np.unravel_index(int(size.argmax()), size.shape)
    expected = np.broadcast_to(truth.predict(shape)[0], found.shape)[index]
    where = [int(i) for i in (index[1:] if probe.kind == "relative_table_fn" else index)]
    if probe.kind == "additive_2d_module":  # lanes were moved last; x has them second
        where = [where[0], where[3], where[1], where[2]]
    numbers = {"index": where, "got": float(found[index]), "expected": float(expected), "off": float(size.max())}
    return {**call(probe, shape), **numbers}
