"""Ask a rotation without a specification: which width it takes, how far it goes, which dimensions rotate together."""

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from posenc.verify.engine.observe import fresh
from posenc.verify.engine.records import Array
from posenc.verify.families.rotation_calls import HEADS, REACH, Ask, feed
from posenc.verify.guard import SubjectError
from posenc.verify.report import Cause

Complex = NDArray[np.complex128]
SIZES: tuple[int, ...] = (64, 32, 128, 16, 8, 96, 80, 256, 72, 40, 48, 24, 112, 160, 192, 4, 512, *range(6, 257, 2))
FAR, DENSE = 2**17, 8192  # positions that are tried, and tokens of a text that is fed whole; halved until they work
ODD = (3, 5, 7, 11, 100, 101, 257, 259, 511, 1001, 2049, 4099, 9973, 20011, 40009, 60013, 77777, 99991, 120011)


@dataclass(frozen=True)
class Reader:
    """Asks a rotation whose dimensions rotate together in pairs, up to a position, in one way to call it."""

    subject: Any
    convention: str
    head_dim: int
    top: int = FAR
    pairs: tuple[tuple[int, int], ...] = ()
    whole: bool = False  # whether all tokens up to the last one that is asked for are fed
    alone: bool = False  # whether each token has a call of its own

    def feed(self, x: Tensor, pos: Array, dtype: str = "float32", heads: int = HEADS) -> Array:
        """Return what becomes of vectors at ascending positions, (2, vectors, positions, head_dim)."""
        ask = Ask(tuple(int(p) for p in pos), dtype=dtype, whole=self.whole, alone=self.alone, heads=heads)
        return feed(self.convention, lambda: fresh(self.subject), x, ask)

    def at(self, pos: Array, dtype: str = "float32") -> Complex:
        """Return gain * exp(i angle) of each pair, (2, positions, pairs), read from its first dimension."""
        a, b = np.array(self.pairs).T
        x = torch.zeros(1, self.head_dim)
        x[:, a] = 1.0
        found = self.feed(x, pos, dtype)[:, 0]
        return found[..., a] + 1j * found[..., b]


def steps(end: int, *, odd: bool = True) -> Array:
    """Return positions below an end: 0, 1, 2, 4, .., and where asked for odd ones and the last."""
    powers = {0, *(2**i for i in range(30) if 2**i < end)}
    return np.array(sorted(powers | {end - 1, *(p for p in ODD if p < end)} if odd else powers), dtype=float)


def reader(subject: Any, convention: str, head_dim: int | None) -> tuple[Reader, list[str]]:
    """Return a reader that knows how wide and how far a subject goes, and what cannot be read so far.

    Raises:
        SubjectError: No call can be used, or what goes in is not rotated alone, since sums do not stay sums.
    """
    unknown: list[str] = []
    read = Reader(subject, convention, head_dim or _width(subject, convention, unknown))
    x, y = torch.randn(2, 1, read.head_dim, generator=torch.Generator().manual_seed(7))
    of_x, of_y, of_sum = (read.feed(t, np.arange(6.0), heads=1) for t in (x, y, 20 * x - 30 * y))
    share = float(np.abs(of_sum - 20 * of_x + 30 * of_y).max() / np.abs(of_sum).max(initial=1e-30))
    if share > 1e-2:
        message = f"f(20 x - 30 y) is not 20 f(x) - 30 f(y), by up to {share:.2%} of the largest number"
        raise SubjectError(Cause("rope.not_linear", message, share))
    end = DENSE if REACH[convention] == "start" else FAR
    while end > 8:
        with suppress(SubjectError):
            if np.abs(read.feed(torch.ones(1, read.head_dim), steps(end))).max() < 1e3:  # xPos' keys grow
                break
        end //= 2
    return replace(read, top=end), unknown


def _width(subject: Any, convention: str, unknown: list[str]) -> int:
    """Return a usual head dimension that works."""
    errors, taken = [], []
    for size in SIZES:
        try:
            Reader(subject, convention, size).feed(torch.ones(1, size), np.arange(5.0), heads=1)
            taken.append(size)
        except SubjectError as error:
            errors.append(error)
        if taken and size != taken[0]:
            break
    if not taken:
        raise errors[0]
    if len(taken) > 1:
        unknown.append(f"head_dim, since others than {taken[0]} are taken as well; pass head_dim to read another")
    return taken[0]
