"""Makers and checks of `pos`: positions are always passed in, never guessed from a shape."""

import torch
from jaxtyping import Float64, Int, Int64, Shaped
from torch import Tensor

_INTEGERS = (torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.int8, torch.int16, torch.int32, torch.int64)
_REALS = (torch.float32, torch.float64)


def arange(n: int, *, start: int = 0, device: torch.device | str | None = None) -> Int64[Tensor, " n"]:
    """Count from `start`: the positions of one plain sequence.

    >>> arange(3, start=5)
    tensor([5, 6, 7])
    """
    return torch.arange(start, start + n, device=device)


def continued(past_len: int, n: int, *, device: torch.device | str | None = None) -> Int64[Tensor, " n"]:
    """Count on where a cache of `past_len` tokens ended.

    >>> continued(4, 2)
    tensor([4, 5])
    """
    return arange(n, start=past_len, device=device)


def left_padded(attention_mask: Shaped[Tensor, "batch seq"]) -> Int64[Tensor, "batch seq"]:
    """Count real tokens from 0 in each row; padded slots (False or 0) on the left get 0.

    >>> left_padded(torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]]))
    tensor([[0, 0, 0, 1],
            [0, 1, 2, 3]])
    """
    return (attention_mask.long().cumsum(-1) - 1).clamp(min=0)


def padded(attention_mask: Shaped[Tensor, "batch seq"]) -> Int64[Tensor, "batch seq"]:
    """Count real tokens from 0 in each row, wherever padding stands; padded slots (False or 0) get -1.

    A table with rows before that of position 0 gives padding the last of them (`Learned`): with two such rows,
    these are the rows of RoBERTa and OPT.

    >>> padded(torch.tensor([[1, 1, 1, 0], [0, 1, 1, 1]]))
    tensor([[ 0,  1,  2, -1],
            [-1,  0,  1,  2]])
    """
    real = attention_mask.long()
    return real.cumsum(-1) * real - 1


def packed(
    document_ids: Int[Tensor, "*batch seq"] | None = None, *, cu_seqlens: Int[Tensor, " bounds"] | None = None
) -> Int64[Tensor, "*batch seq"]:
    """Restart the count at each document of a packed sequence.

    Args:
        document_ids: A number a token; a new document begins wherever it changes.
        cu_seqlens: Or the cumulative lengths (0, first, first + second, ...) that flash kernels
            take. The result's length is its last entry, which is read from the device.

    Raises:
        TypeError: Not exactly one of the two is given.

    >>> packed(torch.tensor([7, 7, 7, 9, 9]))
    tensor([0, 1, 2, 0, 1])
    >>> packed(cu_seqlens=torch.tensor([0, 3, 5]))
    tensor([0, 1, 2, 0, 1])
    """
    if cu_seqlens is not None and document_ids is None:
        starts = torch.repeat_interleave(cu_seqlens[:-1].long(), cu_seqlens.diff())
        return torch.arange(starts.shape[0], device=starts.device) - starts
    if document_ids is None or cu_seqlens is not None:
        raise TypeError("positions.packed takes either document_ids or cu_seqlens; pass exactly one of them.")
    index = torch.arange(document_ids.shape[-1], device=document_ids.device).expand(document_ids.shape)
    changed = torch.ones_like(document_ids, dtype=torch.bool)
    changed[..., 1:] = document_ids[..., 1:] != document_ids[..., :-1]
    return index - torch.where(changed, index, 0).cummax(-1).values


def grid(h: int, w: int, *, n_prefix: int = 0, device: torch.device | str | None = None) -> Int64[Tensor, "cells 2"]:
    """Number the cells of an image row by row; axis 0 is the row, axis 1 the column.

    Args:
        h: Rows.
        w: Columns.
        n_prefix: Tokens before the image, such as a class token; they stand in row -1.
        device: Of the result.

    >>> grid(2, 2, n_prefix=1).tolist()
    [[-1, 0], [0, 0], [0, 1], [1, 0], [1, 1]]
    """
    cells = torch.cartesian_prod(torch.arange(h, device=device), torch.arange(w, device=device))
    prefix = torch.stack((torch.full((n_prefix,), -1, device=device), torch.arange(n_prefix, device=device)), -1)
    return torch.cat((prefix, cells))


def shifted(
    pos: Shaped[Tensor, "*batch seq"], max_shift: int, *, generator: torch.Generator | None = None
) -> Shaped[Tensor, "*batch seq"]:
    """Move each sequence by a random whole number from 0 to max_shift (SHAPE; Kiyono 2021, 2109.05644).

    For training: a model that has seen every offset must look at differences. One number for (seq_len,), one a
    row for (batch, seq_len).

    Args:
        pos: Positions on one axis.
        max_shift: The largest shift, itself included.
        generator: Of the random numbers, on the device of `pos`.

    Raises:
        ValueError: A negative max_shift.

    >>> shifted(torch.arange(3), 0)
    tensor([0, 1, 2])
    """
    if max_shift < 0:
        raise ValueError(f"positions.shifted: max_shift must not be negative; got {max_shift}. 0 moves nothing.")
    shape = (*pos.shape[:-1], 1)
    return pos + torch.randint(max_shift + 1, shape, generator=generator, device=pos.device)


def randomised(
    n: int,
    max_len: int,
    *,
    batch: int | None = None,
    generator: torch.Generator | None = None,
    device: torch.device | str | None = None,
) -> Int64[Tensor, "*batch n"]:
    """Draw n of the positions 0 .. max_len - 1 without repetition, in rising order (Ruoss 2023, 2305.16843).

    For training with any encoding: positions as large as those of the longest test are seen, in the right
    order, at the price of the exact distances.

    Args:
        n: Tokens of a sequence.
        max_len: One more than the largest position; that of the longest sequence to be met.
        batch: Rows, each with positions of its own; None for a plain sequence.
        generator: Of the random numbers.
        device: Of the result.

    Raises:
        ValueError: More tokens than positions.

    >>> randomised(4, 4)
    tensor([0, 1, 2, 3])
    """
    if not 0 <= n <= max_len:
        raise ValueError(
            f"positions.randomised: n tokens need n different positions; got n={n}, max_len={max_len}. "
            f"Pass a max_len of {max(n, 0)} or more."
        )
    rows = torch.rand(1 if batch is None else batch, max_len, generator=generator, device=device)
    drawn = rows.topk(n).indices.sort().values  # the places of the n largest are a fair draw
    return drawn[0] if batch is None else drawn


def check(pos: Tensor, n_axes: int, who: str) -> Tensor:
    """Return positions as int64 or float64 after checking their kind and their axes.

    Args:
        pos: (seq_len,) or (batch, seq_len) for one axis; (..., seq_len, n_axes) for several.
        n_axes: How many axes the encoding works on.
        who: The encoding's name, for the message.

    Raises:
        TypeError: `pos` is no tensor, or a dtype that cannot hold positions.
        ValueError: Its shape does not fit `n_axes`.
    """
    if not isinstance(pos, Tensor):
        raise TypeError(
            f"{who}: pos must be a tensor of positions; got {type(pos).__name__}. "
            "Make one with posenc.positions, for instance positions.arange(seq_len)."
        )
    if pos.dtype not in _INTEGERS + _REALS:
        raise TypeError(
            f"{who}: positions must be integers, float32 or float64, because half precision cannot tell "
            f"256 from 257; got {pos.dtype}. Make them with positions.arange(seq_len)."
        )
    fits = pos.ndim in (1, 2) if n_axes == 1 else pos.ndim in (2, 3) and pos.shape[-1] == n_axes
    if not fits:
        wanted = "(seq_len,) or (batch, seq_len)"
        if n_axes > 1:
            wanted = f"(seq_len, {n_axes}) or (batch, seq_len, {n_axes})"
        raise ValueError(
            f"{who}: works on {n_axes} position {'axis' if n_axes == 1 else 'axes'}, so pos must be {wanted}; "
            f"got {tuple(pos.shape)}. "
            + ("Wrap it in OnAxes to choose axes." if n_axes == 1 else "positions.grid makes two axes.")
        )
    return pos.double() if pos.dtype in _REALS else pos.long()


def check_range(pos: Int64[Tensor, "..."], end: int, who: str, why: str, *, start: int = 0) -> None:
    """Raise if a position lies outside [start, end).

    Only where looking costs nothing: on the CPU and not while compiling. A device's own index
    check speaks elsewhere.

    Raises:
        ValueError: A position is below `start` or at least `end`.
    """
    if not may_look(pos):
        return
    low, high = (int(value) for value in pos.aminmax())
    if low < start or high >= end:
        bad = low if low < start else high
        raise ValueError(f"{who}: positions must lie in {start}..{end - 1}, because {why}; got position {bad}.")


def check_reach(away: Float64[Tensor, "..."], reach: float, who: str, why: str) -> None:
    """Raise if a position lies further from its centre than `reach`, where looking costs nothing.

    Raises:
        ValueError: One does.
    """
    if may_look(away) and (furthest := float(away.abs().max())) > reach:
        raise ValueError(
            f"{who}: positions must lie within {reach:,.0f} of the centre, because {why}; got one {furthest:,.0f} away."
        )


def may_look(t: Tensor) -> bool:
    """Whether values can be read without stalling a device, breaking a graph or leaving a transform."""
    plain = type(t) is Tensor and t.device.type == "cpu" and t.numel() > 0
    if not plain or torch.compiler.is_compiling():
        return False
    return not torch._C._functorch.is_functorch_wrapped_tensor(t)
