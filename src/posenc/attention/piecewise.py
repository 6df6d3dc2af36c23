"""Index maps as one attention per pass, merged by log-sum-exp, without a matrix of scores."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from posenc.attention.call import Call, mixed, widened
from posenc.attention.scores import once
from posenc.attention.spans import block_ends
from posenc.compose import Compose
from posenc.encoding import Encoding, Placed
from posenc.families import no_autocast
from posenc.mapped import Wrapper
from posenc.piecewise import Pass, Piecewise
from posenc.positions.checks import may_look
from posenc.private import attention_backward, attention_forward, has_attention

ROWS = 256  # queries of a block
FULL = 256  # at least so many keys that all queries of a block see get a call without a mask
UNSEEN = -1e30  # added to masked scores; finite, so that a fully masked row has a sum, which vanishes in the merge


@dataclass(frozen=True)
class Tile:
    """Some queries and some keys of one pass; `masked` if some of the pairs are not of this pass."""

    which: int
    rows: slice
    keys: slice
    masked: bool


class Plan:
    """The keys of each query in each pass, as ranges, and tiles that cover them.

    Keys are in rising order of their units, so each query's keys in one pass are contiguous.

    Args:
        q_units: Units of the queries.
        k_units: Units of the keys, rising.
        passes: The passes of the encoding.
        causal: Whether to mask keys after the query's own index.
        window: Mask keys that are this many indices away, or more.
    """

    def __init__(
        self,
        q_units: Int64[Tensor, " q_len"],
        k_units: Int64[Tensor, " k_len"],
        passes: list[Pass],
        causal: bool,
        window: int | None,
    ) -> None:
        q_len, k_len = len(q_units), len(k_units)
        here = torch.arange(k_len - q_len, k_len, device=q_units.device)
        first, last = torch.zeros_like(here), torch.full_like(here, k_len)
        if window is not None:
            first, last = here - (window - 1), here + window
        if causal:
            last = here + 1
        first, last = first.clamp(0, k_len), last.clamp(0, k_len)
        found = [_range(q_units, k_units, one) for one in passes]
        self.ranges = [(torch.maximum(low, first), torch.minimum(high, last)) for low, high in found]
        counts = [(high - low).clamp(min=0) for low, high in self.ranges]
        self.empty = torch.stack(counts).sum(0) == 0  # queries that see no key
        self.tiles = [list(self._tiles(which)) for which in range(len(passes))]
        self.used = [which for which, tiles in enumerate(self.tiles) if tiles]

    def by_rows(self) -> dict[int, list[Tile]]:
        """Return the tiles of each block of queries, by the block's first query."""
        blocks: dict[int, list[Tile]] = {}
        for tiles in self.tiles:
            for tile in tiles:
                blocks.setdefault(tile.rows.start, []).append(tile)
        return blocks

    def mask(self, tile: Tile, dtype: torch.dtype) -> Float[Tensor, "1 1 rows keys"] | None:
        """Return the mask that is added to the scores of a tile; None if all pairs are seen."""
        if not tile.masked:
            return None
        low, high = (end[tile.rows, None] for end in self.ranges[tile.which])
        keys = torch.arange(tile.keys.start, tile.keys.stop, device=low.device)
        seen = (low <= keys) & (keys < high)
        return torch.zeros((), dtype=dtype, device=low.device).masked_fill(~seen, UNSEEN)[None, None]

    def _tiles(self, which: int) -> Iterator[Tile]:
        low, high = self.ranges[which]
        some = low < high
        n, k_len = len(low), int(high.max()) if len(high) else 0
        ends = (low, low.where(some, k_len), high, high.where(some, 0))
        most_low, least_low, least_high, most_high = (
            block_ends(end, ROWS)[which].tolist() for end, which in zip(ends, (1, 0, 0, 1), strict=True)
        )
        for i in range(len(most_low)):
            rows = slice(i * ROWS, min((i + 1) * ROWS, n))
            begin, full, behind, end = least_low[i], most_low[i], least_high[i], most_high[i]
            if end <= begin:
                continue
            if behind - full < min(FULL, end - begin):
                yield Tile(which, rows, slice(begin, end), True)
                continue
            yield Tile(which, rows, slice(full, behind), False)
            for keys in (slice(begin, full), slice(behind, end)):
                if keys.stop > keys.start:
                    yield Tile(which, rows, keys, True)


def merged(call: Call, encoding: Piecewise, placed: Placed, k_placed: Placed) -> Float[Tensor, "*rows width"]:
    """Attend once per pass, in blocks of queries, and merge the results.

    Each pass returns a mean of values and the log-sum-exp of its scores, which gives the weight of the mean in the
    merge. In the backward pass, the log-sum-exp of the whole row gives each pass its share of the gradients.

    Args:
        call: The call. Other rotations of its encoding are applied here.
        encoding: The index map.
        placed: The placed positions of the queries, which the whole batch shares.
        k_placed: The same for the keys, in rising order of their positions.
    """
    (q, k), v = call.rotated_qk(), call.v.to(call.out_dtype)  # an index map itself does not rotate q and k
    passes = encoding.passes(placed, k_placed)
    q_units, k_units = (p.parts[0].reshape(-1).contiguous() for p in (placed, k_placed))
    plan = Plan(q_units, k_units, passes, call.causal, call.window)
    if not plan.used or 0 in q.shape or 0 in k.shape:
        return q[..., :0].sum(-1, keepdim=True).to(v.dtype).expand(*q.shape[:3], v.shape[-1])
    if bool(plan.empty.any()):
        q = q.masked_fill(plan.empty[:, None], 0.0)  # such a query may hold any value
    width = max(q.shape[-1], v.shape[-1])  # the kernel requires one width
    rotated = []
    # in half precision each rotation, mean and gradient would be rounded; the result is cast at the end
    q, k, values = q.to(call.wide), k.to(call.wide), v.to(call.wide)
    for which in plan.used:
        one = passes[which]
        rotated += [encoding.rope.rotate_q(q, one.q_placed), encoding.rope.rotate_k(k, one.k_placed)]
    out: Tensor = _Merged.apply(plan, call.scale, *(widened(t, width) for t in (*rotated, values)))
    return out[..., : v.shape[-1]].masked_fill(plan.empty[:, None], 0.0).to(v.dtype)


class _Merged(torch.autograd.Function):
    """The attention of all passes, tile by tile, and its gradients by the same tiles."""

    @staticmethod
    def forward(ctx: Any, plan: Plan, scale: float, *tensors: Tensor) -> Tensor:
        *rotated, v = tensors
        out = v.new_zeros(rotated[0].shape)
        log_sum = torch.full(out.shape[:3], UNSEEN, dtype=v.dtype, device=v.device)
        for begin, tiles in plan.by_rows().items():
            rows = slice(begin, begin + ROWS)
            total: Tensor | None = None
            for tile in tiles:
                q, k = _of_pass(rotated, plan, tile)
                part, part_sum = attention_forward(q, k, v[:, :, tile.keys], plan.mask(tile, v.dtype), scale)
                if total is None:
                    total, so_far = part, part_sum
                    continue
                both = torch.logaddexp(so_far, part_sum)
                total = total * (so_far - both).exp()[..., None] + part * (part_sum - both).exp()[..., None]
                so_far = both
            assert total is not None  # each block has a tile
            out[:, :, rows], log_sum[:, :, rows] = total, so_far
        ctx.save_for_backward(*tensors, out, log_sum)
        ctx.plan, ctx.scale = plan, scale
        return out

    @staticmethod
    @once
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        *rotated, v, out, log_sum = ctx.saved_tensors
        plan, gradient = ctx.plan, gradient if gradient.stride(-1) == 1 else gradient.contiguous()
        found = [torch.zeros_like(t) for t in (*rotated, v)]
        for begin, tiles in plan.by_rows().items():
            rows = slice(begin, begin + ROWS)
            grad, own, sums = (t[:, :, rows] for t in (gradient, out, log_sum))
            for tile in tiles:
                q, k = _of_pass(rotated, plan, tile)
                mask = plan.mask(tile, v.dtype)
                parts = attention_backward(grad, q, k, v[:, :, tile.keys], own, sums, mask, ctx.scale)
                of_q, of_k = _of_pass(found, plan, tile)
                of_q += parts[0]
                of_k += parts[1]
                found[-1][:, :, tile.keys] += parts[2]
        return None, None, *found


class PiecewisePasses:
    """One call of SDPA's flash kernel per pass, merged; for index maps on the CPU."""

    name = "piecewise"

    def rejects(self, call: Call) -> str | None:
        """Refuse encodings that are not index maps, and masks other than causality and a window."""
        found = _find(call.encoding, call.placed, call.k_placed)
        if found is None:
            return f"{call.encoding.name} is not an index map, or it adds other terms to the scores as well."
        if not has_attention() or call.q.device.type != "cpu" or not (may_look(call.q) and may_look(call.k_placed.pos)):
            return "passes need the log-sum-exp from torch's CPU kernel, and positions whose values can be read here."
        for what, given in (("a mask", call.mask), ("document_ids", call.document_ids)):
            if given is not None:
                return f"a pass is a range of keys, which {what} would split; the backend 'blocked' supports both."
        if call.dropout_p:
            return f"dropout would drop weights before the passes are merged; got dropout_p={call.dropout_p}."
        if call.scale != call.encoding.score_scale(call.q.shape[-1]):
            return "scale replaces the factor of q·k, but not that of the products in the index map; leave scale out."
        return mixed(call) or _irregular(*found[1:])

    def memory(self, call: Call) -> int:
        """Estimate the rotated queries and keys of each pass, their gradients, and the sum of a block."""
        found = _find(call.encoding, call.placed, call.k_placed)
        if found is None:
            return 0
        n_passes = 1 + len(found[0].pieces) * (1 if call.causal else 2)
        size = max(4, call.out_dtype.itemsize)
        block = call.shape[0] * call.shape[1] * ROWS * FULL * size
        kept = n_passes * (call.q.numel() + call.k.numel()) * size + call.v.numel() * size
        return kept * (1 + torch.is_grad_enabled()) + block

    def run(self, call: Call) -> Tensor:
        """Rotate for each pass, attend and merge."""
        found = _find(call.encoding, call.placed, call.k_placed)
        assert found is not None  # rejected otherwise
        with no_autocast(call.q.device):
            return merged(call, *found)


def _find(encoding: Encoding, placed: Placed, k_placed: Placed) -> tuple[Piecewise, Placed, Placed] | None:
    """Return the index map and its placed positions, if nothing else adds to the scores."""
    if isinstance(encoding, Piecewise):
        return encoding, placed, k_placed
    if isinstance(encoding, Wrapper):
        return _find(encoding.encoding, placed.parts[0], k_placed.parts[0])
    if not isinstance(encoding, Compose) or encoding.rescores:
        return None
    members = list(zip(encoding._members, placed.parts, k_placed.parts, strict=True))
    found = [_find(*member) for member in members if member[0].turns_in_bias]
    others = any(type(e).bias is not Encoding.bias for e, *_ in members if not e.turns_in_bias)
    return None if others or len(found) != 1 else found[0]


def _irregular(q_placed: Placed, k_placed: Placed) -> str | None:
    for placed in (q_placed, k_placed):
        if placed.seq_dim and placed.pos.shape[0] > 1:
            return "positions differ between rows of the batch, and all rows must share the ranges of the passes."
        if placed.parts[0].is_floating_point():
            return "positions are fractional, so rounding could move a distance across the edge of a pass."
    units = k_placed.parts[0].reshape(-1)
    if bool((units[1:] < units[:-1]).any()):
        return "the keys' positions do not rise, so the passes are not ranges of keys."
    return None


def _of_pass(tensors: list[Tensor], plan: Plan, tile: Tile) -> tuple[Tensor, Tensor]:
    """Return the views of a tile's queries and keys, given the queries and keys of all passes in turn."""
    at = 2 * plan.used.index(tile.which)
    return tensors[at][:, :, tile.rows], tensors[at + 1][:, :, tile.keys]


def _range(q_units: Tensor, k_units: Tensor, one: Pass) -> tuple[Tensor, Tensor]:
    """Return the range of keys of each query in a pass."""

    def first_key(units: Tensor, right: bool) -> Tensor:
        return torch.searchsorted(k_units, units, right=right)

    nothing, everything = torch.zeros_like(q_units), torch.full_like(q_units, len(k_units))
    low, far = math.ceil(one.low), None if math.isinf(one.high) else math.ceil(one.high)
    if one.side == 0 and far is not None:
        return first_key(q_units - far, True), first_key(q_units + far, False)
    if one.side == 0:
        return nothing, everything
    if one.side == 1:
        return nothing if far is None else first_key(q_units - far, True), first_key(q_units - low, True)
    return first_key(q_units + low, False), everything if far is None else first_key(q_units + far, False)
