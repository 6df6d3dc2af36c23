"""Trained tables added to images: each cell must get the entry of its own place, in images of any size.

Any entry may belong to a cell if it means the same place in images of every size. Tables that hold the indices of
their entries along one axis show in the sum which entry was used, also if it is interpolated.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor

from posenc.verify.engine import CannotTellError, Case, Choice, Fault, Seen
from posenc.verify.engine.records import Array, Model
from posenc.verify.families import resized
from posenc.verify.families.added_calls import FLAGS, Added, Shape, finding, modules
from posenc.verify.families.added_words import axes
from posenc.verify.families.trained import coded, trained

SIZES = ((3, 5), (5, 3), (4, 6))
NATIVE = 14  # largest number of rows of a square table
NEAR = 1e-2  # tolerance, as a share of an entry
Places = tuple[Shape, Sequence[Array], Sequence[Array]]  # image size; places along table axes; along rows, columns
TRANSPOSED = "rows of the table follow the columns of the image, which is order='xy'"


class TrainedImage(Added):
    """A trained table of an image's cells, or one of its rows and one of its columns.

    Attributes:
        sizes: Images that can be called: the requested one, which must work, and others.
        rule, open_rule: The declared rule of interpolation, and what was not judged of it.
        sharing: What was not judged of a table that both axes read.
        drawn: For each table and dimension random entries, along its moving axes, and the images that they give.
    """

    word, definition, mismatch, pairs = "learned", "learned", "learned.mismatch", 0
    ignores = "base temperature layout variant start offset origin scale normalize normalise normalised"

    def __init__(self, convention: str, spec: Mapping[str, Any]) -> None:
        super().__init__(convention, spec)
        said = spec.get("grid")
        grid = said if isinstance(said, list | tuple) and len(said) == 2 else (said, said)
        self.asked = tuple(n if isinstance(n, int) and not isinstance(n, bool) else 0 for n in grid)
        self.order = axes(spec)
        self.sharing = ""
        self.rule, self.open_rule = resized.checked(spec.get("interpolation")), ""
        self.drawn: list[tuple[tuple[int, int], Array, Array]] = []
        self.sizes: list[Shape] = []
        self.shapes = ((2, *SIZES[0]),)
        self.truth = {"gain": 1.0, "keep": 1.0, "order": float(self.order == "xy")}
        self.kinds = self.kinds[:2]

    def cases(self) -> Iterator[Case]:
        """Yield an image for the input, and all sizes that work with the table."""
        yield from self.flags("tokens", "grad")
        yield Case("places", (self.shapes[0],), "images of several sizes")

    def observe(self, subject: Any, case: Case) -> Seen:
        """Return the answer to one question, for images of a size that works."""
        if not self.sizes:
            if not self.calls.dim:
                self.calls.find(subject, self.shapes[0], (2, 4, 4))
            tried = list(dict.fromkeys((self.asked, *SIZES) if min(self.asked) > 0 else SIZES))
            self.sizes = [size for size in tried if self.calls.works(subject, (1, *size))]
            if tried[0] == self.asked not in self.sizes:
                words = "an image of {} x {} is declared, but fails".format(*self.asked)
                raise finding("learned.table_too_short", self.calls.case((1, *self.asked)), message=words)
            squares = ((n, n) for n in range(2, NATIVE + 1))  # a table may fit only one size of image
            self.sizes = self.sizes or [next((s for s in squares if self.calls.works(subject, (1, *s))), SIZES[0])]
            self.shapes = ((2, *self.sizes[0]),)
        return super().observe(subject, replace(case, args=tuple(self.shapes)))

    def added(self, subject: Any, case: Case) -> Seen:
        """Return whether columns come first in the table, if nothing else is wrong."""
        found: dict[tuple[int, int], list[Places]] = {}
        self.drawn = []
        for size in self.sizes:
            for key, places in self._of_size(subject, size):
                found.setdefault(key, []).append(places)
        if not found:
            raise CannotTellError("no trained table was found in the graph of the result")
        said = {"cls": self.spec.get("cls") is not None, "grid": min(self.asked) > 0}
        orders = {key: _judged(places, said) for key, places in found.items()}
        self._shared(subject, orders)
        first = max(orders.values(), key=len)
        if len(first) < 2:  # the first half shows it, if an order is declared and tables are not added
            left = {order for (_, lane), order in orders.items() if lane == 0}
            first = {"y": "yx", "x": "xy"}.get("".join(left), "") if self.order else ""
        mixed = self._mixed(orders)
        if any(one.is_mixed for one in mixed):  # in a larger image antialiasing changes nothing
            larger = tuple(n + by for n, by in zip(mixed[0].entries.shape, (3, 5), strict=True))
            if self.calls.works(subject, (1, *larger)):
                list(self._of_size(subject, larger))
                mixed = self._mixed(orders)
        self.open_rule = resized.judge(mixed, self.rule, self.calls.case((1, *self.sizes[0])))
        return Seen(case, np.array([float(first == "xy") if first else self.truth["order"]]))

    def _shared(self, subject: Any, orders: Mapping[tuple[int, int], str]) -> None:
        """Look for a table that both axes read while another of its shape is never read."""
        shape = (2, *self.sizes[0])
        called, held = trained(self.calls, subject, shape)
        tables = [t for t in held if t.ndim >= 2 and t.is_floating_point()]
        for n in {n for n, _ in orders}:
            if {order for (table, _), order in orders.items() if table == n} != {"x", "y"}:
                continue
            others = ((name, t) for m in modules(called) for name, t in m.named_parameters())
            left = [name for name, t in others if t.shape == tables[n].shape and all(t is not read for read in held)]
            if left:
                raise finding("learned.grid.axes_shared", self.calls.case(shape), name=left[0])
            self.sharing = "whether rows and columns should share one table"

    def _of_size(self, subject: Any, size: Shape) -> Iterator[tuple[tuple[int, int], Places]]:
        called, held = trained(self.calls, subject, (2, *size))
        tables = [t for t in held if t.ndim >= 2 and t.is_floating_point()]
        if size == self.sizes[0]:
            self._plain(called, tables, (2, *size))
        yield from self._places(called, tables, size, alone=len(tables) == len(held))

    def _mixed(self, orders: Mapping[tuple[int, int], str]) -> list[resized.Mixed]:
        """Return the images of random entries, with the entries laid out like an image."""
        found = []
        for key, entries, image in self.drawn:
            if len(order := orders[key]) == 2 and entries.ndim == 1:
                h, w, first = self._native(len(entries))
                entries = entries[first:].reshape(h, w) if h else entries[:0]
            entries = np.atleast_2d(entries)
            if entries.size and order:
                found.append(resized.Mixed(entries.T if order in ("xy", "y") else entries, image))
        return found

    def _plain(self, called: Any, tables: Sequence[Tensor], shape: Shape) -> None:
        """Look for faults of the encoding that do not depend on its table."""
        generator, case = torch.Generator().manual_seed(7), self.calls.case(shape)
        random = [(t, torch.randn(t.shape, generator=generator)) for t in tables]
        rows = coded(self.calls, called, [shape], random)[0].reshape(2, -1, self.calls.dim)
        if np.abs(rows).max() < 1e-7:
            raise finding("learned.not_used", case)
        if np.abs(rows - rows[:1]).max() > 1e-5:
            raise finding("learned.axis.batch", case, message="the encoding differs from image to image")
        off = np.abs(rows[0][:, None] - rows[0]).max(-1) + np.tri(rows.shape[1])
        if off.min() < 1e-6:
            i, j = np.unravel_index(off.argmin(), off.shape)
            raise finding("learned.cells_collide", case, words=f"cells {i} and {j} share one encoding")

    def _places(
        self, called: Any, tables: Sequence[Tensor], size: Shape, *, alone: bool
    ) -> Iterator[tuple[tuple[int, int], Places]]:
        """Yield, for each table and dimension, where the cells of an image get their encoding from."""
        dim, case = self.calls.dim, self.calls.case((1, *size))

        def filled(table: Tensor | None, values: Tensor | None = None) -> Array:
            """Return the encoding if one table holds these values, and the others hold zeros."""
            held = [(t, values if t is table and values is not None else torch.zeros(())) for t in tables]
            return coded(self.calls, called, [(1, *size)], held)[0].reshape(*size, dim)

        def code(table: Tensor, axis: int, values: Sequence[float]) -> Array:
            """Return the encoding if one table holds values along an axis."""
            return filled(table, torch.tensor(values).reshape(-1, *[1] * (table.ndim - axis - 1)))

        base = filled(None)
        for n, table in enumerate(tables):
            total = code(table, 0, [1.0] * len(table)) - base
            divisor = np.where(np.abs(total) < 1e-6, 1.0, total)
            at = {a: (code(table, a, range(k)) - base) / divisor for a, k in enumerate(table.shape)}
            moving = [a for a, place in at.items() if np.ptp(place, (0, 1)).max() > NEAR]
            lanes = [lane for lane in range(0, dim, max(dim // 4, 1)) if total[..., lane].any()]
            if not moving or not lanes:
                continue  # the same in each cell: not a table of places
            wide = {a for a, k in enumerate(table.shape) if k > 1 and k in (dim, dim // 2, -(-dim // 2), dim // 4)}
            if wide and wide <= set(moving):
                raise finding("learned.grid.lanes_mixed", case, words="a dimension changes from cell to cell")
            off = total[..., lanes].flat[np.abs(total[..., lanes] - 1).argmax()]
            if abs(off - 1) > 1e-3 and alone:  # otherwise another number may be a factor
                raise finding(f"learned.{'added_twice' if abs(off - 2) < 1e-3 else 'scaled'}", case, factor=off)
            ask, entries = moving[0], table.shape[moving[0]]
            is_flat = len(moving) == 1 and any(_along(at[ask][..., lane]) == "?" for lane in lanes)
            if is_flat and self.spec.get("cls"):
                first = [1.0] + [0.0] * (entries - 1)
                if np.abs(code(table, ask, first) - base).max() > NEAR:
                    raise finding("learned.grid.class_row", case, words="cells use entry 0")
            grid = [(code(table, ask, v) - base) / divisor for v in self._numbers(entries)] if is_flat else []
            if grid and not _order([place[..., lanes[0]] for place in grid]):
                turned = [(code(table, ask, v) - base) / divisor for v in self._numbers(entries, by_column=True)]
                grid = self._transposed(grid, turned, lanes[0], case)
            shape = [entries if a in moving else 1 for a, entries in enumerate(table.shape)]
            drawn = torch.randn(shape, generator=torch.Generator().manual_seed(11))
            image = ((filled(table, drawn) - base) / divisor)[..., lanes[0]]
            self.drawn.append(((n, lanes[0]), drawn.squeeze().double().numpy(), image))
            for lane in lanes:
                raw = [at[a][..., lane] for a in moving if np.ptp(at[a][..., lane]) > NEAR]
                yield (n, lane), (size, raw, [place[..., lane] for place in grid] or raw)

    def _native(self, entries: int) -> tuple[int, int, int]:
        """Return rows, columns and first entry of the image of a flat table; zeros if they are unknown."""
        for size, first in product((self.asked, None), (1,) if self.spec.get("cls") else (0, 1)):
            h, w = size or (math.isqrt(entries - first),) * 2
            if h * w == entries - first > 0:
                return h, w, first
        return 0, 0, 0

    def _numbers(self, entries: int, *, by_column: bool = False) -> list[list[float]]:
        """Return the row and the column of each entry of a flat table; an empty list if they are unknown.

        With `by_column`, entries are counted down the columns, and the column comes first.
        """
        h, w, first = self._native(entries)
        places = (divmod(i - first, h if by_column else w) for i in range(entries)) if w else ()
        return [list(line) for line in zip(*places, strict=True)]

    def _transposed(self, grid: list[Array], turned: list[Array], lane: int, case: dict[str, Any]) -> list[Array]:
        """Return the places in a table that is numbered column by column, if that is declared and the case."""
        h, w = self.asked
        order = _order([place[..., lane] for place in turned])
        if h == w or len(order) < 2:
            return grid
        if order == "yx" or self.order != "xy":
            words = f"the table is declared as a grid of {h} rows and {w} columns, but is read as one of {w} and {h}"
            words += ": entries are counted down the columns" if order == "xy" else ": rows and columns are exchanged"
            raise finding("learned.grid.axes_swapped", case, message=words)
        return turned

    def predict(self, model: Model, case: Case) -> Array:
        """Return the order of the axes."""
        return self.flag(model, case) if case.kind in FLAGS else np.array([model["order"]])

    def free(self) -> Iterator[Choice]:
        """Yield the other order of a table's axes, if none is declared."""
        if self.order is None:
            yield Choice({"order": 1.0}, TRANSPOSED)

    def faults(self) -> Iterator[Fault]:
        """Yield faults of the input, and exchanged axes; the other faults are found by the calls."""
        yield from self.about_the_input()
        if self.order is not None:
            yield Fault("learned.grid.axes_swapped", {"order": 1.0 - self.truth["order"]}, {"asked": self.order})

    def not_judged(self, seen: Sequence[Seen]) -> list[str]:
        """Return the parts that were not judged."""
        sizes = ", ".join(f"{h} x {w}" for h, w in self.sizes)
        left = [f"images of other sizes than {sizes}", self.open_rule, self.sharing, *self.ignored()]
        return [words for words in left if words]


def _along(place: Array) -> str:
    """Return the axis of an image that a place in a table follows, "y" or "x"; "?" if it follows neither."""
    for name, line, rest in (("y", place[:, 0], place - place[:, :1]), ("x", place[0], place - place[:1])):
        steps = np.diff(line)
        if np.abs(rest).max() < NEAR and ((steps > -NEAR).all() or (steps < NEAR).all()):
            return name
    return "?"


def _order(places: Sequence[Array]) -> str:
    """Return the axes of an image that the axes of a table follow, "yx", "x", ...; empty if they are mixed."""
    found = "".join(map(_along, places))
    return "" if "?" in found or len(set(found)) < len(found) else found


def _judged(found: Sequence[Places], said: Mapping[str, bool]) -> str:
    """Return the axes of the image that a table's axes follow, in images of several sizes.

    Raises:
        SubjectError: Entries mean other places in other images, or are interpolated over the wrong axes.
        CannotTellError: Cells use them in an unknown order.
    """
    orders = [_order(grid) for _, _, grid in found]
    if all(orders):
        return orders[0]
    if all(np.abs(place - np.round(place)).max() < NEAR for _, raw, _ in found for place in raw):
        h, w = np.min([size for size, _, _ in found], 0)
        corners = [np.array([(place - place[0, 0])[:h, :w] for place in raw]) for _, raw, _ in found]
        if any(np.abs(corner - corners[0]).max() > NEAR for corner in corners):
            sizes = " and in ".join(f"{a} x {b}" for (a, b), _, _ in found)
            raise finding("learned.grid.stride", {"sizes": sizes}, words=f"cells use different entries in {sizes}")
        return "yx" if h == 1 or corners[0][0][1, 0] > corners[0][0][0, -1] / (w - 1 or 1) else "xy"
    one_line = all(len(raw) == 1 and np.ptp(np.diff(raw[0].ravel())) < NEAR for _, raw, _ in found)
    if one_line or all(_order(grid) or _order([place.reshape(w, h) for place in grid]) for (h, w), _, grid in found):
        (h, w), words = found[0][0], "as one line" if one_line else "to exchanged rows and columns"
        raise finding("learned.grid.interpolated_wrong", {"size": [h, w]}, words=f"a table is interpolated {words}")
    hints = {
        "cls": 'if it has a row for a class token, declare "cls": true',
        "grid": 'if it is made for a grid that is not square, declare "grid": [rows, columns]',
    }
    open_ = [hint for word, hint in hints.items() if not said[word]]
    raise CannotTellError("; ".join(["cells use entries of the table in an unknown order", *open_]))
