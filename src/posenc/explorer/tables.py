"""A view's numbers as a table in CSV, in full precision."""

import csv
import io
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from posenc.explorer.frames import Frame

MOST_CELLS = 2_000_000


def write(frame: Frame | Mapping[str, Any]) -> str:
    """Return a frame as CSV: a matrix as rows and columns, series as one row a point.

    Raises:
        ValueError: It has nothing to tabulate, or more than two million numbers.

    >>> x, y = np.array([0.0, 1.0]), np.array([1.0, 0.5])
    >>> series = [{"label": "rope", "x": 0, "array": 1}]
    >>> header = {"x": {"label": "distance"}, "y": {"label": "score"}, "series": series}
    >>> print(write(Frame(header, [x, y])))
    series,distance,score
    rope,0.0,1.0
    rope,1.0,0.5
    <BLANKLINE>
    """
    if not isinstance(frame, Frame):
        raise ValueError("explore: this view has no table. Copy its steps instead.")
    if (n := sum(array.size for array in frame.arrays)) > MOST_CELLS:
        raise ValueError(
            f"explore: a table has at most {MOST_CELLS:,} numbers; this one would have {n:,}. Choose a shorter length, "
            "or take the Python code."
        )
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(_rows(frame))
    return text.getvalue()


def _rows(frame: Frame) -> Iterator[Iterable[Any]]:
    header, arrays = frame.header, frame.arrays
    if header.get("matrix"):
        about = header["matrix"]
        corner = f"{_label(header, 'y')} \\ {_label(header, 'x')}"
        yield [corner, *arrays[about["columns"]].tolist()]
        rows = arrays[about["rows"]].tolist()
        yield from ([row, *values] for row, values in zip(rows, arrays[about["array"]].tolist(), strict=True))
        if not header.get("series"):
            return
        yield []
    series = header.get("series") or []
    extra = [key for key in ("low", "high") if any(key in one for one in series)]
    yield ["series", _label(header, "x"), _label(header, "y"), *extra]
    for one in series:
        columns = [arrays[one[key]] if one.get(key) is not None else None for key in ("x", "array", *extra)]
        n = len(np.atleast_1d(columns[1])) if columns[1] is not None else 0
        values = [[""] * n if column is None else np.ravel(column).tolist() for column in columns]
        yield from ([one.get("label", ""), *row] for row in zip(*values, strict=True))


def _label(header: Mapping[str, Any], name: str) -> str:
    about = header.get(name) or {}
    unit = f" ({about['unit']})" if about.get("unit") else ""
    return f"{about.get('label', name)}{unit}"
