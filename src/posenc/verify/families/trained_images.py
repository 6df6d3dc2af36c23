"""Trained tables that are added to images: does each cell get the entry of its own place, in images of any size.

Which entry is a cell's own is free as long as one image is all there is. What must hold is that neighbours in the table
are neighbours in the image, and that an entry means one place, whatever the size of the image. A code that is linear in
a table says by its gradient, cell by cell, what it takes from where.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from posenc.verify.engine import CannotTellError, Case, Choice, Fault, Seen
from posenc.verify.engine.records import Array, Model, kind
from posenc.verify.families.added_calls import FLAGS, Added, Shape, finding, leaves, modules, ready
from posenc.verify.families.added_words import axes
from posenc.verify.families.trained_cells import Taken, along, by_size, cell_words, mixed, moves, numbered, weighted
from posenc.verify.families.trained_rows import filled
from posenc.verify.guard import SubjectError

SIZES = ((3, 5), (5, 3), (4, 6))
NATIVE = 14  # rows of a square table that an image is made for, at most
MOST = 6  # rows and columns of an image that are looked at
FEW = 40  # entries that interpolation takes at most
TRANSPOSED = "rows of the table follow the columns of the image: another name for its entries (order='xy')"


class TrainedImage(Added):
    """A trained table of an image's cells, or one of its rows and one of its columns."""

    word, definition, mismatch = "learned", "learned", "learned.mismatch"
    ignores = "base temperature layout variant start offset origin scale normalize normalise normalized normalised"
    pairs = 0

    def __init__(self, convention: str, spec: Mapping[str, Any]) -> None:
        super().__init__(convention, spec)
        said = spec.get("grid")
        whole = isinstance(said, list | tuple) and len(said) == 2 and all(isinstance(n, int) and n > 0 for n in said)
        square = isinstance(said, int) and not isinstance(said, bool) and said > 0
        self.asked: Shape | None = (*map(int, said),) if whole else (int(said),) * 2 if square else None  # type: ignore
        self.order = axes(spec)
        self.sizes: tuple[Shape, ...] = ()
        self.tables = ""
        self.truth = {"keep": 1.0, "fault": 0.0, "order": float(self.order == "xy")}
        self.kinds = (self.kinds[0], self.kinds[1], kind("learned.mismatch", "places"))

    @property
    def shapes(self) -> Sequence[Shape]:  # type: ignore[override]
        """The first size that works."""
        return [(2, *(self.sizes or SIZES)[0])]

    def cases(self) -> Iterator[Case]:
        """Yield an image for the input, and all sizes that work for the table."""
        yield from self.flags("tokens", "grad")
        yield Case("places", (), "images of several sizes")

    def observe(self, subject: Any, case: Case) -> Seen:
        """Return the answer to one question, of a subject whose tables are filled."""
        if not self.sizes:
            self.subject = filled(subject)
            if not self.calls.dim:
                self.calls.find(self.subject, (2, *SIZES[0]))
            self.sizes = self._working()
            case = Case(case.kind, (self.call_shape,), case.words)
        return super().observe(self.subject, case)

    def _working(self) -> tuple[Shape, ...]:
        """Return the sizes that can be called: the one that is asked for, which must work, and others."""
        asked = self.asked
        if asked is not None:
            try:
                self.calls.raw(ready(self.subject), (1, *asked))
            except SubjectError as error:
                said = f"an image of {asked[0]} x {asked[1]} is asked for, and fails: {error.cause.message[:160]}"
                case = self.calls.case((1, *asked))
                raise finding("learned.table_too_short", case, float(max(asked)), message=said) from error
        tried = dict.fromkeys(((asked,) if asked else ()) + SIZES)
        found = [size for size in tried if size == asked or self.calls.works(self.subject, (1, *size))]
        if not found:  # a table may be made for one size of image
            squares = ((n, n) for n in range(2, NATIVE + 1))
            found = [next((size for size in squares if self.calls.works(self.subject, (1, *size))), SIZES[0])]
        return tuple(found)

    def added(self, subject: Any, case: Case) -> Seen:
        """Return whether cells take entries as no fault does, and whether columns come first; the note is the fault."""
        shape = self.call_shape
        rows = self.calls.code(ready(subject), shape).reshape(2, -1, self.calls.dim)
        fault = self._plain(rows, shape)
        if fault is not None:
            return Seen(case, np.array([1.0, 0.0]), note=fault)
        found = [taken for size in self.sizes for taken in self._taken(subject, size)]
        if not found:
            raise CannotTellError("no trained table was found in the graph of the result: what cells get is unknown")
        fault = next(self._known(found), None)
        if fault is not None:
            return Seen(case, np.array([1.0, 0.0]), note=fault)
        follows = [self.follows(one) for one in found]
        if None in follows:
            size = found[follows.index(None)].size
            raise CannotTellError(
                f"cells of {size[0]} x {size[1]} take entries of the table in an order that is unknown"
            )
        first = self._first(found, follows)
        return Seen(case, np.array([0.0, float(first == "xy") if first else self.truth["order"]]))

    def _known(self, found: Sequence[Taken]) -> Iterator[Fault]:
        """Yield the faults of what is taken, those that say most first."""
        first: tuple[Callable[[Taken], Fault | None], ...] = (mixed, weighted, self._class_row)
        last = (self._lines, self._one_line)
        yield from (fault for ask in first for one in found if (fault := ask(one)) is not None)
        yield from by_size(found)
        yield from (fault for ask in last for one in found if (fault := ask(one)) is not None)

    def _plain(self, rows: Array, shape: Shape) -> Fault | None:
        """Return what is wrong with the code whatever its table is."""
        if np.abs(rows).max() < 1e-7:
            return Fault("learned.not_used")
        if np.abs(rows - rows[:1]).max() > 1e-5:
            return Fault("learned.axis.batch", {}, {"message": "the code differs from image to image"})
        cells = rows[0]
        same = [(i, j) for i in range(len(cells)) for j in range(i) if np.abs(cells[i] - cells[j]).max() < 1e-6]
        if not same:
            return None
        words = f"{len(same)} pairs of cells share one code, such as {same[0]} of {shape[1]} x {shape[2]}"
        return Fault("learned.cells_collide", {}, {"words": words})

    # What is read off gradients

    def _taken(self, subject: Any, size: Shape) -> Iterator[Taken]:
        """Yield what dimensions take from tables in an image of a size."""
        dim = self.calls.dim
        lanes = sorted({0, dim // 4, dim // 2, dim - 1})
        cells = np.array([(i, j) for i in _some(size[0]) for j in _some(size[1])])
        first, second = (self._gradients(subject, size, lanes, cells, stir) for stir in (False, True))
        for (leaf, lane), grads in first.items():
            others = second.get((leaf, lane))
            factor = float((grads * others).sum() / grads.square().sum()) if others is not None else 0.0
            if others is None or not torch.allclose(others, factor * grads, atol=1e-5):
                continue  # no table: what is taken depends on other numbers
            gated = abs(factor - 1) > 1e-4  # multiplied by a number that is trained
            yield from self._placed(grads / (grads[0].sum() if gated else 1.0), lane, size, cells)

    def _gradients(
        self, subject: Any, size: Shape, lanes: Sequence[int], cells: Array, stir: bool
    ) -> dict[tuple[int, int], Tensor]:
        """Return by tensor and dimension the gradients of all cells, stacked; of stirred parameters too."""
        called = ready(subject)
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for t in [t for m in modules(called) for t in m.parameters()] if stir else ():
                t.mul_(1 + torch.rand(t.shape, generator=generator, dtype=torch.float64).to(t.dtype))
        out = self.calls.raw(called, (1, *size), grad=True)
        free = [t for t in leaves(out) if t.numel() > 1]
        found: dict[tuple[int, int], list[Tensor]] = {}
        for lane in lanes if free else ():
            for i, j in cells.tolist():
                grads = torch.autograd.grad(out[0, lane, i, j], free, retain_graph=True, allow_unused=True)
                for index, (leaf, grad) in enumerate(zip(free, grads, strict=True)):
                    whole = torch.zeros_like(leaf) if grad is None else grad.detach()
                    found.setdefault((index, lane), []).append(whole.double())
        stacked = {key: torch.stack(grads) for key, grads in found.items()}
        return {key: grads for key, grads in stacked.items() if bool(grads.any())}

    def _placed(self, grads: Tensor, lane: int, size: Shape, cells: Array) -> Iterator[Taken]:
        """Yield what is taken, with the table's axis of dimensions set apart from those of places."""
        dim, sizes = self.calls.dim, grads.shape[1:]
        used = [tuple(np.unique(ix).tolist()) for ix in np.nonzero(grads.numpy())[1:]]
        wide = [a for a, n in enumerate(sizes) if n > 1 and n in {dim, dim // 2, math.ceil(dim / 2), dim // 4}]
        single = [a for a in wide if len(used[a]) == 1]
        # the last of them, unless another has as many as the code: pictures keep dimensions first
        axis = max(single or wide, key=lambda a: (sizes[a] == dim, a), default=None)
        few = int((grads.flatten(1) != 0).sum(1).max()) <= FEW
        shape = tuple(n for a, n in enumerate(sizes) if a != axis and n > 1)
        if axis is not None and few and 1 <= len(shape) <= 2:
            weights = grads.sum(axis + 1).numpy().reshape(len(cells), *shape)
            yield Taken(size, shape, lane, used[axis], cells, weights)

    def follows(self, one: Taken) -> str | None:
        """Return the axes of the image by which the axes of a table go, "yx", "x", ...; None where by none."""
        shape = self.laid_out(one)
        if shape is not None:
            places, found = one.centres(shape), ""
            for axis, entries in enumerate(shape):
                goes = [
                    name for n, name in enumerate("yx") if along(places[:, axis], one.cells[:, n], one.size[n], entries)
                ]
                found += goes[0] if goes else "?"
            if "?" not in found and len(set(found)) == len(found):
                return found
        if len(one.shape) == 1 and one.whole:
            for order, name in (("yx", "row * width + column"), ("xy", "column * height + row")):
                if numbered(one, name):
                    return order
        return None

    def laid_out(self, one: Taken) -> Shape | None:
        """Return rows and columns of a table, also of one that is kept flat, or the length of one of a single axis."""
        if len(one.shape) == 2:
            return one.shape
        line = one.line()
        if any(not moves(line, one.cells[:, 1 - n]) for n in (0, 1)):
            return one.shape  # of rows only, or of columns
        rows = one.shape[0]
        root = math.isqrt(rows - 1)
        before = self.spec.get("cls") or (
            math.isqrt(rows) ** 2 != rows and root**2 == rows - 1 and not one.weights[:, 0].any()
        )
        rows -= bool(before)  # an entry of a class token
        root = math.isqrt(rows)
        sizes = (self.asked, one.size, (root, root))
        return next((size for size in sizes if size is not None and math.prod(size) == rows), None)

    def _first(self, found: Sequence[Taken], follows: Sequence[str | None]) -> str:
        """Return which axis of the image the table puts first, "yx" or "xy"; "" where it cannot be said."""
        half = self.calls.dim // 2
        if {len(f or "") for f in follows} != {1}:
            self.tables = f"of {' x '.join(map(str, found[0].shape))}, rows follow {(follows[0] or '')[:1]}"
            return follows[0] or ""
        if len({f for one, f in zip(found, follows, strict=True) if one.lane == found[0].lane}) > 1:
            self.tables = "of rows and of columns, added"
            return ""
        goes = {one.lane >= half: f or "" for one, f in zip(found, follows, strict=True)}
        first = goes.get(False, "") + goes.get(True, "")
        self.tables = f"dimensions below {half} follow {first[:1]}, the others {first[1:]}"
        return first if self.order else ""  # which half shows the rows is free where it is not declared

    # What is wrong

    def _class_row(self, one: Taken) -> Fault | None:
        used = np.abs(one.weights[:, 0]) > 1e-6 if len(one.shape) == 1 else np.zeros(1, dtype=bool)
        if not self.spec.get("cls") or not used.any() or used.all():
            return None
        return Fault(
            "learned.grid.class_row", {}, {"words": f"{cell_words(one, int(used.argmax()))} takes from entry 0"}
        )

    def _lines(self, one: Taken) -> Fault | None:
        """Return the fault of tables of rows and of columns that are cut out of the numbers of all cells."""
        if not one.whole or self.follows(one) is not None:
            return None
        (h, w), (y, x) = one.size, one.cells.T
        for by, number, name in ((h, y * w + x, f"row * {w} + column"), (w, x * h + y, f"column * {h} + row")):
            for sign, want in (("//", number // by), ("%", number % by)):
                if any(np.abs(p - want).max() < 1e-3 for p in one.centres().T):
                    words = f"in {h} x {w} cells take entry number {sign} {by}, where the number of a cell is {name}"
                    return Fault("learned.grid.stride", {}, {"words": words})
        return None

    def _one_line(self, one: Taken) -> Fault | None:
        """Return the fault of tables that are interpolated as one line, or to exchanged sides of an image."""
        if one.whole or self.follows(one) is not None:
            return None
        (h, w), entries = one.size, math.prod(one.shape)
        at = one.cells[:, 0] * w + one.cells[:, 1]
        words = ""
        if along(one.line(), at, h * w, entries):
            words = f"the table of {entries} entries is stretched to {h * w} as one line: ends of rows run together"
        shape = self.laid_out(one)
        if not words and shape is not None and len(shape) == 2:
            places = one.centres(shape)
            if all(along(places[:, a], (at // h, at % h)[a], (w, h)[a], shape[a]) for a in (0, 1)):
                words = f"the table is interpolated to {w} rows of {h} and read as {h} rows of {w}"
        return Fault("learned.grid.interpolated_wrong", {}, {"words": f"in {h} x {w} {words}"}) if words else None

    def predict(self, model: Model, case: Case) -> Array:
        """Return what is right: no fault of places, and the axes in their order."""
        return self.flag(model, case) if case.kind in FLAGS else np.array([model["fault"], model["order"]])

    def free(self) -> Iterator[Choice]:
        """Yield the other order of a table's axes, where none is declared."""
        if self.order is None:
            yield Choice({"order": 1.0}, TRANSPOSED)

    def faults(self) -> Iterator[Fault]:
        """Yield exchanged axes; other faults are read off gradients."""
        yield from self.about_the_input()
        if self.order is not None:
            change = {"order": 1.0 - self.truth["order"]}
            yield Fault("learned.grid.axes_swapped", change, {"words": self.tables, "asked": self.order})

    def refine(self, fault: Fault, wrong: frozenset[str], right: frozenset[str], seen: Sequence[Seen]) -> Fault:
        """Return the fault that was read off gradients."""
        if fault.code == "learned.mismatch" and not fault.change:
            case = next(s for s in seen if s.case.kind == "places")
            if case.note is not None:
                return case.note  # type: ignore[no-any-return]
            return Fault("learned.grid.axes_swapped", {}, {"words": self.tables, "asked": self.order})
        return super().refine(fault, wrong, right, seen)

    def not_judged(self, seen: Sequence[Seen]) -> list[str]:
        """Return what was not looked at."""
        return [f"images of other sizes than {', '.join(f'{h} x {w}' for h, w in self.sizes)}", *self.ignored()]

    def measured(self, seen: Sequence[Seen], model: Model) -> dict[str, Any]:
        """Return the sizes that were asked and what the tables follow."""
        return {"sizes": [list(size) for size in self.sizes], "tables": self.tables}


def _some(n: int) -> list[int]:
    return list(range(n)) if n <= MOST else sorted({*range(3), n // 2, n - 2, n - 1})
