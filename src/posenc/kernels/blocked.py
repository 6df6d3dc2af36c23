"""The turn on a CPU with nothing but torch: blocks that fit a cache, in memory that is taken once.

In eager torch each operation is a pass over memory. Here a pass is over a block, which the next one finds in the
cache. Pairs side by side are complex numbers, and torch multiplies those in one pass.
"""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from posenc.kernels.job import Job, Pairing, Side, in_four, turning

BLOCK = 2**20  # numbers: more than a core's cache holds, but each call takes some microseconds
RUN = 2**15  # numbers of one head that are read in one go
SEQ = 3  # of (batch, table heads, heads that share one, seq, lanes)
_Halves = tuple[Tensor, Tensor, Tensor]  # a block, and its lanes' first and second half


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
            source = in_four(x)[..., lanes]
            _run_one(source, source if out is x else in_four(out)[..., lanes], tables, pairing)


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
    within = out is x
    x, out = (t.unflatten(1, (heads, -1)) for t in (x, out))
    first, second = (t.unsqueeze(2).expand(*x.shape[:-1], t.shape[-1]) for t in tables)
    turn = _turn_complex if pairing == "interleaved" else _turn_halves
    wide = tables[0].dtype.to_real()
    room = _Room(min(BLOCK, x.numel()), wide)
    sizes = _sizes(x)
    ins, firsts, seconds = (_pieces(t, sizes) for t in (x, first, second))
    for piece in zip(ins, ins if within else _pieces(out, sizes), firsts, seconds, strict=True):
        turn(*piece, room)


class _Room:
    """Memory for two blocks, in the precision of the arithmetic; a layout is cut from it once."""

    def __init__(self, numbers: int, wide: torch.dtype) -> None:
        self.wide = wide
        self._flat = [torch.empty(numbers, dtype=wide) for _ in "ab"]
        self._cut: dict[tuple[torch.Size, tuple[int, ...]], list[_Halves]] = {}

    def like(self, x: Tensor) -> list[_Halves]:
        """Return both blocks in the shape of x, each with its halves, dimensions one inside the other as x has them."""
        key = x.shape, x.stride()
        found = self._cut.get(key)
        if found is None:
            order = _outer(x)
            sizes = [*(x.shape[dim] for dim in order), x.shape[-1]]
            back = [*sorted(range(len(order)), key=order.__getitem__), len(order)]
            views = (t[: x.numel()].view(sizes).permute(back) for t in self._flat)
            found = self._cut[key] = [_halves(t) for t in views]
        return found


def _outer(x: Tensor) -> list[int]:
    """Return the dimensions around the lanes, the outermost in memory first."""
    return sorted(range(x.ndim - 1), key=x.stride, reverse=True)


def _halves(t: Tensor) -> _Halves:
    first, second = t.chunk(2, -1)
    return t, first, second


def _turn_complex(x: Tensor, out: Tensor, factor: Tensor, _: Tensor, room: _Room) -> None:
    direct = x.dtype == room.wide and _pairs_fit(x) and _pairs_fit(out)
    source = x if direct else room.like(x)[0][0].copy_(x)
    target = out if direct else source
    pairs, turned = (torch.view_as_complex(t.unflatten(-1, (-1, 2))) for t in (source, target))
    torch.mul(pairs, factor, out=turned)
    if not direct:
        out.copy_(source)


def _pairs_fit(t: Tensor) -> bool:
    """Whether pairs of lanes lie as complex numbers must."""
    return t.storage_offset() % 2 == 0 and all(s % 2 == 0 for s in t.stride()[:-1]) and t.data_ptr() % 8 == 0


def _turn_halves(x: Tensor, out: Tensor, cos: Tensor, sin: Tensor, room: _Room) -> None:
    same = x.dtype == room.wide
    # whole rows are copied and multiplied: torch is slow where rows are short
    reads = same and x.data_ptr() != out.data_ptr()
    source, a, b = _halves(x) if reads else room.like(x)[0]
    if not reads:
        source.copy_(x)
    target, a_out, b_out = _halves(out) if same else room.like(x)[1]
    torch.mul(source, cos, out=target)
    a_out.addcmul_(b, sin, value=-1)
    b_out.addcmul_(a, sin)
    if not same:
        out.copy_(target)


def _sizes(x: Tensor) -> dict[int, int]:
    """Return how many of which dimensions a piece of at most BLOCK numbers has, whole rows of lanes.

    Many heads of few tokens rather than few heads of many: heads read the same rows of the tables.
    """
    room = max(1, BLOCK // x.shape[-1])
    tokens = max(1, min(x.shape[SEQ], RUN // x.shape[-1], room))
    sizes, left = {}, room // tokens
    for dim in (d for d in reversed(_outer(x)) if d != SEQ):
        sizes[dim] = max(1, min(x.shape[dim], left))
        left //= sizes[dim]
    sizes[SEQ] = tokens * max(1, left)
    return {dim: size for dim, size in sizes.items() if size < x.shape[dim]}


def _pieces(t: Tensor, sizes: dict[int, int]) -> list[Tensor]:
    found = [t]
    for dim, size in sizes.items():
        found = [piece for part in found for piece in part.split(size, dim)]
    return found
