"""Biases that see distances alone as vectors over these."""

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from posenc.attention.call import Call
from posenc.attention.leaves import Leaf, over
from posenc.attention.shifts import Shifts
from posenc.attention.spans import Block


def indices(call: Call, blocks: Iterable[Block]) -> Tensor:
    """Return distances of indices, largest first, as far as blocks reach."""
    rows = max(block.size[0] for block in blocks)
    least = 1 - (rows if call.causal else call.shape[2])  # a causal block reaches so far ahead
    return torch.arange(call.shape[3] - 1, least - 1, -1, device=call.q.device)


def summed(
    call: Call, sums: Sequence[Leaf], shifts: Mapping[Block, Shifts | None], dtype: torch.dtype
) -> dict[Shifts | None, Tensor]:
    """Add up, for each way in which positions are shifted against indices, all biases and what masks by index say.

    One number a distance, largest first, as far as blocks reach.
    """
    found: dict[Shifts | None, Tensor] = {}
    if not shifts:
        return found
    index = indices(call, shifts)
    unseen = torch.zeros_like(index, dtype=torch.bool)
    if call.causal:
        unseen = unseen | (index < 0)
    if call.window is not None:
        unseen = unseen | (index >= call.window) | (index <= -call.window)
    for way in set(shifts.values()) - {None}:
        total = torch.zeros(1, len(index), device=call.q.device)
        for leaf, shift in zip(sums, way or (), strict=True):
            total = total + over(leaf.encoding, leaf.placed, index + shift)
        found[way] = total.to(dtype).masked_fill(unseen, -torch.inf)
    return found


def tables(sums: Sequence[Leaf]) -> list[tuple[Tensor, int]]:
    """Return for each bias a vector over all distances that occur, smallest first, and the smallest."""
    found = []
    for leaf in sums:
        lowest, highest = leaf.extremes
        distance = torch.arange(lowest, highest + 1, device=leaf.placed.pos.device)
        found.append((over(leaf.encoding, leaf.placed, distance), lowest))
    return found
