"""What FlexAttention asks of a call: a function of one score, and which blocks of tokens are seen."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Int32
from torch import Tensor

from posenc.attention.call import Call
from posenc.attention.distances import REACH
from posenc.attention.leaves import Leaf, is_by_distance, over
from posenc.families import Bias
from posenc.positions.checks import is_plain

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

SIZE = 128  # tokens of a block, as torch has them

Mod = Callable[..., Tensor]


def score_mod(call: Call) -> Mod | None:
    """Return f(score, b, h, q_idx, kv_idx): all biases, and a mask that is more than a row of keys."""
    mods = [leaf_mod(leaf) for leaf in call.leaves]
    mask = None if _keys(call) is not None else call.mask
    if not mods and mask is None:
        return None

    def mod(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        found = score.float()  # a kernel has it so, and in half precision what is added would be rounded
        for one in mods:
            found = one(found, b, h, i, j)
        if mask is not None:
            # not the number 0: torch 2.9 reads an index of numbers and tensors at once, which no kernel can
            entry = mask[tuple([at if n > 1 else 0 * at for at, n in zip((b, h, i, j), mask.shape, strict=True)])]
            if mask.dtype == torch.bool:
                found = torch.where(entry, found, -torch.inf)
            else:  # a key that holds NaN must not reach a row that does not see it
                found = torch.where(entry == -torch.inf, -torch.inf, found + entry)
        return found.float()  # float64 of real positions

    return mod


def leaf_mod(leaf: Leaf) -> Mod:
    """Return what one encoding adds to a score: looked up in a vector over distances, or formed by its own `score_mod`.

    On a GPU T5's bias takes 3.6 times plain attention from a vector, and 9 where each score forms its bucket; learned
    slopes take 550 times, since all scores of a head add their gradients to one number (benchmarks/ATTEND_GPU.md).
    """
    assert isinstance(leaf.encoding, Bias)  # others are refused
    if not is_looked_up(leaf):
        return leaf.encoding.score_mod(leaf.placed, leaf.k_placed)
    low, high = leaf.extremes
    vector = over(leaf.encoding, leaf.placed, torch.arange(low, high + 1, device=leaf.placed.pos.device))
    pos, k_pos = (p.pos if p.seq_dim else p.pos[None] for p in (leaf.placed, leaf.k_placed))
    start = k_pos[:1, :1]  # far positions, which a kernel's 32 bits may not hold
    pos, k_pos = (pos - start).int(), (k_pos - start + low).int()  # no number that a compiler would hold fast

    def mod(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        row, k_row = (b if t.shape[0] > 1 else 0 * b for t in (pos, k_pos))
        return score + vector[h, pos[row, i] - k_pos[k_row, j]]

    return mod


def is_looked_up(leaf: Leaf) -> bool:
    """Whether a bias is looked up in a vector: it sees whole distances, which are not much more than tokens."""
    if not is_by_distance(leaf) or not is_plain(leaf.placed.pos):
        return False
    low, high = leaf.extremes
    return high - low <= REACH * (leaf.placed.pos.shape[-1] + leaf.k_placed.pos.shape[-1]) + 64


def _keys(call: Call) -> Bool[Tensor, "rows k_len"] | None:
    """Return which keys are shown to all, if the mask says no more than that."""
    mask = call.mask
    if mask is None or mask.dtype != torch.bool or mask.shape[1] > 1 or mask.shape[2] != 1:
        return None
    return mask[:, 0, 0].expand(-1, call.shape[3])


def _ids(call: Call) -> Tensor | None:
    ids = call.document_ids
    return ids if ids is None or ids.ndim == 2 else ids[None]


def hides(call: Call) -> bool:
    """Whether anything hides keys but a mask that joins the scores."""
    return call.causal or call.window is not None or call.document_ids is not None or _keys(call) is not None


def block_mask(call: Call) -> "BlockMask | None":
    """Return the blocks that are seen in part and in whole, from the ends of each, so that no pair is looked at.

    A block that is called seen in part may turn out to be seen by nobody: then it is formed for nothing.
    """
    from torch.nn.attention.flex_attention import BlockMask

    if not hides(call):
        return None
    some, full = seen_blocks(call)
    part, whole = _ordered((some & ~full)[:, None]), _ordered(full[:, None])
    return BlockMask.from_kv_blocks(*part, *whole, BLOCK_SIZE=SIZE, mask_mod=mask_mod(call), seq_lengths=call.shape[2:])


def seen_blocks(call: Call) -> tuple[Bool[Tensor, "batch q_blocks k_blocks"], Bool[Tensor, "batch q_blocks k_blocks"]]:
    """Return which blocks may hold a pair that is seen, and in which all are."""
    q_len, k_len, device = *call.shape[2:], call.q.device
    offset = k_len - q_len
    top, left = (torch.arange(0, n, SIZE, device=device) for n in (q_len, k_len))
    bottom, right = ((t + SIZE - 1).clamp(max=n - 1) for t, n in ((top, q_len), (left, k_len)))
    whole = (top + SIZE <= q_len)[:, None] & (left + SIZE <= k_len)
    top, bottom = top[:, None] + offset, bottom[:, None] + offset
    some, full = torch.ones_like(whole)[None], whole[None]
    if call.causal:
        some, full = some & (left <= bottom), full & (right <= top)
    if call.window is not None:
        some, full = some & (right > top - call.window), full & (left > bottom - call.window)
        if not call.causal:
            some, full = some & (left < bottom + call.window), full & (right < top + call.window)
    if (ids := _ids(call)) is not None:
        (low, high), (first, last) = _ends(ids[:, offset:]), _ends(ids)
        low, high, first, last = low[..., None], high[..., None], first[:, None], last[:, None]
        some, full = some & (low <= last) & (first <= high), full & (low == last) & (first == high)
    if (keys := _keys(call)) is not None:
        none, all_ = _ends(keys.to(torch.int8))
        some, full = some & (all_ > 0)[:, None], full & (none > 0)[:, None]
    return some, full


def _ends(t: Tensor) -> tuple[Tensor, Tensor]:
    """Return the least and the largest of each block of a row."""
    short = -t.shape[-1] % SIZE
    blocks = torch.cat((t, t[:, -1:].expand(-1, short)), -1).unflatten(-1, (-1, SIZE))
    return blocks.amin(-1), blocks.amax(-1)


def _ordered(seen: Bool[Tensor, "*any columns"]) -> tuple[Int32[Tensor, "*any"], Int32[Tensor, "*any columns"]]:
    """Return how many blocks each row of blocks has, and which ones, in order; what follows them means nothing."""
    which = seen.to(torch.int8).argsort(dim=-1, descending=True, stable=True)
    return seen.sum(-1, dtype=torch.int32), which.to(torch.int32).contiguous()


def mask_mod(call: Call) -> Mod:
    """Return f(b, h, q_idx, kv_idx): whether a pair is seen.

    Numbers that change from call to call are tensors, since a compiler makes one program for each number.
    """
    causal, ids, keys = call.causal, _ids(call), _keys(call)
    number = torch.full((2,), call.shape[3] - call.shape[2], device=call.q.device)
    if call.window is not None:
        number[1] = call.window
    windowed = call.window is not None

    def mod(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        here = i + number[0]
        seen = j <= here if causal else j >= 0
        if windowed:
            seen = seen & (j > here - number[1])
            if not causal:
                seen = seen & (j < here + number[1])
        if ids is not None:
            row = b if ids.shape[0] > 1 else 0 * b
            seen = seen & (ids[row, here] == ids[row, j])
        if keys is not None:
            seen = seen & keys[b if keys.shape[0] > 1 else 0 * b, j]
        return seen

    return mod
