"""Straight lines in the logarithms of frequencies, and round numbers."""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from posenc.verify.identity.matrix import Array

BASES = (10000.0, 500000.0, 1000000.0, 100000.0, 5000000.0, 100.0, 1000.0, 160000.0, 8000000.0, 50000.0, 150000.0)
ROUND = 2e-5  # how far a number may be from a round one that it is taken for
LEAST = 3  # pairs that make a straight line


@dataclass(frozen=True)
class Fit:
    """A rule and its numbers.

    Args:
        kind: As `Identification.scaling`.
        base: None if it cannot be told.
        inv_freq: What the rule gives, float64; what was measured where there is no rule.
        parameters: Its numbers.
        unknown: What else would give the same numbers.
        rounded: "bfloat16" or "float16" if the rule holds once frequencies are rounded so, else "".
    """

    kind: str
    base: float | None
    inv_freq: Array
    parameters: dict[str, Any] = field(default_factory=dict)
    unknown: tuple[str, ...] = ()
    rounded: str = ""


@dataclass(frozen=True)
class Line:
    """Log frequency = offset - slope * pair."""

    offset: float
    slope: float

    def at(self, i: Array) -> Array:
        """Return its frequencies."""
        found: Array = np.exp(self.offset - self.slope * i)
        return found

    def base(self, width: int) -> float:
        """Return the base whose exponents count over a width."""
        return math.exp(min(self.slope * width / 2, 700.0))


def slack(freq: Array, resolution: float | Array) -> Array:
    """Return what a frequency may be off: float32 on the way to it, and what was seen of it."""
    found: Array = 6e-6 * np.abs(freq) + resolution
    return found


def line_of(i: Array, freq: Array, off: Array, through_one: bool | None = None) -> Line | None:
    """Return the line through log frequencies; None if they lie beside it."""
    if (freq <= 0).any():
        return None
    weight, y = np.minimum(freq / off, 1e6), np.log(freq)
    one = abs(freq[0] - 1) < 1e-5 if through_one is None else through_one
    if one and i[0] == 0:
        line = Line(0.0, -float((weight**2 * i * y).sum() / (weight**2 * i * i).sum()))
    else:
        slope, offset = np.polyfit(i, y, 1, w=weight)
        line = Line(float(offset), -float(slope))
    return line if bool((np.abs(line.at(i) - freq) <= off).all()) else None


def snap(value: float, close: float = ROUND) -> float:
    """Return the roundest number that is as good as a measured one.

    >>> snap(9999.99), snap(82684.62)
    (10000.0, 82684.62)
    """
    for digits in range(1, 4):
        near = float(f"{value:.{digits - 1}e}")
        if abs(near / value - 1) < close:
            return near
    whole = float(round(value))
    return whole if abs(whole / value - 1) < min(close, 2e-6) and value >= 4 else value


def is_likely(base: float) -> bool:
    """Say whether somebody may have written a base down."""
    return is_round(base) and 50 <= base <= 1e9


def is_round(value: float) -> bool:
    """Say whether a number has at most three digits that count."""
    return value == float(f"{value:.2e}")
