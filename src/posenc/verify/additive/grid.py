"""Which two positions each cell of an image is given: the right ways, and those that people write by mistake."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from posenc.verify.additive.places import At, Place, Shape, span
from posenc.verify.additive.waves import Array

Cells = Callable[[Array, Array, int, int], tuple[Array, Array]]  # row and column i, j of h by w -> what counts as them
_FLAT = "Flatten the grid as the tokens are: rows first, meshgrid(arange(h), arange(w), indexing='ij')."
_SHAPE = "Build the grid with the height and the width of this image, never with one side for both."


def _root(h: int, w: int) -> int:
    return max(math.isqrt(h * w), 1)


_WRONG: tuple[tuple[str, Cells, str, str], ...] = (  # words, formula, code, how to mend it
    (
        "cells are numbered column by column, then read row by row",
        lambda i, j, h, w: ((i * w + j) % h, (i * w + j) // h),
        "grid_flattened_wrong",
        _FLAT,
    ),
    (
        "cells are numbered row by row, then read column by column",
        lambda i, j, h, w: ((i + j * h) // w, (i + j * h) % w),
        "grid_flattened_wrong",
        _FLAT,
    ),
    (
        "cells are numbered one after the other on both axes",
        lambda i, j, h, w: (i * w + j, i * w + j),
        "grid_flattened_wrong",
        _FLAT,
    ),
    (
        "cells are laid on a square grid of side sqrt(h * w)",
        lambda i, j, h, w: ((i * w + j) // _root(h, w), (i * w + j) % _root(h, w)),
        "grid_shape_square",
        _SHAPE,
    ),
    (
        "cells are laid on a square grid of side h",
        lambda i, j, h, w: ((i * w + j) // h, (i * w + j) % h),
        "grid_shape_square",
        _SHAPE,
    ),
    (
        "rows are counted as if the image were as high as wide",
        lambda i, j, h, w: (np.minimum(i, w - 1), np.minimum(j, h - 1)),
        "grid_shape_square",
        _SHAPE,
    ),
    ("both halves show the row", lambda i, j, h, w: (i, i), "axis_repeated", "Give one half to the column."),
    ("both halves show the column", lambda i, j, h, w: (j, j), "axis_repeated", "Give one half to the row."),
    ("rows are counted from below", lambda i, j, h, w: (h - 1 - i, j), "position.reversed", "Count from the top."),
    (
        "columns are counted from the right",
        lambda i, j, h, w: (i, w - 1 - j),
        "position.reversed",
        "Count from the left.",
    ),
    (
        "both axes are counted from their ends",
        lambda i, j, h, w: (h - 1 - i, w - 1 - j),
        "position.reversed",
        _FLAT,
    ),
)


@dataclass(frozen=True)
class Scaling:
    """How a row or column number becomes a position: (number + start + inner) / over(size) * scale + outer.

    Args:
        start: Added first; what cumulative sums of ones do is 1.
        over: What is divided by: "" nothing, "size", "last" (size - 1), "other" (the size of the other axis).
        scale: The factor behind.
        inner: Subtracted before dividing.
        outer: Subtracted after all.
    """

    start: float = 0.0
    over: str = ""
    scale: float = 1.0
    inner: float = 0.0
    outer: float = 0.0

    def __call__(self, number: Array, size: int, other: int) -> Array:
        """Return positions of row or column numbers of an axis of `size`, the other axis being `other`."""
        p = number + self.start - self.inner
        # one cell in all: start 0 divides 0 by 0, which nobody means; a tiny number is what people add
        last = (size - 1 + self.start) or 1e-6
        # the last of a count from `start` is size - 1 + start; with start 1 that is the size itself
        divisor = {"": 1.0, "size": size, "last": last, "beyond": size + 1, "other": other, "less": max(size - 1, 1)}
        return p / divisor[self.over] * self.scale - self.outer

    @property
    def words(self) -> str:
        """The formula of row i of an axis of n."""
        of = {
            "": "",
            "size": " / n",
            "last": " / (the last)",
            "beyond": " / (n + 1)",
            "other": " / (the other axis's n)",
        }
        divided = of.get(self.over, " / (n - 1)")
        inner = f" - {self.inner:g}" if self.inner else ""
        plus = f" + {self.start:g}" if self.start else ""
        times = f" * {self.scale:.4g}" if self.scale != 1 else ""
        return f"(i{plus}{inner}){divided}{times}" + (f" - {self.outer:g}" if self.outer else "")


def cells(scaling: Scaling) -> list[Place]:
    """Return the right grid under a scaling, first, and then the wrong ones."""

    def at(f: Cells) -> At:
        def positions(s: Shape) -> tuple[Array, ...]:
            h, w = s[1:]
            i, j = np.meshgrid(span(h), span(w), indexing="ij")
            y, x = f(i, j, h, w)
            return scaling(y, h, w)[None], scaling(x, w, h)[None]

        return positions

    right = Place(f"row i and column i have position {scaling.words}", at(lambda i, j, h, w: (i, j)))
    return [right, *(Place(words, at(f), code, mend) for words, f, code, mend in _WRONG)]
