"""Check the arguments of measurements: numbers, counts and sizes. An error names the function and the argument."""

from collections.abc import Callable, Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np
from jaxtyping import Float64
from torch import Tensor

from posenc.config.values import short

Array = np.ndarray
Numbers = float | int | np.generic | Array | Tensor | Sequence[Any]  # one number, or an array of them


def numbers(who: str, name: str, values: Any, form: str, fits: Callable[[tuple[int, ...]], bool]) -> Array:
    """Return finite real numbers as an array; integers stay integers.

    `form` describes the required shape for the error message, after "must"; `fits` returns whether a shape is allowed.
    Empty arrays never are.
    """
    given = values.detach().cpu() if isinstance(values, Tensor) else values
    try:
        found = np.asarray(given.double() if isinstance(given, Tensor) and given.is_floating_point() else given)
        if found.dtype.kind == "O" and all(isinstance(v, Real) and not isinstance(v, bool) for v in found.flat):
            found = found.astype(np.float64)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        found = np.asarray("")
    if found.dtype.kind not in "iuf":  # complex, text, true and false
        raise TypeError(f"{who}: {name} must be real numbers; got {short(values)}. Pass a number or a list of numbers.")
    if found.size == 0 or not fits(found.shape):
        raise ValueError(f"{who}: {name} must {form}; got shape {found.shape}.")
    if not np.isfinite(found).all():
        raise ValueError(f"{who}: {name} must be finite; got {found[~np.isfinite(found)][0]}. Leave such entries out.")
    return found


def reals(who: str, name: str, values: Numbers) -> Float64[Array, " n"]:
    """Return one number or a list of them as a float64 vector, checked as by `numbers`.

    >>> reals("profile", "distance", 3)
    array([3.])
    """
    found = numbers(who, name, values, "be a number or a list of at least one", lambda shape: len(shape) < 2)
    return np.atleast_1d(found).astype(np.float64)


def matrix(who: str, name: str, values: Any) -> Float64[Array, "rows columns"]:
    """Return a table as a float64 array, checked as by `numbers`; a float64 array is not copied."""
    found = numbers(who, name, values, "have two dimensions, rows and columns", lambda shape: len(shape) == 2)
    return found.astype(np.float64, copy=False)


def count(who: str, name: str, value: Any) -> int:
    """Return a whole number of at least 1, or raise a TypeError or a ValueError."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{who}: {name} must be a whole number; got {name}={short(value)}.")
    if int(value) < 1:
        raise ValueError(f"{who}: {name} must be at least 1; got {name}={short(value)}.")
    return int(value)
