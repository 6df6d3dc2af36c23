"""Positions of tokens in a sequence: plain, continued, padded, packed, or drafted as a tree."""

import torch
import torch.nn.functional as F
from jaxtyping import Int, Int64, Shaped
from torch import Tensor

from posenc.positions.checks import may_look


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


def left_padded(attention_mask: Shaped[Tensor, "*batch seq"]) -> Int64[Tensor, "*batch seq"]:
    """Count real tokens from 0 in each row; padded slots (False or 0) on the left get 0.

    >>> left_padded(torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]]))
    tensor([[0, 0, 0, 1],
            [0, 1, 2, 3]])
    """
    return (attention_mask.long().cumsum(-1) - 1).clamp(min=0)


def padded(attention_mask: Shaped[Tensor, "*batch seq"]) -> Int64[Tensor, "*batch seq"]:
    """Count real tokens from 0 in each row, wherever padding stands; padded slots (False or 0) get -1.

    A table with rows before that of position 0 gives padding the last of them (`Learned`): with two such rows,
    these are the rows of RoBERTa and OPT.

    Raises:
        ValueError: The mask has other values than 0 and 1 (seen on the CPU).

    >>> padded(torch.tensor([[1, 1, 1, 0], [0, 1, 1, 1]]))
    tensor([[ 0,  1,  2, -1],
            [-1,  0,  1,  2]])
    """
    if may_look(attention_mask) and not ((attention_mask == 0) | (attention_mask == 1)).all():
        raise ValueError(
            "positions.padded: attention_mask must be 0 or False for padding and 1 or True for tokens; got "
            f"{attention_mask.unique().tolist()}. A mask that is added to scores has 0 for tokens: pass mask == 0."
        )
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
    if (document_ids is None) == (cu_seqlens is None):
        raise TypeError("positions.packed takes either document_ids or cu_seqlens; pass exactly one of them.")
    if document_ids is None:
        assert cu_seqlens is not None  # or it was refused
        starts = torch.repeat_interleave(cu_seqlens[:-1].long(), cu_seqlens.diff())
        return torch.arange(starts.shape[0], device=starts.device) - starts
    index = torch.arange(document_ids.shape[-1], device=document_ids.device)
    changed = document_ids[..., 1:] != document_ids[..., :-1]
    began = torch.where(changed, index[1:], 0).cummax(-1).values
    return index - F.pad(began, (1, 0))


def tree(parents: Int[Tensor, "*batch nodes"], *, start: int = 0) -> Int64[Tensor, "*batch nodes"]:
    """Number the nodes of a tree by their depth, so that siblings share a position: drafts of speculative decoding.

    Args:
        parents: The index of each node's parent within its row; -1 for a root. In any order.
        start: Position of the roots, one more than that of the last token before them.

    Raises:
        TypeError: Parents are no tensor of integers.

    >>> tree(torch.tensor([-1, 0, 0, 1, 3]), start=10)  # two guesses after the root, and two more after the first
    tensor([10, 11, 11, 12, 13])
    """
    if not isinstance(parents, Tensor) or parents.is_floating_point() or parents.dtype == torch.bool:
        got = parents.dtype if isinstance(parents, Tensor) else type(parents).__name__
        raise TypeError(f"tree: parents must be a tensor of integers; got {got}. Pass torch.tensor([-1, 0, ...]).")
    ancestor, depth = parents.long(), torch.full_like(parents, start, dtype=torch.int64)
    for _ in range(parents.shape[-1]):  # the deepest tree is a chain
        depth = depth + (ancestor >= 0)
        ancestor = torch.where(ancestor >= 0, parents.long().gather(-1, ancestor.clamp(min=0)), -1)
    return depth
