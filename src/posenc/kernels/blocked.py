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


def plan(jobs: Sequence[Job], pairing: Pairing, side: Side, back: bool = False) -> Callable[[Sequence[Job]], None]:
    """Return what writes the turns of jobs like these; see `job.Job`."""
    return partial(_run, pairing=pairing, side=side, back=back)


def _run(jobs: Sequence[Job], pairing: Pairing, side: Side, back: bool) -> None:
    known: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}
    with torch.no_grad():
        for x, out, cos, sin, *_ in jobs:
            tables = known.get((id(cos), id(sin)))
            if tables is None:  # q and k mostly share them
                wide = torch.promote_types(x.dtype, cos.dtype)
                tables = known[id(cos), id(sin)] = _prepare(in_four(cos).to(wide), in_four(sin).to(wide), pairing, back)
            lanes = turning(x.shape[-1], 2 * cos.shape[-1], side)
            for rest in (slice(0, lanes.start), slice(lanes.stop, None)):
                if out is not x and x[..., rest].numel():
                    out[..., rest] = x[..., rest]
            _run_one(in_four(x)[..., lanes], in_four(out)[..., lanes], tables, pairing)


def _prepare(cos: Tensor, sin: Tensor, pairing: Pairing, back: bool) -> tuple[Tensor, Tensor]:
    """Return what lanes and what their partners are multiplied by; pairs side by side are multiplied as a whole."""
    if back:
        sin = -sin
    if pairing == "half":
        return torch.cat([cos, cos], -1), sin
    factor = torch.complex(cos, sin)
    return factor, factor


def _run_one(x: Tensor, out: Tensor, tables: tuple[Tensor, Tensor], pairing: Pairing) -> None:
    heads = tables[0].shape[1]
    # (batch, table heads, heads that share one, seq, lanes)
    x, out = (t.unflatten(1, (heads, -1)) for t in (x, out))
    first, second = (t.unsqueeze(2).expand(*x.shape[:-1], t.shape[-1]) for t in tables)
    turn = _turn_complex if pairing == "interleaved" else _turn_halves
    wide = tables[0].dtype.to_real()
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
    n, same = x.shape[-1] // 2, x.dtype == room[0].dtype
    # whole rows are copied and multiplied: torch is slow where rows are short
    reads = same and x.data_ptr() != out.data_ptr()
    source = x if reads else room[0][: x.numel()].view(x.shape).copy_(x)
    target = out if same else room[1][: x.numel()].view(x.shape)
    torch.mul(source, cos, out=target)
    (a, b), (a_out, b_out) = source.split(n, -1), target.split(n, -1)
    a_out.addcmul_(b, sin, value=-1)
    b_out.addcmul_(a, sin)
    if not same:
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
