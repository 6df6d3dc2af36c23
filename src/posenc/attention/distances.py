"""Biases that depend only on integer distances: with keys in reverse, a block of them is a view of one vector.

Query i and key j of a call are i - j + k_len - q_len apart by index. With the keys in reverse, j' = k_len - 1 - j, the
distance is i + j' - (q_len - 1). So element (i, j') of the bias is entry i + j' of a vector over rising distances: a
view whose strides are both one. torch's kernel reads the view, so no matrix of biases is ever in memory.
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from posenc.attention.call import Call
from posenc.attention.leaves import Leaf
from posenc.attention.spans import Block
from posenc.encoding import Encoding, Placed
from posenc.families import Bias, ContentBias

MOST = 8  # the most combinations of shifts, each of which needs a vector; with more, biases are looked up
Shifts = tuple[int, ...]  # one for each leaf


def shifts_of(leaves: Sequence[Leaf], blocks: Iterable[Block], offset: int) -> dict[Block, Shifts | None]:
    """Return the distance by position minus that by index, for each leaf; None for blocks in which it varies."""
    found: dict[Block, Shifts | None] = {}
    for block in blocks:
        shifts = [_shift(leaf, block, offset) for leaf in leaves]
        found[block] = None if None in shifts else tuple(shift for shift in shifts if shift is not None)
    return found


def _shift(leaf: Leaf, block: Block, offset: int) -> int | None:
    if leaf.shift is not None:  # in most calls all blocks share one shift
        return leaf.shift - offset
    starts = []
    for away, part in zip(leaf.away, (block.rows, block.keys), strict=True):
        own = away[block.batch if len(away) > 1 else slice(None), part]
        if bool((own != own[:, :1]).any()):
            return None
        starts.append(own[:, 0])
    shift = starts[0] - starts[1] - offset
    return int(shift[0]) if bool((shift == shift[0]).all()) else None


def over(encoding: Encoding, placed: Placed, distance: Tensor) -> Tensor:
    """Return the bias over integer distances (heads, n) of an encoding that passes `is_by_distance`."""
    assert isinstance(encoding, Bias)  # as is_by_distance ensures
    # keep the dtype of the placed positions: float64 positions make a float64 bias
    return encoding.over(distance.double() if placed.parts[0].is_floating_point() else distance)


def distances(call: Call) -> Tensor:
    """Return all distances by index in rising order."""
    return torch.arange(1 - call.shape[2], call.shape[3], device=call.q.device)


class ByDistance:
    """The sum of biases by distance, with the masks of causality and window, as vectors (heads | 1, distances).

    Args:
        call: The call.
        leaves: The biases; none if the call only has masks by index.
        shifts: The shifts of positions against indices in each block.
        dtype: The dtype of the sum.
    """

    def __init__(
        self, call: Call, leaves: Sequence[Leaf], shifts: dict[Block, Shifts | None], dtype: torch.dtype
    ) -> None:
        self.k_len, index = call.shape[3], distances(call)
        self.lowest = 1 - call.shape[2]
        hidden = torch.zeros_like(index, dtype=torch.bool)
        for term in call.by_index(index, torch.zeros_like(index[:1])):
            hidden = hidden | ~term
        self.numbers: dict[Block, int] = {}
        self.tensors: list[Tensor] = []
        self.ways = sorted({way for way in shifts.values() if way is not None})
        for number, way in enumerate(self.ways):
            total = torch.zeros(1, len(index), device=index.device, dtype=dtype)
            for leaf, shift in zip(leaves, way, strict=True):
                total = total + over(leaf.encoding, leaf.placed, index + shift).to(dtype)
            self.tensors.append(total.masked_fill(hidden, -torch.inf))
            self.numbers |= dict.fromkeys((block for block, of in shifts.items() if of == way), number)

    def cut(self, block: Block, tensors: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Return the part of a block's vector that has its distances."""
        t, begin = tensors[self.numbers[block]], block.begin + self.k_len - block.last
        return [None if t is None else t[:, begin : begin + sum(block.size) - 1]]

    def of(self, block: Block, tensors: Sequence[Tensor]) -> Tensor:
        """Return a block with keys in reverse (1, heads | 1, q_len, k_len), given its `cut`."""
        (t,) = tensors
        return t.as_strided((1, len(t), *block.size), (0, t.stride(0), 1, 1))

    def add_gradients(self, block: Block, d_scores: Tensor, sums: Sequence[Tensor | None]) -> None:
        """Add the sums over anti-diagonals, i + j' = t, to the cut of the gradients.

        Rows are padded with zeros. Viewed with rows one entry shorter, entry t of row i is element (i, t - i).
        """
        (total,) = sums
        if total is None:
            return
        batch, n_heads, n_rows, n_keys = d_scores.shape
        rows = F.pad(d_scores, (0, n_rows)).view(batch, n_heads, -1)
        found = rows[..., :-n_rows].view(batch, n_heads, n_rows, n_keys + n_rows - 1).sum((0, 2))
        total += found if len(total) > 1 else found.sum(0, keepdim=True)


class LookedUp:
    """One bias by distance, for positions in any order: looked up in a vector over all distances that occur."""

    def __init__(self, leaf: Leaf, dtype: torch.dtype) -> None:
        low, high = leaf.extremes
        index = torch.arange(low, high + 1, device=leaf.placed.pos.device)
        self.leaf, self.low, self.tensors = leaf, low, [over(leaf.encoding, leaf.placed, index).to(dtype)]

    def cut(self, block: Block, tensors: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Return the whole vector."""
        return list(tensors)

    def of(self, block: Block, tensors: Sequence[Tensor]) -> Tensor:
        """Return a block (batch | 1, heads, q_len, k_len)."""
        bias = tensors[0][:, self._index(block)]
        return bias.transpose(0, 1) if bias.ndim == 4 else bias[None]

    def add_gradients(self, block: Block, d_scores: Tensor, sums: Sequence[Tensor | None]) -> None:
        """Add up the gradients of all pairs at one distance into the gradients of the vector."""
        (total,) = sums
        if total is None:
            return
        index = self._index(block)
        of_heads = d_scores.sum(0) if index.ndim == 2 or len(index) == 1 else d_scores.transpose(0, 1)
        total.index_add_(1, index.flatten(), of_heads.flatten(1))

    def _index(self, block: Block) -> Tensor:
        rows = self.leaf.placed.rows(block.begin, block.end, block.batch).pos
        keys = self.leaf.k_placed.rows(block.first, block.last, block.batch).pos + self.low
        return rows[..., :, None] - keys[..., None, :]


class ByRows:
    """A content bias by distance, q_i·vector[i - j] + of_key[j]: one product and a view for each block.

    The product of queries with the vectors of all distances of a block gives each query a row; entry i + j' of the row
    of query i belongs to key j'.
    """

    def __init__(self, leaf: Leaf, call: Call, shift: int, dtype: torch.dtype) -> None:
        encoding = leaf.encoding
        assert isinstance(encoding, ContentBias)  # as Terms._by_rows ensures
        q, k = call.unrotated_qk()
        scale = encoding.score_scale(q.shape[-1])
        self.k_len = call.shape[3]
        self.tensors = [encoding.queries(q.to(dtype)) * scale, encoding.vectors(distances(call) + shift, dtype)]
        if (of_key := encoding.of_keys(k.to(dtype))) is not None:
            self.tensors.append(of_key.flip(-1) * scale)

    def cut(self, block: Block, tensors: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Return the queries, the vectors and the terms of keys of a block."""
        begin, first = block.begin + self.k_len - block.last, self.k_len - block.last
        q, vectors, *of_key = tensors
        found = [
            None if q is None else q[block.batch, :, block.rows],
            None if vectors is None else vectors[:, begin : begin + sum(block.size) - 1],
        ]
        return found + [None if t is None else t[block.batch, :, first : first + block.size[1]] for t in of_key]

    def of(self, block: Block, tensors: Sequence[Tensor]) -> Tensor:
        """Return a block with keys in reverse (batch, heads, q_len, k_len), given its `cut`."""
        q, vectors, *of_key = tensors
        rows = q @ vectors.mT
        width = rows.shape[-1]
        strides = (*rows.stride()[:2], width + 1, 1)
        bias = rows.as_strided((*rows.shape[:3], block.size[1]), strides)
        if not of_key:
            return bias
        return bias + of_key[0][:, :, None] if torch.is_grad_enabled() else bias.add_(of_key[0][:, :, None])
