"""Memory for what blocks form, used again by the next: fresh pages cost more than the arithmetic on them."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from posenc.kernels import pages

ROWS, COLUMNS = 128, 1024  # of a share of a product, at most


class Scratch:
    """Tensors of given shapes in memory that is taken once for each purpose, and freed with this."""

    def __init__(self) -> None:
        self._memory: dict[tuple[str, torch.dtype], Tensor] = {}

    def take(self, purpose: str, shape: Sequence[int], like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """Return memory that may hold anything; what was taken for the same purpose before is written over."""
        kind, size = dtype or like.dtype, math.prod(shape)
        held = self._memory.get((purpose, kind))
        if held is None or held.numel() < size:
            held = self._memory[purpose, kind] = pages.enlarged(torch.empty(size, dtype=kind, device=like.device))
        return held[:size].view(*shape)

    def product(self, purpose: str, a: Tensor, b: Tensor) -> Tensor:
        """Return a @ b, both (n, rows, columns), in such memory."""
        out = self.take(purpose, (a.shape[0], a.shape[1], b.shape[2]), a)
        _multiply(a, b, out)
        return out

    def rounded(self, purpose: str, t: Tensor, dtype: torch.dtype) -> Tensor:
        """Return a tensor in a dtype, in such memory where that is another one."""
        return t if t.dtype == dtype else self.take(purpose, t.shape, t, dtype).copy_(t)


def _multiply(a: Tensor, b: Tensor, out: Tensor) -> None:
    """Write a @ b, (n, rows, columns) each, into `out`.

    A library copies much of both for each thread that helps with one product. Here threads have some rows each, or
    columns where these are more, as if they were products of their own: as fast, or faster, in a part of that memory.
    """
    (n, rows, _), columns = a.shape, b.shape[-1]
    if n == 1 and torch.get_num_threads() > 1 and a.device.type == "cpu":
        if columns > rows and columns % (n := _n_shares(columns, COLUMNS)) == 0:
            a, b, out = a.expand(n, -1, -1), _in_columns(b[0], n), _in_columns(out[0], n)
        elif rows % (n := _n_shares(rows, ROWS)) == 0:
            a, b, out = a[0].unflatten(0, (n, -1)), b.expand(n, -1, -1), out[0].unflatten(0, (n, -1))
    torch.bmm(a, b, out=out)


def _n_shares(size: int, at_most: int) -> int:
    """Return how many shares each thread has as many of."""
    threads = torch.get_num_threads()
    return threads * -(-size // (threads * at_most))


def _in_columns(t: Tensor, n: int) -> Tensor:
    found: Tensor = t.unflatten(1, (n, -1)).transpose(0, 1)
    return found
