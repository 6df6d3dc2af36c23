"""The class of views, and the parts that the headers of all views share."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from posenc import measure
from posenc.encoding import Encoding
from posenc.explorer.frames import Array, Frame
from posenc.explorer.views.controls import SEED, Control, read_query
from posenc.explorer.views.subjects import Subject, read_subject
from posenc.languages import tr
from posenc.registry import Card

Floats = NDArray[np.float64]
Values = Mapping[str, Any]


_REFUSALS: WeakKeyDictionary[Encoding, dict[str, str | None]] = WeakKeyDictionary()


@dataclass(frozen=True)
class View:
    """One kind of picture.

    Args:
        id: Its name in the query.
        title: A few words.
        help: One or two sentences for the user.
        controls: Its options.
        draw: Returns the frame from an encoding and the values of the controls, or from the values only.
        refuses: Returns one sentence that explains why the view does not apply to an encoding, or None if it does. None
            for views that are not about one encoding.
        suits: Returns whether the view applies, from the encoding's type and without running it; None if unknown.
    """

    id: str
    title: str
    help: str
    controls: tuple[Control, ...]
    draw: Callable[..., Frame]
    refuses: Callable[[Encoding], str | None] | None
    suits: Callable[[Encoding], bool | None] | None = None

    def fits(self, encoding: Encoding | Card) -> bool:
        """Return whether the view applies to an encoding; for a card, to its example."""
        if isinstance(encoding, Card):
            encoding = read_subject({"a": encoding.name}, 0).encoding
        if self.refuses is None:
            return False
        known = None if self.suits is None else self.suits(encoding)
        return self.refuses(encoding) is None if known is None else known

    def lacks(self, encoding: Encoding) -> str | None:
        """Return one sentence that explains why the view does not apply to an encoding, or None if it does."""
        if self.refuses is None or (self.suits is not None and self.suits(encoding)):
            return None
        return self.refuses(encoding)

    def as_dict(self) -> dict[str, Any]:
        """Return the view's description as JSON values."""
        return {
            "id": self.id,
            "title": self.title,
            "help": self.help,
            "controls": [control.as_dict() for control in self.controls],
            "of_encoding": self.refuses is not None,
        }

    def answer(self, query: Mapping[str, str]) -> Frame | dict[str, Any]:
        """Return the picture for a query.

        Raises:
            ValueError: A value is invalid, or the view does not apply to the encoding.
            TypeError: An option is unknown or missing.
        """
        if self.refuses is None:
            return renamed_errors(lambda: self.draw(read_query(self.id, self.controls, query)))
        subject, values = read_view(self, query)
        frame = renamed_errors(lambda: self.draw(subject, values))
        head = {"view": self.id, "of": "A", "subject": subject.encoding.name, **frame.header}
        return Frame(head | {"notes": [*subject.notes, *shortened(subject, values), *head["notes"]]}, frame.arrays)


def read_view(view: View, query: Mapping[str, str]) -> tuple[Subject, Values]:
    """Return the encoding of a query, resolved for the requested length, and the controls' values.

    Raises:
        ValueError: A value is invalid, or the view does not apply to the encoding.
        TypeError: An option is unknown or missing.
    """
    own = {key: text for key, text in query.items() if not (key == "a" or key.startswith("a."))}
    values = read_query(view.id, (*view.controls, SEED), own)
    subject = read_subject(query, values["seed"])
    if (reason := view.lacks(subject.encoding)) is not None:
        raise ValueError(tr("explore: {reason:s}", reason=reason))
    return fit_length(subject, values)


def refusal(encoding: Encoding, what: str, ask: Callable[[], object]) -> str | None:
    """Return the error message with which a measurement refuses an encoding, or None; cached for each encoding.

    Args:
        encoding: The encoding.
        what: A name for the measurement.
        ask: Makes a small measurement.
    """
    known = _REFUSALS.setdefault(encoding, {})
    if what not in known:
        known[what] = None
        try:
            ask()
        except ValueError as error:
            known[what] = str(error).partition(": ")[2]
    return known[what]


def renamed_errors(draw: Callable[[], Frame]) -> Frame:
    """Draw; replace the measurement's name in an error message by the explorer's."""
    try:
        return draw()
    except ValueError as error:
        who, _, message = str(error).partition(": ")
        if who not in measure.__all__:
            raise
        raise ValueError(tr("explore: {reason:s}", reason=message)) from error


def fit_length(subject: Subject, values: Values) -> tuple[Subject, Values]:
    """Return the encoding for the requested length, or for its longest length if that is shorter."""
    if "length" not in values:
        return subject, values
    end = values["length"] if subject.longest is None else min(values["length"], subject.longest + 1)
    return subject.of_length(end), {**values, "length": end, "asked_length": values["length"]}


def shortened(subject: Subject, values: Values) -> list[str]:
    """Return a note if an encoding has fewer positions than requested."""
    if values.get("asked_length", 0) <= values.get("length", 0):
        return []
    return [
        tr(
            "{name:s} has positions 0 to {last:,} with these options; only these are shown.",
            name=subject.encoding.name,
            last=subject.longest,
        )
    ]


@dataclass(frozen=True)
class Series:
    """One curve.

    Args:
        label: Its name in the legend.
        x: (n,).
        y: (n,); NaN for gaps.
        low: The lower end of a band, (n,).
        high: The upper end of the band, (n,).
        z: The third coordinate of points.
        group: The kind of curve, if a picture has several.
    """

    label: str
    x: Floats
    y: Floats
    low: Floats | None = None
    high: Floats | None = None
    z: Floats | None = None
    group: str = ""


def axis(label: str, unit: str = "", *, log: bool = False) -> dict[str, Any]:
    """Return the header entry of an axis."""
    return {"label": label, "unit": unit, "log": log}


def spread(length: int, most: int) -> Floats:
    """Choose at most `most` evenly spaced integers from 0 to length - 1, including both ends.

    >>> spread(9, 3).tolist()
    [0.0, 4.0, 8.0]
    """
    return np.unique(np.linspace(0, length - 1, min(length, most)).round())


def log_spread(length: int, most: int) -> Floats:
    """Choose about `most` integers from 0 to length - 1: all small ones, then logarithmically spaced ones."""
    if length <= most:
        return np.arange(length, dtype=np.float64)
    return np.unique(np.concatenate(([0.0], np.geomspace(1, length - 1, most - 1).round())))


def chosen(name: str, length: int, most: int) -> str:
    """Return the line of Python that computes the result of `spread`."""
    every = f"np.arange({length})"
    return f"{name} = " + (
        every if length <= most else f"np.unique(np.linspace(0, {length - 1}, {most}).round()).astype(int)"
    )


def limits(values: Floats) -> tuple[float, float]:
    """Return the smallest and largest finite value; symmetric about zero if both signs occur."""
    finite = values[np.isfinite(values)]
    if not finite.size:
        return 0.0, 0.0
    low, high = float(finite.min()), float(finite.max())
    if low < 0 < high:
        return -max(-low, high), max(-low, high)
    return low, high


def of_matrix(head: Mapping[str, Any], values: Floats, rows: Floats, columns: Floats, shape: Sequence[int]) -> Frame:
    """Return the frame of a matrix.

    Args:
        head: title, x (of columns), y (of rows), notes and code.
        values: (n_rows, n_columns), as shown; NaN for empty cells.
        rows: The y value of each row.
        columns: The x value of each column.
        shape: The number of rows and columns of the whole matrix, of which these are a selection.
    """
    low, high = limits(values)
    about = {"array": 0, "rows": 1, "columns": 2, "low": low, "high": high, "original_shape": list(shape)}
    about["symmetric"] = low < 0 < high
    names = [{"name": name} for name in ("values", head["y"]["label"], head["x"]["label"])]
    notes = [*head["notes"], *picked(shape, values)]
    return Frame(
        {"kind": "matrix", "series": [], **head, "matrix": about, "notes": notes, "arrays": names},
        [values, np.asarray(rows, np.float64), np.asarray(columns, np.float64)],
    )


def of_lines(head: Mapping[str, Any], series: Sequence[Series]) -> Frame:
    """Return the frame of curves; an array shared by several curves is stored once.

    Args:
        head: title, x, y, notes and code; kind, unless the curves are lines.
        series: The curves.
    """
    arrays: list[Array] = []
    names: list[dict[str, str]] = []

    def put(name: str, values: Floats) -> int:
        at = next((i for i, there in enumerate(arrays) if there is values), None)
        if at is None:
            arrays.append(values)
            names.append({"name": name})
        return len(arrays) - 1 if at is None else at

    described = []
    for one in series:
        parts = {"x": one.x, "array": one.y, "low": one.low, "high": one.high, "z": one.z}
        where = {key: put(f"{one.label} {key}", values) for key, values in parts.items() if values is not None}
        described.append({"label": one.label, **({"group": one.group} if one.group else {}), **where})
    return Frame({"kind": "lines", **head, "series": described, "arrays": names}, arrays)


def picked(shape: Sequence[int], values: Floats) -> list[str]:
    """Return a note if only some rows and columns of a matrix are shown."""
    if tuple(shape) == values.shape:
        return []
    return [
        tr(
            "{rows:,} of {all_rows:,} rows and {columns:,} of {all_columns:,} columns are shown, evenly spaced. They "
            "are not averaged, because averages would hide fast waves.",
            rows=values.shape[0],
            all_rows=shape[0],
            columns=values.shape[1],
            all_columns=shape[1],
        )
    ]


def code(subject: Subject | None, lines: Sequence[str], command: str) -> dict[str, str]:
    """Return the Python code for the same numbers, and the nearest command line."""
    start = subject.python if subject else ["from posenc import measure", ""]
    return {"python": "\n".join([*start, *lines]) + "\n", "command": command}
