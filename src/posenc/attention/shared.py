"""Products of many lanes that serve all items of a batch: torch's kernel takes a block of them as a mask.

For one item it is faster to join their lanes to queries and keys (products.py).
"""

from collections.abc import Callable

import torch
from torch import Tensor

from posenc.attention import products
from posenc.attention.call import Call
from posenc.attention.heads import by_heads, cuts, parts_of_heads
from posenc.attention.leaves import Leaf, is_product, n_lanes
from posenc.attention.spans import spans
from posenc.families import Bias

LEAST = 2**19  # numbers of q, from which on heads follow each other: before, more calls cost more than memory is worth


def fits(call: Call) -> bool:
    """Whether a block's bias, formed once, serves all items, and nothing learns. For tensors that are plain memory."""
    if call.shape[0] == 1 or (call.mask is not None and call.mask.shape[0] > 1):
        return False
    if not (call.q.numel() and call.k.numel()):  # which have no size that parts could be made by
        return False
    return products.fits(call) and all(map(_of_no_item, call.leaves)) and len(spans(call)) == 1


def run(call: Call, attend: Callable[[Call], Tensor], n_rows: int) -> Tensor:
    """Compute a call by `attend`, which forms blocks of so many queries: some heads after the others."""
    n_parts = _n_parts(call, n_rows)
    return attend(call) if n_parts == 1 else by_heads(call, lambda part, *_: attend(part), n_parts, least=0)


def memory(call: Call, n_rows: int) -> int:
    """Estimate factors, the bias and the result of a block, and the result of some heads."""
    batch, n_heads, q_len, k_len = call.shape
    rows, n_parts = min(q_len, n_rows), _n_parts(call, n_rows)
    at_once = max(1, n_heads // n_parts)
    n = at_once  # heads of a block at once
    if call.mask is None and all(map(is_product, call.leaves)):
        n = min(n, parts_of_heads(batch, n_heads, call.k.shape[1], (rows, k_len), rows=True)[0].of_q.stop)
    terms = 1 + 2 * (len(call.leaves) > 1 or call.mask is not None)
    numbers = n * terms * rows * k_len + 2 * at_once * _n_factors(call)
    results = batch * call.v.shape[-1] * (n * rows + at_once * q_len * (n_parts > 1))
    return numbers * _width(call) + results * call.out_dtype.itemsize


def _of_no_item(leaf: Leaf) -> bool:
    ends = leaf.placed, leaf.k_placed
    return isinstance(leaf.encoding, Bias) and all(p.seq_dim == 0 or len(p.pos) == 1 for p in ends)


def _width(call: Call) -> int:
    return 8 if call.out_dtype == torch.float64 else 4  # bytes of a bias


def _n_factors(call: Call) -> int:
    """Return how many numbers a head's factors have."""
    return sum(map(n_lanes, call.leaves)) * (call.shape[2] + call.shape[3])


def _n_parts(call: Call, n_rows: int) -> int:
    """Return in how many parts the heads follow each other, so that what is formed of one is no more than q."""
    if not cuts(call, LEAST):
        return 1
    _, n_heads, q_len, k_len = call.shape
    formed = _width(call) * n_heads * (_n_factors(call) + min(q_len, n_rows) * k_len)
    return min(n_heads, -(-formed // (call.q.numel() * call.q.element_size())))
