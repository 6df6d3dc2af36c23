"""Positions of one rank's part of a sequence."""

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
    """Return the positions of the tokens that one rank holds under context parallelism.

    In causal attention later tokens attend to more keys, so contiguous slices give the last rank most of the work. In
    zig-zag order the sequence is split into 2 world_size chunks, and rank r holds chunks r and 2 world_size - 1 - r, so
    every rank has the same work (Llama 3, Grattafiori 2024, 2407.21783, section 3.3.2).

    With `start=0` these are also indices: `tokens[:, pos]` is the rank's slice, and with packed documents or padding
    its positions are `whole_pos[..., pos]`. To restore the order of the ranks' concatenated outputs, index them with
    the `argsort` of the concatenated positions.

    Args:
        seq_len: The number of tokens of the whole sequence.
        rank: This process's rank among those that share the sequence.
        world_size: The number of ranks.
        order: "contiguous" or "zigzag".
        start: The position of the first token of the whole sequence.
        device: The device of the result.

    Raises:
        ValueError: The sequence cannot be split into equal chunks, there is no such rank, or `order` has another value.

    >>> [sharded(8, rank=r, world_size=2, order="zigzag").tolist() for r in range(2)]
    [[0, 1, 6, 7], [2, 3, 4, 5]]
    """
    who = "positions.sharded"
    if order not in ("contiguous", "zigzag"):
        raise ValueError(f"{who}: order must be 'contiguous' or 'zigzag'; got {order!r}.")
    if world_size < 1 or not 0 <= rank < world_size:
        raise ValueError(
            f"{who}: rank must be one of 0 .. world_size - 1; got rank={rank}, world_size={world_size}. "
            "Pass those of the process group that shares the sequence."
        )
    n_chunks, each = (world_size, "one chunk") if order == "contiguous" else (2 * world_size, "two chunks")
    if seq_len < 0 or seq_len % n_chunks:
        up = -(-max(seq_len, 1) // n_chunks) * n_chunks
        raise ValueError(
            f"{who}: seq_len must be a non-negative multiple of {n_chunks}, because each of {world_size} ranks holds "
            f"{each} of equal size in order={order!r}; got seq_len={seq_len}. Pad the sequence to {up}."
        )
    n = seq_len // n_chunks
    chunks = (rank,) if order == "contiguous" else (rank, n_chunks - 1 - rank)
    return torch.cat([torch.arange(start + c * n, start + (c + 1) * n, device=device) for c in chunks])
