"""Which position each row, cell or distance is given: the right ways, and those that people write by mistake."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from posenc.verify.additive_waves import Array

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Place:
    """A map from rows to positions.

    Args:
        words: "row t has position t".
        at: Shape of the call -> one array of positions for each axis; a sequence is (batch, seq), an image
            (batch, height, width), a table of distances (n,).
        code: What is wrong with it, without the family; empty where it is a definition.
        mend: How to write it instead.
    """

    words: str
    at: Callable[[Shape], tuple[Array, ...]]
    code: str = ""
    mend: str = ""


def _range(n: int) -> Array:
    return np.arange(n, dtype=np.float64)


def shifted(start: float, code: str = "start") -> Place:
    """Return: row t has position t + start."""
    mend = "Count from the position that the definition gives the first row, or say origin='any'."
    return Place(f"row t has position t + {start:g}", lambda s: (_range(s[1])[None] + start,), code, mend)


def rows(start: float) -> list[Place]:
    """Return what may go wrong with the positions of a sequence that counts from `start`."""

    def along(words: str, f: Callable[[Array, int], Array], code: str, mend: str) -> Place:
        return Place(words, lambda s: (f(_range(s[1])[None], s[1]) + start,), code, mend)

    column = "Take the first seq rows of the table: table[:seq], arange(x.size(1))."
    axis = "Index the table by the sequence: x is (batch, seq, dim), so table[: x.size(1)], with batch broadcast."
    unit = "Give the row number itself, not a fraction of the length."
    found = [
        Place(
            "every token has the number of its sequence in the batch as position",
            lambda s: (np.repeat(_range(s[0])[:, None], s[1], 1) + start,),
            "axis.batch",
            axis,
        ),
        Place(
            "rows are numbered through the whole batch, batch * seq + t",
            lambda s: ((_range(s[0])[:, None] * s[1] + _range(s[1])) + start,),
            "axis.batch",
            axis,
        ),
        Place(
            "row t of sequence b has position t * batch + b",
            lambda s: ((_range(s[1]) * s[0] + _range(s[0])[:, None]) + start,),
            "axis.batch",
            axis,
        ),
        along(
            "every row has position seq, one row of the table for all",
            lambda t, n: 0 * t + n,
            "slice.single_row",
            column,
        ),
        along("every row has the last position, seq - 1", lambda t, n: 0 * t + n - 1, "slice.single_row", column),
        along("every row has the first position", lambda t, n: 0 * t, "slice.single_row", column),
        along("every row has position 1", lambda t, n: 0 * t + 1, "slice.single_row", column),
        along(
            "row t has position seq - 1 - t, counted from the end", lambda t, n: n - 1 - t, "position.reversed", column
        ),
        along("row t has position seq - t, counted from the end", lambda t, n: n - t, "position.reversed", column),
        along("row t has position -t", lambda t, n: -t, "position.reversed", column),
        along(
            "row t has position t + seq, a slice that starts where it should end",
            lambda t, n: t + n,
            "slice.tail",
            column,
        ),
        along("row t has position t / seq", lambda t, n: t / n, "position.normalised", unit),
        along("row t has position t / (seq - 1)", lambda t, n: t / max(n - 1, 1), "position.normalised", unit),
        along("row t has position t // 2", lambda t, n: t // 2, "position.stride", unit),
        along("row t has position 2t", lambda t, n: 2 * t, "position.stride", unit),
    ]
    return found + [shifted(start + s) for s in (1.0, -1.0, 2.0, -2.0)]


def from_table(places: Array) -> tuple[str, str]:
    """Return a code and words for a map that was read off, row by row.

    Args:
        places: The position that each row was found to have (n,).
    """
    n, steps = len(places), np.diff(places)
    breaks = np.flatnonzero(steps != 1)
    if n > 1 and len(breaks) == 0:
        return "start", f"row t has position t + {places[0]:g}"
    if n > 1 and not steps.any():
        return "slice.single_row", f"every row has position {places[0]:g}"
    m = int(breaks[0]) + 1 if len(breaks) else n
    if not steps[m - 1 :].any():
        return "table.too_short", f"rows from {m} on all have position {places[-1]:g}: the table ends there"
    if len(breaks) == 1 or (places == np.arange(n) % m).all():
        return "table.growth_ignores_past", f"row {m} has position {places[m]:g}: the count starts again there"
    if (steps == steps[0]).all():
        return "position.stride", f"row t has position {places[0]:g} + {steps[0]:g} t"
    return "position.other", f"rows have positions {', '.join(f'{p:g}' for p in places[:8])}, ..."


def distances() -> list[Place]:
    """Return what may go wrong with the distances of a table (2n - 1, dim)."""

    def line(words: str, f: Callable[[Array, int], Array], code: str, mend: str) -> Place:
        return Place(words, lambda s: (f(_range(2 * s[0] - 1), s[0])[None],), code, mend)

    sign = "Give sin(-p * w) to the keys ahead: the sine is odd, sin(-d) = -sin(d)."
    line_up = "Row r holds distance (n - 1) - r: n - 1 first, 0 in the middle, -(n - 1) last."
    whole = "Make rows for all 2n - 1 signed distances."
    return [
        line(
            "row r has distance |(n - 1) - r|, so both sides look alike",
            lambda r, n: np.abs(n - 1 - r),
            "sign_lost",
            sign,
        ),
        line(
            "row r has distance -|(n - 1) - r|, so both sides look alike",
            lambda r, n: -np.abs(n - 1 - r),
            "sign_lost",
            sign,
        ),
        line("row r has distance r - (n - 1), the other way round", lambda r, n: r - n + 1, "direction", line_up),
        line("row r has position r, an absolute one", lambda r, n: r, "absolute_used", whole),
        line("row r has position 2n - 2 - r, an absolute one", lambda r, n: 2 * n - 2 - r, "absolute_used", whole),
        line("row r has distance max((n - 1) - r, 0)", lambda r, n: np.maximum(n - 1 - r, 0), "future_clamped", whole),
        line("row r has distance min((n - 1) - r, 0)", lambda r, n: np.minimum(n - 1 - r, 0), "past_clamped", whole),
        line("row r has distance n - r", lambda r, n: n - r, "off_by_one", line_up),
        line("row r has distance n - 2 - r", lambda r, n: n - 2 - r, "off_by_one", line_up),
        line(
            "the two sides run on from each other: n - 1, ..., 0, then 0, -1, ...",
            lambda r, n: np.where(r < n, n - 1 - r, n - r),
            "off_by_one",
            line_up,
        ),
        line(
            "each side runs outwards from its own end: 0, ..., n - 1, then -1, -2, ...",
            lambda r, n: np.where(r < n, r, n - 1 - r),
            "side_reversed",
            line_up,
        ),
        line(
            "the past is right and the future runs backwards: -(n - 1), ..., -1",
            lambda r, n: np.where(r < n, n - 1 - r, r - 2 * n + 1),
            "side_reversed",
            line_up,
        ),
    ]


DISTANCE = Place("row r has distance (n - 1) - r", lambda s: ((s[0] - 1 - _range(2 * s[0] - 1))[None],))


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

    def grid(words: str, f: Callable[[Array, Array, int, int], tuple[Array, Array]], code: str, mend: str) -> Place:
        def at(s: Shape) -> tuple[Array, ...]:
            h, w = s[1:]
            i, j = np.meshgrid(_range(h), _range(w), indexing="ij")
            y, x = f(i, j, h, w)
            return scaling(y, h, w)[None], scaling(x, w, h)[None]

        return Place(words, at, code, mend)

    flat = "Flatten the grid as the tokens are: rows first, meshgrid(arange(h), arange(w), indexing='ij')."
    shape = "Build the grid with the height and the width of this image, never with one side for both."

    def root(h: int, w: int) -> int:
        return max(math.isqrt(h * w), 1)

    return [
        grid(f"row i and column i have position {scaling.words}", lambda i, j, h, w: (i, j), "", ""),
        grid(
            "cells are numbered column by column, then read row by row",
            lambda i, j, h, w: ((i * w + j) % h, (i * w + j) // h),
            "grid_flattened_wrong",
            flat,
        ),
        grid(
            "cells are numbered row by row, then read column by column",
            lambda i, j, h, w: ((i + j * h) // w, (i + j * h) % w),
            "grid_flattened_wrong",
            flat,
        ),
        grid(
            "cells are numbered one after the other on both axes",
            lambda i, j, h, w: (i * w + j, i * w + j),
            "grid_flattened_wrong",
            flat,
        ),
        grid(
            "cells are laid on a square grid of side sqrt(h * w)",
            lambda i, j, h, w: ((i * w + j) // root(h, w), (i * w + j) % root(h, w)),
            "grid_shape_square",
            shape,
        ),
        grid(
            "cells are laid on a square grid of side h",
            lambda i, j, h, w: ((i * w + j) // h, (i * w + j) % h),
            "grid_shape_square",
            shape,
        ),
        grid(
            "rows are counted as if the image were as high as wide",
            lambda i, j, h, w: (np.minimum(i, w - 1), np.minimum(j, h - 1)),
            "grid_shape_square",
            shape,
        ),
        grid("both halves show the row", lambda i, j, h, w: (i, i), "axis_repeated", "Give one half to the column."),
        grid("both halves show the column", lambda i, j, h, w: (j, j), "axis_repeated", "Give one half to the row."),
        grid(
            "rows are counted from below", lambda i, j, h, w: (h - 1 - i, j), "position.reversed", "Count from the top."
        ),
        grid(
            "columns are counted from the right",
            lambda i, j, h, w: (i, w - 1 - j),
            "position.reversed",
            "Count from the left.",
        ),
        grid(
            "both axes are counted from their ends",
            lambda i, j, h, w: (h - 1 - i, w - 1 - j),
            "position.reversed",
            flat,
        ),
    ]
