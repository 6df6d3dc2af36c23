"""Controls of views: what a view may be asked, and how an untrusted question is read."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from posenc.config.values import short

WHO = "explore"
LONGEST = 1_000_000  # positions
MOST_PIXELS = 4096  # rows or columns of a picture
WIDEST = 4096  # lanes
_MOST_CHARACTERS = 4096
_FLAGS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


@dataclass(frozen=True)
class Control:
    """One value that a view is asked for.

    Args:
        name: Its key in the query.
        kind: How it is written: a whole number, a number, true or false, one of `choices`, or text.
        default: What is taken where the query has none; None where that depends on the encoding.
        help: One sentence for a person.
        choices: The words that are allowed.
        min: The smallest number.
        max: The largest number, or the longest text.
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
        """Return plain JSON values, with the keys that every control of the page has."""
        return asdict(self) | {"choices": list(self.choices), "required": False}

    def read(self, text: str) -> Any:
        """Return the value that a text stands for.

        Raises:
            ValueError: It stands for none, or for one that is not allowed.
        """
        if len(text) > _MOST_CHARACTERS:
            raise ValueError(
                f"{WHO}: {self.name} must have at most {_MOST_CHARACTERS} characters; got {len(text)}. Shorten it."
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
                f"{WHO}: {self.name} must have at most {self.max:g} characters; got {len(text)}. Shorten it."
            )
        return text

    def _within(self, value: float) -> float:
        low, high = (-math.inf if self.min is None else self.min), (math.inf if self.max is None else self.max)
        if not low <= value <= high:
            raise ValueError(f"{WHO}: {self.name} must be from {low:,.10g} to {high:,.10g}; got {short(value)}.")
        return value


def read_query(view: str, controls: tuple[Control, ...], query: Mapping[str, str]) -> dict[str, Any]:
    """Return the value of each control of a view, its default where the query has none.

    Raises:
        ValueError: A value is not allowed, or the query has a key that the view does not know.

    >>> length = Control("length", "int", 64, "Positions.", min=1, max=100)
    >>> read_query("heat", (length,), {"length": "12"})
    {'length': 12}
    """
    known = {control.name: control for control in controls}
    for key in query:
        if key not in known:
            raise ValueError(
                f"{WHO}: the view {view} has no option {short(key)}; it takes "
                f"{', '.join(known) or 'none'}. Leave it out."
            )
    return {name: c.read(query[name]) if name in query else c.default for name, c in known.items()}


def read_integer(name: str, text: str) -> int:
    """Return a whole number.

    Raises:
        ValueError: The text is none, or has over 18 digits.
    """
    plain = text.strip()
    digits = plain[1:] if plain[:1] in "+-" else plain
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 18):
        raise ValueError(f"{WHO}: {name} must be a whole number; got {short(text)}.")
    return int(plain)


def read_number(name: str, text: str) -> float:
    """Return a finite number.

    Raises:
        ValueError: The text is none.
    """
    try:
        value = float(text) if text.isascii() and "_" not in text else math.nan
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(f"{WHO}: {name} must be a finite number; got {short(text)}.")
    return value


def read_flag(name: str, text: str) -> bool:
    """Return true or false.

    Raises:
        ValueError: The text is neither.
    """
    if text.lower() not in _FLAGS:
        raise ValueError(f"{WHO}: {name} must be true or false; got {short(text)}.")
    return _FLAGS[text.lower()]


def read_word(name: str, text: str, choices: tuple[str, ...]) -> str:
    """Return one of the words that are allowed.

    Raises:
        ValueError: The text is none of them.
    """
    if text not in choices:
        raise ValueError(f"{WHO}: {name} must be one of {', '.join(choices)}; got {short(text)}.")
    return text


def read_list(name: str, text: str, most: int = WIDEST) -> list[str]:
    """Return the parts between commas, with or without brackets around them.

    Raises:
        ValueError: There are none, or more than `most`.
    """
    parts = [part.strip().strip("'\"") for part in text.strip().strip("()[]").split(",")]
    parts = parts[:-1] if parts[-1] == "" else parts
    if not parts or len(parts) > most or not all(parts):
        raise ValueError(f"{WHO}: {name} must be 1 to {most} values with commas between; got {short(text)}.")
    return parts


# controls that several views have
ROWS = Control("rows", "int", 512, "Rows of the picture.", min=1, max=MOST_PIXELS)
COLUMNS = Control("columns", "int", 512, "Columns of the picture.", min=1, max=MOST_PIXELS)
SEED = Control("seed", "int", 0, "Of the draw of what is learned.", min=0, max=2**31 - 1)


def length(default: int, most: int = LONGEST, least: int = 1) -> Control:
    """Return the control of a number of positions."""
    return Control("length", "int", default, "How many positions are shown.", min=least, max=most, log=True)
