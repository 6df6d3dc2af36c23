"""Where in a trained table cells of an image take their code from: along which of its axes, and how."""

import math
from dataclasses import dataclass

import numpy as np

from posenc.verify.additive.asked import Asked
from posenc.verify.additive.probe import Probe
from posenc.verify.additive.tables2d import Taken
from posenc.verify.additive.waves import Array

_NEAR = 0.75  # entries that ways to interpolate differ by
Size = tuple[int, int]


@dataclass(frozen=True)
class Seen:
    """What one lane takes from one table at a size: by which axis of the image each axis of the table goes.

    Args:
        size: Of the image.
        taken: What was measured.
        follows: "y" or "x" for each axis of the table; None where it goes by none in a way that is known.
    """

    size: Size
    taken: Taken
    follows: tuple[str, ...] | None


def grid(asked: Asked) -> Size | None:
    """Return the rows and columns of the image that a spec names."""
    said = asked.said.get("grid")
    if isinstance(said, int) and not isinstance(said, bool) and said > 0:
        return said, said
    whole = isinstance(said, list | tuple) and len(said) == 2 and all(isinstance(n, int) and n > 0 for n in said)
    return (int(said[0]), int(said[1])) if whole and isinstance(said, list | tuple) else None


def look(size: Size, one: Taken, asked: Asked) -> Seen:
    """Return by which axes of the image a table goes, where it does so in a way that is known."""
    shape = table_shape(one, size, asked)
    if shape is None:
        return Seen(size, one, numbered_by(one, size))
    places = one.centres() if len(shape) == len(one.shape) else unflattened(one, shape)
    found = []
    for axis, entries in enumerate(shape):
        goes = [name for n, name in enumerate("yx") if along(places[:, axis], one.cells[:, n], size[n], entries)]
        found.append(goes[0] if goes else "")
    known = all(found) and len(set(found)) == len(found)
    return Seen(size, one, tuple(found) if known else numbered_by(one, size))


def numbered_by(one: Taken, size: Size) -> tuple[str, str] | None:
    """Return the axes by which cells are numbered along a flat table, the slower one first; None if they are not."""
    if len(one.shape) != 1 or not one.whole:
        return None
    line, (y, x) = one.line() - one.line()[0], (one.cells - one.cells[0]).T
    if np.abs(line - y * size[1] - x).max() < 1e-3:
        return "y", "x"
    return ("x", "y") if np.abs(line - x * size[0] - y).max() < 1e-3 else None


def table_shape(one: Taken, size: Size, asked: Asked) -> tuple[int, ...] | None:
    """Return rows and columns of a table, also of one that is kept flat, or the length of one of a single axis."""
    if len(one.shape) == 2:
        return one.shape
    line = one.line()
    if any(not _moves(line, one.cells[:, 1 - n]) for n in (0, 1)):
        return one.shape  # of rows alone, or of columns
    rows = one.shape[0] - _first(one, asked)
    said, root = grid(asked), math.isqrt(rows)
    if said is not None and said[0] * said[1] == rows:
        return said
    if size[0] * size[1] == rows:
        return size
    return (root, root) if root * root == rows else None


def _first(one: Taken, asked: Asked) -> int:
    """Return how many entries of a flat table stand before those of cells: one of a class token."""
    if asked.said.get("cls"):
        return 1
    n = one.shape[0]
    return int(math.isqrt(n) ** 2 != n and math.isqrt(n - 1) ** 2 == n - 1 and not one.weights[:, 0].any())


def unflattened(one: Taken, shape: tuple[int, ...]) -> Array:
    """Return where cells take their code from in a flat table that is laid out in rows and columns, (n, 2)."""
    first = one.shape[0] - shape[0] * shape[1]
    weights = one.weights[:, first:]
    places = np.stack([g.ravel() for g in np.indices(shape)], 1)
    total = weights.sum(1)
    found: Array = (weights @ places) / np.where(np.abs(total) < 1e-9, 1.0, total)[:, None]
    return found


def _moves(values: Array, other: Array) -> bool:
    """Whether values change along one axis of the image while the other stays."""
    return any(np.ptp(values[other == at]) > 1e-3 for at in np.unique(other))


def along(places: Array, at: Array, extent: int, entries: int) -> bool:
    """Whether places along an axis of a table go along an axis of the image: cut out, tiled, or interpolated."""
    exact: list[Array] = [at % entries]
    exact += [at + shift for shift in {0, (entries - extent) // 2, round((entries - extent) / 2)} if shift >= 0]
    exact += [np.floor((at + half) * entries / extent) for half in (0.0, 0.5)]  # the nearest, as two programs have it
    stretched = np.clip((at + 0.5) * entries / extent - 0.5, 0, entries - 1)
    ends = at * (entries - 1) / max(extent - 1, 1)
    for found in (places, entries - 1 - places):
        if any(np.abs(found - want).max() < 1e-3 for want in exact):
            return True
        if any(np.abs(found - want).max() < _NEAR for want in (stretched, ends)):
            return True
    return False


def says(size: Size) -> str:
    """Return a size in words."""
    return f"{size[0]} x {size[1]}"


def case_of(probe: Probe, one: Seen) -> dict[str, object]:
    """Return the call on which something shows."""
    return {"x": [1, probe.dim, *one.size], "lane": one.taken.lane, "table": list(one.taken.shape)}
