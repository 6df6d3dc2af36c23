"""The masks of FlexAttention: blocks of 128 x 128 tokens that are seen fully, partly or not at all."""

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import torch
from jaxtyping import Bool, Int32
from torch import Tensor

from posenc.attention.call import Call
from posenc.attention.spans import block_ends
from posenc.private import is_watched

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

SIZE = 128  # tokens of a block, torch's default
KEPT = 16  # masks in the cache
LARGEST = 2**16  # the most blocks of a cached mask, 16 bytes each

Blocks = Bool[Tensor, "batch q_blocks k_blocks"]


class Hidden(NamedTuple):
    """The masks that apply before scores are computed."""

    q_len: int
    k_len: int
    causal: bool
    window: int | None
    device: torch.device
    size: int  # tokens of a block
    ids: Tensor | None  # documents, (batch | 1, k_len)
    keys: Tensor | None  # True for the keys that the mask allows for all queries, (batch | 1, k_len)


def hidden(call: Call) -> Hidden | None:
    """Return the masks of a call, except a mask that acts on single scores; None if there are none."""
    ids, keys = call.document_ids, allowed_keys(call)
    if not call.causal and call.window is None and ids is None and keys is None:
        return None
    ids = ids if ids is None or ids.ndim == 2 else ids[None]
    return Hidden(*call.shape[2:], call.causal, call.window, call.q.device, SIZE, ids, keys)


def allowed_keys(call: Call) -> Bool[Tensor, "rows k_len"] | None:
    """Return the keys that the mask allows for all queries, if it is boolean and depends only on the key."""
    mask = call.mask
    if mask is None or mask.dtype != torch.bool or mask.shape[1] > 1 or mask.shape[2] != 1:
        return None
    return mask[:, 0, 0].expand(-1, call.shape[3])


def block_mask(call: Call) -> "BlockMask | None":
    """Return the blocks that are seen partly and fully, found from the ends of each block instead of single pairs.

    A block that counts as partly seen may have no visible pair: then it is computed in vain.

    Building a mask takes the host 2 ms, so the last `KEPT` masks by index are cached, each for the GPU stream that
    wrote it, which can read it without waiting. Masks are not cached while a CUDA graph is captured, since their memory
    would belong to the graph, nor in a mode that records or fakes operations.
    """
    if (what := hidden(call)) is None:
        return None
    stream, captured = None, False
    if what.device.type == "cuda":
        stream = torch.cuda.current_stream(what.device).cuda_stream
        captured = torch.cuda.is_current_stream_capturing()
    n_blocks = -(-what.q_len // what.size) * -(-what.k_len // what.size)
    if what.ids is not None or what.keys is not None or n_blocks > LARGEST or captured or is_watched():
        return _made(what)
    return _kept(what, stream)


@lru_cache(maxsize=KEPT)
def _kept(what: Hidden, stream: int | None) -> "BlockMask":
    with torch.inference_mode(False):  # an inference tensor could not be saved for gradients later
        return _made(what)


def _made(what: Hidden) -> "BlockMask":
    from torch.nn.attention.flex_attention import BlockMask

    some, full = seen_blocks(what)
    part, whole = _ordered((some & ~full)[:, None]), _ordered(full[:, None])
    lengths = what.q_len, what.k_len
    return BlockMask.from_kv_blocks(*part, *whole, BLOCK_SIZE=what.size, mask_mod=mask_mod(what), seq_lengths=lengths)


def seen_blocks(what: Hidden) -> tuple[Blocks, Blocks]:
    """Return which blocks may have a visible pair, and in which blocks all pairs are visible."""
    q_len, k_len, causal, window, device, size, ids, keys = what
    offset = k_len - q_len
    top, left = (torch.arange(0, n, size, device=device) for n in (q_len, k_len))
    bottom, right = ((t + size - 1).clamp(max=n - 1) for t, n in ((top, q_len), (left, k_len)))
    whole = (top + size <= q_len)[:, None] & (left + size <= k_len)
    top, bottom = top[:, None] + offset, bottom[:, None] + offset
    some, full = torch.ones_like(whole)[None], whole[None]
    if causal:
        some, full = some & (left <= bottom), full & (right <= top)
    if window is not None:
        some, full = some & (right > top - window), full & (left > bottom - window)
        if not causal:
            some, full = some & (left < bottom + window), full & (right < top + window)
    if ids is not None:
        (low, high), (first, last) = block_ends(ids[:, offset:], size), block_ends(ids, size)
        low, high, first, last = low[..., None], high[..., None], first[:, None], last[:, None]
        some, full = some & (low <= last) & (first <= high), full & (low == last) & (first == high)
    if keys is not None:
        none, all_ = block_ends(keys.to(torch.int8), size)
        some, full = some & (all_ > 0)[:, None], full & (none > 0)[:, None]
    return some, full


def _ordered(seen: Bool[Tensor, "*any columns"]) -> tuple[Int32[Tensor, "*any"], Int32[Tensor, "*any columns"]]:
    """Return the number of blocks in each row of blocks, and their columns in order, followed by unused entries."""
    which = seen.to(torch.int8).argsort(dim=-1, descending=True, stable=True)
    return seen.sum(-1, dtype=torch.int32), which.to(torch.int32).contiguous()


def mask_mod(what: Hidden) -> Callable[..., Tensor]:
    """Return f(b, h, q_idx, kv_idx): whether a pair is visible.

    Numbers that vary between calls are tensors, since a compiler specialises on Python numbers.
    """
    causal, ids, keys = what.causal, what.ids, what.keys
    number = torch.full((2,), what.k_len - what.q_len, device=what.device)
    if what.window is not None:
        number[1] = what.window
    windowed = what.window is not None

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
