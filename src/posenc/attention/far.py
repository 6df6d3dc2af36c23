"""Keys so far behind that biases are one number there: all of them by one call of torch's kernel, without a mask.

T5's last bucket begins 113 tokens behind a query. Queries from there on, and keys as many before the end, are a causal
call of their own, whose scores differ from plain ones by one number. What is left is a band of near keys, cut into
blocks of one shape that share one small mask. Both are merged by the sums of their rows. Backwards each is given the
sums of both; and since the gradients of a row's scores add up to zero, far ones are what near ones lack.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from posenc.attention import fused
from posenc.attention.call import Call
from posenc.attention.heads import Heads
from posenc.attention.leaves import Leaf, alike_from, over, sees_distance
from posenc.attention.spans import Block
from posenc.attention.terms import Terms
from posenc.families import Bias
from posenc.positions.checks import all_plain

if TYPE_CHECKING:
    from posenc.attention.plan import Saved, Work

TIMES = 8  # as many keys as are near, from which on it is worth two calls
LEAST, LEARNS = 4096, 1024  # keys, from which on, and where the bias learns
LOW = 48.0  # below the bias of a query's own key, where blocks may leave far keys out: weights are eps^3 of float32
AT_ONCE = 4096  # queries of all heads whose near keys are computed at once
SIZES = 32, 128  # queries of a block of near keys in a forward pass, and backwards


class Far(NamedTuple):
    """From which distance by index on biases are one number, and which of the tensors (heads | 1, 1) that is."""

    reach: int
    slot: int


def reach(call: Call, *, learns: bool) -> int | None:
    """Return from which distance by index on biases are one number, for a causal call that is worth two; or None."""
    if not _may(call, learns=learns):
        return None
    found = [_reach(leaf) for leaf in call.leaves]
    known = [one for one in found if one is not None]
    if len(known) < len(found) or call.shape[3] < TIMES * max(known):
        return None
    own, beyond = _at(call, 0), _at(call, max(known))
    # which blocks may leave out; of infinity there is no sum that a mean could be weighed by
    return None if bool(((beyond < own - LOW) | beyond.isposinf()).any()) else max(known)


def _may(call: Call, *, learns: bool) -> bool:
    """Whether a call is so long, and causal alone, and its biases may be read."""
    _, _, q_len, k_len = call.shape
    if not (call.causal and call.leaves and q_len == k_len >= (LEARNS if learns else LEAST)):
        return False
    if call.mask is not None or call.window is not None or call.document_ids is not None:
        return False
    # rounding a result of two bytes shifts all gradients of its row, and what they lack to zero would be that alone
    if fused.forms(call) or not fused.hides(call.scale) or (learns and call.out_dtype.itemsize < 4):
        return False
    return all_plain(p for leaf in call.leaves for p in leaf.encoding.parameters())


def _at(call: Call, index: int) -> Tensor:
    """Return the sum of all biases (heads | 1, 1) at a distance by index."""
    found = torch.zeros(1, 1, device=call.q.device)
    for leaf in call.leaves:
        distance = torch.full((1,), index + (leaf.shift or 0), dtype=torch.int64, device=call.q.device)
        found = found + over(leaf.encoding, leaf.placed, distance)
    return found


def _reach(leaf: Leaf) -> int | None:
    if not isinstance(leaf.encoding, Bias) or not sees_distance(leaf) or leaf.shift is None:
        return None
    begin = alike_from(leaf.encoding)
    return None if begin is None else max(1, begin - leaf.shift)


def sizes() -> tuple[int, int]:
    """Return how many queries a block of near keys has in a forward pass, and backwards."""
    return SIZES if torch.is_grad_enabled() else (SIZES[0], SIZES[0])


def far(call: Call, reach: int, terms: Terms) -> Far:
    """Add what biases are from a reach on to the tensors of `terms`."""
    return Far(reach, *terms.add(_at(call, reach).to(terms.dtype)))


def memory(call: Call, reach: int, *, learns: bool) -> int:
    """Estimate a result of torch's kernel, what is merged at once, a block of near scores, and sums of gradients."""
    batch, n_heads, length, _ = call.shape
    itemsize, lanes = call.out_dtype.itemsize, max(call.q.shape[-1], call.v.shape[-1])
    width, copies = max(4, itemsize), 3 if fused.copies(call.out_dtype) else 1  # with keys and values
    numbers = copies * len(range(n_heads)[_some(call.q[:1], call.k[:1])[0].of_q]) * length * itemsize
    numbers += 3 * min(AT_ONCE, n_heads * length) * width
    near = 0
    if learns:
        numbers += 6 * batch * n_heads * length * width
        near = 4 * batch * n_heads * SIZES[1] * (reach + SIZES[1]) * width
    return n_heads * 2 * length * width + numbers * lanes + near


def attend(work: "Work", q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor | None) -> None:
    """Write the result of a call, and the logarithms of its rows' sums if wanted, of some heads after the others."""
    assert work.beyond is not None  # as who asks has looked
    view = work.terms.view(work.forwards[-1], work.terms.tensors)
    assert view is not None  # all biases are vectors
    mask, number = view.flip(2), work.terms.tensors[work.beyond.slot]  # queries as they are
    # nothing near is seen, of which the kernel says no sum
    shut = (mask[0, :, -1, :, None] == -torch.inf).all(1) & (number > -torch.inf)
    for item in range(len(q)):
        one = [t[item : item + 1] for t in (q, k, v)]
        into = [t[item] for t in (out, lse) if t is not None]
        for heads in _some(one[0], one[1]):
            some = [t[:, of] for t, of in zip(one, (heads.of_q, heads.of_k, heads.of_k), strict=True)]
            own = mask if mask.shape[1] == 1 else mask[:, heads.of_q]
            _heads(work, own, _of(number, heads), _of(shut, heads), some, [t[heads.of_q] for t in into])


def _heads(
    work: "Work", mask: Tensor, number: Tensor, shut: Tensor, qkv: Sequence[Tensor], into: Sequence[Tensor]
) -> None:
    """Write the result of some heads of one item: a call for far keys, and some for blocks of near ones."""
    assert work.beyond is not None  # as who asks has looked
    begin = work.beyond.reach
    k, v = (t[:, :, :-begin] for t in qkv[1:])
    found, sums = (t[0] for t in fused.forward(qkv[0][:, :, begin:], k, v, is_causal=True, scale=work.scale))
    sums += number
    for blocks in _groups(work.forwards, begin, len(found)):
        first, last = blocks[0], blocks[-1]
        rows = _blocks(qkv[0][0], first, first.rows, len(blocks))
        keys, values = (_blocks(t[0], first, first.keys, len(blocks)) for t in qkv[1:])
        own = mask[..., -first.size[0] :, -first.size[1] :]  # at the beginning, where there are fewer keys, a corner
        near = [t.transpose(0, 1) for t in fused.forward(rows, keys, values, attn_mask=own, scale=work.scale)]
        if last.end > begin:
            lacking = max(0, begin - first.begin)  # queries at the beginning that have no far keys: of one block
            far_rows = slice(first.begin + lacking - begin, last.end - begin)
            near[1][:, :, lacking:].masked_fill_(shut[..., None], -torch.inf)
            near = _merged(near, [t[:, far_rows].unflatten(1, (len(blocks), -1)) for t in (found, sums)], lacking)
        for t, rows in zip(into, near, strict=False):
            t[:, first.begin : last.end].unflatten(1, (len(blocks), -1)).copy_(rows)


def _merged(near: Sequence[Tensor], far: Sequence[Tensor], lacking: int) -> list[Tensor]:
    """Return results and sums (heads, blocks, rows, ...) of near and far keys, given those of each."""
    (found, sums), (others, other_sums) = near, far
    found = found.to(sums.dtype)  # half precision would round shares of one that is nearly one
    some = sums[:, :, lacking:]
    found[:, :, lacking:].lerp_(others.to(sums.dtype), torch.sigmoid(other_sums - some)[..., None])
    torch.logaddexp(some, other_sums, out=some)
    return [found, sums]


def _groups(blocks: Sequence[Block], begin: int, n_heads: int) -> Iterator[Sequence[Block]]:
    """Yield blocks that are computed at once: one by one until all have as many near keys, and then many."""
    n_few, n = sum(block.begin < begin for block in blocks), max(1, AT_ONCE // (n_heads * SIZES[0]))
    yield from ([block] for block in blocks[:n_few])
    yield from (blocks[at : at + n] for at in range(n_few, len(blocks), n))


def _blocks(t: Tensor, first: Block, tokens: slice, n: int) -> Tensor:
    """Return a view (blocks, heads, tokens, lanes) of what each of some blocks sees, given what the first does."""
    size, step = tokens.stop - tokens.start, first.size[0]
    return t[:, tokens.start : tokens.stop + (n - 1) * step].unfold(1, size, step).permute(1, 0, 3, 2)


def gradients(
    work: "Work", saved: "Saved", tensors: Sequence[Tensor], sums: Sequence[Tensor], others: Sequence[Tensor | None]
) -> None:
    """Add the gradients of far keys to `sums` (q, k, v) and `others`, which have those of the near."""
    assert work.beyond is not None  # as who asks has looked
    begin, slot = work.beyond
    for heads in _some(saved.q, saved.k):
        q, grad, out, lse = (t[:, heads.of_q, begin:] for t in (saved.q, saved.grad, saved.out, saved.lse))
        k, v = (t[:, heads.of_k, :-begin] for t in (saved.k, saved.v))
        lse = lse - _of(tensors[slot], heads)
        found = fused.backward(grad, q, k, v, out, lse, 0.0, True, scale=work.scale)
        sums[0][:, heads.of_q, begin:] += found[0]
        sums[1][:, heads.of_k, :-begin] += found[1]
        sums[2][:, heads.of_k, :-begin] += found[2]
    total, near = others[slot], others[work.terms.slot(work.forwards[-1])]
    if total is not None and near is not None:
        total -= near.sum(1, keepdim=True)


def _of(number: Tensor, heads: Heads) -> Tensor:
    return number if len(number) == 1 else number[heads.of_q]


def _some(q: Tensor, k: Tensor) -> list[Heads]:
    return fused.heads_at_once(q, k, q.shape[:3].numel() // fused.SHARE)
