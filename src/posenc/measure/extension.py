"""What each way of reading longer texts does to every pair of lanes."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64

from posenc import frequencies, inspection
from posenc.inspection import Fate
from posenc.measure.values import count, size

Array = np.ndarray
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
        gain: What multiplies the turned lanes of q and of k; scores get its square.
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
        ratio: Array = self.before / self.after
        return ratio

    @property
    def wavelength(self) -> Float64[Array, " n_pairs"]:
        """Positions per turn of each pair with the method."""
        found: Array = 2 * math.pi / self.after
        return found


@dataclass(frozen=True)
class _Task:
    width: int
    base: float
    trained: int
    target: int
    ramp: tuple[float, float]  # turns in training: below the first pairs are divided, above the second kept
    llama3_ramp: tuple[float, float]

    @property
    def factor(self) -> float:
        return self.target / self.trained

    @property
    def plain(self) -> Array:
        return self.on(self.base)

    def on(self, base: float) -> Array:
        return frequencies.geometric(self.width // 2, base=base, width=self.width)


def _none(task: _Task) -> tuple[Array, float, float]:
    return task.plain, task.base, 1.0


def _linear(task: _Task) -> tuple[Array, float, float]:
    return frequencies.linear(task.plain, factor=task.factor), task.base, 1.0


def _ntk(task: _Task) -> tuple[Array, float, float]:
    base = frequencies.ntk_base(task.base, width=task.width, factor=task.factor)
    return task.on(base), base, 1.0


def _dynamic(task: _Task) -> tuple[Array, float, float]:
    lengths = {"seq_len": task.target, "original_max_len": task.trained}
    base = frequencies.dynamic_base(task.base, width=task.width, factor=2.0, **lengths)
    return task.on(base), base, 1.0


def _by_parts(task: _Task) -> tuple[Array, float, float]:
    low, high = task.ramp
    how = {"factor": task.factor, "original_max_len": task.trained, "low_turns": low, "high_turns": high}
    return frequencies.by_parts(task.plain, **how), task.base, 1.0


def _yarn(task: _Task) -> tuple[Array, float, float]:
    how = {"width": task.width, "base": task.base, "factor": task.factor, "original_max_len": task.trained}
    how |= {"beta_slow": task.ramp[0], "beta_fast": task.ramp[1]}
    return frequencies.yarn(**how), task.base, frequencies.mscale(task.factor)  # type: ignore[arg-type]


def _llama3(task: _Task) -> tuple[Array, float, float]:
    turns = dict(zip(("low_freq_factor", "high_freq_factor"), task.llama3_ramp, strict=True))
    scaled = frequencies.llama3(task.plain, factor=task.factor, original_max_len=task.trained, **turns)
    return scaled, task.base, 1.0


def _larger_base(task: _Task) -> tuple[Array, float, float]:
    grown = math.log(task.target / (2 * math.pi)) / math.log(task.trained / (2 * math.pi))
    base = task.base**grown
    return task.on(base), base, 1.0


_METHODS: Mapping[str, tuple[Callable[[_Task], tuple[Array, float, float]], str]] = {
    "none": (_none, "nothing changes; slow pairs reach angles that training never saw"),
    "linear": (_linear, "position interpolation: all pairs are divided by the factor (Chen 2023)"),
    "ntk": (_ntk, "NTK-aware: a larger base, with which the slowest pair is divided by the factor (bloc97 2023)"),
    "dynamic_ntk": (
        _dynamic,
        "NTK-aware with a base for the current length, here the target, and a factor of 2 (emozilla 2023)",
    ),
    "by_parts": (
        _by_parts,
        "pairs of under beta_slow turns in training are divided, those over beta_fast kept (Peng 2023, 3.2)",
    ),
    "yarn": (_yarn, "the same with a ramp over the pair's number, and sharper scores (Peng 2023, the authors' code)"),
    "llama3": (
        _llama3,
        "pairs of under low_freq_factor turns in training are divided, those over high_freq_factor kept (Meta 2024)",
    ),
    "larger_base": (_larger_base, "a base with which as many pairs turn fully within the target as in training did"),
}
METHODS: Mapping[str, str] = {name: said for name, (_, said) in _METHODS.items()}


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

    Its parameters are those that its authors recommend, unless given. `METHODS` says what each one is.

    Args:
        head_dim: Lanes that turn; even.
        base: Of the trained frequencies.
        original_max_len: The trained length, at least 7 positions, more than the fastest pair's turn.
        target_len: The length to reach, at least the trained one.
        method: A key of `METHODS`.
        beta_slow: Of "by_parts" and "yarn": turns within the trained length below which pairs are divided.
        beta_fast: Turns above which they are kept.
        low_freq_factor: The same for "llama3".
        high_freq_factor: The same for "llama3".

    Raises:
        TypeError: A length is no whole number, or the base or a number of turns no number.
        ValueError: A number is out of range, or there is no such method.

    >>> found = extend(128, 5e5, 8192, 65536, "llama3")
    >>> [found.pairs.count(fate) for fate in ("kept", "blended", "divided")]
    [29, 6, 29]
    """
    width, trained, target = (
        count(_WHO, name, value)
        for name, value in (
            ("head_dim", head_dim),
            ("original_max_len", original_max_len),
            ("target_len", target_len),
        )
    )
    base = frequencies.check_base(base, _WHO)
    if width % 2:
        raise ValueError(f"{_WHO}: head_dim must be even, because lanes turn in pairs; got head_dim={width}.")
    if trained < 7:
        raise ValueError(f"{_WHO}: original_max_len must be at least 7, a turn of the fastest pair; got {trained}.")
    if target < trained:
        raise ValueError(
            f"{_WHO}: target_len must be at least original_max_len={trained}; got target_len={target}. "
            "Shorter texts need no method."
        )
    if method not in _METHODS:
        raise ValueError(f"{_WHO}: method must be one of {', '.join(METHODS)}; got {method!r}.")
    ramps = (
        _ramp("beta_slow", beta_slow, "beta_fast", beta_fast),
        _ramp("low_freq_factor", low_freq_factor, "high_freq_factor", high_freq_factor),
    )
    task = _Task(width, base, trained, target, *ramps)
    after, grown, gain = _METHODS[method][0](task)
    fates = inspection.fates(task.plain, after, task.factor)
    return Extension(method, task.factor, grown, task.plain, after, gain, fates)


def _ramp(low_name: str, low: float, high_name: str, high: float) -> tuple[float, float]:
    low, high = (size(_WHO, name, value) for name, value in ((low_name, low), (high_name, high)))
    if low >= high:
        raise ValueError(
            f"{_WHO}: {low_name} must be below {high_name}, both in turns; got {low_name}={low:g}, "
            f"{high_name}={high:g}."
        )
    return low, high
