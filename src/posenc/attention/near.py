"""Keys so far away that they count for nothing: where a bias falls by more than queries and keys can make up for.

Of ALiBi's eight heads at 16,384 tokens five need a fourth of the keys or less. The others would have weights too small
to be normal numbers, with which some processors compute many times as slowly: their bias is minus infinity.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from posenc.attention.call import Call
from posenc.attention.heads import ALL, Heads
from posenc.attention.spans import Block
from posenc.attention.terms import Terms

LEAST = 2048  # keys from which on leaving some out takes less time than it saves
HIDES = 1024  # of numbers of four bytes or more, from which on hiding some does
LEARNS = 256  # the same where gradients are recorded, which take longer of what is not normal
ROWS = 512  # queries whose keys are looked at together, in blocks that leave some out
STEP = 128  # keys, to multiples of which a reach is rounded, so that heads share calls
ROUNDED = 1.01  # times a norm in half precision is no less than the norm


class Part(NamedTuple):
    """Some heads of a block, and their queries with the keys that count for them."""

    heads: Heads
    block: Block


class Reach(NamedTuple):
    """How many indices behind and ahead of a query keys may count for some heads."""

    heads: Heads
    behind: int
    ahead: int


class Near:
    """How far heads reach, by the slot of their vector among the tensors of `terms`; nothing where all keys count.

    A query sees itself at least. A key is left out if its score, whatever the angle between its vector and the
    query's, lies so far below that one's that its weight times its values is less than eps^3 of what the other brings:
    all such keys together bring less than the rounding of a sum.
    """

    def __init__(self, terms: Terms, reaches: Mapping[int, Sequence[Reach]]) -> None:
        self.terms, self.reaches = terms, reaches

    def parts(self, block: Block, q: Tensor, k: Tensor) -> list[Part]:
        """Return what of a block a forward pass is to compute, one after the other, given all queries and keys."""
        if self.terms.view(block, self.terms.tensors) is None:
            return [Part(heads, block) for heads in self.terms.heads(block, q, k, forwards=True)]
        return self.counting(block)

    def counting(self, block: Block) -> list[Part]:
        """Return heads of a block, and what counts for them."""
        if not self.reaches:
            return [Part(ALL, block)]
        found: list[Part] = []
        for heads, *reach in self.reaches[self.terms.slot(block)]:
            if ROWS + sum(reach) >= block.size[1]:  # nothing is gained
                before = found.pop().heads if found and found[-1].block == block else heads
                joined = (slice(a.start, b.stop) for a, b in zip(before, heads, strict=True))
                found.append(Part(Heads(*joined), block))
                continue
            for begin in range(block.begin, block.end, ROWS):
                rows = block._replace(begin=begin, end=min(begin + ROWS, block.end))
                found.append(Part(heads, self._seen(rows, *reach)))
                self.terms.shifts[found[-1].block] = self.terms.shifts[block]  # it is looked up in the same vector
        return found

    def _seen(self, block: Block, behind: int, ahead: int) -> Block:
        """Return the block with those of its keys that may count."""
        first, last = block.begin + self.terms.offset - behind, block.end + self.terms.offset + ahead
        return block._replace(first=max(block.first, first), last=min(block.last, last))


def near(call: Call, terms: Terms, q: Tensor, k: Tensor, v: Tensor) -> Near:
    """Hide what counts for nothing in the vectors of `terms`, given turned queries and keys; return how far heads see.

    NaN and infinity anywhere leave all keys in.
    """
    if not _fits(call, terms, v):
        return Near(terms, {})
    least = -3.0 * math.log(torch.finfo(terms.dtype).eps)
    falls = {slot: _fall(terms.tensors[slot].detach(), k) for slot in terms.vectors.values()}
    if not any(bool(((fall > least) & fall.isfinite()).any()) for fall in falls.values()):
        return Near(terms, {})
    of_q, of_k, of_v = (torch.linalg.vector_norm(t.detach(), dim=-1).to(terms.dtype) * ROUNDED for t in (q, k, v))
    group = q.shape[1] // k.shape[1]
    product = of_q.amax((0, 2)).view(-1, group).amax(1) * of_k.amax((0, 2))
    margin = least + 2 * abs(call.scale) * product + (of_v.amax() / of_v.amin()).log()
    for slot, fall in falls.items():
        terms.tensors[slot] = _hidden(terms.tensors[slot], fall > margin[:, None], group)
    if k.shape[2] < LEAST or not _spreads(call):
        return Near(terms, {})
    return Near(terms, {slot: _reaches(fall, margin, k.shape[2], group) for slot, fall in falls.items()})


def _fits(call: Call, terms: Terms, v: Tensor) -> bool:
    """Whether all biases are vectors, and each query sees itself."""
    _, _, q_len, k_len = call.shape
    if not terms.sums or terms.leaves or terms.rows or None in terms.shifts.values() or call.mask is not None:
        return False
    least = LEAST if call.out_dtype.itemsize < 4 else LEARNS if torch.is_grad_enabled() else HIDES
    return max(q_len, least) <= k_len and call.q.numel() > 0 and v.numel() > 0


def _fall(vector: Float[Tensor, "heads_or_one n"], k: Tensor) -> Float[Tensor, "n_kv n"]:
    """Return how far below that of a query's own key biases lie at least, of all heads that share one of the keys."""
    fall = vector[:, k.shape[2] - 1 : k.shape[2]] - vector
    return fall.view(k.shape[1], -1, fall.shape[1]).amin(1) if len(fall) > 1 else fall.expand(k.shape[1], -1)


def _spreads(call: Call) -> bool:
    """Whether some heads at a time keep all threads at work: torch's kernel deals out 64 of so few queries at once."""
    batch, n_heads, _, _ = call.shape
    return batch * n_heads // call.k.shape[1] * -(-ROWS // 64) >= torch.get_num_threads()


def _hidden(
    vector: Float[Tensor, "heads_or_one n"], nothing: Bool[Tensor, "n_kv n"], group: int
) -> Float[Tensor, "heads_or_one n"]:
    """Return a vector that is minus infinity where keys count for nothing, of all heads that it is for."""
    of_each = nothing.repeat_interleave(group, 0) if len(vector) > 1 else nothing.all(0, keepdim=True)
    return vector.masked_fill(of_each, -torch.inf)


def _reaches(fall: Float[Tensor, "n_kv n"], margin: Float[Tensor, " n_kv"], k_len: int, group: int) -> list[Reach]:
    """Return how far heads reach, those together that follow each other and reach equally far."""
    counts = ~(fall > margin[:, None])  # so does NaN
    behind = k_len - 1 - counts.int().argmax(1)
    ahead = fall.shape[1] - k_len - counts.flip(1).int().argmax(1)
    rounded = (-(-torch.stack((behind, ahead), 1) // STEP) * STEP).tolist()
    found: list[Reach] = []
    for i, reach in enumerate(rounded):
        begin = found.pop().heads.of_k.start if found and [*found[-1][1:]] == reach else i
        found.append(Reach(Heads(slice(begin * group, (i + 1) * group), slice(begin, i + 1)), *reach))
    return found
