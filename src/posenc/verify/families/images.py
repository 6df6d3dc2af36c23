"""Sinusoids of rows and columns that are added to images."""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from posenc.verify.engine import Case, Fault, Seen
from posenc.verify.engine.records import Array, Model
from posenc.verify.families import added_faults, added_reading
from posenc.verify.families.added import Sinusoid
from posenc.verify.families.added_calls import Shape, finding
from posenc.verify.families.added_words import Scaling
from posenc.verify.guard import SubjectError

JOINS = {
    "yx": "rows first",
    "xy": "columns first",
    "woven_yx": "the axes taking turns, rows first",
    "woven_xy": "the axes taking turns, columns first",
    "sum": "the codes of both axes added",
}
STARTS, OVERS = (0.0, 1.0, 0.5, 2.0, -1.0), ("", "size", "last", "less", "beyond", "other")
HALVES = ((0.0, 0.0), (0.5, 0.0), (0.0, 0.5), (-0.5, 0.0), (1.0, 0.0))  # subtracted before and after the division


def _root(h: int, w: int) -> int:
    return max(math.isqrt(h * w), 1)


# (row, column, height, width) -> what is counted as row and column, and the code
Cells = Callable[[Array, Array, int, int], tuple[Array, Array]]
CELLS: Mapping[str, tuple[Cells, str]] = {
    "cells are numbered column by column, then read row by row": (
        lambda i, j, h, w: ((i * w + j) % h, (i * w + j) // h),
        "sinusoidal2d.grid_flattened_wrong",
    ),
    "cells are numbered row by row, then read column by column": (
        lambda i, j, h, w: ((i + j * h) // w, (i + j * h) % w),
        "sinusoidal2d.grid_flattened_wrong",
    ),
    "cells are numbered one after the other on both axes": (
        lambda i, j, h, w: (i * w + j, i * w + j),
        "sinusoidal2d.grid_flattened_wrong",
    ),
    "cells are laid on a square grid of side sqrt(h * w)": (
        lambda i, j, h, w: ((i * w + j) // _root(h, w), (i * w + j) % _root(h, w)),
        "sinusoidal2d.grid_shape_square",
    ),
    "cells are laid on a square grid of side h": (
        lambda i, j, h, w: ((i * w + j) // h, (i * w + j) % h),
        "sinusoidal2d.grid_shape_square",
    ),
    "rows are counted as if the image were as high as wide": (
        lambda i, j, h, w: (np.minimum(i, w - 1), np.minimum(j, h - 1)),
        "sinusoidal2d.grid_shape_square",
    ),
    "both parts show the row": (lambda i, j, h, w: (i, i), "sinusoidal2d.axis_repeated"),
    "both parts show the column": (lambda i, j, h, w: (j, j), "sinusoidal2d.axis_repeated"),
    "rows are counted from below": (lambda i, j, h, w: (h - 1 - i, j), "sinusoidal.position.reversed"),
    "columns are counted from the right": (lambda i, j, h, w: (i, w - 1 - j), "sinusoidal.position.reversed"),
    "both axes are counted from their ends": (
        lambda i, j, h, w: (h - 1 - i, w - 1 - j),
        "sinusoidal.position.reversed",
    ),
}


class Image(Sinusoid):
    """Sinusoids of two axes, each with half of the channels: of DETR, LoFTR, MAE and others."""

    prefix = "sinusoidal2d"
    ignores = "grid cls"
    shapes = ((1, 2, 3), (2, 3, 5), (3, 4, 2), (1, 9, 4))
    single = (1, 2, 2)
    parts = ("misplaced", "orders", "places", "rules", "bases")
    later = ((2, 3, 5), (2, 5, 3), (2, 6, 7), (2, 3, 5), (3, 2, 4))
    pairs = 70

    def __init__(self, convention: str, spec: Mapping[str, Any]) -> None:
        super().__init__(convention, spec)
        self.truth = {
            **self.truth,
            "scaling": self.asked.scalings[0],
            "join": self.asked.joins[0],
            "cells": "",  # a wrong way to number cells
            "second": None,  # the order of dimensions of the columns, where it is not that of the rows
            "narrow": False,  # a part has dim // 2 dimensions, also where these are odd
        }
        if self.asked.scalings[0].over:
            self.definition = "sinusoidal2d@detr"

    def _more(self) -> Iterator[Case]:
        for order in (self.later, self.later[::-1]):
            yield Case("again", tuple(order), "calls of one object, one after another")

    @property
    def width(self) -> int:
        """How many dimensions show each axis."""
        return 2 * math.ceil(self.calls.dim / 4)

    def positions(self, model: Model, shape: Shape) -> tuple[Array, ...]:
        """Return the positions of rows and of columns of the cells, (1, height, width) each."""
        h, w = shape[1:]
        i, j = np.meshgrid(np.arange(h, dtype=np.float64), np.arange(w, dtype=np.float64), indexing="ij")
        y, x = CELLS[model["cells"]][0](i, j, h, w) if model["cells"] else (i, j)
        return model["scaling"](y, h, w)[None], model["scaling"](x, w, h)[None]

    def code(self, model: Model, axes: tuple[Array, ...], nudge: float = 0.0) -> tuple[Array, Array]:
        """Return the code of cells from the positions of their rows and columns."""
        dim, join = self.calls.dim, model["join"]
        d = dim if join == "sum" else dim // 2 if model["narrow"] else self.width
        orders = (model["order"], model["second"] or model["order"])
        parts = [added_faults.wave(model, p, order, d, nudge) for p, order in zip(axes, orders, strict=True)]
        code, slack = (_joined([part[n] for part in parts], join)[..., :dim] for n in (0, 1))
        return code, slack

    def readings(self) -> Iterator[dict[str, Any]]:
        """Yield every reading of the specification."""
        asked, narrow = self.asked, (False, True) if self.calls.dim % 4 == 2 else (False,)
        orders = [o for o in asked.orders if o in added_faults.layouts(self.width)]
        for few, rule, order, join, scaling in itertools.product(
            narrow, asked.rules, orders, asked.joins, asked.scalings
        ):
            yield {"narrow": few, "rule": rule, "order": order, "join": join, "scaling": scaling}

    @property
    def lanes_free(self) -> bool:
        """Whether neither the order of sines and cosines nor that of the axes is declared."""
        return not self.asked.order_said and not self.asked.join_said

    def moved(self) -> Iterator[dict[str, Any]]:
        """Yield the orders of the same dimensions that are not declared otherwise."""
        asked = self.asked
        orders = [o for o in added_faults.ORDERS if o in added_faults.layouts(self.width)]
        for order, join in itertools.product(orders, list(JOINS)[:4]):
            said = asked.order_said and order not in asked.orders
            said |= asked.join_said and join[-2:] not in {j[-2:] for j in asked.joins}
            said |= asked.order_said and asked.join_said and join not in asked.joins
            if not said and not (join.startswith("woven") and self.width % 2):
                yield {"order": order, "join": join}

    def order_words(self, model: Model) -> str:
        """Return the order of dimensions in words."""
        words = added_faults.layouts(self.width)[model["order"]].words
        return f"{words}, {JOINS[model.get('join', self.truth['join'])]}"

    def start_fault(self, start: float) -> Fault:
        """Return the fault of counting both axes from another number."""
        scaling = replace(self.truth["scaling"], start=start)
        return Fault("sinusoidal2d.start", {"scaling": scaling}, {"start": start, "asked": self.truth["scaling"].start})

    def misplaced(self) -> Iterator[Fault]:
        """Yield other first rows and columns."""
        for start in STARTS:
            if start != self.truth["scaling"].start and not (self.truth["scaling"].over and start % 1):
                yield self.start_fault(start)

    def orders(self) -> Iterator[Fault]:
        """Yield wrong orders of dimensions: of both axes, of the rows only, of the columns only."""
        right = {"order": self.truth["order"], "join": self.truth["join"]}
        known_orders = added_faults.layouts(self.width)
        for join, (name, layout) in itertools.product(list(JOINS)[:4], known_orders.items()):
            change = {"order": name, "join": join}
            if change != right and not (join.startswith("woven") and self.width % 2):
                code = f"sinusoidal.{layout.code or added_faults.order_code(name, right['order'])}"
                if name == right["order"] and join[-2:] != right["join"][-2:]:
                    code = "sinusoidal2d.axes_swapped"
                yield Fault(code, change, {"words": self.order_words(change)})
        yield Fault("sinusoidal2d.axes_summed", {"join": "sum", "order": "interleaved"})

    def places(self) -> Iterator[Fault]:
        """Yield wrong ways to number cells and to scale positions, and wrong orders of one axis only."""
        for words, (_, code) in CELLS.items():
            yield Fault(code, {"cells": words}, {"words": words})
        right = self.truth["scaling"]
        scales = dict.fromkeys((right.scale, 1.0, 2 * math.pi, math.pi)[: 4 if right.over else 3])
        for start, over, scale, (inner, outer) in itertools.product(STARTS, OVERS, scales, HALVES):
            tried = Scaling(start, over, scale, inner, outer)
            differ = (start != right.start) + (over != right.over) + (scale != right.scale) + bool(inner or outer)
            if 0 < differ <= 2 and tried not in self.asked.scalings:
                values = {"found": tried.words, "asked": right.words}
                yield Fault(f"sinusoidal2d.{_scaling_code(tried, right)}", {"scaling": tried}, values)
        for name, layout in added_faults.layouts(self.width).items():
            if name != self.truth["order"] and layout.code != "axis.rows_for_columns":
                code = f"sinusoidal.{layout.code or added_faults.order_code(name, self.truth['order'])}"
                rows, columns = {"order": name, "second": self.truth["order"]}, {"second": name}
                for axis, change in (("rows", rows), ("columns", columns)):
                    yield Fault(code, change, {"words": f"{layout.words}, in the part of the {axis} only"})

    def read_places(self, near: Sequence[Seen], model: Model) -> Fault | None:
        """Return what the rows and columns of cells show."""
        if model["scaling"].over:
            return None
        found = [self._cells(s, model) for s in near if s.case.args[0][1] != s.case.args[0][2]]
        return None if None in found else next(iter(found), None)

    def _cells(self, s: Seen, model: Model) -> Fault | None:
        """Return the fault of positions that are read off cell by cell; None where a cell fits none."""
        shape = s.case.args[0]
        h, w = shape[1:]
        tried, places = added_reading.line(2 * h * w + 32), []
        for axis in (0, 1):
            at = [0 * tried[None, :, None], 0 * tried[None, :, None]]
            at[axis] = tried[None, :, None]
            code, slack = (a[0, :, 0] for a in self.code(model, tuple(at)))
            mine = slack.max(0) > 0  # only the dimensions of this axis have an angle
            rows = s.value[: h * w, mine]
            found = added_reading.look_up(rows, code[:, mine], slack[:, mine], tried)
            if found is None or np.isnan(found).any():
                return None
            places.append(found)
        return self._named(places[0], places[1], h, w)

    def _named(self, y: Array, x: Array, h: int, w: int) -> Fault:
        t = np.arange(h * w)
        pairs = ", ".join(f"({a:g}, {b:g})" for a, b in list(zip(y, x, strict=True))[: w + 2])
        words = f"the cells of {h} x {w}, row by row, have positions {pairs}, ..."
        if (y - y[0] == t // w).all() and (x - x[0] == t % w).all():
            apart = {"message": f"rows are counted from {y[0]:g} and columns from {x[0]:g}"}
            return self.start_fault(y[0]) if y[0] == x[0] else Fault("sinusoidal2d.start", {}, apart)
        for side in (int(x.max() - x.min()) + 1, int((y == y[0]).sum())):
            if side and (y - y[0] == t // side).all() and (x - x[0] == t % side).all():
                return Fault("sinusoidal2d.grid_shape_square", {}, {"words": f"{words}: a grid of {side} columns"})
        if sorted(zip(y, x, strict=True)) == [(a, b) for a in range(h) for b in range(w)]:
            words = f"{words}: the right ones on the wrong cells"
            return Fault("sinusoidal2d.grid_flattened_wrong", {}, {"words": words})
        return Fault("sinusoidal.position.other", {}, {"words": words})

    def neighbours(self, near: Sequence[Seen], model: Model) -> Array | None:
        """Return the rows of the highest image, with the dimensions that show them."""
        if model["scaling"].over or model["join"] not in {"yx", "xy"}:
            return None
        highest = max(near, key=lambda s: s.case.args[0][1])
        h, w = highest.case.args[0][1:]
        grid, m = highest.value[: h * w].reshape(h, w, -1), self.width
        rows: Array = grid[:, 0, :m] if model["join"] == "yx" else grid[0, :, :m]
        return rows

    def refusal(self, subject: Any, case: Case, error: SubjectError) -> SubjectError:
        """Return the finding behind an image that fails: only square ones work, or a width that does not divide."""
        if self.calls.works(subject, (2, 4, 4)):
            case_ = self.calls.case(case.args[0])
            words = f"{case.words} fails and a square image works"
            return finding("sinusoidal2d.grid_shape_square", case_, words=words)
        if self.calls.dim % 4:
            return finding(
                "sinusoidal.width.odd", {"dim": self.calls.dim}, dim=self.calls.dim, error=error.cause.message[:160]
            )
        return error

    def not_judged(self, seen: Sequence[Seen]) -> list[str]:
        """Return what was not looked at."""
        return ["images of more than 9 rows or columns, and images in half precision", *self.ignored()]


def _joined(parts: Sequence[Array], join: str) -> Array:
    """Return the codes of rows and of columns in one."""
    if join == "sum":
        total: Array = parts[0] + parts[1]
        return total
    a, b = parts if join.endswith("yx") else parts[::-1]
    if not join.startswith("woven"):
        return np.concatenate([a, b], -1)
    pairs = [part.reshape(*part.shape[:-1], -1, 2) for part in (a, b)]
    return np.stack(pairs, -2).reshape(*a.shape[:-1], -1)


def _scaling_code(found: Scaling, right: Scaling) -> str:
    """Return what is wrong with a scaling, without the family."""
    if found.inner or found.outer:
        return "normalise_misplaced_half"
    if found.over == "other" and right.over != "other":
        return "normalise_swapped"
    if right.over and not found.over:
        return "normalise_missing"
    if found.over and not right.over:
        return "normalise_unasked"
    if found.scale != right.scale:
        return "scale_missing"
    shifted = (found.over, right.over) == ("last", "size") and found.start != right.start
    return "start" if found.over == right.over or shifted else "normalise_divisor"
