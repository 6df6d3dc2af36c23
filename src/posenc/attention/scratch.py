"""Memory for what blocks form, used again by the next: fresh pages cost more than the arithmetic on them."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from posenc.kernels import pages

SHARE = 32  # rows of a thread, at least, where threads share one product
COLUMNS, MANY = 512, 4096  # computed at once, of a product of fewer than many


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

    Threads share the rows of one product as if they were several: what follows finds them in the cache of the thread
    that goes on with them. But for each thread the library then copies all of `b`, which of few columns weighs more
    than is won: they are computed some after the others.
    """
    n, rows, threads = len(a), a.shape[1], torch.get_num_threads()
    if n > 1 or a.device.type != "cpu":
        torch.bmm(a, b, out=out)
    elif COLUMNS < b.shape[2] < MANY:
        for some, into in zip(b[0].split(COLUMNS, 1), out[0].split(COLUMNS, 1), strict=True):
            torch.mm(a[0], some, out=into)
    elif rows % threads == 0 and rows // threads >= SHARE:
        torch.bmm(a[0].unflatten(0, (threads, -1)), b.expand(threads, -1, -1), out=out[0].unflatten(0, (threads, -1)))
    else:
        torch.bmm(a, b, out=out)
