"""Geometric frequencies, frequencies of a user's own, and the check of a base."""

import math
import sys
from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any

import numpy as np

from posenc.config.values import short

Array = np.ndarray

# frequencies of a user's own: numbers, or a function of the indices 0, 1, ..
Given = Array | Sequence[float] | Callable[[Any], Any]


def geometric(n: int, *, base: float, width: int) -> Array:
    """Return base^(-2k / width) for k = 0 .. n - 1, (n,) (Vaswani 2017, section 3.5; Su 2021, eq. 15).

    Args:
        n: How many frequencies.
        base: The 10,000 of the papers; the longest wavelength is about 2 pi base.
        width: The number of lanes over which the exponent runs from 0 to 1.

    >>> geometric(2, base=10000.0, width=4)
    array([1.  , 0.01])
    """
    powers: Array = np.float64(base) ** (np.arange(n) * (-2 / width))
    return powers


def given(inv_freq: Given, n: int, who: str) -> tuple[float, ...]:
    """Check frequencies that a user gives and return them as Python floats.

    Floats are neither parameter nor buffer, so that no cast of the module can spoil them.

    Args:
        inv_freq: Numbers, or a function that makes them of the indices 0 .. n - 1, an array in float64.
        n: How many there must be.
        who: The encoding's name, for the message.

    Raises:
        ValueError: Their number is not `n`, or one of them is not finite.

    >>> given(lambda k: 2.0**-k, 3, "RoPE")
    (1.0, 0.5, 0.25)
    """
    if callable(inv_freq):
        inv_freq = inv_freq(np.arange(n, dtype=np.float64))
    values = tuple(np.asarray(inv_freq, dtype=np.float64).flatten().tolist())
    if len(values) != n:
        raise ValueError(f"{who}: inv_freq must hold {n} frequencies, one a pair; got {len(values)}.")
    if not all(map(math.isfinite, values)):
        raise ValueError(f"{who}: inv_freq must be finite; got {values}.")
    return values


def check_base(base: Any, who: str) -> float:
    """Return the base as a float.

    Raises:
        TypeError: It is no number.
        ValueError: It is not a finite number greater than 1.
    """
    if isinstance(base, bool) or not isinstance(base, Real):
        raise TypeError(f"{who}: base must be a number; got base={short(base)}.")
    given: Any = base  # comparable, as every real number
    if not 1 < given <= sys.float_info.max:
        raise ValueError(
            f"{who}: base must be a finite number greater than 1, because frequencies fall from 1 "
            f"towards 1 / base; got base={short(base)}. The papers use 10000.0."
        )
    return float(base)
