"""By how much positions are shifted against indices, block by block: where that is one number, a bias is a vector."""

from collections.abc import Callable, Collection, Iterable, Sequence

from torch import Tensor

from posenc.attention.call import Call
from posenc.attention.leaves import Leaf
from posenc.attention.spans import Block

MOST = 8  # ways in which positions may be shifted, as in documents, each of which is a vector; beyond, one gathers
REACH = 4  # times the lengths of q and k that positions may spread over, to be looked up in a vector
Shifts = tuple[int, ...]  # of each leaf


def shifts_of(leaves: Sequence[Leaf], blocks: Iterable[Block], offset: int) -> dict[Block, Shifts | None]:
    """Return by how much the distance of positions exceeds that of indices, for each leaf; None where that varies."""
    found: dict[Block, Shifts | None] = {}
    for block in dict.fromkeys(blocks):
        shifts = [_of_block(leaf, block, offset) for leaf in leaves]
        found[block] = None if None in shifts else tuple(shift for shift in shifts if shift is not None)
    return found


def ways(leaves: Sequence[Leaf], call: Call, blocks: Callable[[], Iterable[Block]]) -> set[Shifts | None]:
    """Return how blocks are shifted, which are asked for only where positions have gaps; nothing where none has."""
    if all(leaf.shift is not None for leaf in leaves):
        return set()
    return set(shifts_of(leaves, blocks(), call.shape[3] - call.shape[2]).values())


def fit(leaves: Sequence[Leaf], call: Call, shifts: Collection[Shifts | None]) -> bool:
    """Whether vectors hold the biases of blocks that are shifted so, without being much longer than q and k."""
    if len(set(shifts) - {None}) > MOST:
        return False
    reach = REACH * (call.shape[2] + call.shape[3]) + 64
    return None not in shifts or all(high - low <= reach for low, high in (leaf.extremes for leaf in leaves))


def _of_block(leaf: Leaf, block: Block, offset: int) -> int | None:
    """Return the shift of a block, if it is the same for all of its queries, keys and items."""
    if leaf.shift is not None:  # of most calls one number says it for all blocks
        return leaf.shift - offset
    parts = zip(leaf.away, (block.rows, block.keys), strict=True)
    q, k = (_start(away, part, block.batch) for away, part in parts)
    if q is None or k is None:
        return None
    shift = q - k - offset
    return int(shift[0]) if bool((shift == shift[0]).all()) else None


def _start(away: Tensor, part: slice, batch: slice) -> Tensor | None:
    """Return what is the same for all tokens of a part in each row of the batch, if it is."""
    away = away[batch if len(away) > 1 else slice(None), part]
    return None if bool((away != away[:, :1]).any()) else away[:, 0]
