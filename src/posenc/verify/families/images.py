"""Sinusoids of rows and columns that are added to images."""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from posenc.verify.engine import Case, Fault, Seen
from posenc.verify.engine.records import Array, Model
from posenc.verify.families import added_faults
from posenc.verify.families.added import Sinusoid
from posenc.verify.families.added_calls import Shape, finding
from posenc.verify.families.added_words import Scaling
from posenc.verify.guard import SubjectError

JOINS = ("yx", "xy", "woven_yx", "woven_xy")  # how the axes share the dimensions; "sum" where they do not


def _squared(to_whole: Callable[[float], int], i: Array, j: Array, h: int, w: int) -> tuple[Array, Array]:
    return np.divmod(i * w + j, to_whole(math.sqrt(h * w)))


# By code: (row, column, height, width) -> what is counted as row and column
Cells = Callable[[Array, Array, int, int], tuple[Array, Array]]
_CELLS: Mapping[str, Mapping[str, Cells]] = {
    "sinusoidal2d.grid_flattened_wrong": {
        "cells are numbered column by column, then read row by row": lambda i, j, h, w: np.divmod(i * w + j, h)[::-1],
        "cells are numbered row by row, then read column by column": lambda i, j, h, w: np.divmod(i + j * h, w),
        "cells are numbered one after the other on both axes": lambda i, j, h, w: (i * w + j, i * w + j),
    },
    "sinusoidal2d.grid_shape_square": {
        "rows are counted as if the image were as high as wide": lambda i, j, h, w: (
            np.minimum(i, w - 1),
            np.minimum(j, h - 1),
        ),
        "cells are laid on a grid of h columns": lambda i, j, h, w: np.divmod(i * w + j, h),
        "cells are laid on a grid of 7 columns": lambda i, j, h, w: np.divmod(i * w + j, 7),
        "cells are laid on a grid of 14 columns": lambda i, j, h, w: np.divmod(i * w + j, 14),
        "cells are laid on a grid of 16 columns or more": lambda i, j, h, w: np.divmod(i * w + j, 16),
        **{
            f"cells are laid on a grid of {name}(sqrt(h * w)) columns": partial(_squared, to_whole)
            for name, to_whole in (("int", math.floor), ("round", round), ("ceil", math.ceil))
        },
    },
    "sinusoidal2d.axis_repeated": {
        "both parts show the row": lambda i, j, h, w: (i, i),
        "both parts show the column": lambda i, j, h, w: (j, j),
    },
    "sinusoidal2d.start": {
        "rows are counted from 1 and columns from 0": lambda i, j, h, w: (i + 1, j),
        "rows are counted from 0 and columns from 1": lambda i, j, h, w: (i, j + 1),
    },
    "sinusoidal.position.reversed": {
        "rows are counted from below": lambda i, j, h, w: (h - 1 - i, j),
        "columns are counted from the right": lambda i, j, h, w: (i, w - 1 - j),
    },
}
CELLS = {words: (code, cells) for code, written in _CELLS.items() for words, cells in written.items()}


class Image(Sinusoid):
    """Sinusoids of two axes, each with half of the channels: of DETR, LoFTR, MAE and others."""

    prefix, cut_wrong = "sinusoidal2d", "sinusoidal2d.start"
    ignores = "grid cls"
    shapes = ((1, 2, 3), (2, 3, 5), (3, 4, 2), (1, 9, 4))
    single = (1, 2, 2)
    later = ((2, 3, 5), (2, 5, 3), (2, 6, 7), (2, 3, 5), (3, 2, 4))
    lengths = ()
    pairs, divides = 70, 4

    def __init__(self, convention: str, spec: Mapping[str, Any]) -> None:
        super().__init__(convention, spec)
        self.truth = {
            "cells": "",  # a wrong way to number cells
            "second": None,  # the order of dimensions of the columns, where it is not that of the rows
            "narrow": False,  # a part has dim // 2 dimensions, also where these are odd
            **self.truth,
        }
        if self.truth["scaling"].over:
            self.definition = "sinusoidal2d@detr"
        if self.calls.dim % 4 == 2:
            self.readings = [{**one, "narrow": few} for few in (False, True) for one in self.readings]

    @property
    def width(self) -> int:
        """How many dimensions show each axis."""
        return 2 * math.ceil(self.calls.dim / 4)

    def positions(self, model: Model, shape: Shape) -> tuple[Array, ...]:
        """Return the positions of rows and of columns of the cells, (1, height, width) each."""
        h, w = shape[1:]
        i, j = np.meshgrid(np.arange(h, dtype=np.float64), np.arange(w, dtype=np.float64), indexing="ij")
        y, x = CELLS[model["cells"]][1](i, j, h, w) if model["cells"] else (i, j)
        return model["scaling"](y, h, w)[None], model["scaling"](x, w, h)[None]

    def code(self, model: Model, axes: tuple[Array, ...], nudge: float = 0.0) -> tuple[Array, Array]:
        """Return the code of cells from the positions of their rows and columns."""
        dim, join = self.calls.dim, model["join"]
        d = dim if join == "sum" else dim // 2 if model["narrow"] else self.width
        orders = (model["order"], model["second"] or model["order"])
        parts = [added_faults.wave(model, p, order, d, nudge) for p, order in zip(axes, orders, strict=True)]
        code, slack = (_joined([part[n] for part in parts], join)[..., :dim] for n in (0, 1))
        return code, slack

    def _laid(self) -> Iterator[dict[str, Any]]:
        """Yield the orders of the dimensions of both axes, and of the axes."""
        for join, order in itertools.product(JOINS, added_faults.layouts(self.width)):
            if not (join.startswith("woven") and self.width % 2):
                yield {"order": order, "join": join}

    def _moved(self) -> Iterator[dict[str, Any]]:
        """Yield the orders of the same dimensions that are not declared otherwise."""
        orders, joins = self.said("order"), self.said("join")
        for change in self._laid():
            order, join = change["order"], change["join"]
            said = order not in added_faults.ORDERS or (self.order_said and order not in orders)
            said |= self.join_said and join[-2:] not in {j[-2:] for j in joins}
            said |= self.order_said and self.join_said and join not in joins
            if not said:
                yield change

    def _order_words(self, model: Model) -> str:
        join, words = model.get("join", self.truth["join"]), added_faults.layouts(self.width)[model["order"]].words
        turns = ", the axes taking turns" if join.startswith("woven") else ""
        return f"{words}{turns}, {'rows' if join.endswith('yx') else 'columns'} first"

    def start_fault(self, by: float) -> Fault:
        """Return the fault of counting both axes from another number."""
        right = self.truth["scaling"]
        start = right.start + by
        values = {"start": start, "asked": right.start}
        return Fault("sinusoidal2d.start", {"scaling": replace(right, start=start)}, values)

    def _orders(self) -> Iterator[Fault]:
        """Yield wrong orders of dimensions: of both axes, of the rows only, of the columns only."""
        right, names = {"order": self.truth["order"], "join": self.truth["join"]}, added_faults.layouts(self.width)
        codes = {name: f"sinusoidal.{added_faults.order_code(self.width, name, right['order'])}" for name in names}
        for change in self._laid():
            if change != right:
                swapped = change["order"] == right["order"] and change["join"][-2:] != right["join"][-2:]
                code = "sinusoidal2d.axes_swapped" if swapped else codes[change["order"]]
                yield Fault(code, change, {"words": self._order_words(change)})
        yield Fault("sinusoidal2d.axes_summed", {"join": "sum", "order": "interleaved"})
        for name in names:
            if name != right["order"] and not name.startswith("rows"):
                rows, columns = {"order": name, "second": right["order"]}, {"second": name}
                for axis, change in (("rows", rows), ("columns", columns)):
                    words = f"{names[name].words}, in the part of the {axis} only"
                    yield Fault(codes[name], change, {"words": words})

    def _places(self) -> Iterator[Fault]:
        """Yield wrong ways to number cells and to scale positions."""
        right = self.truth["scaling"]
        steps = (-1.0, 1.0) if right.over else (-1.0, 1.0, 0.5, -0.5, 2.0, -2.0)
        yield from (self.start_fault(by) for by in steps)
        for words, (code, _) in CELLS.items():
            yield Fault(code, {"cells": words}, {"words": words})
        for code, tried in _scalings(right):
            if tried not in self.said("scaling"):
                yield Fault(f"sinusoidal2d.{code}", {"scaling": tried}, {"found": tried.words, "asked": right.words})

    def refusal(self, subject: Any, case: Case, error: SubjectError) -> SubjectError:
        """Return the finding behind an image that fails: only square ones work, or a width that does not divide."""
        if self.calls.works(subject, (2, 4, 4)):
            words = f"{case.words} fails and a square image works"
            return finding("sinusoidal2d.grid_shape_square", self.calls.case(case.args[0]), words=words)
        return super().refusal(subject, case, error)

    def not_judged(self, seen: Sequence[Seen]) -> list[str]:
        """Return what was not looked at."""
        return ["images of more than 9 rows or columns, and images in half precision", *self.ignored()]


def _joined(parts: Sequence[Array], join: str) -> Array:
    """Return the codes of rows and of columns in one."""
    if join == "sum":
        return parts[0] + parts[1]
    a, b = parts if join.endswith("yx") else parts[::-1]
    if not join.startswith("woven"):
        return np.concatenate([a, b], -1)
    pairs = [part.reshape(*part.shape[:-1], -1, 2) for part in (a, b)]
    return np.stack(pairs, -2).reshape(*a.shape[:-1], -1)


def _scalings(right: Scaling) -> Iterator[tuple[str, Scaling]]:
    """Yield wrong ways to scale positions, with their codes."""
    for over, scale in itertools.product(("", "size", "last", "less", "other"), (1.0, 2 * math.pi, math.pi)):
        code = "normalise_divisor" if over else "normalise_missing"
        if over != right.over and not right.over:
            code = "normalise_unasked"
        elif over != right.over and over == "other":
            code = "normalise_swapped"
        for start in (right.start, 1.0 - right.start):
            same = "scale_missing" if start == right.start else "start"
            yield same if over == right.over else code, Scaling(start, over, scale)
    for change in ({"half": 0.5}, {"half": 1.0}, {"start": 0.5, "over": "size" if right.over else ""}):
        yield "normalise_misplaced_half", replace(right, **change)
