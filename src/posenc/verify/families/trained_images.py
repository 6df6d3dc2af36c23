"""Trained tables that are added to images: does each cell get the entry of its own place, in images of any size.

Which entry is a cell's own is free as long as one image is all there is. What must hold is that neighbours in the table
are neighbours in the image, and that an entry means one place, whatever the size of the image. Tables that hold the
numbers of their entries along one axis say by what is added from where it is taken, also where it is interpolated.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from posenc.verify.engine import CannotTellError, Case, Choice, Fault, Seen
from posenc.verify.engine.records import Array, Model
from posenc.verify.families.added_calls import FLAGS, Added, Shape, finding
from posenc.verify.families.added_words import axes
from posenc.verify.families.trained import trained, written

SIZES = ((3, 5), (5, 3), (4, 6))
NATIVE = 14  # rows of a square table that an image is made for, at most
NEAR = 1e-2  # of an entry
Places = tuple[Shape, Sequence[Array], Sequence[Array]]  # of an image: by axes of the table, by rows and columns
TRANSPOSED = "rows of the table follow the columns of the image: another name for its entries (order='xy')"


def _along(place: Array) -> str:
    """Return the axis of an image that a place in a table goes along, "y" or "x"; "?" where along none by itself."""
    for name, line, rest in (("y", place[:, 0], place - place[:, :1]), ("x", place[0], place - place[:1])):
        steps = np.diff(line)
        if np.abs(rest).max() < NEAR and ((steps > -NEAR).all() or (steps < NEAR).all()):
            return name
    return "?"


def _order(places: Sequence[Array]) -> str | None:
    """Return the axes of an image that the axes of a table go along, "yx", "x", ...; None where they are mixed."""
    found = "".join(map(_along, places))
    return None if "?" in found or len(set(found)) < len(found) else found


class TrainedImage(Added):
    """A trained table of an image's cells, or one of its rows and one of its columns.

    Attributes:
        sizes: Images that can be called: the one that is asked for, which must work, and others.
        lanes: The dimensions that are looked at.
    """

    word, definition, mismatch = "learned", "learned", "learned.mismatch"
    ignores = "base temperature layout variant start offset origin scale normalize normalise normalised normalised"
    pairs = 0

    def __init__(self, convention: str, spec: Mapping[str, Any]) -> None:
        super().__init__(convention, spec)
        said = spec.get("grid")
        said = (said, said) if isinstance(said, int) and not isinstance(said, bool) else said
        whole = isinstance(said, list | tuple) and len(said) == 2 and all(isinstance(n, int) and n > 0 for n in said)
        self.asked: Shape | None = tuple(said) if whole else None  # type: ignore[arg-type]
        self.order = axes(spec)
        self.sizes: list[Shape] = []
        self.shapes = ((2, *SIZES[0]),)
        self.truth = {"keep": 1.0, "gain": 1.0, "order": float(self.order == "xy")}
        self.kinds = self.kinds[:2]

    def cases(self) -> Iterator[Case]:
        """Yield an image for the input, and all sizes that work for the table."""
        yield from self.flags("tokens", "grad")
        yield Case("places", (self.shapes[0],), "images of several sizes")

    def observe(self, subject: Any, case: Case) -> Seen:
        """Return the answer to one question, of images of a size that works."""
        if not self.sizes:
            if not self.calls.dim:
                self.calls.find(subject, self.shapes[0])
            tried = dict.fromkeys((*([self.asked] if self.asked else []), *SIZES))
            self.sizes = [size for size in tried if self.calls.works(subject, (1, *size))]
            if self.asked and self.asked not in self.sizes:
                words = f"an image of {self.asked[0]} x {self.asked[1]} is asked for, and fails"
                case_of = self.calls.case((1, *self.asked))
                raise finding("learned.table_too_short", case_of, float(max(self.asked)), message=words)
            squares = ((n, n) for n in range(2, NATIVE + 1))  # a table may be made for one size of image
            self.sizes = self.sizes or [next((s for s in squares if self.calls.works(subject, (1, *s))), SIZES[0])]
            self.shapes = ((2, *self.sizes[0]),)
        return super().observe(subject, replace(case, args=self.shapes))

    def added(self, subject: Any, case: Case) -> Seen:
        """Return whether columns come first in the table, where nothing else is wrong."""
        self._plain(subject)
        found: dict[tuple[int, int], list[Places]] = {}
        for size in self.sizes:
            for key, places in self._places(subject, size):
                found.setdefault(key, []).append(places)
        if not found:
            raise CannotTellError("no trained table was found in the graph of the result: what cells get is unknown")
        orders = {key: _judged(places) for key, places in found.items()}
        first = max(orders.values(), key=len)
        if len(first) < 2:  # the first half shows it, where an order is declared and tables are not added
            left = {order for (_, lane), order in orders.items() if lane == 0}
            first = {"y": "yx", "x": "xy"}.get("".join(left), "") if self.order else ""
        return Seen(case, np.array([float(first == "xy") if first else self.truth["order"]]))

    def _plain(self, subject: Any) -> None:
        """Look for what is wrong with the code whatever its table is."""
        called, found, _ = trained(self.calls, subject, self.shapes[0])
        generator = torch.Generator().manual_seed(7)
        with written((t, torch.randn(t.shape, generator=generator)) for t in found if self._is_table(t)):
            rows = self.calls.code(called, self.shapes[0]).reshape(2, -1, self.calls.dim)
        case = self.calls.case(self.shapes[0])
        if np.abs(rows).max() < 1e-7:
            raise finding("learned.not_used", case)
        if np.abs(rows - rows[:1]).max() > 1e-5:
            raise finding("learned.axis.batch", case, message="the code differs from image to image")
        off = np.abs(rows[0][:, None] - rows[0]).max(-1) + np.tri(rows.shape[1])
        if off.min() < 1e-6:
            i, j = np.unravel_index(off.argmin(), off.shape)
            raise finding("learned.cells_collide", case, words=f"cells number {i} and {j} of an image share one code")

    def _is_table(self, t: Tensor) -> bool:
        return t.ndim >= 2 and bool(self._widths() & set(t.shape))

    def _widths(self) -> set[int]:
        dim = self.calls.dim
        return {dim, dim // 2, math.ceil(dim / 2), dim // 4} - {1}

    def _places(self, subject: Any, size: Shape) -> Iterator[tuple[tuple[int, int], Places]]:
        """Yield by table and dimension where the cells of an image take their code from."""
        called, found, _ = trained(self.calls, subject, (1, *size))
        tables = [t for t in found if self._is_table(t)]

        def code(table: Tensor | None, axis: int = 0, values: Sequence[float] = ()) -> Array:
            """Return the code where one table holds values along an axis, and the others hold zeros."""
            shape = [-1 if a == axis else 1 for a in range(table.ndim)] if table is not None else []
            held = ((t, torch.tensor(values).reshape(shape) if t is table else torch.zeros(())) for t in tables)
            with written(held):
                return self.calls.code(called, (1, *size)).reshape(*size, self.calls.dim)

        base = code(None)
        for n, table in enumerate(tables):
            total = code(table, 0, [1.0] * table.shape[0]) - base
            divisor = np.where(np.abs(total) < 1e-6, 1.0, total)
            at = {a: (code(table, a, range(k)) - base) / divisor for a, k in enumerate(table.shape) if k > 1}
            moving = [a for a, place in at.items() if np.ptp(place, (0, 1)).max() > NEAR]
            if not moving:
                continue  # the same in each cell: no table of places
            case = self.calls.case((1, *size))
            if all(a in moving for a, k in enumerate(table.shape) if k in self._widths()):
                raise finding("learned.grid.lanes_mixed", case, words="a dimension takes others in each cell")
            lanes = [d for d in sorted({*range(0, self.calls.dim, max(self.calls.dim // 4, 1))}) if total[..., d].any()]
            off = float((total[..., lanes] - 1).flat[np.abs(total[..., lanes] - 1).argmax()])
            if abs(off) > 1e-3 and len(tables) == len(found):  # no number that is trained multiplies it
                code_of = "learned.added_twice" if abs(off - 1) < 1e-3 else "learned.scaled"
                raise finding(code_of, case, factor=1 + off)
            for lane in lanes:
                raw = [at[a][..., lane] for a in moving if np.ptp(at[a][..., lane]) > NEAR]
                grid = raw
                if len(raw) == 1 and _along(raw[0]) == "?":
                    if self.spec.get("cls") and raw[0].min() < 1 - NEAR:
                        raise finding(
                            "learned.grid.class_row", case, words=f"cells of {size[0]} x {size[1]} take from entry 0"
                        )
                    number, columns = self._numbers(table.shape[moving[0]])
                    if columns:
                        both = (number // columns, number % columns)
                        grid = [((code(table, moving[0], v.tolist()) - base) / divisor)[..., lane] for v in both]
                yield (n, lane), (size, raw, grid)

    def _numbers(self, entries: int) -> tuple[Array, int]:
        """Return the cell of each entry of a flat table, and its columns; 0 where they are unknown."""
        is_square = math.isqrt(entries) ** 2 == entries
        first = int(bool(self.spec.get("cls")) or (not is_square and math.isqrt(entries - 1) ** 2 == entries - 1))
        root = math.isqrt(entries - first)
        sizes = [size for size in (self.asked, (root, root)) if size and math.prod(size) == entries - first]
        return np.arange(entries) - float(first), sizes[0][1] if sizes else 0

    def predict(self, model: Model, case: Case) -> Array:
        """Return the order of the axes."""
        return self.flag(model, case) if case.kind in FLAGS else np.array([model["order"]])

    def free(self) -> Iterator[Choice]:
        """Yield the other order of a table's axes, where none is declared."""
        if self.order is None:
            yield Choice({"order": 1.0}, TRANSPOSED)

    def faults(self) -> Iterator[Fault]:
        """Yield exchanged axes; other faults are found on the way."""
        yield from self.about_the_input()
        if self.order is not None:
            yield Fault("learned.grid.axes_swapped", {"order": 1.0 - self.truth["order"]}, {"asked": self.order})

    def not_judged(self, seen: Sequence[Seen]) -> list[str]:
        """Return what was not looked at."""
        return [f"images of other sizes than {', '.join(f'{h} x {w}' for h, w in self.sizes)}", *self.ignored()]


def _judged(found: Sequence[Places]) -> str:
    """Return the axes of the image that a table's go along, in images of several sizes; "" where it cannot be said.

    Raises:
        SubjectError: Entries stand for other places in other images, or are interpolated over the wrong axes.
        CannotTellError: They are taken in an order that is unknown.
    """
    orders = [_order(grid) for _, _, grid in found]
    if None not in orders:
        return orders[0] or ""
    if all(np.abs(place - np.round(place)).max() < 1e-3 for _, raw, _ in found for place in raw):
        h, w = (min(size[a] for size, _, _ in found) for a in (0, 1))
        corners = [[(place - place[0, 0])[:h, :w] for place in raw] for _, raw, _ in found]
        for (size, _, _), corner in zip(found, corners, strict=True):
            if np.abs(np.array(corner) - corners[0]).max() > NEAR:
                (a, b), (c, d) = size, found[0][0]
                words = f"the entry of a cell is another in {a} x {b} than in {c} x {d}"
                raise finding("learned.grid.stride", {"sizes": [size, found[0][0]]}, words=words)
        step = corners[0][0]
        return "yx" if min(h, w) > 1 and step[1, 0] > step[0, 1] else "xy" if min(h, w) > 1 else ""
    for (h, w), raw, grid in found:
        words = ""
        if len(raw) == 1 and np.ptp(np.diff(raw[0].ravel())) < NEAR:
            words = f"the table is stretched to {h * w} as one line: ends of rows run together"
        elif _order([place.reshape(w, h) for place in grid]) is not None:
            words = f"the table is interpolated to {w} rows of {h} and read as {h} rows of {w}"
        if words:
            raise finding("learned.grid.interpolated_wrong", {"size": [h, w]}, words=f"in {h} x {w} {words}")
    raise CannotTellError("cells take entries of the table in an order that is unknown")
