"""Known faults of Llama 3's scaling: the ramp between its bands, its parameters, and other rules in its place."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from posenc import frequencies
from posenc.definitions import frequencies as defined
from posenc.verify.rotary.expected import Expected
from posenc.verify.rotary.guess import Guess
from posenc.verify.rotary.matrix import Array


@dataclass(frozen=True)
class _Bands:
    """Llama 3's scaling as it is asked for."""

    plain: Array
    factor: float
    trained: float
    low: float
    high: float

    def spoilt(self, *, factor: float | None = None, trained: float | None = None) -> Array:
        """Return its frequencies by the definition, with other parameters if any are given."""
        return defined.llama3(
            self.plain,
            factor=factor or self.factor,
            low_freq_factor=self.low,
            high_freq_factor=self.high,
            original_max_len=int(trained or self.trained),
        )

    @property
    def turns(self) -> Array:
        """How often each pair turns in the trained length."""
        return self.trained / (2 * np.pi / self.plain)


def of_llama3(asked: Expected, factor: float, trained: float, told: dict[str, Any], seq_len: int) -> Iterator[Guess]:
    """Yield frequencies as faults of Llama 3's scaling would make them, the likeliest first."""
    bands = _Bands(asked.plain(), factor, trained, float(told["low_freq_factor"]), float(told["high_freq_factor"]))
    yield from _ramps(bands)
    yield from _parameters(bands, asked)
    yield from _other_rules(asked, factor, trained, seq_len)


def _ramps(bands: _Bands) -> Iterator[Guess]:
    """Yield other ramps between the right bands."""
    plain, factor, turns = bands.plain, bands.factor, bands.turns
    kept, divided = bands.trained / bands.high, bands.trained / bands.low
    t = np.clip((divided - 2 * np.pi / plain) / (divided - kept), 0, 1)
    says = "between the bands the ramp is linear in the wavelength; it should be linear in the frequency"
    yield Guess("rope.llama3.ramp_in_wavelength", says, (1 - t) * plain / factor + t * plain)
    blended = 1 / (t / plain + (1 - t) * factor / plain)
    yield Guess("rope.llama3.ramp_in_wavelength", f"{says}, and wavelengths are blended", blended)
    middle = (turns >= bands.low) & (turns <= bands.high)
    says = "between the bands pairs are kept; they should be blended"
    yield Guess("rope.llama3.ramp_missing", says, np.where(turns < bands.low, plain / factor, plain))
    says = "between the bands pairs are divided; they should be blended"
    yield Guess("rope.llama3.ramp_missing", says, np.where(turns <= bands.high, plain / factor, plain))
    smooth = np.clip((turns - bands.low) / (bands.high - bands.low), 0, 1)
    inverted = np.where(middle, smooth * plain / factor + (1 - smooth) * plain, bands.spoilt())
    yield Guess("rope.llama3.ramp_inverted", "between the bands the ramp runs the wrong way", inverted)
    says = "fast pairs are divided by the factor and slow ones kept, as if low_freq_factor and high_freq_factor stood "
    whole = smooth * plain / factor + (1 - smooth) * plain
    yield Guess("rope.llama3.ramp_inverted", f"{says}for each other", whole)
    twice = np.where(middle, (1 - smooth) * plain / factor**2 + smooth * plain / factor, bands.spoilt())
    yield Guess("rope.llama3.factor_twice", "between the bands what is blended was divided before", twice)


def _parameters(bands: _Bands, asked: Expected) -> Iterator[Guess]:
    """Yield the right rule with other parameters."""
    for other in (8.0, 32.0, 16.0, 4.0):
        if other != bands.factor:
            says = f"the factor is {other:g} whatever is asked for; it should be {bands.factor:g}"
            yield Guess("rope.llama3.factor_hardcoded", says, bands.spoilt(factor=other))
    says = "low_freq_factor and high_freq_factor stand for each other"
    swapped = np.where(bands.turns > bands.low, bands.plain, bands.plain / bands.factor)
    yield Guess("rope.llama3.bands_swapped", says, swapped)
    for length in dict.fromkeys((asked.max_positions, 8192, 131072, bands.trained * bands.factor)):
        if length and length != bands.trained:
            says = f"the bands are laid for a trained length of {length:,.0f}; it should be {bands.trained:,.0f}"
            yield Guess("rope.llama3.original_length_wrong", says, bands.spoilt(trained=float(length)))


def _other_rules(asked: Expected, factor: float, trained: float, seq_len: int) -> Iterator[Guess]:
    """Yield rules that stand in its place."""
    if factor <= 1:
        return
    for n in dict.fromkeys((seq_len, asked.max_positions or seq_len)):
        if n > trained:
            lengths = {"seq_len": int(n), "original_max_len": int(trained)}
            grown = frequencies.dynamic_base(asked.base, width=asked.rotary_dim, factor=factor, **lengths)
            says = "the base grows with the text, as in dynamic scaling"
            yield Guess("rope.llama3.as_dynamic", says, asked.plain(grown))
    stretched = frequencies.ntk_base(asked.base, width=asked.rotary_dim, factor=factor)
    yield Guess("rope.llama3.as_dynamic", "the base is stretched as NTK scaling does", asked.plain(stretched))
