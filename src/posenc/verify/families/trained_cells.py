"""Where in a trained table cells of an image take their code from, and what is wrong with one table of it."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from posenc.verify.engine import Fault
from posenc.verify.engine.records import Array
from posenc.verify.families.added_calls import Shape

NEAR = 0.75  # entries that ways to interpolate differ by


@dataclass(frozen=True)
class Taken:
    """What one dimension of the code takes from one table, over cells of an image.

    Args:
        size: Rows and columns of the image.
        shape: Places of the table, (rows, columns) or (entries,).
        lane: The dimension.
        lanes: The dimensions of the table that are taken; more than one where they are mixed.
        cells: (n, 2), row and column of each cell.
        weights: (n, *shape), summed over dimensions.
    """

    size: Shape
    shape: Shape
    lane: int
    lanes: tuple[int, ...]
    cells: Array
    weights: Array

    @property
    def flat(self) -> Array:
        """The weights of the table's entries in one line."""
        return self.weights.reshape(len(self.cells), -1)

    @property
    def whole(self) -> bool:
        """Whether each cell takes one entry, as it is."""
        rest = np.sort(np.abs(self.flat), 1)[:, :-1]
        return bool(np.allclose(rest, 0, atol=1e-6) and np.allclose(self.flat.sum(1), 1))

    def centres(self, shape: Shape | None = None) -> Array:
        """Return where each cell takes its code from, (n, axes), in a table laid out as `shape`."""
        shape = shape or self.shape
        weights = self.flat[:, self.flat.shape[1] - math.prod(shape) :]
        places = np.stack([g.ravel() for g in np.indices(shape)], 1)
        total = weights.sum(1)
        found: Array = (weights @ places) / np.where(np.abs(total) < 1e-9, 1.0, total)[:, None]
        return found

    def line(self) -> Array:
        """Return the same along the table as one line, (n,)."""
        line: Array = self.centres((self.flat.shape[1],))[:, 0]
        return line


def along(places: Array, at: Array, extent: int, entries: int) -> bool:
    """Return whether places along an axis of a table go along one of the image: cut out, tiled, or interpolated."""
    exact: list[Array] = [at % entries]
    exact += [at + shift for shift in {0, (entries - extent) // 2, round((entries - extent) / 2)} if shift >= 0]
    exact += [np.floor((at + half) * entries / extent) for half in (0.0, 0.5)]  # the nearest, as two programs have it
    stretched = np.clip((at + 0.5) * entries / extent - 0.5, 0, entries - 1)
    ends = at * (entries - 1) / max(extent - 1, 1)
    for found in (places, entries - 1 - places):
        if any(np.abs(found - want).max() < 1e-3 for want in exact):
            return True
        if any(np.abs(found - want).max() < NEAR for want in (stretched, ends)):
            return True
    return False


NUMBERINGS: Mapping[str, Callable[[Any, Any, int, int], Any]] = {  # of the cell in row i and column j of h x w
    "row * width + column": lambda i, j, h, w: i * w + j,
    "column * height + row": lambda i, j, h, w: j * h + i,
    "row * height + column": lambda i, j, h, w: i * h + j,
    "column * width + row": lambda i, j, h, w: j * w + i,
}


def moves(values: Array, other: Array) -> bool:
    """Return whether values change along one axis of the image while the other stays."""
    return any(np.ptp(values[other == at]) > 1e-3 for at in np.unique(other))


def cell_words(one: Taken, at: int) -> str:
    """Return one of the cells in words."""
    return f"cell {tuple(one.cells[at].tolist())} of {one.size[0]} x {one.size[1]}"


def numbered(one: Taken, name: str) -> bool:
    """Return whether the entries of cells are numbered in a way, from any first one."""
    want, line = NUMBERINGS[name](one.cells[:, 0], one.cells[:, 1], *one.size), one.line()
    return bool(np.abs(line - line[0] - (want - want[0])).max() < 1e-3)


def mixed(one: Taken) -> Fault | None:
    """Return the fault of dimensions that come out of others: a view where axes should be exchanged."""
    if len(one.lanes) < 2 or not np.allclose(one.flat.sum(1), 1, atol=1e-3):
        return None
    words = f"dimension {one.lane} takes dimensions {list(one.lanes[:6])} of the table, in each cell another"
    return Fault("learned.grid.lanes_mixed", {}, {"words": words})


def weighted(one: Taken) -> Fault | None:
    """Return the fault of tables that are multiplied, and of cells that get nothing."""
    total = one.flat.sum(1)
    at = int(np.abs(total - 1).argmax())
    if abs(total[at] - 1) < 1e-3:
        return None
    code = "learned.added_twice" if abs(total[at] - 2) < 1e-3 else "learned.scaled"
    return Fault(code, {}, {"factor": float(total[at]), "words": cell_words(one, at)})


def by_size(found: Sequence[Taken]) -> Iterator[Fault]:
    """Yield the fault of a flat table whose entries mean other places in images of other widths."""
    flat = [one for one in found if len(one.shape) == 1 and one.whole]
    for name, number in NUMBERINGS.items():
        mine = [one for one in flat if numbered(one, name)]
        entries = {number(1, 1, *one.size): one.size for one in mine}
        if len(entries) > 1:
            (a, one), (b, other) = list(entries.items())[:2]
            where = f"entry {a} in {one[0]} x {one[1]} and entry {b} in {other[0]} x {other[1]}"
            words = f"entries are numbered by the size of each image, as {name}: cell (1, 1) takes {where}"
            yield Fault("learned.grid.stride", {}, {"words": words})
