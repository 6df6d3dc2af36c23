"""Measure a rotation without a specification: its width, its reach, and which dimensions rotate together."""

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
FAR, DENSE = 2**17, 8192  # the farthest position and the longest whole text that are tried; halved until they work
ODD = (3, 5, 7, 11, 100, 101, 257, 259, 511, 1001, 2049, 4099, 9973, 20011, 40009, 60013, 77777, 99991, 120011)


@dataclass(frozen=True)
class Reader:
    """Measure a rotation whose dimensions rotate in pairs, up to a position, by one way to call it."""

    subject: Any
    convention: str
    head_dim: int
    top: int = FAR
    pairs: tuple[tuple[int, int], ...] = ()
    whole: bool = False  # whether calls contain all tokens up to the last position
    alone: bool = False  # whether each token has its own call

    def feed(self, x: Tensor, pos: Array, dtype: str = "float32", heads: int = HEADS) -> Array:
        """Return the images of vectors at ascending positions, (2, vectors, positions, head_dim)."""
        ask = Ask(tuple(int(p) for p in pos), dtype=dtype, whole=self.whole, alone=self.alone, heads=heads)
        return feed(self.convention, lambda: fresh(self.subject), x, ask)

    def at(self, pos: Array, dtype: str = "float32") -> Complex:
        """Return gain * exp(i angle) of each pair, (2, positions, pairs), from its first dimension."""
        a, b = np.array(self.pairs).T
        x = torch.zeros(1, self.head_dim)
        x[:, a] = 1.0
        found = self.feed(x, pos, dtype)[:, 0]
        return found[..., a] + 1j * found[..., b]


def steps(end: int, *, odd: bool = True) -> Array:
    """Return positions below an end: 0, 1, 2, 4, ..., and on request odd ones and the last one."""
    powers = {0, *(2**i for i in range(30) if 2**i < end)}
    return np.array(sorted(powers | {end - 1, *(p for p in ODD if p < end)} if odd else powers), dtype=float)


def reader(subject: Any, convention: str, head_dim: int | None) -> tuple[Reader, list[str]]:
    """Return a reader with the width and the reach of a subject, and what cannot be determined so far.

    Raises:
        SubjectError: No call can be used, or the function is not linear, so it does more than rotate.
    """
    unknown: list[str] = []
    read = Reader(subject, convention, head_dim or _width(subject, convention, unknown))
    x, y = torch.randn(2, 1, read.head_dim, generator=torch.Generator().manual_seed(7))
    of_x, of_y, of_sum = (read.feed(t, np.arange(6.0), heads=1) for t in (x, y, 20 * x - 30 * y))
    share = float(np.abs(of_sum - 20 * of_x + 30 * of_y).max() / np.abs(of_sum).max(initial=1e-30))
    if share > 1e-2:
        message = f"f(20 x - 30 y) is not 20 f(x) - 30 f(y): they differ by {share:.2%} of the largest number"
        raise SubjectError(Cause("rope.not_linear", message, share))
    end = DENSE if REACH[convention] == "start" else FAR
    while end > 8:
        with suppress(SubjectError):
            if np.abs(read.feed(torch.ones(1, read.head_dim), steps(end))).max() < 1e3:  # xPos's keys grow
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
        unknown.append(f"head_dim, since other values than {taken[0]} work as well; pass head_dim to use another")
    return taken[0]
