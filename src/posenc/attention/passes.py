"""Which keys each query has in each pass of an index map, as ranges, and tiles of queries and keys that cover them."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from posenc.piecewise import Pass

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

    def mask(self, tile: Tile, group: int, dtype: torch.dtype) -> Float[Tensor, "1 1 rows keys"] | None:
        """Return what joins the scores of a tile, whose rows are those of `group` heads; None for nothing."""
        if not tile.masked:
            return None
        low, high = (end[tile.rows, None] for end in self.ranges[tile.which])
        keys = torch.arange(tile.keys.start, tile.keys.stop, device=low.device)
        seen = (low <= keys) & (keys < high)
        mask = torch.zeros((), dtype=dtype, device=low.device).masked_fill(~seen, UNSEEN)
        return mask.repeat(group, 1)[None, None]

    def _tiles(self, which: int) -> Iterator[Tile]:
        low, high = self.ranges[which]
        some = low < high
        n, k_len = len(low), int(high.max()) if len(high) else 0
        ends = (low, low.where(some, k_len), high, high.where(some, 0))
        most_low, least_low, least_high, most_high = (
            _by_block(end, how).tolist() for end, how in zip(ends, ("amax", "amin", "amin", "amax"), strict=True)
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


def _by_block(ends: Tensor, how: str) -> Tensor:
    """Return the least or the largest of each block of queries."""
    short = -len(ends) % ROWS
    padded = torch.cat((ends, ends[-1:].expand(short))) if short else ends
    blocks = padded.view(-1, ROWS)
    return blocks.amax(1) if how == "amax" else blocks.amin(1)
