"""Values of a configuration: what was got in one short line, and checks of kind and range."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

LONGEST = 10**12  # positions; no text is longer
_Error = TypeVar("_Error", bound=Exception)
Meanings = tuple[tuple[str, str], ...]  # ways to write something, and what each would mean


@dataclass(frozen=True)
class About:
    """What a refusal is about, next to its message: what a program may want to know of it.

    Args:
        code: A short name of the kind of fault.
        key: The key of the file, "" where it is the whole file.
        value: What stands there, None where it is missing.
        allowed: What may stand there, in words.
        meanings: Ways to write it, and what each would mean.
        fix: What to do, "" where the message says it all.
    """

    code: str
    key: str
    value: Any
    allowed: str
    meanings: Meanings = ()
    fix: str = ""


def about(error: Exception) -> About:
    """Return what an error is about, as far as it says so."""
    found = getattr(error, "about", None)
    return found if isinstance(found, About) else About("refused", "", None, "")


def out_of_range(message: str, *said: Any, **more: Any) -> ValueError:
    """Return an error of a value that no model can mean, or that does not agree with another; `said` as in `About`."""
    return attach(ValueError(message), About("out_of_range", *said, **more))


def missing(message: str, *said: Any, **more: Any) -> ValueError:
    """Return an error of a key that must be there."""
    return attach(ValueError(message), About("missing", *said, **more))


def wrong_kind(message: str, *said: Any, **more: Any) -> TypeError:
    """Return an error of a value of a wrong kind."""
    return attach(TypeError(message), About("wrong_kind", *said, **more))


def elsewhere(message: str, model_type: object) -> ValueError:
    """Return an error of a type whose positions are not read here, though its file may be right."""
    return attach(ValueError(message), About("elsewhere", "model_type", model_type, ""))


def attach(error: _Error, said: About) -> _Error:
    """Return an error with what it is about."""
    error.about = said  # type: ignore[attr-defined]
    return error


def short(value: object) -> str:
    """Return a value as one short line for a message.

    >>> short("a" * 100)
    "'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa..."
    """
    if isinstance(value, int) and value.bit_length() > 256:
        return f"an integer of {value.bit_length()} bits"  # Python itself refuses to print the largest
    if isinstance(value, Mapping | list | tuple):
        return f"{type(value).__name__} of {len(value)} entries"
    line = repr(value[:100] if isinstance(value, str) else value)
    line = " ".join(line.split())
    return line if len(line) <= 60 else line[:52] + "..."


def number(who: str, key: str, value: object, *, low: float, high: float, above: bool = False) -> float:
    """Return a number of a file as a float.

    Args:
        who: What is being read, for the message.
        key: Where the number stands in the file.
        value: What stands there.
        low: The least value, or with `above` what it must exceed.
        high: The greatest value.
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
    """Return a true or false of a file.

    Raises:
        TypeError: It is something else.
    """
    if not isinstance(value, bool):
        raise wrong_kind(
            f"{who}: {key} must be true or false; got {short(value)}. Correct the file.", key, value, "true or false"
        )
    return value


def text(who: str, key: str, value: object) -> str:
    """Return a string of a file.

    Raises:
        TypeError: It is something else.
    """
    if not isinstance(value, str):
        raise wrong_kind(
            f"{who}: {key} must be a string; got {short(value)}. Correct the file.", key, value, "a string"
        )
    return value


def mapping(who: str, key: str, value: object) -> dict[str, Any]:
    """Return an object of a file; `read` has made dictionaries of all.

    Raises:
        TypeError: It is something else.
    """
    if not isinstance(value, dict):
        raise wrong_kind(
            f"{who}: {key} must be an object; got {short(value)}. Correct the file.", key, value, "an object"
        )
    return value


def sequence(who: str, key: str, value: object, *, longest: int) -> list[Any]:
    """Return a list of a file.

    Raises:
        TypeError: It is something else.
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
