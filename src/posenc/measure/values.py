"""What measurements are asked for: distances, positions and counts, checked and in float64."""

import math
from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np
from jaxtyping import Float64
from torch import Tensor

from posenc.config.values import short

Array = np.ndarray
Numbers = float | int | np.generic | Array | Tensor | Sequence[Any]  # one, or some in a row


def reals(who: str, name: str, values: Numbers) -> Float64[Array, " n"]:
    """Return one number or a list of them as a float64 vector.

    Args:
        who: The function that was asked, for the message.
        name: Its argument.
        values: A number, or numbers in one dimension; at least one, and all finite.

    Raises:
        TypeError: They are no real numbers.
        ValueError: There are none, they have more than one dimension, or one is NaN or infinite.

    >>> reals("profile", "distance", 3)
    array([3.])
    """
    given: Any = values.detach().cpu() if isinstance(values, Tensor) else values
    try:
        found = np.asarray(given)
        real = found.dtype.kind in "iuf" or all(isinstance(v, Real) and not isinstance(v, bool) for v in found.flat)
        found = found.astype(np.float64) if real else np.asarray("")
    except (TypeError, ValueError, OverflowError, RuntimeError):
        found = np.asarray("")
    if found.dtype != np.float64:  # complex, text, true and false
        raise TypeError(f"{who}: {name} must be real numbers; got {short(values)}. Pass a number or a list of numbers.")
    if found.ndim > 1 or found.size == 0:
        raise ValueError(
            f"{who}: {name} must be a number or a list of at least one; got shape {found.shape}. Pass one dimension."
        )
    if not np.isfinite(found).all():
        raise ValueError(f"{who}: {name} must be finite; got {found[~np.isfinite(found)][0]}. Leave such entries out.")
    return np.atleast_1d(found)


def count(who: str, name: str, value: Any) -> int:
    """Return a whole number of at least 1.

    Raises:
        TypeError: It is no integer.
        ValueError: It is below 1.
    """
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{who}: {name} must be a whole number; got {name}={short(value)}.")
    if int(value) < 1:
        raise ValueError(f"{who}: {name} must be at least 1; got {name}={short(value)}.")
    return int(value)


def size(who: str, name: str, value: Any) -> float:
    """Return a finite number above zero.

    Raises:
        TypeError: It is no number.
        ValueError: It is zero, negative, infinite or NaN.
    """
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{who}: {name} must be a number; got {name}={short(value)}.")
    if not 0 < float(value) < math.inf:
        raise ValueError(f"{who}: {name} must be a finite number above zero; got {name}={short(value)}.")
    return float(value)
