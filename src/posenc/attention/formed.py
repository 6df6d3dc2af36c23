"""A block whose scores are formed: for gradients of biases, maps of scores, dropout, and devices of other kinds."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from posenc.attention import fused
from posenc.attention.call import softmax
from posenc.attention.gathered import Gathered, some
from posenc.attention.heads import Heads
from posenc.attention.scratch import Scratch
from posenc.attention.spans import Block
from posenc.families import Piece

if TYPE_CHECKING:
    from posenc.attention.plan import Saved, Work

Sums = Sequence[Tensor]


def attend(work: "Work", block: Block, q: Tensor, k: Tensor, v: Tensor, tensors: Sequence[Tensor] | None) -> Tensor:
    """Return the result of a block, given its own queries, keys and values, in plain differentiable steps.

    `tensors` stand for those of the terms, as their `of_block` gives them; None to take the live ones.
    """
    q, k, v = (t.to(work.terms.dtype) for t in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = (t.repeat_interleave(group, dim=1) if group > 1 else t for t in (k, v))
    scores = work.scale * (q @ k.transpose(-1, -2))
    mapped = work.terms.map is not None  # a map of scores sees them, and biases, as they are where nothing is seen
    bias = work.terms.dense(block, tensors, hide=not mapped)
    scores = scores if bias is None else scores + bias
    if mapped:
        scores, allowed = work.terms.rescored(scores, block, tensors), work.terms.allowed(block)
        scores = scores if allowed is None else scores.masked_fill(~allowed, -torch.inf)
    weights = softmax(scores)
    if work.dropout_p:
        weights = F.dropout(weights, work.dropout_p) if work.traced else weights * _kept(work, block, weights)
    return weights @ v


def _kept(work: "Work", block: Block, weights: Tensor) -> Tensor:
    """Return what dropout multiplies a block's weights with: the same whenever it is asked."""
    number = (block.item or 0) * work.terms.hollow.shape[2] + block.begin
    random = torch.Generator(weights.device).manual_seed(work.seed + number)
    keep = 1 - work.dropout_p
    return torch.empty_like(weights).bernoulli_(keep, generator=random) / keep


def gradients(
    work: "Work",
    block: Block,
    saved: "Saved",
    tensors: Sequence[Tensor],
    sums: Sums,
    others: Sequence[Tensor | None],
) -> None:
    """Add all gradients of a block to `sums` (q, k, v) and `others` (of the terms): formed again under autograd."""
    at = block.batch, slice(None), block.rows
    tensors, others = (work.terms.of_block(block, t) for t in (tensors, others))
    with torch.enable_grad():
        q, k, v = (t.detach().requires_grad_() for t in fused.parts(block, *saved[:3]))
        live = [t if g is None else t.detach().requires_grad_() for t, g in zip(tensors, others, strict=True)]
        out = attend(work, block, q, k, v, live)
        keys = block.batch, slice(None), block.keys
        own = [sums[0][at], sums[1][keys], sums[2][keys]]  # views, to be added to
        _add([out], [saved.grad[at].to(out.dtype)], [q, k, v, *live], [*own, *others])


def gradients_of_terms(
    work: "Work",
    block: Block,
    saved: "Saved",
    tensors: Sequence[Tensor],
    sums: Sums,
    others: Sequence[Tensor | None],
) -> None:
    """Add the gradients of a block whose terms learn; the weights come back from the scores and `lse`.

    Heads follow each other, so that what is formed for them takes less memory, and caches hold it. `saved` has what
    `with_ones` made of k and v.
    """
    terms, q = work.terms, saved.q[block.batch, :, block.rows]
    tensors, others = (terms.of_block(block, t) for t in (tensors, others))
    parts = terms.heads(block, saved.q, saved.k, forwards=False)
    with torch.enable_grad():
        live = [t if g is None else t.detach().requires_grad_() for t, g in zip(tensors, others, strict=True)]
        pieces = terms.pieces(block, live, hide=False) if terms.view(block, tensors) is None else []
    gathered = Gathered(pieces, (*q.shape[:3], block.size[1]), terms.scratch, saved.lse)
    for heads in parts:
        own, own_others = (terms.of_heads(t, heads) for t in (tensors, others))
        into = gathered.memory_of(heads)
        found = _gradients_of_heads(work, block, heads, saved, pieces, own, own_others, sums, into)
        gathered.add(heads, found)
    _add(*gathered.found(), live, others)


def with_ones(t: Tensor, dtype: torch.dtype) -> Tensor:
    """Return keys or values with a lane of ones behind the others, which what joins all scores of a row is met by."""
    return torch.cat((t.to(dtype), torch.ones_like(t[..., :1], dtype=dtype)), -1)


def _gradients_of_heads(
    work: "Work",
    block: Block,
    heads: Heads,
    saved: "Saved",
    pieces: Sequence[Piece],
    tensors: Sequence[Tensor],
    others: Sequence[Tensor | None],
    sums: Sums,
    into: Tensor | None,
) -> Tensor:
    """Add the gradients of some heads but for those of `pieces`, which are of all heads; return those of their scores.

    They are formed in `into`, where that is given.

    Two lanes more bring -lse to the scores and -(grad . out) to the gradients of weights, so that nothing passes over
    them for that alone. Weights are formed in float32 at least; in bfloat16 what they are multiplied with afterwards
    is rounded as the kernel of the forward pass rounds it, where such products are five times as fast.
    """
    terms, scratch = work.terms, work.terms.scratch
    wide, narrow = terms.dtype, torch.bfloat16 if _multiplies(saved.q.dtype) else terms.dtype
    view = terms.view(block, tensors)
    at, keys = (block.batch, heads.of_q, block.rows), (block.batch, heads.of_k, block.keys)
    rows = [t[at].to(wide) for t in (saved.q, saved.grad, saved.out, saved.lse)]
    q, grad, out, lse = rows if view is None else (t.flip(2) for t in rows)
    near, from_v = saved.k[keys], saved.v[keys]
    n_kv, k = near.shape[1], near[..., :-1]
    grouped, shape = partial(_grouped, heads=n_kv), (*q.shape[:3], k.shape[2])
    back = grouped(torch.cat((grad, -(grad * out).sum(-1, keepdim=True)), -1))
    far = grouped(torch.cat((q * work.scale, -lse[..., None]), -1))
    weights = (scratch.take("weights", shape, far) if into is None else into).view(len(far), -1, shape[-1])
    torch.bmm(far, near.flatten(0, 1).transpose(-1, -2), out=weights)
    for term in (view, *terms.row_terms(block, tensors)):
        if term is not None:
            weights.view(shape).add_(term)
    for first, end, term in pieces:
        weights.view(shape)[..., first:end] += some(term.detach(), heads)
    if view is None:
        terms.hide(weights.view(shape), block)
    weights.exp_()
    rounded = scratch.rounded("rounded", weights, narrow)
    sums[2][keys] += (rounded.transpose(-1, -2) @ grouped(grad).to(narrow)).unflatten(0, (-1, n_kv))
    products = scratch.product("products", back, from_v.flatten(0, 1).transpose(-1, -2))
    if view is None:
        d_scores = weights.mul_(products)
    else:
        padded = _Padded(scratch, weights, shape, q.shape[1] // n_kv)
        d_scores = torch.mul(weights, products, out=padded.inner)
        padded.add_diagonals(others[terms.slot(block)], terms.begin(block))
    rounded = scratch.rounded("rounded", d_scores, narrow)
    d_q = (rounded @ k.flatten(0, 1).to(narrow)).view(q.shape) * work.scale
    sums[0][at] = d_q if view is None else d_q.flip(2)
    d_k = (rounded.transpose(-1, -2) @ grouped(q).to(narrow)).view(k.shape)
    sums[1][keys].add_(d_k, alpha=work.scale)
    found = d_scores.view(shape)
    if view is None:
        terms.add_row_gradients(block, found, tensors, others)
    return found


def _multiplies(dtype: torch.dtype) -> bool:
    """Whether products of bfloat16 are fast: where oneDNN has none, torch's take far longer than those of float32."""
    return dtype == torch.bfloat16 and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def _grouped(t: Tensor, heads: int) -> Tensor:
    """Return rows of all heads that share a key's head as rows of that one: (batch * heads, rows, lanes)."""
    return t.reshape(t.shape[0] * heads, t.shape[1] // heads * t.shape[2], t.shape[3])


class _Padded:
    """The gradients of a block's scores in memory whose rows are longer, so that diagonals can be added up as columns.

    With the queries in reverse, all elements of one distance lie on an anti-diagonal, i + j = t. In rows of `width`
    numbers, read as if they had one number less, element (i, t) is number t - i of row i: zeros where there is none.
    """

    def __init__(self, scratch: Scratch, like: Tensor, shape: tuple[int, ...], group: int) -> None:
        batch, n_heads, n_rows, n_keys = shape
        self.shape, self.width = shape, n_keys + n_rows
        self.memory = scratch.take("padded", (batch, n_heads, n_rows, self.width), like)
        self.memory[..., n_keys:] = 0.0
        self.inner = self.memory.view(-1, group * n_rows, self.width)[..., :n_keys]

    def add_diagonals(self, total: Tensor | None, begin: int) -> None:
        """Add the sum of each anti-diagonal to `total` (heads, distances in falling order), from number `begin`."""
        if total is None:
            return
        batch, n_heads, n_rows, n_keys = self.shape
        n = n_rows + n_keys - 1
        size = n_rows * self.width
        sheared = self.memory.as_strided(
            (batch, n_heads, n_rows, n), (n_heads * size, size, self.width - 1, 1), self.memory.storage_offset()
        )
        found = sheared.sum((0, 2))
        total[:, begin : begin + n] += found if total.shape[0] > 1 else found.sum(0, keepdim=True)


def _add(of: Sequence[Tensor], grads: Sequence[Tensor], given: Sequence[Tensor], sums: Sequence[Tensor | None]) -> None:
    """Add the gradients of what needs them to their sums."""
    wanted = [(t, s) for t, s in zip(given, sums, strict=True) if s is not None and t.requires_grad]
    if not (of and wanted):
        return
    found = torch.autograd.grad(of, [t for t, _ in wanted], grads, allow_unused=True)
    for part, (_, total) in zip(found, wanted, strict=True):
        if part is not None:
            total += part.to(total.dtype)
