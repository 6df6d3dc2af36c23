"""Attention in blocks of queries, each with the keys that the masks leave: O(L) memory, with gradients."""

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from posenc.attention import formed, fused, one_query, products, shared
from posenc.attention.call import Call, zero_empty_rows
from posenc.attention.leaves import hidden, may_slice, sees_distance, tensors
from posenc.attention.near import Near, near
from posenc.attention.once import once
from posenc.attention.sdpa import grouped
from posenc.attention.shifts import fit, ways
from posenc.attention.spans import Block, blank, spans, whole
from posenc.attention.terms import Terms
from posenc.families import ContentBias, no_autocast
from posenc.positions.checks import all_plain, is_plain, may_look

LONG = 768  # queries a block where a kernel keeps the scores to itself, which takes 256 at a time of so many
SHORT = 256  # where they are formed


class Blocked:
    """Blocks of queries, in a backward pass formed again rather than kept.

    Args:
        by_distance: True for biases that are vectors over distances, and calls with masks alone; False for any
            encoding, whose bias is then formed for a block at a time.
    """

    def __init__(self, *, by_distance: bool) -> None:
        self.by_distance = by_distance
        self.name = "distance" if by_distance else "blocked"

    def rejects(self, call: Call) -> str | None:
        """Refuse biases that are no vectors, where they shall be."""
        if (reason := fused.mixed(call)) is not None:
            return reason
        if torch.is_grad_enabled() and (reason := _hides(call)) is not None:
            return reason
        if not self.by_distance:
            return None
        if call.encoding.rescores:
            return f"{call.encoding.name} makes new scores of a whole row, which no vector over distances holds."
        for leaf in call.leaves:
            if not sees_distance(leaf):
                return (
                    f"{leaf.encoding.name} is no function of whole distances that may be looked at (by_distance, "
                    "integer positions on the CPU, some keys, no compiler), so that there is no vector of them."
                )
        if not _is_plain(call):
            return "a view of a vector is for the CPU's kernels; others want a mask whose rows are aligned in memory."
        return None

    def memory(self, call: Call) -> int:
        """Estimate vectors, results, what is formed of one block, and sums of gradients."""
        if one_query.fits(call):
            return one_query.memory(call)
        if not self.by_distance and products.fits(call):
            return shared.memory(call, SHORT) if shared.fits(call) else products.memory(call)
        batch, n_heads, q_len, k_len = call.shape
        width, lanes = (8 if call.out_dtype == torch.float64 else 4), max(call.q.shape[-1], call.v.shape[-1])
        learns = torch.is_grad_enabled() and _learns(call)
        masked = bool(call.dropout_p) or call.mask is not None or call.document_ids is not None
        # blocks of scores at a time
        held = _formed(call) if not self.by_distance else max(2.0 * masked, _looked_up(call, width))
        held += 3.0 * (learns or bool(call.dropout_p)) + (learns and held > 0)
        block = batch * n_heads * min(q_len, SHORT) * _seen(call) * width
        rows = min(q_len, _rows(call))  # the result of the kernel, where nothing is formed
        if held or learns:
            rows = 3 * min(q_len, SHORT) + 3 * (q_len + k_len) * learns
        return n_heads * (q_len + k_len) * width + batch * n_heads * rows * lanes * width + int(held * block)

    def run(self, call: Call) -> Tensor:
        """Compute the call."""
        with no_autocast(call.q.device):
            if not (self.by_distance or _is_plain(call)):  # where it is by distance, `rejects` has looked
                return _traced(call)
            if one_query.fits(call):
                return one_query.run(call)
            if not self.by_distance and shared.fits(call):
                return shared.run(call, partial(_run, by_distance=False), SHORT)
            if not self.by_distance and products.fits(call):
                return products.run(call)
            return _run(call, by_distance=self.by_distance)


def _rows(call: Call) -> int:
    """Return how many queries a block has that a kernel takes: each is given keys that only the last of them sees."""
    q_len = call.shape[2]
    if call.out_dtype.itemsize > 2:
        return LONG if q_len >= 4 * LONG else SHORT
    return max(SHORT, min(q_len // 8, 4 * SHORT))  # else keys and values are copied more often, where that is done


def _formed(call: Call) -> float:
    """Return how many blocks of scores the biases of one take, while they are formed."""
    return 1.6 if all(isinstance(leaf.encoding, ContentBias) and may_slice(leaf) for leaf in call.leaves) else 3.0


def _looked_up(call: Call, width: int) -> float:
    """Return how many blocks of scores biases take that are looked up one by one, where positions are scattered."""
    batch, n_heads, q_len, _ = call.shape
    if q_len == 1 or call.document_ids is not None:  # of blocks of documents more is told than is taken
        return 0.0
    if not call.leaves or not all(map(sees_distance, call.leaves)):
        return 0.0
    found = ways(call.leaves, call, lambda: [b for part in spans(call) for b in part.blocks(SHORT, _cuts(call))])
    fits = fit(call.leaves, call, found)
    if fits and None not in found:
        return 0.0
    biases, distances = (1, 1) if fits else (2, 2)  # beyond what a vector holds, a bias is computed for each
    biases += 2 * (len(call.leaves) > 1)  # a sum beside both of its terms
    rows = max(len(leaf.away[0]) for leaf in call.leaves)  # of positions
    return rows * (n_heads * biases + 8 / width * distances) / (batch * n_heads)


def _seen(call: Call) -> int:
    """Return how many keys a block sees at most."""
    k_len, ids = call.shape[3], call.document_ids
    seen = k_len if call.window is None else min(k_len, call.window + SHORT)
    if ids is None or not may_look(ids):
        return seen
    longest = max(int(row.unique(return_counts=True)[1].max()) for row in ids.reshape(-1, k_len))
    return min(seen, longest + SHORT)


@dataclass(frozen=True)
class Work:
    """One call, cut into blocks: what both passes need beside tensors."""

    terms: Terms
    near: Near
    forwards: list[Block]
    backwards: list[Block]
    scale: float
    dropout_p: float
    seed: int
    formed: bool  # scores are formed, since no kernel does what is asked for
    traced: bool = False  # under a compiler or within a transform
    kept: bool = False  # for a backward pass


class Saved(NamedTuple):
    """What a backward pass is given of a forward pass, and the gradient of its result."""

    q: Tensor
    k: Tensor
    v: Tensor
    out: Tensor
    lse: Tensor
    grad: Tensor


def _run(call: Call, *, by_distance: bool) -> Tensor:
    """Compute a call in blocks."""
    dtype = call.out_dtype
    parts = spans(call)
    call = blank(call, parts)
    learns = torch.is_grad_enabled() and _learns(call)
    formed_scores = call.dropout_p > 0 or call.encoding.rescores or not fused.can(call)
    vectors = by_distance and not call.encoding.rescores
    cuts = _cuts(call)
    long = _rows(call) if vectors and not formed_scores else SHORT
    forwards = [block for part in parts for block in part.blocks(long, cuts)]
    if long > SHORT and any(block.mixed or block.masked for block in forwards):  # a mask is formed for these
        long, forwards = SHORT, [block for part in parts for block in part.blocks(SHORT, cuts)]
    backwards = forwards
    if learns and long != SHORT:
        backwards = [block for part in parts for block in part.blocks(SHORT, cuts)]
    terms = Terms(call, parts, [*forwards, *backwards], by_distance=vectors)
    if long > SHORT and (terms.leaves or terms.rows or None in terms.shifts.values()):  # as above
        forwards = backwards = [block for part in parts for block in part.blocks(SHORT, cuts)]
        terms = Terms(call, parts, forwards, by_distance=vectors)
    seed = int(torch.randint(2**62, ())) if call.dropout_p else 0
    q, k = call.turned()
    q, k, v = (fused.dense(t.to(dtype)) for t in (q, k, call.v))
    found = near(call, terms, q, k, v)
    kept = torch.is_grad_enabled() and any(t.requires_grad for t in (q, k, v, *terms.tensors))
    work = Work(terms, found, forwards, backwards, call.scale, call.dropout_p, seed, formed_scores, kept=kept)
    width = v.shape[-1]
    if not formed_scores and width != q.shape[-1]:  # the kernel wants one width; zeros change nothing
        widest = max(width, q.shape[-1])
        q, k, v = (F.pad(t, (0, widest - t.shape[-1])) for t in (q, k, v))
    out: Tensor = _Attention.apply(work, q, k, v, *terms.tensors)
    return out[..., :width]


class _Attention(torch.autograd.Function):
    """Attention in blocks. What is kept: q, k, v, the result, one number a row, and what the terms are made of."""

    @staticmethod
    def forward(ctx: Any, work: Work, q: Tensor, k: Tensor, v: Tensor, *tensors: Tensor) -> Tensor:
        out = v.new_zeros((*q.shape[:3], v.shape[-1]))
        wide = torch.float64 if q.dtype == torch.float64 else torch.float32
        lse = q.new_zeros(q.shape[:3], dtype=wide) if work.kept else None
        for block in reversed(work.forwards):  # the last have most keys, and the others then use their memory
            if work.formed:
                out[block.batch, :, block.rows] = formed.attend(work, block, *fused.parts(block, q, k, v), None)
            else:
                fused.attend(work, block, q, k, v, out, lse)
        work.terms.forget()  # what is saved is enough
        ctx.work = work
        ctx.save_for_backward(q, k, v, out, lse, *tensors)
        return out

    @staticmethod
    @once
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, lse, *tensors = ctx.saved_tensors
        wanted, grad = ctx.needs_input_grad[4:], fused.dense(grad)
        # sums over many blocks, in half precision, would lose what is small
        wide = torch.float64 if q.dtype == torch.float64 else torch.float32
        sums = [torch.zeros_like(t, dtype=wide) for t in (q, k, v)]
        others = [torch.zeros_like(t, dtype=wide) if w else None for t, w in zip(tensors, wanted, strict=True)]
        terms_learn = any(wanted) and not ctx.work.formed
        saved = Saved(q, k, v, out, lse, grad)
        if terms_learn:
            saved = saved._replace(k=formed.with_ones(k, wide), v=formed.with_ones(v, wide))
        for block in reversed(ctx.work.backwards):
            if ctx.work.formed:
                formed.gradients(ctx.work, block, saved, tensors, sums, others)
            elif terms_learn:
                formed.gradients_of_terms(ctx.work, block, saved, tensors, sums, others)
            else:
                fused.gradients(ctx.work, block, saved, tensors, sums)
        ctx.work.terms.forget()
        found = [t.to(of.dtype) for t, of in zip(sums, (q, k, v), strict=True)]
        rest = [None if t is None else t.to(of.dtype) for t, of in zip(others, tensors, strict=True)]
        return None, *found, *rest


def _traced(call: Call) -> Tensor:
    """Compute a call under a compiler or within a transform: all queries in one block, by what torch can trace."""
    dtype = call.out_dtype
    part, block = whole(call)
    allowed = part.allowed(block)
    call = call.blanked()[0]
    terms = Terms(call, [part], [], by_distance=False)
    q, k = call.turned()
    mask = None if call.encoding.rescores else terms.dense(block, None)
    # within a transform torch's choice of a kernel does not see that a mask learns
    transformed = mask is not None and not torch.compiler.is_compiling()
    if call.dropout_p or call.encoding.rescores or transformed:
        work = Work(terms, Near(terms, {}), [block], [block], call.scale, call.dropout_p, 0, True, True)
        out = formed.attend(work, block, q, k, call.v, None)
    else:
        # a bias of 50 loses its fraction in half precision; the CPU adds a float32 mask to half precision scores, and
        # other devices demand one dtype, so that all of it is float32 there
        kind = dtype if mask is None or dtype.itemsize >= 4 or call.q.device.type == "cpu" else torch.float32
        q, k, v = (t.to(kind) for t in (q, k, call.v))
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=call.scale, enable_gqa=grouped(call))
    return zero_empty_rows(out, allowed).to(dtype)


def _hides(call: Call) -> str | None:
    """Refuse encodings whose gradients would be lost."""
    for encoding in {call.encoding, *(leaf.encoding for leaf in call.leaves)}:
        if (name := hidden(encoding)) is not None:
            return (
                f"{name} carries gradients and is no parameter, so a block that is formed again could not pass them "
                "on. Register it, or give it by torch.func.functional_call."
            )
    return None


def _is_plain(call: Call) -> bool:
    """Whether all tensors are memory that can be written to in pieces, and q may be looked at."""
    if not may_look(call.q) or (call.mask is not None and not is_plain(call.mask)):
        return False
    own = (p for leaf in call.leaves for p in leaf.encoding.parameters())
    return all_plain((call.k, call.v, *own, *tensors(call.placed), *tensors(call.k_placed)))


def _learns(call: Call) -> bool:
    """Whether gradients may go to a bias or a mask."""
    own = (p.requires_grad for leaf in call.leaves for p in leaf.encoding.parameters())
    return any(own) or (call.mask is not None and call.mask.requires_grad) or call.encoding.reads_qk


def _cuts(call: Call) -> list[int]:
    """Return queries at which positions jump, so that blocks lie between; none if there are many."""
    pos = call.placed.pos
    if pos.ndim > 2 or call.placed.n_axes > 1 or pos.is_floating_point() or pos.shape[-1] < 2:
        return []
    jumps = (pos.diff(dim=-1) != 1).reshape(-1, pos.shape[-1] - 1).any(0).nonzero()[:, 0] + 1
    return jumps.tolist() if len(jumps) <= pos.shape[-1] // 64 else []
