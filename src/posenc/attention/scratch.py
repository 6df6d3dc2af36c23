"""Memory for what blocks form, used again by the next: fresh pages cost more than the arithmetic on them."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from posenc.kernels import pages

SHARE = 32  # rows of a thread, at least, where threads share one product


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

    def product(self, purpose: str, a: Tensor, b: Tensor, *, columns: int | None = None) -> Tensor:
        """Return a @ b, both (n, rows, columns), in such memory; of one product at most so many columns at once."""
        out = self.take(purpose, (a.shape[0], a.shape[1], b.shape[2]), a)
        _multiply(a, b, out, columns)
        return out

    def rounded(self, purpose: str, t: Tensor, dtype: torch.dtype) -> Tensor:
        """Return a tensor in a dtype, in such memory where that is another one."""
        return t if t.dtype == dtype else self.take(purpose, t.shape, t, dtype).copy_(t)


def _multiply(a: Tensor, b: Tensor, out: Tensor, columns: int | None) -> None:
    """Write a @ b, (n, rows, columns) each, into `out`.

    Threads share the rows of one product as if they were several: what follows finds them in the cache of the thread
    that goes on with them. But for each thread the library then copies all of `b`; some columns after the others take
    less memory, and more time.
    """
    n, rows, threads = len(a), a.shape[1], torch.get_num_threads()
    if n == 1 and columns is not None and b.shape[2] > columns:
        for some, into in zip(b[0].split(columns, 1), out[0].split(columns, 1), strict=True):
            torch.mm(a[0], some, out=into)
        return
    if n == 1 and rows % threads == 0 and rows // threads >= SHARE and a.device.type == "cpu":
        a, out, b = a[0].unflatten(0, (threads, -1)), out[0].unflatten(0, (threads, -1)), b.expand(threads, -1, -1)
    torch.bmm(a, b, out=out)
