"""Positions of the part of a sequence that one rank holds."""

from typing import Literal

import torch
from jaxtyping import Int64
from torch import Tensor

Order = Literal["contiguous", "zigzag"]


def sharded(
    seq_len: int,
    *,
    rank: int,
    world_size: int,
    order: Order = "contiguous",
    start: int = 0,
    device: torch.device | str | None = None,
) -> Int64[Tensor, " slice"]:
    """Count the tokens of a long sequence that one rank holds: context parallelism.

    In causal attention the later tokens have more keys to look at, so that contiguous slices leave the last rank with
    most of the work. In zig-zag order the sequence is cut into 2 world_size chunks, and rank r holds chunk r and chunk
    2 world_size - 1 - r: every rank has the same work (Llama 3, Grattafiori 2024, 2407.21783, section 3.3.2).

    With `start=0` these are indices too: `tokens[:, pos]` is the rank's slice, and for packed documents or padding
    `whole_pos[..., pos]` are its positions. What the ranks return one after another has order `argsort` of their
    positions one after another.

    Args:
        seq_len: Tokens of the whole sequence.
        rank: Of this process among those that share the sequence.
        world_size: How many these are.
        order: "contiguous" or "zigzag".
        start: Position of the first token of the whole sequence.
        device: Of the result.

    Raises:
        ValueError: The sequence cannot be cut into equal chunks, there is no such rank, or another word for `order`.

    >>> [sharded(8, rank=r, world_size=2, order="zigzag").tolist() for r in range(2)]
    [[0, 1, 6, 7], [2, 3, 4, 5]]
    """
    who = "positions.sharded"
    if order not in ("contiguous", "zigzag"):
        raise ValueError(f"{who}: order must be 'contiguous' or 'zigzag'; got {order!r}.")
    if world_size < 1 or not 0 <= rank < world_size:
        raise ValueError(
            f"{who}: rank must be one of 0 .. world_size - 1; got rank={rank}, world_size={world_size}. "
            "Pass those of the group that shares the sequence."
        )
    n_chunks, each = (world_size, "one chunk") if order == "contiguous" else (2 * world_size, "two chunks")
    if seq_len < 0 or seq_len % n_chunks:
        up = -(-max(seq_len, 1) // n_chunks) * n_chunks
        raise ValueError(
            f"{who}: seq_len must be a non-negative multiple of {n_chunks}, because each of {world_size} ranks holds "
            f"{each} of one size in order={order!r}; got seq_len={seq_len}. Pad the sequence to {up}."
        )
    n = seq_len // n_chunks
    chunks = (rank,) if order == "contiguous" else (rank, n_chunks - 1 - rank)
    return torch.cat([torch.arange(start + c * n, start + (c + 1) * n, device=device) for c in chunks])
