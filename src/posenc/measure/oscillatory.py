"""The mean of exp(i x theta(t)) over t, at a cost that hardly grows with the distance x.

Intervals in which the phase changes little are integrated by the Clenshaw-Curtis rule. In the others Levin's equation
p' + i x theta' p = 1 is solved at the same Chebyshev points: p varies as slowly as theta does, however fast the wave
is, and the integral is the difference of p exp(i x theta) at the ends. Intervals are halved until the halves agree with
the whole, so stationary points, roots and corners of theta get small intervals. Source: Levin 1982, Mathematics of
Computation 38; for the halving, Chen, Serkh and Bremer 2022 (2211.13400).
"""

from collections.abc import Callable

import numpy as np
from jaxtyping import Complex128, Float64

from posenc.measure.values import Array

_NODES = 16
_LITTLE = 6.0  # radians in an interval for which the rule is exact up to rounding
_ENOUGH = 1e-12  # allowed difference between an interval and its halves
_PIECES, _AT_ONCE = 8, 256  # initial intervals of [0, 1]; distances computed together
_MOST = 100_000  # intervals for each distance; a law that needs more is refused


def mean_wave(x: Float64[Array, " n"], theta: Callable[[Array], Array]) -> Complex128[Array, " n"]:
    """Return the integral over t in [0, 1] of exp(i · x · theta(t)) for each x.

    Theta maps an array of t to finite real numbers of the same shape.
    """
    if len(x) > _AT_ONCE:
        return np.concatenate([mean_wave(x[i : i + _AT_ONCE], theta) for i in range(0, len(x), _AT_ONCE)])
    total, done, ends = np.zeros(len(x), dtype=np.complex128), 0, np.linspace(0, 1, _PIECES + 1)
    which = np.repeat(np.arange(len(x)), _PIECES)
    left, right = np.tile(ends[:-1], len(x)), np.tile(ends[1:], len(x))
    whole, noise = _measure(x[which], left, right, theta)
    while len(which):
        middle = (left + right) / 2
        which, left, right = np.tile(which, 2), np.concatenate((left, middle)), np.concatenate((middle, right))
        value, finer_noise = _measure(x[which], left, right, theta)
        finer = value.reshape(2, -1).sum(0)
        # the error of an interval is at most twice its width
        good = (np.abs(finer - whole) <= np.maximum(_ENOUGH, noise)) | (2 * (right - left)[: len(finer)] < _ENOUGH)
        np.add.at(total, which[: len(finer)][good], finer[good])
        halves = np.tile(~good, 2)
        which, left, right, whole, noise = (part[halves] for part in (which, left, right, value, finer_noise))
        done += len(which)
        if done > _MOST * len(x):
            raise ValueError(
                f"law_limit: law must be smooth except at a few points; got one whose integral needs over {_MOST:,} "
                "intervals. Sum its frequencies instead: cosine_by_distance(law_frequencies(law, n_pairs), distance)."
            )
    return total


def _measure(x: Array, left: Array, right: Array, theta: Callable[[Array], Array]) -> tuple[Array, Array]:
    """Integrate over intervals, each by the method that suits its phase; also return the possible rounding error."""
    half = (right - left) / 2
    nodes = left[:, None] + half[:, None] * (1 + _POINTS)
    nodes[:, -1] = right  # exactly, so that the ends of neighbouring intervals cancel
    phase = x[:, None] * theta(nodes)
    change = phase.max(-1) - phase.min(-1)
    wave = np.exp(1j * phase)
    value, fast = (wave @ _WEIGHTS) * half, change > _LITTLE
    if fast.any():
        matrix = _DERIVATIVE + 1j * (phase[fast] @ _DERIVATIVE.T)[:, :, None] * np.eye(_NODES)
        try:
            p = np.linalg.solve(matrix, np.ones((1, _NODES, 1)))[..., 0]
        except np.linalg.LinAlgError:  # a stationary point; the halves will be solved
            p = np.full((len(matrix), _NODES), np.nan)
        ends = p * wave[fast]
        value[fast] = half[fast] * (ends[:, -1] - ends[:, 0])
    # rounded angles make slopes uncertain, which halving cannot improve
    return value, 64 * np.finfo(np.float64).eps * np.abs(phase).max(-1) * half / np.maximum(change, 1)


def _chebyshev() -> tuple[Array, Array, Array]:
    """Return the Chebyshev points from -1 to 1, the matrix from values to slopes there, and the rule's weights."""
    basis = np.polynomial.chebyshev
    points = -np.cos(np.pi * np.arange(_NODES) / (_NODES - 1))
    values = basis.chebvander(points, _NODES - 1)
    slopes = np.stack([basis.chebval(points, basis.chebder(one)) for one in np.eye(_NODES)], 1)
    k = np.arange(0, _NODES, 2)
    moments = np.zeros(_NODES)
    moments[::2] = 2 / (1 - k**2)  # integrals of T_k; zero for odd k
    return points, slopes @ np.linalg.inv(values), moments @ np.linalg.inv(values)


_POINTS, _DERIVATIVE, _WEIGHTS = _chebyshev()
