"""The turn on a CPU with nothing but torch: blocks that fit a cache, in memory that is taken once.

In eager torch each operation is a pass over memory. Here a pass is over a block, which the next one finds in the
cache. Pairs side by side are complex numbers, and torch multiplies those in one pass.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product

import torch
from torch import Tensor

from posenc.kernels.job import Job, Pairing, Side, in_four, turning

BLOCK = 2**20  # numbers: more than a core's cache holds, but each call takes some microseconds
_COMPLEX = {torch.float32: torch.complex64, torch.float64: torch.complex128}


def refuses(jobs: Sequence[Job]) -> str | None:
    """Return why these tensors cannot be turned here, or None."""
    for job in jobs:
        if job.x.device.type != "cpu":
            return f"is for the CPU's caches; got tensors on {job.x.device}"
        if job.weight is not None:
            return "has no norms; got one"
    return None


def plan(jobs: Sequence[Job], pairing: Pairing, side: Side) -> Callable[[Sequence[Job]], None]:
    """Return what writes the turns of jobs like these; see `job.Job`."""
    return partial(_run, pairing=pairing, side=side)


def _run(jobs: Sequence[Job], pairing: Pairing, side: Side) -> None:
    known: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}
    with torch.no_grad():
        for job in jobs:
            tables = known.get((id(job.cos), id(job.sin)))
            if tables is None:  # q and k mostly share them
                tables = known[id(job.cos), id(job.sin)] = _prepare(job, pairing)
            lanes = turning(job.x.shape[-1], 2 * job.cos.shape[-1], side)
            for rest in (slice(0, lanes.start), slice(lanes.stop, None)):
                if job.out is not job.x and job.x[..., rest].numel():
                    job.out[..., rest] = job.x[..., rest]
            _run_one(job, lanes, tables, pairing)


def _prepare(job: Job, pairing: Pairing) -> tuple[Tensor, Tensor]:
    """Return the tables in the precision of the arithmetic; for pairs side by side complex numbers, twice."""
    wide = torch.promote_types(job.x.dtype, job.cos.dtype)
    cos, sin = in_four(job.cos).to(wide), in_four(job.sin).to(wide)
    if pairing == "half":
        return cos, sin
    factor = torch.complex(cos, sin)
    return factor, factor


def _run_one(job: Job, lanes: slice, tables: tuple[Tensor, Tensor], pairing: Pairing) -> None:
    heads = tables[0].shape[1]
    # (batch, table heads, heads that share one, seq, lanes)
    x, out = (t[..., lanes].unflatten(1, (heads, -1)) for t in (job.x, job.out))
    first, second = (t.unsqueeze(2).expand(*x.shape[:-1], t.shape[-1]) for t in tables)
    turn = _turn_complex if pairing == "interleaved" else _turn_halves
    wide = torch.promote_types(job.x.dtype, job.cos.dtype)
    room = [torch.empty(min(BLOCK, x.numel()), dtype=wide) for _ in "ab"]
    for where in blocks(x):
        turn(x[where], out[where], first[where], second[where], room)


def _turn_complex(x: Tensor, out: Tensor, factor: Tensor, _: Tensor, room: list[Tensor]) -> None:
    wide = room[0].dtype
    direct = x.dtype == wide and _pairs_fit(x) and _pairs_fit(out)
    source = x if direct else room[0][: x.numel()].view(x.shape).copy_(x)
    target = out if direct else source
    pairs, turned = (torch.view_as_complex(t.unflatten(-1, (-1, 2))) for t in (source, target))
    torch.mul(pairs, factor, out=turned)
    if not direct:
        out.copy_(source)


def _pairs_fit(t: Tensor) -> bool:
    """Whether pairs of lanes lie as complex numbers must."""
    return t.storage_offset() % 2 == 0 and all(s % 2 == 0 for s in t.stride()[:-1]) and t.data_ptr() % 8 == 0


def _turn_halves(x: Tensor, out: Tensor, cos: Tensor, sin: Tensor, room: list[Tensor]) -> None:
    n, direct = x.shape[-1] // 2, x.dtype == room[0].dtype
    source = x if direct else room[0][: x.numel()].view(x.shape).copy_(x)
    target = out if direct else source
    (a, b), (a_out, b_out) = source.split(n, -1), target.split(n, -1)
    kept = a
    if source.data_ptr() == target.data_ptr():  # a is gone when b is turned
        kept = room[1][: a.numel()].view(a.shape).copy_(a)
    torch.mul(a, cos, out=a_out).addcmul_(b, sin, value=-1)
    torch.mul(b, cos, out=b_out).addcmul_(kept, sin)
    if not direct:
        out.copy_(target)


def blocks(x: Tensor) -> Iterator[tuple[slice, ...]]:
    """Yield pieces of at most BLOCK numbers that lie together in memory, whole rows of lanes each."""
    outer = sorted(range(x.ndim - 1), key=x.stride, reverse=True)
    sizes, room = {}, max(1, BLOCK // x.shape[-1])
    for dim in reversed(outer):
        sizes[dim] = max(1, min(x.shape[dim], room))
        room //= sizes[dim]
    for starts in product(*(range(0, x.shape[dim], sizes[dim]) for dim in outer)):
        where = [slice(None)] * x.ndim
        for dim, start in zip(outer, starts, strict=True):
            where[dim] = slice(start, start + sizes[dim])
        yield tuple(where)
