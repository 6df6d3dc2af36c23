"""Check the types and ranges of values in a configuration, and print values in one short line."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

LONGEST = 10**12  # positions; more than any text has
_Error = TypeVar("_Error", bound=Exception)
Meanings = tuple[tuple[str, str], ...]  # alternatives for an entry, and the meaning of each


@dataclass(frozen=True)
class About:
    """The details of an error for programs, next to its message.

    Args:
        code: A short name of the kind of fault.
        key: The key in the file, "" for the whole file.
        value: The value of the key, None if it is missing.
        allowed: A description of the allowed values.
        meanings: Alternatives for the entry, and the meaning of each.
        fix: The suggested change, "" if the message has it.
    """

    code: str
    key: str
    value: Any
    allowed: str
    meanings: Meanings = ()
    fix: str = ""


def about(error: Exception) -> About:
    """Return the details of an error; if it has none, only the code "refused"."""
    found = getattr(error, "about", None)
    return found if isinstance(found, About) else About("refused", "", None, "")


def out_of_range(message: str, *details: Any, **more: Any) -> ValueError:
    """Return an error for a value that no model can have, or that contradicts another; `details` as in `About`."""
    return attach(ValueError(message), About("out_of_range", *details, **more))


def missing(message: str, *details: Any, **more: Any) -> ValueError:
    """Return an error for a missing key."""
    return attach(ValueError(message), About("missing", *details, **more))


def wrong_kind(message: str, *details: Any, **more: Any) -> TypeError:
    """Return an error for a value of a wrong type."""
    return attach(TypeError(message), About("wrong_kind", *details, **more))


def elsewhere(message: str, model_type: object) -> ValueError:
    """Return an error for a model type that is not supported here, though its file may be correct."""
    return attach(ValueError(message), About("elsewhere", "model_type", model_type, ""))


def attach(error: _Error, details: About) -> _Error:
    """Return an error with details attached."""
    error.about = details  # type: ignore[attr-defined]
    return error


def short(value: object) -> str:
    """Return a value as one short line for a message.

    >>> short("a" * 100)
    "'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa..."
    """
    if isinstance(value, int) and value.bit_length() > 256:
        return f"an integer of {value.bit_length()} bits"  # Python refuses to print very large integers
    if isinstance(value, Mapping | list | tuple):
        return f"{type(value).__name__} of {len(value)} entries"
    line = repr(value[:100] if isinstance(value, str) else value)
    line = " ".join(line.split())
    return line if len(line) <= 60 else line[:52] + "..."


def number(who: str, key: str, value: object, *, low: float, high: float, above: bool = False) -> float:
    """Return a number of a file as a float.

    Args:
        who: The name at the start of the message.
        key: The key in the file.
        value: Its value.
        low: The smallest value, or with `above` the bound that it must exceed.
        high: The largest value.
        above: Whether `low` itself is refused.

    Raises:
        TypeError: It is not a number.
        ValueError: It is out of range.
    """
    span = f"{'above' if above else 'at least'} {low:g} and at most {high:g}"
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise wrong_kind(
            f"{who}: {key} must be a number; got {short(value)}. Correct the file.", key, value, f"a number {span}"
        )
    if not (low < value if above else low <= value) or not value <= high:
        raise out_of_range(f"{who}: {key} must be {span}; got {short(value)}. Correct the file.", key, value, span)
    return float(value)


def integer(who: str, key: str, value: object, *, low: int = 1, high: int = LONGEST) -> int:
    """Return a whole number of a file.

    Raises:
        TypeError: It is not an integer; True and 4096.0 are not.
        ValueError: It is out of range.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise wrong_kind(
            f"{who}: {key} must be an integer; got {short(value)}. Correct the file.",
            key,
            value,
            f"an integer from {low} to {high}",
        )
    if not low <= value <= high:
        raise out_of_range(
            f"{who}: {key} must be from {low} to {high}; got {short(value)}. Correct the file.",
            key,
            value,
            f"from {low} to {high}",
        )
    return value


def flag(who: str, key: str, value: object) -> bool:
    """Return a boolean of a file.

    Raises:
        TypeError: It is not a boolean.
    """
    if not isinstance(value, bool):
        raise wrong_kind(
            f"{who}: {key} must be true or false; got {short(value)}. Correct the file.", key, value, "true or false"
        )
    return value


def text(who: str, key: str, value: object) -> str:
    """Return a string of a file.

    Raises:
        TypeError: It is not a string.
    """
    if not isinstance(value, str):
        raise wrong_kind(
            f"{who}: {key} must be a string; got {short(value)}. Correct the file.", key, value, "a string"
        )
    return value


def mapping(who: str, key: str, value: object) -> dict[str, Any]:
    """Return an object of a file, which `read` has made a dictionary.

    Raises:
        TypeError: It is not an object.
    """
    if not isinstance(value, dict):
        raise wrong_kind(
            f"{who}: {key} must be an object; got {short(value)}. Correct the file.", key, value, "an object"
        )
    return value


def sequence(who: str, key: str, value: object, *, longest: int) -> list[Any]:
    """Return a list of a file.

    Raises:
        TypeError: It is not a list.
        ValueError: It is longer than `longest`.
    """
    if not isinstance(value, list):
        raise wrong_kind(
            f"{who}: {key} must be a list; got {short(value)}. Correct the file.",
            key,
            value,
            f"a list of at most {longest} entries",
        )
    if len(value) > longest:
        raise out_of_range(
            f"{who}: {key} must have at most {longest} entries; got {len(value)}. Correct the file.",
            key,
            value,
            f"at most {longest} entries",
        )
    return value


def finite(value: int | float) -> bool:
    """Return whether a number is neither NaN nor infinite, and an integer small enough to become a float."""
    return value.bit_length() <= 256 if isinstance(value, int) else math.isfinite(value)
