"""What tables of angles have in common: how wide they are, how far apart, and at which speed pairs turn."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from posenc.verify.report import Cause
from posenc.verify.rotary.matrix import Array

CLOSE = 1e-4  # of a frequency or an angle, as a share or in radians


def width(spec: Mapping[str, Any]) -> int:
    """Return how many lanes a table of angles is for, twice its pairs.

    Raises:
        ValueError: The specification does not say.
    """
    lanes = spec.get("rotary_dim") or spec.get("head_dim") or spec.get("dim")
    if lanes is None and spec.get("section"):
        lanes = 2 * sum(spec["section"])
    if lanes is None:
        raise ValueError("verify: a table of angles needs head_dim in the spec. Give head_dim=64.")
    return int(lanes)


def speeds(family: str, measured: Array, freq: Array, base: float, n: int) -> Cause:
    """Tell pairs that follow the right axis at another speed."""
    i = np.arange(n)
    pair = int(np.abs(measured / freq - 1).argmax())
    told = f"pair {pair} turns by {measured[pair]:.6g} a step where {freq[pair]:.6g} is asked for"
    case = {"pair": pair, "frequency": float(measured[pair]), "wanted": float(freq[pair])}
    guesses = [
        (f"{family}.frequency.exponent_halved", "exponents count over twice as many pairs", base ** (-i / (2 * n))),
        (f"{family}.frequency.exponent_doubled", "exponents count over half of the pairs", base ** (-2 * i / n)),
        (f"{family}.frequency.inverted", "frequencies rise from pair to pair", base ** (i / n)),
    ]
    for other in (1e4, 1e6, 5e5, 100.0):
        says = f"the base is {other:,.10g} whatever is asked for"
        guesses.append((f"{family}.config.theta_not_read", says, other ** (-i / n)))
    for code, says, guess in guesses:
        if np.abs(measured / guess - 1).max() < 1e-3:
            return Cause(code, f"{says}; {told}", float(np.abs(measured / freq - 1).max()), case, "Form base^(-2i/d).")
    return Cause(
        f"{family}.frequency.mismatch", told, float(np.abs(measured / freq - 1).max()), case, "Form base^(-2i/d)."
    )


def apart(got: Array, want: Array) -> float:
    """Return the largest difference of angles, relative to the size of what is wanted; either direction counts."""
    scale = 0.01 + np.abs(want)  # slow pairs count as much as fast ones
    return float(min((np.abs(got - want) / scale).max(), (np.abs(got + want) / scale).max()))
