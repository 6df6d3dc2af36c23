"""The rotation on a CPU in plain torch: in blocks that fit the cache, with buffers that are allocated once.

In eager torch each operation is a pass over memory. Here a pass is over a block, which is still in the cache for the
next one. Interleaved pairs are complex numbers, which torch multiplies in one pass.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from posenc.kernels.eager import Pairing, Side
from posenc.kernels.jobs import Job, rotated_part

BLOCK = 2**19  # numbers in a block: more than fit a core's cache, since each call costs some microseconds
RUN = 2**15  # the most numbers of one head in a block
SEQ = 3  # of (batch, table heads, heads that share one, seq, head dimensions)


def refuses(jobs: Sequence[Job]) -> str | None:
    """Return why these tensors cannot be rotated here, or None."""
    device = jobs[0].x.device
    return None if device.type == "cpu" else f"it runs only on a CPU; got tensors on {device}"


def run(jobs: Sequence[Job], pairing: Pairing, side: Side) -> None:
    """Write the rotations."""
    buffers = _Buffers()
    with torch.no_grad():
        for job in jobs:
            part = rotated_part(job, side)
            for rest in (slice(0, part.start), slice(part.stop, None)):
                if job.x.data_ptr() != job.out.data_ptr() and job.x[..., rest].numel():
                    job.out[..., rest] = job.x[..., rest]
            _run_one(job, part, pairing, buffers)


class _Buffers:
    """Buffers in the precision of the arithmetic, shared by all blocks of one layout."""

    def __init__(self) -> None:
        self._made: dict[tuple[object, ...], Tensor] = {}

    def like(self, x: Tensor, which: int, wide: torch.dtype) -> Tensor:
        """Return a dense tensor with the shape and the dimension order of x."""
        key = which, x.shape, x.stride(), wide
        if key not in self._made:
            self._made[key] = torch.empty_like(x, dtype=wide)
        return self._made[key]


def _run_one(job: Job, part: slice, pairing: Pairing, buffers: _Buffers) -> None:
    heads = job.cos.shape[1]
    x, out = (t[..., part].unflatten(1, (heads, -1)) for t in (job.x, job.out))
    half = pairing == "half"
    tables = torch.cat([job.cos, job.cos], -1) if half else torch.complex(job.cos, job.sin), job.sin
    rotate = _rotate_halves if half else _rotate_complex
    first, second = (t.unsqueeze(2).expand(*x.shape[:-1], t.shape[-1]) for t in tables)
    sizes = _sizes(x)
    for piece in zip(*(_pieces(t, sizes) for t in (x, out, first, second)), strict=True):
        rotate(buffers, *piece)


def _rotate_complex(buffers: _Buffers, x: Tensor, out: Tensor, factor: Tensor, sin: Tensor) -> None:
    direct = x.dtype == sin.dtype and _pairs_fit(x) and _pairs_fit(out)
    source = x if direct else buffers.like(x, 0, sin.dtype).copy_(x)
    target = out if direct else source
    pairs, rotated = (torch.view_as_complex(t.unflatten(-1, (-1, 2))) for t in (source, target))
    torch.mul(pairs, factor, out=rotated)
    if not direct:
        out.copy_(source)


def _pairs_fit(t: Tensor) -> bool:
    """Whether pairs have the memory layout of complex numbers."""
    return t.storage_offset() % 2 == 0 and all(s % 2 == 0 for s in t.stride()[:-1]) and t.data_ptr() % 8 == 0


def _rotate_halves(buffers: _Buffers, x: Tensor, out: Tensor, cos: Tensor, sin: Tensor) -> None:
    # copy and multiply whole rows, since torch is slow for short ones
    same = x.dtype == sin.dtype
    reads = same and x.data_ptr() != out.data_ptr()
    source = x if reads else buffers.like(x, 0, sin.dtype).copy_(x)
    target = out if same else buffers.like(x, 1, sin.dtype)
    (a, b), (a_out, b_out) = source.chunk(2, -1), target.chunk(2, -1)
    torch.mul(source, cos, out=target)
    a_out.addcmul_(b, sin, value=-1)
    b_out.addcmul_(a, sin)
    if not same:
        out.copy_(target)


def _sizes(x: Tensor) -> dict[int, int]:
    """Return the size of each dimension in a piece of at most BLOCK numbers, with whole rows of head dimensions.

    Pieces have many heads of few tokens rather than the reverse, since heads read the same rows of the tables.
    """
    room = max(1, BLOCK // x.shape[-1])
    tokens = max(1, min(x.shape[SEQ], RUN // x.shape[-1], room))
    sizes, left = {}, room // tokens
    innermost_first = sorted(range(x.ndim - 1), key=x.stride)
    for dim in (d for d in innermost_first if d != SEQ):
        sizes[dim] = max(1, min(x.shape[dim], left))
        left //= sizes[dim]
    sizes[SEQ] = tokens * max(1, left)
    return {dim: size for dim, size in sizes.items() if size < x.shape[dim]}


def _pieces(t: Tensor, sizes: dict[int, int]) -> list[Tensor]:
    found = [t]
    for dim, size in sizes.items():
        found = [piece for part in found for piece in part.split(size, dim)]
    return found
