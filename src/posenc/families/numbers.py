"""Numbers: constructors' numbers, checked, and tensors in a dtype that is precise enough for arithmetic."""

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn

from posenc.config.values import short

_SMALLEST, _LARGEST = 1e-30, 1e30  # sizes whose products with tokens stay within float32


def number(who: str, name: str, value: Any) -> float:
    """Return a constructor's number as a float; an integer too large for a float becomes infinite.

    Raises:
        TypeError: It is not a number; True and "8" are not.

    >>> number("RoPE", "base", 10000)
    10000.0
    """
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{who}: {name} must be a number; got {name}={short(value)}.")
    given: Any = value  # every Real is comparable
    try:
        return float(given)
    except OverflowError:
        return math.inf if given > 0 else -math.inf


def finite(who: str, name: str, value: Any) -> float:
    """Return a constructor's finite number as a float.

    Raises:
        TypeError: It is not a number.
        ValueError: It is infinite or NaN.
    """
    checked = number(who, name, value)
    if not math.isfinite(checked):
        raise ValueError(f"{who}: {name} must be finite; got {name}={short(value)}.")
    return checked


def size(who: str, name: str, value: Any) -> float:
    """Return a constructor's size, a finite number above zero, as a float.

    Raises:
        TypeError: It is not a number.
        ValueError: It is zero, negative, infinite or NaN, or so small or large that float32 loses its products.
    """
    checked = number(who, name, value)
    if not 0 < checked < math.inf:
        raise ValueError(f"{who}: {name} must be a finite number above zero; got {name}={short(value)}.")
    if not _SMALLEST <= checked <= _LARGEST:
        raise ValueError(
            f"{who}: {name} must be from {_SMALLEST:g} to {_LARGEST:g}, because float32 loses products with other "
            f"sizes; got {name}={short(value)}."
        )
    return checked


def entries(who: str, name: str, values: Any) -> list[Any]:
    """Return the entries of a constructor's list, tensor or array.

    Raises:
        TypeError: It is none of these; a string is not a list, and a set has no order.
    """
    found = values
    if isinstance(values, Tensor):
        found = None if values.is_meta else values.detach().flatten()
    found = found.tolist() if hasattr(found, "tolist") else found
    if isinstance(found, (str, bytes)) or not isinstance(found, Sequence):
        raise TypeError(f"{who}: {name} must be a list of numbers; got {name}={short(values)}.")
    return list(found)


def numbers(who: str, name: str, values: Any) -> tuple[float, ...]:
    """Return the entries of a constructor's list of numbers as floats.

    Raises:
        TypeError: It is not a list, or an entry is not a number.

    >>> numbers("RoPE", "inv_freq", torch.tensor([1.0, 0.5]))
    (1.0, 0.5)
    """
    return tuple(number(who, f"{name}[{i}]", entry) for i, entry in enumerate(entries(who, name, values)))


def autocast_dtype(device: torch.device) -> torch.dtype | None:
    """Return the dtype that autocast casts to on a device, or None if it is off or unknown (as on meta)."""
    known = device.type in ("cpu", "cuda") or torch.amp.is_autocast_available(device.type)  # compilers trace the first
    if known and torch.is_autocast_enabled(device.type):
        return torch.get_autocast_dtype(device.type)
    return None


def no_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """Return a context in which autocast is off."""
    return nullcontext() if autocast_dtype(device) is None else torch.autocast(device.type, enabled=False)


def wide(t: Tensor) -> Tensor:
    """Return a learned tensor in float32 or wider, so that arithmetic with it is not in half precision."""
    return t if t.dtype == torch.float64 else t.float()


def floating(distance: Tensor) -> Tensor:
    """Return an exact distance as float32, or as float64 if it is one already."""
    return distance if distance.dtype == torch.float64 else distance.float()


def wide_parameter(*shape: int) -> nn.Parameter:
    """Return an empty parameter in float32 or wider, whatever the default dtype is."""
    dtype = torch.promote_types(torch.get_default_dtype(), torch.float32)
    return nn.Parameter(torch.empty(shape, dtype=dtype))
