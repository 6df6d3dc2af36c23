"""Positions of tokens in a sequence: plain, continued, padded, packed, or in a draft tree."""

import torch
import torch.nn.functional as F
from jaxtyping import Int, Int64, Shaped
from torch import Tensor

from posenc.positions.checks import may_look


def arange(n: int, *, start: int = 0, device: torch.device | str | None = None) -> Int64[Tensor, " n"]:
    """Count from `start`: the positions of a plain sequence.

    >>> arange(3, start=5)
    tensor([5, 6, 7])
    """
    return torch.arange(start, start + n, device=device)


def continued(past_len: int, n: int, *, device: torch.device | str | None = None) -> Int64[Tensor, " n"]:
    """Continue the count after a cache of `past_len` tokens.

    >>> continued(4, 2)
    tensor([4, 5])
    """
    return arange(n, start=past_len, device=device)


def left_padded(attention_mask: Shaped[Tensor, "*batch seq"]) -> Int64[Tensor, "*batch seq"]:
    """Count real tokens from 0 in each row; padding (False or 0) on the left gets 0.

    >>> left_padded(torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]]))
    tensor([[0, 0, 0, 1],
            [0, 1, 2, 3]])
    """
    return (attention_mask.long().cumsum(-1) - 1).clamp(min=0)


def padded(attention_mask: Shaped[Tensor, "*batch seq"]) -> Int64[Tensor, "*batch seq"]:
    """Count real tokens from 0 in each row, with padding anywhere; padding (False or 0) gets -1.

    `Learned` with rows before that of position 0 gives padding the last of them: with two such rows it equals the
    tables of RoBERTa and OPT.

    Raises:
        ValueError: The mask has other values than 0 and 1 (checked only on the CPU).

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
    document_ids: Int[Tensor, "*batch seq"] | None = None,
    *,
    cu_seqlens: Int[Tensor, " bounds"] | None = None,
    total: int | None = None,
) -> Int64[Tensor, "*batch seq"]:
    """Restart the count at each document of a packed sequence.

    Args:
        document_ids: A number for each token; a new document starts where it changes.
        cu_seqlens: Alternatively the cumulative lengths (0, first, first + second, ...) of flash kernels. The
            result's length is its last entry, which is read from the device.
        total: The number of tokens that `cu_seqlens` divides, if the caller knows it: then nothing is read, and a
            compiled graph stays whole. Tokens after the last bound are one more document.

    Raises:
        TypeError: None or both are given, or `total` without `cu_seqlens`.

    >>> packed(torch.tensor([7, 7, 7, 9, 9]))
    tensor([0, 1, 2, 0, 1])
    >>> packed(cu_seqlens=torch.tensor([0, 3, 5]))
    tensor([0, 1, 2, 0, 1])
    """
    if (document_ids is None) == (cu_seqlens is None):
        raise TypeError("positions.packed needs either document_ids or cu_seqlens; got none or both. Pass one of them.")
    if total is not None and cu_seqlens is None:
        raise TypeError("positions.packed: total belongs to cu_seqlens; document_ids have a length. Leave it out.")
    if cu_seqlens is not None:
        if total is not None:
            tokens, bounds = torch.arange(total, device=cu_seqlens.device), cu_seqlens.long()
            return tokens - bounds[torch.searchsorted(bounds[1:].contiguous(), tokens, right=True)]
        starts = torch.repeat_interleave(cu_seqlens[:-1].long(), cu_seqlens.diff())
        return torch.arange(starts.shape[0], device=starts.device) - starts
    assert document_ids is not None  # checked above
    index = torch.arange(document_ids.shape[-1], device=document_ids.device)
    changed = document_ids[..., 1:] != document_ids[..., :-1]
    began = torch.where(changed, index[1:], 0).cummax(-1).values
    return index - F.pad(began, (1, 0))


def tree(parents: Int[Tensor, "*batch nodes"], *, start: int = 0) -> Int64[Tensor, "*batch nodes"]:
    """Number the nodes of a draft tree by depth, so that siblings share a position (speculative decoding).

    Args:
        parents: The index of each node's parent within its row, in any order; -1 for a root.
        start: The position of the roots: one more than that of the last token before them.

    Raises:
        TypeError: `parents` is no tensor of integers.

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
