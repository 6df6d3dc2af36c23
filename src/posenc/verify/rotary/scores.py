"""What scores see of a rotation: R_q(m)^T R_k(n), held against the one that is asked for."""

from dataclasses import dataclass

import numpy as np

from posenc.verify.rotary.expected import Expected
from posenc.verify.rotary.matrix import Array, Matrices

EPS = 2.0**-24  # of float32
ROUNDING = 2e-5  # of products of a head's lanes in float32


def lanes(asked: Expected, layout: str) -> list[tuple[int, int]]:
    """Return the pairs of lanes that turn together in a layout."""
    n, first = asked.rotary_dim // 2, asked.first
    pairs = [(i, i + n) if layout == "half" else (2 * i, 2 * i + 1) for i in range(n)]
    return [(first + a, first + b) for a, b in pairs]


def rotation(asked: Expected, layout: str, angles: Array, gain: float = 1.0, head_dim: int | None = None) -> Array:
    """Return R for angles (positions, pairs): (positions, lanes, lanes)."""
    n = head_dim or asked.head_dim
    found = np.broadcast_to(np.eye(n), (len(angles), n, n)).copy()
    for (a, b), angle in zip(lanes(asked, layout), angles.T, strict=True):
        cos, sin = gain * np.cos(angle), gain * np.sin(angle)
        found[:, a, a], found[:, a, b], found[:, b, a], found[:, b, b] = cos, -sin, sin, cos
    return found


@dataclass(frozen=True)
class Verdict:
    """How far scores are from those asked for.

    Args:
        off: The largest difference of R_q(m)^T R_k(n), beyond what rounding explains; 0 if none is.
        at: Positions of query and key where it is.
        clockwise: Whether they agree once the second lane of each pair is mirrored on both sides.
        same: Whether R itself agrees, not scores alone.
    """

    off: float
    at: tuple[int, int]
    clockwise: bool
    same: bool


def compare(asked: Expected, layout: str, matrices: Matrices, seq_len: int) -> Verdict:
    """Hold measured matrices against the ones asked for, as scores see them."""
    pos = matrices.pos.double().numpy()
    freq = asked.inv_freq(seq_len)
    right = rotation(asked, layout, np.outer(pos, freq), asked.gain(seq_len))
    mirror = np.ones(asked.head_dim)
    mirror[[b for _, b in lanes(asked, layout)]] = -1.0
    beyond, where = _beyond(matrices, right, right, pos, freq)
    clockwise = False
    if beyond > 0:
        turned = mirror[:, None] * right * mirror
        other, _ = _beyond(matrices, turned, turned, pos, freq)
        clockwise = other == 0
    slack = ROUNDING + 8 * EPS * pos[:, None, None] * freq.max(initial=0.0)
    same = all(bool((np.abs(side - right) <= slack).all()) for side in (matrices.q, matrices.k))
    return Verdict(0.0 if clockwise else beyond, where, clockwise, same)


def _beyond(found: Matrices, q: Array, k: Array, pos: Array, freq: Array) -> tuple[float, tuple[int, int]]:
    got, want = _products(found.q, found.k), _products(q, k)
    off = np.abs(got - want).max((1, 3))
    slack = ROUNDING + 8 * EPS * (pos[:, None] + pos) * freq.max(initial=0.0)
    bad = off > slack
    if not bad.any():
        return 0.0, (0, 0)
    total = np.where(bad, pos[:, None] + pos, np.inf)
    i, j = np.unravel_index(int(total.argmin()), total.shape)
    return float(off.max()), (int(pos[i]), int(pos[j]))


def _products(q: Array, k: Array) -> Array:
    """Return R_q(m)^T R_k(n), (m, lanes, n, lanes), as one product of matrices, which is many times faster."""
    width = q.shape[1]
    found: Array = q.transpose(0, 2, 1).reshape(-1, width) @ k.transpose(1, 0, 2).reshape(width, -1)
    return found.reshape(len(q), width, len(k), width)
