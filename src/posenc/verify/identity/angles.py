"""Angles and gains of each pair of lanes, read at many positions, and the frequencies that explain them."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from posenc.verify.identity.matrix import HEADS, Array, at
from posenc.verify.identity.turner import Turner

Pairs = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Turns:
    """What one side does to its pairs: complex numbers gain * exp(i angle), (positions, pairs).

    Args:
        pos: (positions,).
        first: Read from the first lane of a pair: 1 + 0i goes in.
        second: Read from the second: i goes in; the same number where the block is a rotation.
        still: What lanes that do not turn are multiplied by, (positions, lanes).
    """

    pos: Array
    first: NDArray[np.complex128]
    second: NDArray[np.complex128]
    still: Array

    @property
    def unequal(self) -> float:
        """How far the blocks are from rotations: the largest difference of what both lanes say."""
        return float(np.abs(self.first - self.second).max(initial=0.0))


def probe(
    turner: Turner, head_dim: int, pairs: Pairs, pos: Tensor, dtype: torch.dtype = torch.float32
) -> tuple[Turns, Turns]:
    """Feed one vector a lane of each pair at given positions; return what happened to queries and to keys."""
    a, b = ([pair[side] for pair in pairs] for side in (0, 1))
    still = [lane for lane in range(head_dim) if lane not in {*a, *b}]
    x = torch.zeros(2, HEADS, head_dim, dtype=dtype)
    x[0][..., a] = 1.0
    x[1][..., b] = 1.0
    x[..., still] = 1.0
    where, found = pos.double().numpy(), []
    for side in at(turner, x, pos):
        t = side[:, 0]
        first, second = _complex(t[0][:, a], t[0][:, b]), _complex(t[1][:, b], -t[1][:, a])
        found.append(Turns(where, first, second, t[0][:, still]))
    return found[0], found[1]


def slopes(turns: Turns) -> tuple[Array, Array, float]:
    """Return frequencies, the angle at position 0, and how far angles are from a straight line, in radians.

    Positions must begin with 0, 1, 2, 4, ..: each step doubles the position, so that whole turns can be counted. A
    frequency is known modulo 2 pi alone, and given between -pi and pi.
    """
    z = turns.first / np.abs(turns.first)
    origin = z[0]
    moved = np.angle(z / origin)
    number = {int(p): i for i, p in enumerate(turns.pos)}
    freq = moved[number[1]]
    p = 2
    while p in number:
        whole = np.round((p * freq - moved[number[p]]) / (2 * np.pi))
        freq = (moved[number[p]] + 2 * np.pi * whole) / p
        p *= 2
    off = np.angle(z / origin * np.exp(-1j * np.outer(turns.pos, freq)))
    return freq, np.angle(origin), float(np.abs(off).max(initial=0.0))


def _complex(real: Array, imaginary: Array) -> NDArray[np.complex128]:
    found = real.astype(np.complex128)
    found.imag = imaginary  # 1j * inf would be NaN in the real part
    return found
