"""Forward passes of biases that are products: those of queries and keys are added to them where they lie.

torch's kernel would take such a bias as a mask, beside scores of its own, or its factors as lanes, to which it adds as
many of the values.
"""

import torch
from torch import Tensor

from posenc.attention import fused
from posenc.attention.call import Call, softmax
from posenc.attention.heads import cuts
from posenc.attention.leaves import is_product, n_lanes, tensors
from posenc.attention.scratch import Scratch
from posenc.attention.spans import Block, blank, spans
from posenc.attention.terms import Terms
from posenc.positions.checks import all_plain

ROWS = 128  # queries a block
PARTS = 4  # of the heads; of numbers of two bytes twice as many, since scores and factors have four bytes all the same
LEAST = 2**19  # numbers of q, from which on heads follow each other: before, more calls cost more than memory is worth


def fits(call: Call) -> bool:
    """Whether a bias is a product of many lanes, and nothing learns. For tensors that are plain memory."""
    if torch.is_grad_enabled() or call.dropout_p or call.encoding.rescores or not fused.can(call):
        return False
    if not any(map(is_product, call.leaves)):
        return False
    placed = *tensors(call.placed), *tensors(call.k_placed), *(() if call.mask is None else (call.mask,))
    return all_plain((call.k, call.v, *placed, *call.encoding.parameters()))


def n_parts(call: Call) -> int:
    """Return how many parts of the heads follow each other."""
    return PARTS if call.out_dtype.itemsize >= 4 else 2 * PARTS


def memory(call: Call) -> int:
    """Estimate the bytes of what is formed of a block, of factors, and of keys and values in the dtype of sums."""
    batch, n_heads, q_len, k_len = call.shape
    at_once = max(1, n_heads // n_parts(call)) if cuts(call, LEAST) else n_heads
    lanes = sum(map(n_lanes, call.leaves))
    blocks = 1 + 2 * (len(call.leaves) > 1) + 3 * (call.mask is not None) + (batch > 1)
    numbers = blocks * min(q_len, ROWS) * k_len
    numbers += lanes * (q_len + k_len) + k_len * (call.k.shape[-1] + call.v.shape[-1])
    return batch * at_once * numbers * (8 if call.out_dtype == torch.float64 else 4)


def run(call: Call, _: slice, scratch: Scratch | None) -> Tensor:
    """Compute a call that fits, or some heads of one; v may have any width."""
    parts = spans(call)
    call = blank(call, parts)
    blocks = [block for part in parts for block in part.blocks(ROWS, [])]
    terms = Terms(call, parts, blocks, by_distance=False)
    if scratch is not None:
        terms.form_in(scratch)
    q, k, v = (t.to(call.out_dtype) for t in (*call.turned(), call.v))
    k, v = _of_sums(terms, "k", k), _of_sums(terms, "v", v)
    out = q.new_zeros((*q.shape[:3], v.shape[-1]), dtype=call.out_dtype)
    for block in reversed(blocks):  # the last have most keys, and the others then use their memory
        rows = q[block.batch, :, block.rows].to(terms.dtype)
        scores = _scores(terms, block, rows, k, call.scale)
        weights = torch.softmax(scores, -1, out=scores)
        if bool(weights[..., 0].isnan().any()):  # a row may see nothing
            weights = softmax(_scores(terms, block, rows, k, call.scale))
        values = v[block.batch, :, block.keys].flatten(0, 1)
        found = torch.bmm(weights.view(len(values), -1, weights.shape[-1]), values)
        out[block.batch, :, block.rows] = found.view(*weights.shape[:3], -1)
    return out


def _of_sums(terms: Terms, name: str, t: Tensor) -> Tensor:
    """Return keys or values as products want them: in the dtype of sums, all heads of all items in equal steps."""
    t = fused.dense(terms.scratch.rounded(name, t, terms.dtype))
    return t if t.shape[0] == 1 or t.stride(0) == t.shape[1] * t.stride(1) else t.contiguous()


def _scores(terms: Terms, block: Block, q: Tensor, k: Tensor, scale: float) -> Tensor:
    """Return a block's scores (batch, heads, q_len, k_len), minus infinity where nothing is seen."""
    bias = terms.dense(block, None, hide=False)
    assert bias is not None  # of one product at least, in memory of its own, which a sum may have put in any order
    keys = k[block.batch, :, block.keys].flatten(0, 1).mT
    shape = (*q.shape[:3], keys.shape[-1])
    own = bias.shape == shape and bias.is_contiguous()
    scores = bias if own else terms.scratch.take("scores", shape, bias).copy_(bias)
    rows = q.reshape(len(keys), -1, q.shape[-1])  # heads that share keys are of one product
    scores.view(len(keys), -1, shape[-1]).baddbmm_(rows, keys, alpha=scale)
    return terms.parts[block.item].hide(scores, block)
