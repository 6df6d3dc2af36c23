"""The effect of each method of context extension on every pair of dimensions."""

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
    """The effect of one method.

    Args:
        method: A key of `METHODS`.
        factor: The target length over the trained one.
        base: The base after the method; the trained base if the method does not change it.
        before: Radians per position of each pair in training, (n_pairs,).
        after: Radians per position with the method, (n_pairs,).
        gain: The factor of the rotated dimensions of q and of k; scores get its square.
        pairs: The fate of each pair: "kept", "divided" by the factor, or "blended" for anything else.
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
        """The divisor of each pair's frequency."""
        return np.asarray(self.before / self.after)

    @property
    def wavelength(self) -> Float64[Array, " n_pairs"]:
        """The wavelength of each pair with the method, in positions."""
        return np.asarray(2 * math.pi / self.after)


METHODS: Mapping[str, str] = {
    "none": "no change; slow pairs reach angles that did not occur in training",
    "linear": "position interpolation: all pairs are divided by the factor (Chen 2023)",
    "ntk": "NTK-aware: a larger base that divides the slowest pair by the factor (bloc97 2023)",
    "dynamic_ntk": "NTK-aware with a base for the current length, here the target, and a factor of 2 (emozilla 2023)",
    "by_parts": "pairs with under beta_slow rotations in training are divided, over beta_fast kept (Peng 2023, 3.2)",
    "yarn": "the same with a ramp over the pair's index, and sharper scores (Peng 2023, the authors' code)",
    "llama3": "pairs with under low_freq_factor rotations are divided, over high_freq_factor kept (Meta 2024)",
    "larger_base": "a base with as many full-rotation pairs within the target length as in training",
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
    """Return the effect of a method on each pair, for texts of `target_len` positions.

    Parameters default to the values that the method's authors recommend. `METHODS` describes each method.

    Args:
        head_dim: The number of rotated dimensions; even.
        base: The base of the trained frequencies.
        original_max_len: The trained length; at least 7 positions, one rotation of the fastest pair.
        target_len: The target length; at least the trained one.
        method: A key of `METHODS`.
        beta_slow: For "by_parts" and "yarn": pairs with fewer rotations within the trained length are divided.
        beta_fast: For "by_parts" and "yarn": pairs with more rotations are kept.
        low_freq_factor: For "llama3": as beta_slow.
        high_freq_factor: For "llama3": as beta_fast.

    >>> found = extend(128, 5e5, 8192, 65536, "llama3")
    >>> [found.pairs.count(fate) for fate in ("kept", "blended", "divided")]
    [29, 6, 29]
    """
    lengths = {"head_dim": head_dim, "original_max_len": original_max_len, "target_len": target_len}
    width, trained, target = (count(_WHO, name, value) for name, value in lengths.items())
    base = frequencies.check_base(base, _WHO)
    if width % 2:
        raise ValueError(
            f"{_WHO}: head_dim must be even, because dimensions are rotated in pairs; got head_dim={width}."
        )
    if trained < 7:
        raise ValueError(
            f"{_WHO}: original_max_len must be at least 7, one rotation of the fastest pair; got {trained}."
        )
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
    """Return the new base, or new frequencies with the old base."""
    low, high = ramp  # rotations in training: pairs below `low` are divided, above `high` kept
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


def _ramp(**rotations: float) -> tuple[float, float]:
    (low_name, low), (high_name, high) = ((name, size(_WHO, name, value)) for name, value in rotations.items())
    if low >= high:
        raise ValueError(f"{_WHO}: {low_name} must be below {high_name}; got {low_name}={low:g}, {high_name}={high:g}.")
    return low, high
