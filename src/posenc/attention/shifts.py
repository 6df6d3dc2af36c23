"""By how much positions are shifted against indices, block by block: where that is one number, a bias is a vector."""

from collections.abc import Collection, Iterable, Sequence

import torch
from torch import Tensor

from posenc.attention.call import Call
from posenc.attention.leaves import Leaf, extremes
from posenc.attention.spans import Block
from posenc.encoding import Placed

MOST = 8  # ways in which positions may be shifted, as in documents, each of which is a vector; beyond, one gathers
REACH = 4  # times the lengths of q and k that positions may spread over, to be looked up in a vector
Shifts = tuple[int, ...]  # of each leaf


def shifts_of(leaves: Sequence[Leaf], blocks: Iterable[Block], offset: int) -> dict[Block, Shifts | None]:
    """Return by how much the distance of positions exceeds that of indices, for each leaf; None where that varies."""
    ways = [_Way(leaf, offset) for leaf in leaves]
    found: dict[Block, Shifts | None] = {}
    for block in dict.fromkeys(blocks):
        shifts = [way.of(block) for way in ways]
        found[block] = None if None in shifts else tuple(shift for shift in shifts if shift is not None)
    return found


def fit(leaves: Sequence[Leaf], call: Call, shifts: Collection[Shifts | None]) -> bool:
    """Whether vectors hold the biases of blocks that are shifted so, without being much longer than q and k."""
    if len(set(shifts) - {None}) > MOST:
        return False
    reach = REACH * (call.shape[2] + call.shape[3]) + 64
    return None not in shifts or all(high - low <= reach for low, high in map(extremes, leaves))


class _Way:
    """How the positions of one leaf lie beside indices."""

    def __init__(self, leaf: Leaf, offset: int) -> None:
        self.q, self.k, self.offset = _away(leaf.placed), _away(leaf.k_placed), offset
        # of most calls one number says it for all blocks
        one = all(bool((away == away[:1, :1]).all()) for away in (self.q, self.k))
        self.whole = int(self.q[0, 0] - self.k[0, 0] - offset) if one else None

    def of(self, block: Block) -> int | None:
        """Return the shift of a block, if it is the same for all of its queries, keys and items."""
        if self.whole is not None:
            return self.whole
        q, k = _start(self.q, block.rows, block.batch), _start(self.k, block.keys, block.batch)
        if q is None or k is None:
            return None
        shift = q - k - self.offset
        return int(shift[0]) if bool((shift == shift[0]).all()) else None


def _away(placed: Placed) -> Tensor:
    """Return position minus index, (batch | 1, length)."""
    away = placed.pos - torch.arange(placed.pos.shape[-1], device=placed.pos.device)
    return away if away.ndim == 2 else away[None]


def _start(away: Tensor, part: slice, batch: slice) -> Tensor | None:
    """Return what is the same for all tokens of a part in each row of the batch, if it is."""
    away = away[batch if len(away) > 1 else slice(None), part]
    return None if bool((away != away[:, :1]).any()) else away[:, 0]
