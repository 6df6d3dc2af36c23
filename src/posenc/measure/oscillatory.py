"""The mean of a wave whose phase is a distance times any function of t, at a cost that hardly grows with the distance.

Pieces of [0, 1] in which the phase changes by little are integrated by Lobatto's rule. In the others Levin's
equation p' + i x theta' p = 1 is solved at Chebyshev's points: p varies as slowly as theta does, however fast the wave
is, and the integral is p exp(i x theta) at the ends. Pieces are halved until halves agree with the whole, so that
points of rest, roots and corners of theta get small pieces. Source: Levin 1982, Mathematics of Computation 38; the
halving, Chen, Serkh and Bremer 2022 (2211.13400).
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Complex128, Float64

Array = np.ndarray
_NODES = 16  # of Levin's equation
_WEIGHTED = 24  # of the rule
_LITTLE = 24.0  # radians in a piece: the rule of 24 points is exact to rounding
_ENOUGH = 1e-12  # by which the whole and its halves may differ
_PIECES, _AT_ONCE = 8, 256  # of [0, 1] to begin with; distances together
_MOST = 100_000  # pieces for each distance, beyond which a law is called rough


class _Pieces(NamedTuple):
    """Pieces of [0, 1]: each of a distance, with its ends and the integral over it."""

    which: Array
    left: Array
    right: Array
    value: Array
    noise: Array

    def __getitem__(self, kept: Array) -> "_Pieces":  # type: ignore[override]
        return _Pieces(*(field[kept] for field in self._asdict().values()))


def mean_wave(x: Float64[Array, " n"], theta: Callable[[Array], Array]) -> Complex128[Array, " n"]:
    """Return the integral over t in [0, 1] of exp(i · x · theta(t)) for each x.

    Args:
        x: Distances.
        theta: From an array of t to finite real numbers of its shape.

    Raises:
        ValueError: Theta is so rough that the integral needs more than 100,000 pieces.
    """
    chunks = (x[i : i + _AT_ONCE] for i in range(0, len(x), _AT_ONCE))
    return np.concatenate([_integrate(chunk, theta) for chunk in chunks])


def _integrate(x: Array, theta: Callable[[Array], Array]) -> Array:
    total = np.zeros(len(x), dtype=np.complex128)
    ends = np.linspace(0, 1, _PIECES + 1)
    which = np.repeat(np.arange(len(x)), _PIECES)
    open_ = _measure(which, np.tile(ends[:-1], len(x)), np.tile(ends[1:], len(x)), x, theta)
    done = 0
    while len(open_.which):
        middle = (open_.left + open_.right) / 2
        halves = [
            _measure(open_.which, left, right, x, theta)
            for left, right in ((open_.left, middle), (middle, open_.right))
        ]
        finer = halves[0].value + halves[1].value
        # a piece cannot be wrong by more than twice its width
        good = (np.abs(finer - open_.value) <= np.maximum(_ENOUGH, open_.noise)) | (open_.right - open_.left < _ENOUGH)
        np.add.at(total, open_.which[good], finer[good])
        both = [half[~good] for half in halves]
        open_ = _Pieces(*(np.concatenate(pair) for pair in zip(*both, strict=True)))
        done += len(open_.which)
        if done > _MOST * len(x):
            raise ValueError(
                f"law_limit: law must be smooth but for a few points; got one whose integral needs over {_MOST:,} "
                "pieces. Sum its frequencies instead: cosine_by_distance(law_frequencies(law, n_pairs), distance)."
            )
    return total


def _measure(which: Array, left: Array, right: Array, x: Array, theta: Callable[[Array], Array]) -> _Pieces:
    """Integrate over pieces, each by the way that suits its phase."""
    half, distance = (right - left)[:, None] / 2, x[which][:, None]
    phase = distance * theta(_spread(left, right, _POINTS))
    change = phase.max(-1) - phase.min(-1)
    slow = change <= _LITTLE
    value = np.empty(len(which), dtype=np.complex128)
    if slow.any():
        wave = np.exp(1j * distance[slow] * theta(_spread(left[slow], right[slow], _RULE)))
        value[slow] = (wave @ _WEIGHT) * half[slow, 0]
    if not slow.all():
        value[~slow] = _levin(phase[~slow], half[~slow, 0])
    # rounded angles make slopes uncertain, by more than halving could mend
    noise = 64 * np.finfo(np.float64).eps * np.abs(phase).max(-1) * half[:, 0] / np.maximum(change, 1)
    return _Pieces(which, left, right, value, noise)


def _spread(left: Array, right: Array, points: Array) -> Array:
    """Return points of [-1, 1], ends included, as points of each piece."""
    nodes: Array = left[:, None] + (right - left)[:, None] / 2 * (1 + points)
    nodes[:, -1] = right  # to the bit, so that neighbours' ends cancel
    return nodes


def _levin(phase: Float64[Array, "n nodes"], half: Float64[Array, " n"]) -> Complex128[Array, " n"]:
    """Solve p' + i phase' p = half width on [-1, 1], and return p exp(i phase) at 1 less that at -1."""
    matrix = _DERIVATIVE + 0j * phase[:, None]
    diagonal = np.arange(_NODES)
    matrix[:, diagonal, diagonal] += 1j * (phase @ _DERIVATIVE.T)
    try:
        p = np.linalg.solve(matrix, np.ones((1, _NODES, 1)))[..., 0]
    except np.linalg.LinAlgError:  # a wave at rest somewhere: halves tell
        p = np.full_like(phase, np.nan, dtype=np.complex128)
    found: Array = half * (p[:, -1] * np.exp(1j * phase[:, -1]) - p[:, 0] * np.exp(1j * phase[:, 0]))
    return found


def _chebyshev() -> tuple[Array, Array]:
    """Return Chebyshev's points from -1 to 1 and the matrix that takes values there to slopes."""
    points = -np.cos(np.pi * np.arange(_NODES) / (_NODES - 1))
    weight = (-1.0) ** np.arange(_NODES)
    weight[[0, -1]] *= 0.5
    apart = points[:, None] - points + np.eye(_NODES)
    matrix = weight / weight[:, None] / apart
    matrix -= np.eye(_NODES)
    return points, matrix - np.diag(matrix.sum(-1))


def _lobatto() -> tuple[Array, Array]:
    """Return the points and weights of Lobatto's rule, which looks at the ends: a step beside one does not hide."""
    legendre = np.polynomial.Legendre.basis(_WEIGHTED - 1)
    inner: Array = np.asarray(legendre.deriv().roots(), dtype=np.float64)
    inner = inner - legendre.deriv()(inner) / legendre.deriv(2)(inner)
    points = np.array([-1.0, *inner, 1.0])
    return points, 2 / (_WEIGHTED * (_WEIGHTED - 1) * legendre(points) ** 2)


_POINTS, _DERIVATIVE = _chebyshev()
_RULE, _WEIGHT = _lobatto()
