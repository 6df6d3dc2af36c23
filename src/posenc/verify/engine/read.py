"""Measure parameters from answers: the inverse problem, for unknown faults and for `identify`."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from posenc.verify.engine.records import Array

BASES = (10_000.0, 500_000.0, 1_000_000.0, 100.0, 1_000.0, 100_000.0, 5_000_000.0, 160_000.0)  # of public models


def base_of(inv_freq: Array, width: int, tolerance: float = 1e-3) -> float | None:
    """Return the base of frequencies base^(-2i/width); None if they do not form such a series.

    Args:
        inv_freq: Radians per position of pair i, the first one first.
        width: The number of dimensions in the exponents.
        tolerance: The largest relative error of a frequency.

    >>> round(base_of(500_000.0 ** (-np.arange(4) / 4), 8))
    500000
    """
    if len(inv_freq) < 2 or not (inv_freq > 0).all():
        return None
    exponents = 2.0 * np.arange(len(inv_freq)) / width
    log_base = -float(np.log(inv_freq[1:]) @ exponents[1:] / (exponents @ exponents))
    if not 0 < log_base < 50:
        return None
    fitted = np.exp(-log_base * exponents)
    return math.exp(log_base) if (np.abs(inv_freq / fitted - 1) <= tolerance).all() else None


def known(value: float, tolerance: float = 1e-3) -> float:
    """Return the base of a public model close to a fitted one, or the fitted one if there is none.

    >>> known(9999.7)
    10000.0
    """
    near = [base for base in BASES if abs(value / base - 1) <= tolerance]
    return near[0] if near else value


@dataclass(frozen=True)
class Structure:
    """Which dimensions rotate together.

    Args:
        pairs: (first, second) of each pair, in the order of the first one.
        still: Dimensions that are not changed.
        tangled: Dimensions that mix with more than one other, or in one direction only.
    """

    pairs: tuple[tuple[int, int], ...]
    still: tuple[int, ...]
    tangled: tuple[int, ...]

    @property
    def width(self) -> int:
        """How many dimensions rotate."""
        return 2 * len(self.pairs)

    def layout(self) -> tuple[str, int, int] | None:
        """Return the pairing's name, its width and its first dimension; None if it is neither of the two pairings."""
        if not self.pairs:
            return None
        first, width = self.pairs[0][0], self.width
        for name, stride, step in (("half", width // 2, 1), ("interleaved", 1, 2)):
            if self.pairs == tuple((first + i * step, first + i * step + stride) for i in range(width // 2)):
                return name, width, first
        return None

    def words(self) -> str:
        """Return which dimensions rotate together, in words."""
        if (found := self.layout()) is not None:
            name, width, first = found
            begin = "first" if first == 0 else f"dimensions from {first} on,"
            return f"the {begin} {width} dimensions, paired {name} ({self.pairs[0][0]} with {self.pairs[0][1]})"
        listed = ", ".join(f"{a} with {b}" for a, b in self.pairs[:3])
        return f"{self.width} dimensions, {listed}, ..." if self.pairs else "no dimension"


def structure(matrices: Array, faint: float = 1e-5) -> Structure:
    """Return which dimensions rotate together at any position, since slow pairs show only at far ones.

    Args:
        matrices: The map of a vector at each position, (positions, out, in).
        faint: Smaller elements are ignored.
    """
    strength = np.abs(matrices).max(0)
    np.fill_diagonal(strength, 0.0)
    n, pairs, still, tangled = len(strength), [], [], []
    partners = [set(np.flatnonzero((strength[i] > faint) | (strength[:, i] > faint)).tolist()) for i in range(n)]
    for i in range(n):
        if not partners[i]:
            still.append(i)
        elif len(partners[i]) > 1 or any(partners[j] != {i} for j in partners[i]):
            tangled.append(i)
        elif (j := next(iter(partners[i]))) > i:
            pairs.append((i, j))
    return Structure(tuple(pairs), tuple(still), tuple(tangled))


def phasors(matrices: Array, pairs: Sequence[tuple[int, int]]) -> NDArray[np.complex128]:
    """Return gain * exp(i angle) of each pair, (positions, pairs), from the image of its first dimension."""
    a, b = np.array(pairs, dtype=int).reshape(-1, 2).T
    found = matrices[:, a, a].astype(np.complex128)
    found.imag = matrices[:, b, a]  # 1j * inf would be NaN in the real part
    return found


def speeds(pos: Array, z: NDArray[np.complex128]) -> tuple[Array, Array, float]:
    """Return frequencies, the angle at position 0, and how far angles are from a straight line, in radians.

    Each step doubles the position, so that whole rotations can be counted. A frequency is known only modulo 2 pi,
    and is returned between -pi and pi.

    Args:
        pos: Positions; 0, 1, 2, 4, ... are used.
        z: gain * exp(i angle), (positions, pairs).

    >>> pos = np.array([0.0, 1.0, 2.0, 4.0])
    >>> speeds(pos, np.exp(1j * np.outer(pos, [1.0, 0.5])))[0].round(6).tolist()
    [1.0, 0.5]
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        z = z / np.abs(z)
    moved = np.angle(z / z[0])
    number = {int(p): i for i, p in enumerate(pos)}
    freq, p = moved[number[1]], 2
    while p in number:
        whole = np.round((p * freq - moved[number[p]]) / (2 * np.pi))
        freq = (moved[number[p]] + 2 * np.pi * whole) / p
        p *= 2
    off = np.angle(z / z[0] * np.exp(-1j * np.outer(pos, freq)))
    return freq, np.angle(z[0]), float(np.abs(off).max(initial=0.0))


def free_of(q: Array, k: Array, *, only_rotations: bool = False) -> Array | None:
    """Return the part of the maps of queries and keys at position 0 that does not change scores; None if there is none.

    With q = A s and k = A^-T s for a symmetric s, scores are those of s. A is a rotation (or another order of
    dimensions) times what multiplies queries and divides keys.

    q: The map of queries at position 0, (out, in).
        k: The map of keys.
        k: What is done to keys.
        only_rotations: Leave out a scale that multiplies queries and divides keys.
    """
    try:
        ratio = q @ np.linalg.inv(k)
        if not np.isfinite(ratio).all() or np.abs(ratio - ratio.T).max() > 1e-3 * np.abs(ratio).max():
            return None
        values, vectors = np.linalg.eigh((ratio + ratio.T) / 2)
        if values.min() <= 1e-12:
            return None
        stretch = (vectors * np.sqrt(values)) @ vectors.T
        left, _, right = np.linalg.svd(np.linalg.inv(stretch) @ q)
    except np.linalg.LinAlgError:
        return None
    found: Array = left @ right if only_rotations else stretch @ left @ right
    return None if np.abs(found - np.eye(len(found))).max() < 1e-4 else found


def unrotated(still: NDArray[np.bool_]) -> str:
    """Return how many dimensions rotate, and which pairs do not.

    >>> unrotated(np.arange(8) > 5)
    '12: pairs 6 to 7 are left unrotated'
    """
    lost = np.flatnonzero(still)
    which = f"pairs {lost[0]} to {lost[-1]}" if lost[-1] - lost[0] == len(lost) - 1 else f"{len(lost)} pairs"
    return f"{2 * int((~still).sum())}: {f'pair {lost[0]} is' if len(lost) == 1 else f'{which} are'} left unrotated"


def whole_ends(pos: Array, z: NDArray[np.complex128], freq: Array, slack: Array) -> Iterator[tuple[str, float]]:
    """Yield where positions may restart ("wraps") or stay constant ("stays"): right before, and wrong from there on.

    Args:
        pos: Positions, ascending.
        z: exp(i angle) of each pair, (positions, pairs).
        freq: The right frequencies.
        slack: The tolerance of z, (positions, pairs).
    """
    wrong = np.flatnonzero(~(np.abs(z - np.exp(1j * np.outer(pos, freq))) <= slack).all(1))
    if not len(wrong) or wrong[0] == 0:
        return
    first = wrong[0]
    ends = np.arange(pos[first - 1] + 1, pos[first] + 1)
    for name, at in (("wraps", pos[first] % ends), ("stays", ends - 1)):
        near = (np.abs(z[first] - np.exp(1j * np.outer(at, freq))) <= slack[first]).all(1)
        for end in ends[near]:
            yield name, float(end)


def rowless(t: Array, shown: NDArray[np.bool_]) -> Array:
    """Return an array minus the mean of the visible entries in each row, which a softmax ignores; 0 if none is."""
    kept = np.where(shown, t, 0.0)
    mean = kept.sum(-1, keepdims=True) / np.maximum(shown.sum(-1, keepdims=True), 1)
    return np.where(shown, kept - mean, 0.0)
