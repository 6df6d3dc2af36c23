"""Write a view's numbers as CSV, in full precision."""

import csv
import io
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from posenc.explorer.frames import Array, Frame

MOST_CELLS = 2_000_000
_EXACT = 2**53  # every integer below it is exact in float64


def write(frame: Frame | Mapping[str, Any]) -> str:
    """Return a frame as CSV: a matrix as rows and columns, curves as one row per point.

    Raises:
        ValueError: The answer is not a frame, or has more than two million numbers.

    >>> x, y = np.array([0.0, 1.0]), np.array([1.0, 0.5])
    >>> series = [{"label": "rope", "x": 0, "array": 1}]
    >>> header = {"x": {"label": "distance"}, "y": {"label": "score"}, "series": series}
    >>> print(write(Frame(header, [x, y])))
    series,distance,score
    rope,0,1.0
    rope,1,0.5
    <BLANKLINE>
    """
    if not isinstance(frame, Frame):
        raise ValueError("explore: this view has no table, because its answer is text. Copy the text instead.")
    if (n := sum(array.size for array in frame.arrays)) > MOST_CELLS:
        raise ValueError(
            f"explore: a table has at most {MOST_CELLS:,} numbers; this one would have {n:,}. Choose a shorter length, "
            "or use the Python code."
        )
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(_rows(frame))
    return text.getvalue()


def _rows(frame: Frame) -> Iterator[Iterable[Any]]:
    header, arrays = frame.header, frame.arrays
    if header.get("matrix"):
        about = header["matrix"]
        corner = f"{_label(header, 'y')} \\ {_label(header, 'x')}"
        yield [corner, *_places(arrays[about["columns"]])]
        rows = _places(arrays[about["rows"]])
        yield from ([row, *values] for row, values in zip(rows, arrays[about["array"]].tolist(), strict=True))
        if not header.get("series"):
            return
        yield []
    yield from _of_series(header, arrays)


def _of_series(header: Mapping[str, Any], arrays: list[Array]) -> Iterator[Iterable[Any]]:
    """Yield one row per point, with a column for the group if there are several."""
    series = header.get("series") or []
    groups = {one.get("group", "") for one in series}
    several, along = len(groups) > 1, header.get("along")
    extra = [key for key in ("z", "low", "high") if any(key in one for one in series)]
    before = ["series", *(["group"] if several else []), *(["position"] if along is not None else [])]
    named = [_label(header, "z") if key == "z" else key for key in extra]
    yield [*before, _label(header, "x"), "value" if several else _label(header, "y"), *named]
    for one in series:
        n = len(np.atleast_1d(arrays[one["array"]]))
        x = _places(arrays[one["x"]]) if one.get("x") is not None else [""] * n
        rest = [arrays[one[key]].ravel().tolist() if key in one else [""] * n for key in ("array", *extra)]
        where = [_places(arrays[along])] if along is not None else []
        start = [one.get("label", ""), *([_group(header, one.get("group", ""))] if several else [])]
        yield from ([*start, *row] for row in zip(*where, x, *rest, strict=True))


def _group(header: Mapping[str, Any], group: str) -> str:
    """Return a group's name; for a group of words, with the word for each number."""
    if group != "fate":
        return group
    return "fate: " + ", ".join(f"{i} {word}" for i, word in enumerate(header.get("fates", ())))


def _places(values: Array) -> list[Any]:
    """Return values as integers if all are whole, as positions and lanes are."""
    flat = np.ravel(values)
    whole = bool(np.isfinite(flat).all() and (flat == np.round(flat)).all() and (np.abs(flat) < _EXACT).all())
    found: list[Any] = flat.astype(np.int64).tolist() if whole else flat.tolist()
    return found


def _label(header: Mapping[str, Any], name: str) -> str:
    about = header.get(name) or {}
    unit = f" ({about['unit']})" if about.get("unit") else ""
    return f"{about.get('label', name)}{unit}"
