"""Geometric frequencies, a user's own frequencies, and the check of a base."""

import math
import sys
from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any

import numpy as np

from posenc.config.values import short

Array = np.ndarray

# a user's own frequencies: numbers, or a function of the indices 0, 1, ..
Given = Array | Sequence[float] | Callable[[Any], Any]


def geometric(n: int, *, base: float, width: int) -> Array:
    """Return base^(-2k / width) for k = 0 .. n - 1, (n,) (Vaswani 2017, section 3.5; Su 2021, eq. 15).

    Args:
        n: How many frequencies.
        base: The 10,000 of the papers; the longest wavelength is about 2 pi base.
        width: The number of dimensions over which the exponent runs from 0 to 1.

    >>> geometric(2, base=10000.0, width=4)
    array([1.  , 0.01])
    """
    powers: Array = np.float64(base) ** (np.arange(n) * (-2 / width))
    return powers


def given(inv_freq: Given, n: int, who: str) -> tuple[float, ...]:
    """Check a user's frequencies and return them as Python floats.

    Floats are neither parameters nor buffers, so casts of the module cannot round them.

    Args:
        inv_freq: Numbers, or a function that maps the indices 0 .. n - 1, a float64 array, to numbers.
        n: The required number of frequencies.
        who: The encoding's name, for the message.

    Raises:
        ValueError: There are not `n` frequencies, or one of them is not finite.

    >>> given(lambda k: 2.0**-k, 3, "RoPE")
    (1.0, 0.5, 0.25)
    """
    if callable(inv_freq):
        inv_freq = inv_freq(np.arange(n, dtype=np.float64))
    values = tuple(np.asarray(inv_freq, dtype=np.float64).flatten().tolist())
    if len(values) != n:
        raise ValueError(f"{who}: inv_freq must hold {n} frequencies, one per pair; got {len(values)}.")
    if not all(map(math.isfinite, values)):
        raise ValueError(f"{who}: inv_freq must be finite; got {values}.")
    return values


def check_base(base: Any, who: str) -> float:
    """Return the base as a float.

    Raises:
        TypeError: The base is no number.
        ValueError: The base is not finite, or not greater than 1.
    """
    if isinstance(base, bool) or not isinstance(base, Real):
        raise TypeError(f"{who}: base must be a number; got base={short(base)}.")
    given: Any = base  # real numbers can be compared
    if not 1 < given <= sys.float_info.max:
        raise ValueError(
            f"{who}: base must be a finite number greater than 1, because frequencies fall from 1 "
            f"towards 1 / base; got base={short(base)}. The papers use 10000.0."
        )
    return float(base)
