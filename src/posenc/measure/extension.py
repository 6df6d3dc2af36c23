"""What each way of reading longer texts does to every pair of lanes."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64
from torch import Tensor

from posenc import frequencies, inspection
from posenc.inspection import Fate
from posenc.measure.values import count

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

    @property
    def factor(self) -> float:
        return self.target / self.trained

    @property
    def plain(self) -> Tensor:
        return self.on(self.base)

    def on(self, base: float) -> Tensor:
        return frequencies.geometric(self.width // 2, base=base, width=self.width)


def _none(task: _Task) -> tuple[Tensor, float, float]:
    return task.plain, task.base, 1.0


def _linear(task: _Task) -> tuple[Tensor, float, float]:
    return frequencies.linear(task.plain, factor=task.factor), task.base, 1.0


def _ntk(task: _Task) -> tuple[Tensor, float, float]:
    base = frequencies.ntk_base(task.base, width=task.width, factor=task.factor)
    return task.on(base), base, 1.0


def _dynamic(task: _Task) -> tuple[Tensor, float, float]:
    lengths = {"seq_len": task.target, "original_max_len": task.trained}
    base = frequencies.dynamic_base(task.base, width=task.width, factor=2.0, **lengths)
    return task.on(base), base, 1.0


def _by_parts(task: _Task) -> tuple[Tensor, float, float]:
    return frequencies.by_parts(task.plain, factor=task.factor, original_max_len=task.trained), task.base, 1.0


def _yarn(task: _Task) -> tuple[Tensor, float, float]:
    how = {"width": task.width, "base": task.base, "factor": task.factor, "original_max_len": task.trained}
    return frequencies.yarn(**how), task.base, frequencies.mscale(task.factor)  # type: ignore[arg-type]


def _llama3(task: _Task) -> tuple[Tensor, float, float]:
    turns = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    scaled = frequencies.llama3(task.plain, factor=task.factor, original_max_len=task.trained, **turns)
    return scaled, task.base, 1.0


def _larger_base(task: _Task) -> tuple[Tensor, float, float]:
    grown = math.log(task.target / (2 * math.pi)) / math.log(task.trained / (2 * math.pi))
    base = task.base**grown
    return task.on(base), base, 1.0


_METHODS: Mapping[str, tuple[Callable[[_Task], tuple[Tensor, float, float]], str]] = {
    "none": (_none, "nothing changes; slow pairs reach angles that training never saw"),
    "linear": (_linear, "position interpolation: all pairs are divided by the factor (Chen 2023)"),
    "ntk": (_ntk, "NTK-aware: a larger base, with which the slowest pair is divided by the factor (bloc97 2023)"),
    "dynamic_ntk": (
        _dynamic,
        "NTK-aware with a base for the current length, here the target, and a factor of 2 (emozilla 2023)",
    ),
    "by_parts": (_by_parts, "pairs of under 1 turn in training are divided, those over 32 kept (Peng 2023, 3.2)"),
    "yarn": (_yarn, "the same with a ramp over the pair's number, and sharper scores (Peng 2023, the authors' code)"),
    "llama3": (_llama3, "pairs of under 1 turn in training are divided, those over 4 kept (Meta 2024)"),
    "larger_base": (_larger_base, "a base with which as many pairs turn fully within the target as in training did"),
}
METHODS: Mapping[str, str] = {name: said for name, (_, said) in _METHODS.items()}


def extend(head_dim: int, base: float, original_max_len: int, target_len: int, method: str) -> Extension:
    """Return what a method does to each pair, for texts of `target_len` positions.

    Its parameters are those that its authors recommend. `METHODS` says what each one is.

    Args:
        head_dim: Lanes that turn; even.
        base: Of the trained frequencies.
        original_max_len: The trained length, at least 7 positions, more than the fastest pair's turn.
        target_len: The length to reach, at least the trained one.
        method: A key of `METHODS`.

    Raises:
        TypeError: A length is no whole number, or the base no number.
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
    task = _Task(width, base, trained, target)
    after, grown, gain = _METHODS[method][0](task)
    fates = inspection.fates(task.plain, after, task.factor)
    return Extension(method, task.factor, grown, task.plain.numpy(), after.numpy(), gain, fates)
