"""Known faults of YaRN: where its ramp begins and ends, for which length it is laid, and what is blended along it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from posenc.definitions import frequencies as defined
from posenc.verify.rotary.expected import Expected
from posenc.verify.rotary.guess import Guess
from posenc.verify.rotary.matrix import Array

_LENGTHS = (2048.0, 4096.0, 8192.0, 32768.0, 131072.0)


@dataclass(frozen=True)
class _Yarn:
    """YaRN as it is asked for."""

    asked: Expected
    factor: float
    trained: float
    fast: float
    slow: float
    rounds: bool

    def spoilt(self, **changed: Any) -> Array:
        """Return its frequencies by the definition with other parameters; NaN where it has none."""
        ramp = {"width": self.asked.rotary_dim, "base": self.asked.base, "factor": self.factor}
        ramp |= {"original_max_len": self.trained, "truncate": self.rounds}
        ramp |= {"beta_fast": self.fast, "beta_slow": self.slow}
        try:
            return defined.yarn(**(ramp | changed))
        except (ValueError, ZeroDivisionError, OverflowError):
            return np.full(self.asked.rotary_dim // 2, np.nan)


def of_yarn(asked: Expected, factor: float, trained: float, told: dict[str, Any]) -> Iterator[Guess]:
    """Yield frequencies as faults of YaRN would make them, the likeliest first."""
    fast, slow = told.get("beta_fast", 32.0), told.get("beta_slow", 1.0)
    yarn = _Yarn(asked, factor, trained, fast, slow, bool(told.get("truncate", True)))
    yield from _ends(yarn)
    yield from _lengths(yarn)
    yield from _shapes(yarn)


def _ends(yarn: _Yarn) -> Iterator[Guess]:
    """Yield ramps with other ends."""
    how = (
        "not rounded to whole pairs, and should be"
        if yarn.rounds
        else "rounded to whole pairs, and should not be (truncate: false)"
    )
    unlike = yarn.spoilt(truncate=not yarn.rounds)
    yield Guess("rope.yarn.range_rounded", f"the ends of the ramp are {how}", unlike)
    says = "beta_fast and beta_slow stand for each other"
    yield Guess("rope.yarn.betas_swapped", says, yarn.spoilt(beta_fast=yarn.slow, beta_slow=yarn.fast))
    says = "beta_fast = 32 and beta_slow = 1 whatever is asked for"
    yield Guess("rope.yarn.betas_not_read", says, yarn.spoilt(beta_fast=32.0, beta_slow=1.0))


def _lengths(yarn: _Yarn) -> Iterator[Guess]:
    """Yield ramps that are laid for another length."""
    for length in dict.fromkeys((yarn.asked.max_positions, yarn.trained * yarn.factor, *_LENGTHS)):
        if length and length != yarn.trained:
            says = f"the ramp is laid for a trained length of {length:,.0f}; it should be {yarn.trained:,.0f}"
            yield Guess("rope.yarn.original_length_wrong", says, yarn.spoilt(original_max_len=float(length)))


def _shapes(yarn: _Yarn) -> Iterator[Guess]:
    """Yield other ramps between the right ends, and other things blended along the right one."""
    width, base, factor, plain = yarn.asked.rotary_dim, yarn.asked.base, yarn.factor, yarn.asked.plain()
    length = int(yarn.trained)
    by_turns = defined.by_parts(
        plain, factor=factor, original_max_len=length, low_turns=yarn.slow, high_turns=yarn.fast
    )
    says = "the ramp is linear in turns, as in the paper's text, not in the pair's number"
    yield Guess("rope.yarn.ramp_in_turns", says, by_turns)
    low, high = defined.yarn_bounds(
        width=width, base=base, original_max_len=length, beta_fast=yarn.fast, beta_slow=yarn.slow, truncate=yarn.rounds
    )
    t = np.clip((np.arange(width // 2) - low) / max(high - low, 0.001), 0, 1)
    powered = (factor * base) ** (-2.0 * np.arange(width // 2) / width)
    says = "slow pairs turn by (factor * base)^(-2i/d) instead of base^(-2i/d) / factor"
    yield Guess("rope.yarn.factor_in_power", says, powered * t + plain * (1 - t))
    says = "fast pairs are divided by the factor and slow ones kept"
    yield Guess("rope.yarn.ramp_inverted", says, plain / factor * (1 - t) + plain * t)
    of_lanes = np.clip((2 * np.arange(width // 2) - low) / max(high - low, 0.001), 0, 1)
    says = "the ramp counts lanes where it should count pairs"
    yield Guess("rope.yarn.ramp_by_dimension", says, plain / factor * of_lanes + plain * (1 - of_lanes))
    harmonic = 1 / (t * factor / plain + (1 - t) / plain)
    says = "wavelengths are blended along the ramp instead of frequencies"
    yield Guess("rope.yarn.ramp_in_wavelength", says, harmonic)
