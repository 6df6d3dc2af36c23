"""Geometric frequencies, frequencies of a user's own, and the check of a base."""

import math
import sys
from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor

from posenc.config.values import short

# frequencies of a user's own: numbers, or a function of the indices 0, 1, ..
Given = Tensor | Sequence[float] | Callable[[Tensor], Tensor]


def geometric(n: int, *, base: float, width: int) -> Float64[Tensor, " n"]:
    """Return base^(-2k / width) for k = 0 .. n - 1 (Vaswani 2017, section 3.5; Su 2021, eq. 15).

    Args:
        n: How many frequencies.
        base: The 10,000 of the papers; the longest wavelength is about 2 pi base.
        width: The number of lanes over which the exponent runs from 0 to 1.

    >>> geometric(2, base=10000.0, width=4)
    tensor([1.0000, 0.0100], dtype=torch.float64)
    """
    # on the CPU whatever the default device is: a model may be built on the meta device
    return base ** (torch.arange(n, dtype=torch.float64, device="cpu") * (-2 / width))


def given(inv_freq: Given, n: int, who: str) -> tuple[float, ...]:
    """Check frequencies that a user gives and return them as Python floats.

    Floats are neither parameter nor buffer, so that no cast of the module can spoil them.

    Args:
        inv_freq: Numbers, or a function that makes them of the indices 0 .. n - 1 in float64.
        n: How many there must be.
        who: The encoding's name, for the message.

    Raises:
        ValueError: Their number is not `n`, or one of them is not finite.

    >>> given(lambda k: 2.0**-k, 3, "RoPE")
    (1.0, 0.5, 0.25)
    """
    if callable(inv_freq):
        inv_freq = inv_freq(torch.arange(n, dtype=torch.float64, device="cpu"))
    if not isinstance(inv_freq, Tensor):
        inv_freq = torch.tensor(inv_freq, dtype=torch.float64, device="cpu")  # whatever the default device is
    values = tuple(inv_freq.double().flatten().tolist())
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
