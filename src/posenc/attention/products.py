"""Forward passes of biases that are products of many lanes: queries and keys are joined to these, and scores formed.

torch's kernel would take such a bias as a mask, beside scores of its own, or its factors as lanes, to which it adds as
many of the values, and which it rounds as it does queries and keys.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate, compress

import torch
from torch import Tensor

from posenc.attention import fused
from posenc.attention.call import Call, softmax
from posenc.attention.heads import by_heads, cuts
from posenc.attention.leaves import Leaf, factors_of, is_product, n_lanes, tensors
from posenc.attention.scratch import Scratch
from posenc.attention.spans import Block, Spans, blank, spans
from posenc.attention.terms import Terms
from posenc.positions.checks import all_plain

ROWS = 80  # queries a block of those with most keys: more are no faster, and take more memory
MORE = 2  # times as many at most, where fewer keys take no more memory
STRETCH = 2048  # queries that are joined at once: more calls, or more memory
SHORT, COLUMNS = 4096, 512  # keys, fewer than which are multiplied so many at once for one head: 3 to 6 % slower
PARTS = 4  # of the heads; of numbers of two bytes twice as many, since scores and factors have four bytes all the same


def fits(call: Call) -> bool:
    """Whether a bias is a product of many lanes, and nothing learns. For tensors that are plain memory."""
    if torch.is_grad_enabled() or call.dropout_p or call.encoding.rescores or not fused.can(call):
        return False
    if not any(map(is_product, call.leaves)):
        return False
    placed = *tensors(call.placed), *tensors(call.k_placed), *(() if call.mask is None else (call.mask,))
    return all_plain((call.k, call.v, *placed, *call.encoding.parameters()))


def memory(call: Call) -> int:
    """Estimate the bytes of what is formed of a block, and of factors, keys and values in the dtype of sums."""
    batch, n_heads, q_len, k_len = call.shape
    at_once = max(1, n_heads // _n_parts(call)) if cuts(call, least=0) else n_heads
    lanes = sum(map(n_lanes, call.leaves))
    width = lanes + call.k.shape[-1]
    blocks = 1 + 2 * (len(call.leaves) > 1) + 3 * (call.mask is not None)
    numbers = blocks * min(q_len, ROWS) * k_len
    numbers += width * (min(q_len, STRETCH) + k_len) + (lanes + call.v.shape[-1]) * k_len
    alone = batch * at_once == 1  # each thread of a product has its own copy of the keys, or of some
    packed = torch.get_num_threads() * width * (min(COLUMNS, k_len) if alone and k_len < SHORT else k_len)
    return (batch * at_once * numbers + packed) * (8 if call.out_dtype == torch.float64 else 4)


def run(call: Call) -> Tensor:
    """Compute a call that fits; v may have any width."""
    parts = spans(call)
    call = blank(call, parts)
    blocks = [block for part in parts for block in part.blocks(ROWS, [], more=MORE)]
    some = partial(_of_heads, parts, blocks, [n_lanes(leaf) if is_product(leaf) else 0 for leaf in call.leaves])
    return by_heads(call, some, _n_parts(call), least=0)


def _n_parts(call: Call) -> int:
    return PARTS if call.out_dtype.itemsize >= 4 else 2 * PARTS


def _of_heads(
    parts: Sequence[Spans],
    blocks: Sequence[Block],
    lanes: Sequence[int],
    call: Call,
    _: slice,
    scratch: Scratch | None,
    into: Tensor | None,
) -> Tensor:
    """Compute some heads of a call, or all, given how many lanes each bias has as a product; none if it is no such."""
    others = [leaf for leaf, n in zip(call.leaves, lanes, strict=True) if n == 0]
    terms = Terms(replace(call, leaves=others), parts, blocks if others else [], by_distance=False)
    if scratch is not None:
        terms.form_in(scratch)
    leaves = list(compress(call.leaves, lanes))
    _take(terms, call, blocks, sum(lanes))
    q, k = call.turned()
    each = k[:, :, None].expand(-1, -1, q.shape[1] // k.shape[1], -1, -1).flatten(1, 2)
    k = _joined(terms, "k", [_factor(replace(leaf, placed=leaf.placed.last(0)), 1) for leaf in leaves], each)
    k[..., sum(lanes) :] *= call.scale
    v = fused.dense(terms.scratch.rounded("v", call.v.to(call.out_dtype), terms.dtype))
    if len(v) > 1 and v.stride(0) != v.shape[1] * v.stride(1):
        v = v.contiguous()  # products want all heads of all items in equal steps
    out = q.new_empty((*q.shape[:3], v.shape[-1]), dtype=call.out_dtype) if into is None else into
    out.zero_()  # rows that see nothing may be of no block
    for some in _stretches(blocks):
        _attend(terms, some, _queries(terms, leaves, q, some), k, v, out)
    return out


def _stretches(blocks: Sequence[Block]) -> Iterator[list[Block]]:
    """Return blocks of one item that follow each other, as many as have `STRETCH` queries.

    The last come first, since they have most keys: what a library keeps of these serves for all.
    """
    some: list[Block] = []
    for block in reversed(blocks):
        if some and (block.item != some[0].item or some[0].end - block.begin > STRETCH):
            yield some
            some = []
        some.append(block)
    if some:
        yield some


def _queries(terms: Terms, leaves: Sequence[Leaf], q: Tensor, some: Sequence[Block]) -> Tensor:
    """Return queries of some blocks, joined to what biases say of them."""
    begin, end, batch = some[-1].begin, some[0].end, some[0].batch
    lanes = []
    for leaf in leaves:
        placed = leaf.placed.rows(begin, end, batch)
        lanes.append(_factor(replace(leaf, placed=placed, k_placed=leaf.k_placed.last(0)), 0))
    return _joined(terms, "q", lanes, q[batch, :, begin:end])


def _attend(terms: Terms, some: Sequence[Block], q: Tensor, k: Tensor, v: Tensor, out: Tensor) -> None:
    """Write the results of blocks, given what is joined of their queries and of all keys."""
    begin = some[-1].begin
    rows = [q[:, :, block.begin - begin : block.end - begin] for block in some]
    for block, own in zip(some, rows, strict=True):
        scores = _scores(terms, block, own, k)
        out[block.batch, :, block.rows] = _weighted(terms, block, torch.softmax(scores, -1, out=scores), v)
    if bool(out[some[0].batch, :, begin : some[0].end].isnan().any()):  # a row may see nothing
        for block, own in zip(some, rows, strict=True):
            out[block.batch, :, block.rows] = _weighted(terms, block, softmax(_scores(terms, block, own, k)), v)


def _take(terms: Terms, call: Call, blocks: Sequence[Block], lanes: int) -> None:
    """Take what parts share before what is formed for one alone, so that the next finds that memory in one piece."""
    batch, n_heads, _, k_len = call.shape
    largest = max((block.size[0] * block.size[1] for block in blocks), default=0)
    rows = max((block.size[0] for block in blocks), default=0)
    queries = max((some[0].end - some[-1].begin for some in _stretches(blocks)), default=0)
    width = lanes + call.k.shape[-1]
    sizes = {"scores": largest, "k": k_len * width, "q": queries * width, "found": rows * call.v.shape[-1]}
    for purpose, size in sizes.items():
        terms.scratch.take(purpose, (batch * n_heads * size,), call.k, terms.dtype)


def _factor(leaf: Leaf, i: int) -> Tensor:
    """Return what a bias says of queries or of keys: one at a time takes half of the memory."""
    factors = factors_of(leaf)
    assert factors is not None  # it is a product
    return factors[i]


def _joined(terms: Terms, purpose: str, lanes: Sequence[Tensor], t: Tensor) -> Tensor:
    """Return lanes ahead of queries or keys, in the dtype of sums."""
    widths = [x.shape[-1] for x in (*lanes, t)]
    joined = terms.scratch.take(purpose, (*t.shape[:3], sum(widths)), t, terms.dtype)
    for end, width, x in zip(accumulate(widths), widths, (*lanes, t), strict=True):
        joined[..., end - width : end] = x  # torch.cat would take as much again where dtypes differ
    return joined


def _scores(terms: Terms, block: Block, q: Tensor, k: Tensor) -> Tensor:
    """Return a block's scores (batch, heads, q_len, k_len), minus infinity where nothing is seen."""
    keys = k[block.batch, :, block.keys].flatten(0, 1).mT
    columns = COLUMNS if k.shape[2] < SHORT else None  # by the call: most blocks of a long one have few keys as well
    scores = terms.scratch.product("scores", q.flatten(0, 1), keys, columns=columns).view(*q.shape[:3], -1)
    if (bias := terms.dense(block, None, hide=False)) is not None:
        scores += bias
    return terms.parts[block.item].hide(scores, block)


def _weighted(terms: Terms, block: Block, weights: Tensor, v: Tensor) -> Tensor:
    """Return the values (batch, heads, q_len, lanes) of a block; heads that share some are of one product."""
    values = v[block.batch, :, block.keys].flatten(0, 1)
    found = terms.scratch.product("found", weights.view(len(values), -1, weights.shape[-1]), values)
    return found.view(*weights.shape[:3], -1)
