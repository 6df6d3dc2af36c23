"""Frequencies behind angles that were rounded to half precision: each rounded angle says between which they lie.

Such angles are not proportional to the position, so that no straight line tells their frequency. But a half type has
few numbers, and each of them is the rounding of a short range alone: divided by the position, the ranges of many
positions overlap in a frequency that is far sharper than the type itself.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch

from posenc.verify.identity.lines import Fit
from posenc.verify.identity.matrix import Array
from posenc.verify.identity.reading import Reader

NEAR = 257  # positions below are whole in all types, however they are rounded
FINE = 2e-6  # of an angle that was read from cosines and sines in float32
TYPES = (torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Rounded:
    """Frequencies whose products with positions were rounded.

    Args:
        dtype: To what products are rounded.
        low: Signed radians a position, at least, of each pair.
        high: And at most.
    """

    dtype: torch.dtype
    low: Array
    high: Array

    @property
    def freq(self) -> Array:
        """The frequencies in the middle."""
        return (self.low + self.high) / 2

    @property
    def name(self) -> str:
        """The name of the type."""
        return str(self.dtype)[6:]

    @property
    def spread(self) -> Array:
        """How far the right ones may be from the middle."""
        return (self.high - self.low) / 2 + 2.0**-23 * np.abs(self.freq)

    def roundest(self, fit: Fit, freq: Array) -> Fit:
        """Return a plain rule with the roundest base that gives frequencies in the ranges; others as they are.

        Args:
            fit: The rule that was found.
            freq: What it was found for: frequencies that may be turned round.
        """
        if fit.base is None or fit.kind not in ("none", "linear") or not np.abs(fit.inv_freq).all():
            return fit
        sign = np.sign(self.freq) * np.sign(freq)
        power = np.log(fit.inv_freq / fit.inv_freq[0]) / np.log(fit.base)
        for digits in range(1, 9):
            base = float(f"{fit.base:.{digits}g}")
            inv_freq = fit.inv_freq[0] * base**power
            if base > 1 and self.holds(sign * inv_freq):
                return replace(fit, base=base, inv_freq=inv_freq)
        return fit

    def holds(self, freq: Array) -> bool:
        """Whether frequencies may be these, to the rounding of float32."""
        spare = 2.0**-23 * np.abs(freq)
        return bool(((freq >= self.low - spare) & (freq <= self.high + spare)).all())


def behind(read: Reader) -> tuple[Rounded, Rounded] | None:
    """Return frequencies of queries and keys whose products are rounded; None if that is not what happens."""
    sides = read.at(torch.arange(min(NEAR, read.top)))
    for dtype in TYPES:
        found = []
        for side in sides:
            size = np.abs(side.first)
            if not size.all() or np.ptp(size) > 1e-3 * size.max():
                return None
            ranges = [_range(np.angle(z), dtype) for z in (side.first / side.first[0]).T]
            if all(r is not None for r in ranges):
                low, high = np.array(ranges, dtype=float).T
                found.append(Rounded(dtype, low, high))
        if len(found) == 2:
            return found[0], found[1]
    return None


def _range(angles: Array, dtype: torch.dtype) -> tuple[float, float] | None:
    """Return between which a frequency lies, by its rounded angles at 0, 1, 2, ..; None if none gives them."""
    low, high = _preimage(float(angles[1]), dtype) or (1.0, -1.0)
    for p in range(2, len(angles)):
        if low > high or (high - low) * p > np.pi:
            break
        turns = round(((low + high) / 2 * p - angles[p]) / (2 * np.pi))
        if (found := _preimage(float(angles[p]) + 2 * np.pi * turns, dtype)) is None:
            return None
        low, high = max(low, found[0] / p), min(high, found[1] / p)
    return (low, high) if low <= high else None


def _preimage(value: float, dtype: torch.dtype) -> tuple[float, float] | None:
    """Return the numbers that are rounded to a measured one; None if it is none of the type's."""
    near = torch.tensor(value, dtype=torch.float64).to(dtype)
    exact = float(near)
    if abs(exact - value) > FINE + 2.0**-22 * abs(value):
        return None
    below, above = (float(torch.nextafter(near, torch.tensor(end, dtype=dtype))) for end in (-np.inf, np.inf))
    spare = 2.0**-22 * abs(exact)  # a product in float32 was rounded before
    return (exact + below) / 2 - spare, (exact + above) / 2 + spare
