"""What each way of reading longer texts does to every pair of lanes."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float64

from posenc import frequencies, inspection
from posenc.families.numbers import size
from posenc.inspection import Fate
from posenc.measure.values import Array, count

_WHO = "extend"


@dataclass(frozen=True)
class Extension:
    """What one method does.

    Args:
        method: A name of `METHODS`.
        factor: The target length over the trained one.
        base: Of the frequencies after it; the given one where it changes no base.
        before: Radians per position of each pair as trained, (n_pairs,).
        after: The same with the method.
        gain: What multiplies the rotated lanes of q and of k; scores get its square.
        pairs: What becomes of each pair: "kept", "divided" by the factor, or "blended", which is anything else.
    """

    method: str
    factor: float
    base: float
    before: Float64[Array, " n_pairs"]
    after: Float64[Array, " n_pairs"]
    gain: float
    pairs: tuple[Fate, ...]

    @property
    def divided_by(self) -> Float64[Array, " n_pairs"]:
        """By what the frequency of each pair is divided."""
        return np.asarray(self.before / self.after)

    @property
    def wavelength(self) -> Float64[Array, " n_pairs"]:
        """Positions per turn of each pair with the method."""
        return np.asarray(2 * math.pi / self.after)


METHODS: Mapping[str, str] = {
    "none": "nothing changes; slow pairs reach angles that training never saw",
    "linear": "position interpolation: all pairs are divided by the factor (Chen 2023)",
    "ntk": "NTK-aware: a larger base, with which the slowest pair is divided by the factor (bloc97 2023)",
    "dynamic_ntk": "NTK-aware with a base for the current length, here the target, and a factor of 2 (emozilla 2023)",
    "by_parts": "pairs of under beta_slow turns in training are divided, those over beta_fast kept (Peng 2023, 3.2)",
    "yarn": "the same with a ramp over the pair's number, and sharper scores (Peng 2023, the authors' code)",
    "llama3": "pairs of under low_freq_factor turns in training are divided, over high_freq_factor kept (Meta 2024)",
    "larger_base": "a base with which as many pairs turn fully within the target as in training did",
}


def extend(
    head_dim: int,
    base: float,
    original_max_len: int,
    target_len: int,
    method: str,
    *,
    beta_slow: float = 1.0,
    beta_fast: float = 32.0,
    low_freq_factor: float = 1.0,
    high_freq_factor: float = 4.0,
) -> Extension:
    """Return what a method does to each pair, for texts of `target_len` positions.

    Its parameters are those that its authors recommend, unless given. `METHODS` describes each one.

    Args:
        head_dim: Lanes that are rotated; even.
        base: Of the trained frequencies.
        original_max_len: The trained length, at least 7 positions, more than the fastest pair's turn.
        target_len: The length to reach, at least the trained one.
        method: A key of `METHODS`.
        beta_slow: Of "by_parts" and "yarn": turns within the trained length below which pairs are divided.
        beta_fast: Turns above which they are kept.
        low_freq_factor: The same for "llama3".
        high_freq_factor: The same for "llama3".

    >>> found = extend(128, 5e5, 8192, 65536, "llama3")
    >>> [found.pairs.count(fate) for fate in ("kept", "blended", "divided")]
    [29, 6, 29]
    """
    lengths = {"head_dim": head_dim, "original_max_len": original_max_len, "target_len": target_len}
    width, trained, target = (count(_WHO, name, value) for name, value in lengths.items())
    base = frequencies.check_base(base, _WHO)
    if width % 2:
        raise ValueError(f"{_WHO}: head_dim must be even, because lanes are rotated in pairs; got head_dim={width}.")
    if trained < 7:
        raise ValueError(f"{_WHO}: original_max_len must be at least 7, a turn of the fastest pair; got {trained}.")
    if target < trained:
        raise ValueError(
            f"{_WHO}: target_len must be at least original_max_len={trained}; got target_len={target}. "
            "Shorter texts need no method."
        )
    if method not in METHODS:
        raise ValueError(f"{_WHO}: method must be one of {', '.join(METHODS)}; got {method!r}.")
    ramp = _ramp(beta_slow=beta_slow, beta_fast=beta_fast)
    llama3_ramp = _ramp(low_freq_factor=low_freq_factor, high_freq_factor=high_freq_factor)
    factor, before = target / trained, frequencies.geometric(width // 2, base=base, width=width)
    made = _change(method, before, base, trained, target, llama3_ramp if method == "llama3" else ramp)
    grown = base if isinstance(made, np.ndarray) else made
    after = made if isinstance(made, np.ndarray) else frequencies.geometric(width // 2, base=made, width=width)
    gain = frequencies.mscale(factor) if method == "yarn" else 1.0
    fates = inspection.fates(before, after, factor)
    return Extension(method, factor, grown, before, after, gain, fates)


def _change(
    method: str, before: Array, base: float, trained: int, target: int, ramp: tuple[float, float]
) -> float | Array:
    """Return the new base, or new frequencies with the old one."""
    low, high = ramp  # turns in training: below the first pairs are divided, above the second kept
    width, factor = 2 * len(before), target / trained
    stretch: dict[str, Any] = {"factor": factor, "original_max_len": trained}
    ways: dict[str, Callable[[], float | Array]] = {
        "none": lambda: base,
        "linear": lambda: frequencies.linear(before, factor=factor),
        "ntk": lambda: frequencies.ntk_base(base, width=width, factor=factor),
        "dynamic_ntk": lambda: frequencies.dynamic_base(
            base, width=width, factor=2.0, seq_len=target, original_max_len=trained
        ),
        "by_parts": lambda: frequencies.by_parts(before, **stretch, low_turns=low, high_turns=high),
        "yarn": lambda: frequencies.yarn(width=width, base=base, **stretch, beta_slow=low, beta_fast=high),
        "llama3": lambda: frequencies.llama3(before, **stretch, low_freq_factor=low, high_freq_factor=high),
        "larger_base": lambda: frequencies.larger_base(base, original_max_len=trained, target_len=target),
    }
    return ways[method]()


def _ramp(**turns: float) -> tuple[float, float]:
    (low_name, low), (high_name, high) = ((name, size(_WHO, name, value)) for name, value in turns.items())
    if low >= high:
        raise ValueError(f"{_WHO}: {low_name} must be below {high_name}; got {low_name}={low:g}, {high_name}={high:g}.")
    return low, high
