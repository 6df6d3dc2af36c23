"""Controls of views: the options of a view, and how they are read from an untrusted query."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from posenc.config.values import short
from posenc.languages import tr

LONGEST = 1_000_000  # positions
MOST_PIXELS = 4096  # rows or columns of a picture
WIDEST = 4096  # dimensions
_MOST_CHARACTERS = 4096
_FLAGS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


@dataclass(frozen=True)
class Control:
    """One option of a view.

    Args:
        name: Its key in the query.
        kind: Its type: a whole number, a number, true or false, one of `choices`, or text.
        default: The value if the query has none; None if that depends on the encoding.
        help: One sentence for the user.
        choices: The words that are allowed.
        min: The smallest number.
        max: The largest number, or the longest text in characters.
        log: Whether a slider should be logarithmic.
    """

    name: str
    kind: Literal["int", "float", "bool", "choice", "text"]
    default: Any
    help: str
    choices: tuple[str, ...] = ()
    min: float | None = None
    max: float | None = None
    log: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Return JSON values, with the keys that every control of the page has."""
        return asdict(self) | {"choices": list(self.choices), "required": False}

    def read(self, text: str) -> Any:
        """Read the value from text.

        Raises:
            ValueError: The text is not a value of this kind, or the value is not allowed.
        """
        if len(text) > _MOST_CHARACTERS:
            raise ValueError(
                tr(
                    "explore: {name:s} must have at most {most:d} characters; got {got:d}. Shorten it.",
                    name=self.name,
                    most=_MOST_CHARACTERS,
                    got=len(text),
                )
            )
        match self.kind:
            case "int":
                return self._within(read_integer(self.name, text))
            case "float":
                return self._within(read_number(self.name, text))
            case "bool":
                return read_flag(self.name, text)
            case "choice":
                return read_word(self.name, text, self.choices)
        if self.max is not None and len(text) > self.max:
            raise ValueError(
                tr(
                    "explore: {name:s} must have at most {most:d} characters; got {got:d}. Shorten it.",
                    name=self.name,
                    most=int(self.max),
                    got=len(text),
                )
            )
        return text

    def _within(self, value: float) -> float:
        low, high = (-math.inf if self.min is None else self.min), (math.inf if self.max is None else self.max)
        if not low <= value <= high:
            raise ValueError(
                tr(
                    "explore: {name:s} must be from {low:,.10g} to {high:,.10g}; got {got:s}.",
                    name=self.name,
                    low=low,
                    high=high,
                    got=short(value),
                )
            )
        return value


def read_query(view: str, controls: tuple[Control, ...], query: Mapping[str, str]) -> dict[str, Any]:
    """Return the value of each control of a view; the default if the query has none.

    Raises:
        ValueError: A value is not allowed, or the query has a key that is no option of the view.

    >>> length = Control("length", "int", 64, "Positions.", min=1, max=100)
    >>> read_query("heat", (length,), {"length": "12"})
    {'length': 12}
    """
    known = {control.name: control for control in controls}
    for key in query:
        if key not in known:
            raise ValueError(
                tr(
                    "explore: the view {view:s} has no option {key:s}; it takes {known:s}. Leave it out.",
                    view=view,
                    key=short(key),
                    known=", ".join(known) or "none",
                )
            )
    return {name: c.read(query[name]) if name in query else c.default for name, c in known.items()}


def read_integer(name: str, text: str) -> int:
    """Read an integer.

    Raises:
        ValueError: The text is not an integer, or has over 18 digits.
    """
    plain = text.strip()
    digits = plain[1:] if plain[:1] in "+-" else plain
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 18):
        raise ValueError(tr("explore: {name:s} must be a whole number; got {got:s}.", name=name, got=short(text)))
    return int(plain)


def read_number(name: str, text: str) -> float:
    """Read a finite number.

    Raises:
        ValueError: The text is not a finite number.
    """
    try:
        value = float(text) if text.isascii() and "_" not in text else math.nan
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(tr("explore: {name:s} must be a finite number; got {got:s}.", name=name, got=short(text)))
    return value


def read_flag(name: str, text: str) -> bool:
    """Read true or false.

    Raises:
        ValueError: The text is neither.
    """
    if text.lower() not in _FLAGS:
        raise ValueError(tr("explore: {name:s} must be true or false; got {got:s}.", name=name, got=short(text)))
    return _FLAGS[text.lower()]


def read_word(name: str, text: str, choices: tuple[str, ...]) -> str:
    """Read one of the allowed words.

    Raises:
        ValueError: The text is not an allowed word.
    """
    if text not in choices:
        raise ValueError(
            tr(
                "explore: {name:s} must be one of {choices:s}; got {got:s}.",
                name=name,
                choices=", ".join(choices),
                got=short(text),
            )
        )
    return text


def read_list(name: str, text: str, most: int = WIDEST) -> list[str]:
    """Split a list at its commas; brackets around it are optional.

    Raises:
        ValueError: The list is empty, or has more than `most` entries.
    """
    parts = [part.strip().strip("'\"") for part in text.strip().strip("()[]").split(",")]
    parts = parts[:-1] if parts[-1] == "" else parts
    if not parts or len(parts) > most or not all(parts):
        raise ValueError(
            tr(
                "explore: {name:s} must be 1 to {most:d} values separated by commas; got {got:s}.",
                name=name,
                most=most,
                got=short(text),
            )
        )
    return parts


# controls shared by several views
ROWS = Control("rows", "int", 512, "The number of rows of the picture.", min=1, max=MOST_PIXELS)
COLUMNS = Control("columns", "int", 512, "The number of columns of the picture.", min=1, max=MOST_PIXELS)
SEED = Control("seed", "int", 0, "The seed for initialising learned parameters.", min=0, max=2**31 - 1)


def length(default: int, most: int = LONGEST, least: int = 1) -> Control:
    """Return the control for the number of positions."""
    return Control("length", "int", default, "The number of positions that are shown.", min=least, max=most, log=True)
