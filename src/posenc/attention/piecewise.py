"""Index maps as one attention a pass, merged by the logarithms of their sums: no scores are formed."""

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
FULL = 256  # keys that all queries of a block see, from which on they are worth a call without a mask
UNSEEN = -1e30  # what joins a score that is not seen; finite, so that a row of it has a sum that is lost in any other


@dataclass(frozen=True)
class Tile:
    """Some queries and some keys of one pass; `masked` where not every query has all of these keys in it."""

    which: int
    rows: slice
    keys: slice
    masked: bool


class Plan:
    """The keys of each query in each pass, as ranges, and tiles that cover them.

    Keys stand in the order of their units, so that those of one pass lie side by side for each query.

    Args:
        q_units: Of the queries.
        k_units: Of the keys, rising.
        passes: What the encoding says.
        causal: Keys behind the query's own index are not seen.
        window: Nor are those so far away by index.
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
        self.empty = torch.stack(counts).sum(0) == 0  # queries that see nothing
        self.tiles = [list(self._tiles(which)) for which in range(len(passes))]
        self.used = [which for which, tiles in enumerate(self.tiles) if tiles]

    def by_rows(self) -> dict[int, list[Tile]]:
        """Return the tiles of each block of queries, by where it begins."""
        blocks: dict[int, list[Tile]] = {}
        for tiles in self.tiles:
            for tile in tiles:
                blocks.setdefault(tile.rows.start, []).append(tile)
        return blocks

    def mask(self, tile: Tile, dtype: torch.dtype) -> Float[Tensor, "1 1 rows keys"] | None:
        """Return what joins the scores of a tile; None for nothing."""
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
    """Attend by one attention a pass, in blocks of queries, and merge them.

    Each pass gives a mean of values and the logarithm of the sum of its weights, which says what the mean counts
    for among the others'. Backwards, the whole row's logarithm gives each pass its own share of the gradients.

    Args:
        call: The call; what else its encoding rotates is done here.
        encoding: The index map.
        placed: What it made of the queries' positions, which are the same for the whole batch.
        k_placed: The same for the keys, in rising order of their positions.
    """
    (q, k), v = call.turned(), call.v.to(call.out_dtype)  # an index map itself leaves q and k as they are
    passes = encoding.passes(placed, k_placed)
    q_units, k_units = (p.parts[0].reshape(-1).contiguous() for p in (placed, k_placed))
    plan = Plan(q_units, k_units, passes, call.causal, call.window)
    if not plan.used or 0 in q.shape or 0 in k.shape:
        return q[..., :0].sum(-1, keepdim=True).to(v.dtype).expand(*q.shape[:3], v.shape[-1])
    if bool(plan.empty.any()):
        q = q.masked_fill(plan.empty[:, None], 0.0)  # such a query may hold anything
    width = max(q.shape[-1], v.shape[-1])  # the kernel wants one width
    turned = []
    # half precision would round each turn, each mean and each share of the gradients: that is left to the end
    q, k, values = q.to(call.wide), k.to(call.wide), v.to(call.wide)
    for which in plan.used:
        one = passes[which]
        turned += [encoding.rope.rotate_q(q, one.q_placed), encoding.rope.rotate_k(k, one.k_placed)]
    out: Tensor = _Merged.apply(plan, call.scale, *(widened(t, width) for t in (*turned, values)))
    return out[..., : v.shape[-1]].masked_fill(plan.empty[:, None], 0.0).to(v.dtype)


class _Merged(torch.autograd.Function):
    """The passes' attention over tiles; its gradients by the same tiles."""

    @staticmethod
    def forward(ctx: Any, plan: Plan, scale: float, *tensors: Tensor) -> Tensor:
        *turned, v = tensors
        out = v.new_zeros(turned[0].shape)
        log_sum = torch.full(out.shape[:3], UNSEEN, dtype=v.dtype, device=v.device)
        for begin, tiles in plan.by_rows().items():
            rows = slice(begin, begin + ROWS)
            total: Tensor | None = None
            for tile in tiles:
                q, k = _of_pass(turned, plan, tile)
                part, part_sum = attention_forward(q, k, v[:, :, tile.keys], plan.mask(tile, v.dtype), scale)
                if total is None:
                    total, so_far = part, part_sum
                    continue
                both = torch.logaddexp(so_far, part_sum)
                total = total * (so_far - both).exp()[..., None] + part * (part_sum - both).exp()[..., None]
                so_far = both
            assert total is not None  # a block is there because of its tiles
            out[:, :, rows], log_sum[:, :, rows] = total, so_far
        ctx.save_for_backward(*tensors, out, log_sum)
        ctx.plan, ctx.scale = plan, scale
        return out

    @staticmethod
    @once
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        *turned, v, out, log_sum = ctx.saved_tensors
        plan, gradient = ctx.plan, gradient if gradient.stride(-1) == 1 else gradient.contiguous()
        found = [torch.zeros_like(t) for t in (*turned, v)]
        for begin, tiles in plan.by_rows().items():
            rows = slice(begin, begin + ROWS)
            grad, own, sums = (t[:, :, rows] for t in (gradient, out, log_sum))
            for tile in tiles:
                q, k = _of_pass(turned, plan, tile)
                mask = plan.mask(tile, v.dtype)
                parts = attention_backward(grad, q, k, v[:, :, tile.keys], own, sums, mask, ctx.scale)
                of_q, of_k = _of_pass(found, plan, tile)
                of_q += parts[0]
                of_k += parts[1]
                found[-1][:, :, tile.keys] += parts[2]
        return None, None, *found


class PiecewisePasses:
    """One attention of SDPA's flash kernel a pass, merged; for index maps on the CPU."""

    name = "piecewise"

    def rejects(self, call: Call) -> str | None:
        """Refuse what is no index map, and masks that are more than causality and a window."""
        found = _find(call.encoding, call.placed, call.k_placed)
        if found is None:
            return f"{call.encoding.name} is no index map, or joins the scores in other ways as well."
        if not has_attention() or call.q.device.type != "cpu" or not (may_look(call.q) and may_look(call.k_placed.pos)):
            return "only the CPU's kernel is known to give what passes are merged by, and positions must be looked at."
        for what, given in (("a mask", call.mask), ("document_ids", call.document_ids)):
            if given is not None:
                return f"passes are ranges of keys, and {what} would cut them; blocks of queries can have both."
        if call.dropout_p:
            return f"dropout would drop weights before they are merged; got dropout_p={call.dropout_p}."
        if call.scale != call.encoding.score_scale(call.q.shape[-1]):
            return "scale replaces what is in front of q·k, and not what is in front of the mapped products."
        return mixed(call) or _irregular(*found[1:])

    def memory(self, call: Call) -> int:
        """Estimate turned queries and keys for each pass, their gradients, and the sum of a block."""
        found = _find(call.encoding, call.placed, call.k_placed)
        if found is None:
            return 0
        behind = len(found[0].pieces)
        n_passes = 1 + behind * (1 if call.causal else 2)
        size = max(4, call.out_dtype.itemsize)
        block = call.shape[0] * call.shape[1] * ROWS * FULL * size
        kept = n_passes * (call.q.numel() + call.k.numel()) * size + call.v.numel() * size
        return kept * (1 + torch.is_grad_enabled()) + block

    def run(self, call: Call) -> Tensor:
        """Turn for each pass, attend and merge."""
        found = _find(call.encoding, call.placed, call.k_placed)
        assert found is not None  # rejected otherwise
        with no_autocast(call.q.device):
            return merged(call, *found)


def _find(encoding: Encoding, placed: Placed, k_placed: Placed) -> tuple[Piecewise, Placed, Placed] | None:
    """Return the index map and what it placed, if nothing else joins the scores."""
    if isinstance(encoding, Piecewise):
        return encoding, placed, k_placed
    if isinstance(encoding, Wrapper):
        return _find(encoding.encoding, placed.parts[0], k_placed.parts[0])
    if not isinstance(encoding, Compose) or encoding.rescores:
        return None
    members = list(zip(encoding._members, placed.parts, k_placed.parts, strict=True))
    found = [_find(*member) for member in members if member[0].turns_in_bias]
    joins = any(type(e).bias is not Encoding.bias for e, *_ in members if not e.turns_in_bias)
    return None if joins or len(found) != 1 else found[0]


def _irregular(q_placed: Placed, k_placed: Placed) -> str | None:
    for placed in (q_placed, k_placed):
        if placed.seq_dim and placed.pos.shape[0] > 1:
            return "positions differ by rows of the batch, and passes are cut out once for all of them."
        if placed.parts[0].is_floating_point():
            return "positions are fractional, so that differences of them may be rounded over the edge of a pass."
    units = k_placed.parts[0].reshape(-1)
    if bool((units[1:] < units[:-1]).any()):
        return "the keys' positions do not rise, so that passes are no ranges of keys."
    return None


def _of_pass(turned: list[Tensor], plan: Plan, tile: Tile) -> tuple[Tensor, Tensor]:
    """Return the queries and keys of a tile, as they stand in the list of those of all passes."""
    at = 2 * plan.used.index(tile.which)
    return turned[at][:, :, tile.rows], turned[at + 1][:, :, tile.keys]


def _range(q_units: Tensor, k_units: Tensor, one: Pass) -> tuple[Tensor, Tensor]:
    """Return the range of keys that each query has in a pass."""

    def behind(units: Tensor, right: bool) -> Tensor:
        return torch.searchsorted(k_units, units, right=right)

    nothing, everything = torch.zeros_like(q_units), torch.full_like(q_units, len(k_units))
    low, far = math.ceil(one.low), None if math.isinf(one.high) else math.ceil(one.high)
    if one.side == 0 and far is not None:
        return behind(q_units - far, True), behind(q_units + far, False)
    if one.side == 0:
        return nothing, everything
    if one.side == 1:
        return nothing if far is None else behind(q_units - far, True), behind(q_units - low, True)
    return behind(q_units + low, False), everything if far is None else behind(q_units + far, False)
