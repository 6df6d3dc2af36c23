"""Which position each row of a sequence is given: the right ways, and those that people write by mistake."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from posenc.verify.additive.waves import Array

Shape = tuple[int, ...]
At = Callable[[Shape], tuple[Array, ...]]
Formula = Callable[[Any, int], Array]
Written = tuple[str, Formula, str, str]  # words, formula, code, how to mend it


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
    at: At
    code: str = ""
    mend: str = ""


def span(n: int) -> Array:
    """Return 0, 1, ..., n - 1."""
    return np.arange(n, dtype=np.float64)


def shifted(start: float, code: str = "start") -> Place:
    """Return: row t has position t + start."""
    mend = "Count from the position that the definition gives the first row, or say origin='any'."
    return Place(f"row t has position t + {start:g}", lambda s: (span(s[1])[None] + start,), code, mend)


_COLUMN = "Take the first seq rows of the table: table[:seq], arange(x.size(1))."
_AXIS = "Index the table by the sequence: x is (batch, seq, dim), so table[: x.size(1)], with batch broadcast."
_UNIT = "Give the row number itself, not a fraction of the length."
_WHOLE: tuple[Written, ...] = (  # of the numbers of sequences and of rows
    (
        "every token has the number of its sequence in the batch as position",
        lambda b, n: np.repeat(span(b)[:, None], n, 1),
        "axis.batch",
        _AXIS,
    ),
    (
        "rows are numbered through the whole batch, batch * seq + t",
        lambda b, n: span(b)[:, None] * n + span(n),
        "axis.batch",
        _AXIS,
    ),
    (
        "row t of sequence b has position t * batch + b",
        lambda b, n: span(n) * b + span(b)[:, None],
        "axis.batch",
        _AXIS,
    ),
)
_ALONG: tuple[Written, ...] = (  # of row t and the number of rows, for every sequence alike
    (
        "every row has position seq, one row of the table for all",
        lambda t, n: 0 * t + n,
        "slice.single_row",
        _COLUMN,
    ),
    ("every row has the last position, seq - 1", lambda t, n: 0 * t + n - 1, "slice.single_row", _COLUMN),
    ("every row has the first position", lambda t, n: 0 * t, "slice.single_row", _COLUMN),
    ("every row has position 1", lambda t, n: 0 * t + 1, "slice.single_row", _COLUMN),
    ("row t has position seq - 1 - t, counted from the end", lambda t, n: n - 1 - t, "position.reversed", _COLUMN),
    ("row t has position seq - t, counted from the end", lambda t, n: n - t, "position.reversed", _COLUMN),
    ("row t has position -t", lambda t, n: -t, "position.reversed", _COLUMN),
    (
        "row t has position t + seq, a slice that starts where it should end",
        lambda t, n: t + n,
        "slice.tail",
        _COLUMN,
    ),
    ("row t has position t / seq", lambda t, n: t / n, "position.normalised", _UNIT),
    ("row t has position t / (seq - 1)", lambda t, n: t / max(n - 1, 1), "position.normalised", _UNIT),
    ("row t has position t // 2", lambda t, n: t // 2, "position.stride", _UNIT),
    ("row t has position 2t", lambda t, n: 2 * t, "position.stride", _UNIT),
)


def rows(start: float) -> list[Place]:
    """Return what may go wrong with the positions of a sequence that counts from `start`."""

    def whole(f: Formula) -> At:
        return lambda s: (f(s[0], s[1]) + start,)

    def along(f: Formula) -> At:
        return lambda s: (f(span(s[1])[None], s[1]) + start,)

    found = [Place(words, whole(f), code, mend) for words, f, code, mend in _WHOLE]
    found += [Place(words, along(f), code, mend) for words, f, code, mend in _ALONG]
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
