"""What a view is, and the parts that every view's header has."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from posenc import measure
from posenc.encoding import Encoding
from posenc.explorer.frames import Array, Frame
from posenc.explorer.views.controls import SEED, WHO, Control, read_query
from posenc.explorer.views.subjects import Subject, read_subject
from posenc.registry import Card

Floats = NDArray[np.float64]
Values = Mapping[str, Any]


_REFUSALS: WeakKeyDictionary[Encoding, dict[str, str | None]] = WeakKeyDictionary()


@dataclass(frozen=True)
class View:
    """One kind of picture.

    Args:
        id: By which it is asked for.
        title: A few words.
        help: One or two sentences for a person.
        controls: What it may be asked.
        draw: Answers: of an encoding and values of the controls, or of the values alone.
        refuses: Says in one sentence why an encoding has no such picture, or returns None; None for views that are
            about no encoding of the registry.
        suits: Says whether it has one from what it is made of, and runs nothing; or returns None where it cannot.
    """

    id: str
    title: str
    help: str
    controls: tuple[Control, ...]
    draw: Callable[..., Frame]
    refuses: Callable[[Encoding], str | None] | None
    suits: Callable[[Encoding], bool | None] | None = None

    def fits(self, encoding: Encoding | Card) -> bool:
        """Say whether an encoding has such a picture; of a card, whether its example has."""
        if isinstance(encoding, Card):
            encoding = read_subject({"a": encoding.name}, 0).encoding
        if self.refuses is None:
            return False
        told = None if self.suits is None else self.suits(encoding)
        return self.refuses(encoding) is None if told is None else told

    def lacks(self, encoding: Encoding) -> str | None:
        """Say in one sentence why an encoding has no such picture, or return None."""
        if self.refuses is None or (self.suits is not None and self.suits(encoding)):
            return None
        return self.refuses(encoding)

    def as_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "id": self.id,
            "title": self.title,
            "help": self.help,
            "controls": [control.as_dict() for control in self.controls],
            "of_encoding": self.refuses is not None,
        }

    def answer(self, query: Mapping[str, str]) -> Frame | dict[str, Any]:
        """Return the picture that a query asks for.

        Raises:
            ValueError: A value is refused, or the encoding has no such picture.
            TypeError: An option is unknown or missing.
        """
        if self.refuses is None:
            return in_our_words(lambda: self.draw(read_query(self.id, self.controls, query)))
        subject, values = read_view(self, query)
        frame = in_our_words(lambda: self.draw(subject, values))
        head = {"view": self.id, "of": "A", "subject": subject.encoding.name, **frame.header}
        return Frame(head | {"notes": [*subject.notes, *shortened(subject, values), *head["notes"]]}, frame.arrays)


def read_view(view: View, query: Mapping[str, str]) -> tuple[Subject, Values]:
    """Return the encoding that a question is about, for the length that is asked for, and the controls' values.

    Raises:
        ValueError: A value is refused, or the encoding has no such picture.
        TypeError: An option is unknown or missing.
    """
    own = {key: text for key, text in query.items() if not (key == "a" or key.startswith("a."))}
    values = read_query(view.id, (*view.controls, SEED), own)
    subject = read_subject(query, values["seed"])
    if (reason := view.lacks(subject.encoding)) is not None:
        raise ValueError(f"{WHO}: {reason}")
    return fit_length(subject, values)


def refusal(encoding: Encoding, what: str, ask: Callable[[], object]) -> str | None:
    """Return the sentence with which a measurement refuses an encoding, or None; it is asked once.

    Args:
        encoding: Of which it is asked.
        what: A name for the measurement.
        ask: Measures something small.
    """
    known = _REFUSALS.setdefault(encoding, {})
    if what not in known:
        known[what] = None
        try:
            ask()
        except ValueError as error:
            known[what] = str(error).partition(": ")[2]
    return known[what]


def in_our_words(draw: Callable[[], Frame]) -> Frame:
    """Draw; what a measurement refuses is said without its name, which nobody has asked for."""
    try:
        return draw()
    except ValueError as error:
        who, _, said = str(error).partition(": ")
        if who not in measure.__all__:
            raise
        raise ValueError(f"{WHO}: {said}") from error


def fit_length(subject: Subject, values: Values) -> tuple[Subject, Values]:
    """Return the encoding for the length that is asked for, or for the longest that it has."""
    if "length" not in values:
        return subject, values
    end = values["length"] if subject.longest is None else min(values["length"], subject.longest + 1)
    return subject.of_length(end), {**values, "length": end, "asked_length": values["length"]}


def shortened(subject: Subject, values: Values) -> list[str]:
    """Say that an encoding has fewer positions than are asked for."""
    if values.get("asked_length", 0) <= values.get("length", 0):
        return []
    return [
        f"{subject.encoding.name} has positions 0 to {subject.longest:,} with these options, and no more are shown."
    ]


@dataclass(frozen=True)
class Series:
    """One curve.

    Args:
        label: What it is called in the legend.
        x: (n,).
        y: (n,); NaN where there is nothing.
        low: The lower end of a band, (n,).
        high: Its upper end.
        z: The third coordinate of points.
        group: What it belongs to, where there are several kinds of curves.
    """

    label: str
    x: Floats
    y: Floats
    low: Floats | None = None
    high: Floats | None = None
    z: Floats | None = None
    group: str = ""


def axis(label: str, unit: str = "", *, log: bool = False) -> dict[str, Any]:
    """Return what a header says of an axis."""
    return {"label": label, "unit": unit, "log": log}


def spread(length: int, most: int) -> Floats:
    """Choose at most `most` whole numbers from 0 to length - 1, evenly, with both ends.

    >>> spread(9, 3).tolist()
    [0.0, 4.0, 8.0]
    """
    return np.unique(np.linspace(0, length - 1, min(length, most)).round())


def log_spread(length: int, most: int) -> Floats:
    """Choose about `most` whole numbers from 0 to length - 1: all small ones, then by equal ratios."""
    if length <= most:
        return np.arange(length, dtype=np.float64)
    return np.unique(np.concatenate(([0.0], np.geomspace(1, length - 1, most - 1).round())))


def chosen(name: str, length: int, most: int) -> str:
    """Return the line of Python that makes what `spread` returns."""
    every = f"np.arange({length})"
    return f"{name} = " + (
        every if length <= most else f"np.unique(np.linspace(0, {length - 1}, {most}).round()).astype(int)"
    )


def limits(values: Floats) -> tuple[float, float]:
    """Return the smallest and largest finite value; with zero in the middle where both signs are there."""
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
        values: (n_rows, n_columns) as shown; NaN where there is nothing.
        rows: What each row stands for, in the unit of y.
        columns: The same for columns and x.
        shape: How many rows and columns there are, of which these are shown.
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
    """Return the frame of curves; equal x are sent once.

    Args:
        head: title, x, y, notes and code; kind, where it is no line.
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

    told = []
    for one in series:
        parts = {"x": one.x, "array": one.y, "low": one.low, "high": one.high, "z": one.z}
        where = {key: put(f"{one.label} {key}", values) for key, values in parts.items() if values is not None}
        told.append({"label": one.label, **({"group": one.group} if one.group else {}), **where})
    return Frame({"kind": "lines", **head, "series": told, "arrays": names}, arrays)


def picked(shape: Sequence[int], values: Floats) -> list[str]:
    """Say that a matrix shows some of its rows and columns only, where that is so."""
    if tuple(shape) == values.shape:
        return []
    return [
        f"{values.shape[0]:,} of {shape[0]:,} rows and {values.shape[1]:,} of {shape[1]:,} columns are shown: those "
        "nearest to evenly spaced ones, and not means, which would hide fast waves."
    ]


def code(subject: Subject | None, lines: Sequence[str], command: str) -> dict[str, str]:
    """Return how to have the same numbers in Python, and the nearest command line."""
    start = subject.python if subject else ["from posenc import measure", ""]
    return {"python": "\n".join([*start, *lines]) + "\n", "command": command}
