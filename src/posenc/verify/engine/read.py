"""Read numbers off measurements: the inverse problem, for what no known fault explains and for `identify`."""

import math

import numpy as np

from posenc.verify.engine.records import Array

BASES = (10_000.0, 500_000.0, 1_000_000.0, 100.0, 1_000.0, 100_000.0, 5_000_000.0, 160_000.0)  # of public models


def base_of(inv_freq: Array, width: int, tolerance: float = 1e-3) -> float | None:
    """Return the base of frequencies base^(-2i/width); None if they are no such series.

    Args:
        inv_freq: Radians per position of pair i, the first one first.
        width: Over how many dimensions the exponents count.
        tolerance: The largest relative error of a frequency.

    >>> round(base_of(500_000.0 ** (-np.arange(4) / 4), 8))
    500000
    """
    if len(inv_freq) < 2 or not (inv_freq > 0).all():
        return None
    exponents = 2.0 * np.arange(len(inv_freq)) / width
    log_base = -float(np.log(inv_freq[1:]) @ exponents[1:] / (exponents @ exponents))
    if not 0 < log_base < 50:
        return None
    fitted = np.exp(-log_base * exponents)
    return math.exp(log_base) if (np.abs(inv_freq / fitted - 1) <= tolerance).all() else None


def known(value: float, tolerance: float = 1e-3) -> float:
    """Return the base of a public model that a fitted one stands for; the value where there is none.

    >>> known(9999.7)
    10000.0
    """
    near = [base for base in BASES if abs(value / base - 1) <= tolerance]
    return near[0] if near else value
