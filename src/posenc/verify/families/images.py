"""Sinusoids of rows and columns that are added to images."""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from posenc.verify.engine import Case, Fault, Seen
from posenc.verify.engine.records import Array, Model
from posenc.verify.families import added_faults, added_places, served
from posenc.verify.families.added import Sinusoid
from posenc.verify.families.added_calls import Shape, finding, ready
from posenc.verify.families.added_faults import JOINS
from posenc.verify.guard import SubjectError

OVER = {"": "", "size": " / n", "last": " / (the last)", "other": " / (the other axis's n)"}


def _columns(of: Callable[[int, int], float]) -> "Cells":
    """Return the places of cells that are laid out consecutively on a grid of so many columns."""
    return lambda i, j, h, w: np.divmod(i * w + j, of(h, w))


RUNNING = "both axes use the running number of the cell"
# By finding code: (row, column, height, width) -> the numbers used as row and column
Cells = Callable[[Array, Array, int, int], tuple[Array, Array]]
_CELLS: Mapping[str, Mapping[str, Cells]] = {
    "sinusoidal2d.grid_flattened_wrong": {
        "cells are numbered column by column, then read row by row": lambda i, j, h, w: np.divmod(i * w + j, h)[::-1],
        "cells are numbered row by row, then read column by column": lambda i, j, h, w: np.divmod(i + j * h, w),
        RUNNING: lambda i, j, h, w: (i * w + j, i * w + j),
    },
    "sinusoidal2d.grid_shape_square": {
        "both axes end where the shorter one ends": lambda i, j, h, w: (np.minimum(i, w - 1), np.minimum(j, h - 1)),
        "cells are laid out on a grid of h columns": _columns(lambda h, w: h),
        "cells are laid out on a grid of 7 columns": _columns(lambda h, w: 7),
        "cells are laid out on a grid of 14 columns": _columns(lambda h, w: 14),
        "cells are laid out on a grid of 16 columns or more": _columns(lambda h, w: 16),
        "cells are laid out on a grid of int(sqrt(h * w)) columns": _columns(lambda h, w: math.isqrt(h * w)),
        "cells are laid out on a grid of round(sqrt(h * w)) columns": _columns(lambda h, w: round(math.sqrt(h * w))),
        "cells are laid out on a grid of ceil(sqrt(h * w)) columns": _columns(lambda h, w: math.ceil(math.sqrt(h * w))),
    },
    "sinusoidal2d.axis_repeated": {
        "both parts encode the row": lambda i, j, h, w: (i, i),
        "both parts encode the column": lambda i, j, h, w: (j, j),
    },
    "sinusoidal.position.reversed": {
        "rows are counted from the bottom": lambda i, j, h, w: (h - 1 - i, j),
        "columns are counted from the right": lambda i, j, h, w: (i, w - 1 - j),
    },
}
CELLS = {words: (code, cells) for code, written in _CELLS.items() for words, cells in written.items()}


class Image(Sinusoid):
    """Sinusoids of two axes, each with half of the channels: DETR, LoFTR, MAE and others.

    Attributes:
        sizes, left: The image to ask for in place of each one, and which are left out (see `served.images`).
    """

    sizes: served.Sizes | None = None
    left = ""
    prefix, cut_wrong = "sinusoidal2d", "sinusoidal2d.start"
    ignores = "grid cls interpolation"
    shapes = ((1, 2, 3), (2, 3, 5), (3, 4, 2), (1, 9, 4))
    single = (1, 2, 2)
    later = ((2, 3, 5), (2, 5, 3), (2, 6, 7), (2, 3, 5), (3, 2, 4))
    lengths = ()
    divides = 4

    def __init__(self, convention: str, spec: Mapping[str, Any]) -> None:
        super().__init__(convention, spec)
        # the last one if a part has dim // 2 dimensions, even an odd number
        self.truth = {**self.truth, "narrow": False, "viewed": False}
        if self.truth["over"]:
            self.definition = "sinusoidal2d@detr"
        if self.calls.dim % 4 == 2:
            self.readings = [{**one, "narrow": few} for few in (False, True) for one in self.readings]

    def observe(self, subject: Any, case: Case) -> Seen:
        """Return the answer to one question, about images that the subject does not refuse."""
        if self.sizes is None:
            if not self.calls.dim:
                said = self.spec.get("grid")
                own = [(2, *said) if isinstance(said, list | tuple) else (2, said, said)] if said else []
                self.calls.find(subject, self.call_shape, (2, 4, 4), *own)
            ask = lambda *size: self.calls.raw(ready(subject), (2, *size))  # noqa: E731
            self.sizes, self.left = served.images(ask, self.call_shape[1:], self.spec.get("grid"))
            self.ignores = self.ignores.replace("grid", "") if self.left else self.ignores
        return super().observe(subject, replace(case, args=tuple((b, *self.sizes(*size)) for b, *size in case.args)))

    @property
    def width(self) -> int:
        """The number of dimensions of each axis."""
        return 2 * math.ceil(self.calls.dim / 4)

    def positions(self, model: Model, shape: Shape) -> tuple[Array, ...]:
        """Return the positions of rows and of columns of the cells, (1, height, width) each."""
        h, w = shape[1:]
        i, j = np.meshgrid(np.arange(h, dtype=np.float64), np.arange(w, dtype=np.float64), indexing="ij")
        y, x = CELLS[model["place"]][1](i, j, h, w) if model["place"] else (i, j)
        return _scaled(model, y, h, w)[None], _scaled(model, x, w, h)[None]

    def code(self, model: Model, axes: tuple[Array, ...]) -> tuple[Array, Array]:
        """Return the encoding of cells from the positions of their rows and columns."""
        dim, join = self.calls.dim, model["join"]
        if join == "text":
            return added_faults.wave(model, axes[0], dim)
        d = dim if join == "sum" else dim // 2 if model["narrow"] else self.width
        parts = [added_faults.wave(model, p, d) for p in axes]
        code, slack = (_joined([part[n] for part in parts], join)[..., :dim] for n in (0, 1))
        return (_viewed(code), _viewed(slack)) if model["viewed"] else (code, slack)

    def parts(self, model: Model) -> list[NDArray[np.int64]]:
        """Return the channels of the rows and of the columns."""
        if model["join"] not in JOINS or 2 * self.width != self.calls.dim:
            return []
        joined = _joined(np.split(np.arange(2.0 * self.width), 2), model["join"])
        return [np.flatnonzero((joined < self.width) == first) for first in (True, False)]

    def described(self, near: Sequence[Seen], models: Sequence[Model]) -> Fault | None:
        """Return which positions the rows and columns encode, if they encode any."""
        return added_places.of_image(self, near, models) if near else None

    def _orders(self) -> Iterator[Fault]:
        """Yield wrong orders of the axes, then of sines and cosines."""
        for join in JOINS:
            swapped = join[-2:] != self.truth["join"][-2:]
            code = "sinusoidal2d.axes_swapped" if swapped else "sinusoidal.layout.permuted"
            yield Fault(code, {"join": join}, {"words": self._order_words({**self.truth, "join": join})})
        yield from super()._orders()
        yield from (Fault("sinusoidal2d.axes_summed", {"join": join}) for join in ("sum", "sum_twice"))
        yield Fault("sinusoidal2d.as_a_text", {"join": "text", "place": RUNNING})

    def _places(self) -> Iterator[Fault]:
        """Yield wrong ways to number cells and to scale positions."""
        for words, (code, _) in CELLS.items():
            yield Fault(code, {"place": words}, {"words": words})
        yield Fault("sinusoidal2d.lanes_mixed", {"viewed": True})
        asked, half = _words(self.truth), {"start": 0.5, "over": "size" if self.truth["over"] else ""}
        yield Fault(
            "sinusoidal2d.normalise_misplaced_half", half, {"found": _words({**self.truth, **half}), "asked": asked}
        )
        starts = (self.truth["start"], 1.0 - self.truth["start"])
        for over, scale, start in itertools.product(OVER, (1.0, 2 * math.pi, math.pi), starts):
            change = {"over": over, "scale": scale, "start": start}
            code = (
                "scale_missing" if over == self.truth["over"] else "normalise_divisor" if over else "normalise_missing"
            )
            yield Fault(f"sinusoidal2d.{code}", change, {"found": _words(change), "asked": asked})

    def refusal(self, subject: Any, case: Case, error: SubjectError) -> SubjectError:
        """Return the finding behind an image that fails: only square ones work, or the width does not divide."""
        if self.calls.works(subject, (2, 4, 4)):
            words = f"{case.words} fails, but a square image works"
            return finding("sinusoidal2d.grid_shape_square", self.calls.case(case.args[0]), words=words)
        return super().refusal(subject, case, error)

    def not_judged(self, seen: Sequence[Seen]) -> list[str]:
        """Return the parts that were not judged."""
        most = max((9, *(n for s in seen for n in s.case.args[-1][1:])))
        beyond = f"images of more than {most} rows or columns, and images in half precision"
        return [*filter(None, [self.left]), beyond, *self.ignored()]


def _viewed(code: Array) -> Array:
    """Return the encoding (.., height, width, channels), reshaped to (channels, height, width) but not permuted."""
    h, w, d = code.shape[-3:]
    return np.moveaxis(code.reshape(-1, d, h, w), 1, -1)


def _scaled(model: Model, number: Array, size: int, other: int) -> Array:
    """Return the positions of rows or columns of an axis of `size`, if the other axis has length `other`."""
    last = (size - 1 + model["start"]) or 1e-6  # with only one cell, programs add a tiny number to the divisor
    divisor = {"": 1.0, "size": size, "last": last, "other": other}[model["over"]]
    scaled: Array = (number + model["start"]) / divisor * model["scale"]
    return scaled


def _words(model: Model) -> str:
    """Return the position of row i of n as a formula, such as "(i + 1) / n * 6.283", or "i"."""
    number = f"(i + {model['start']:g})" if model["start"] else "i"
    over = {0.0: " / (n - 1)", 1.0: " / n"}.get(model["start"]) if model["over"] == "last" else None
    scale = f" * {model['scale']:.4g}" if model["scale"] != 1 else ""
    return f"{number}{over or OVER[model['over']]}{scale}"


def _joined(parts: Sequence[Array], join: str) -> Array:
    """Return the encodings of rows and of columns joined."""
    if join.startswith("sum"):
        total = parts[0] + parts[1]
        return total if join == "sum" else np.concatenate([total, total], -1)
    a, b = parts if join.endswith("yx") else parts[::-1]
    if not join.startswith("woven") or a.shape[-1] % 2:
        return np.concatenate([a, b], -1)
    pairs = [part.reshape(*part.shape[:-1], -1, 2) for part in (a, b)]
    return np.stack(pairs, -2).reshape(*a.shape[:-1], -1)
