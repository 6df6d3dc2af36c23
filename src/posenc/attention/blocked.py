"""Attention in blocks of queries, each with the keys that the masks leave: with gradients, in memory that is O(L)."""

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from posenc.attention import far, formed, fused, one_query, plan, products, shared, traced
from posenc.attention.call import Call
from posenc.attention.leaves import hidden, may_slice, sees_distance, tensors
from posenc.attention.once import once
from posenc.attention.plan import Saved, Work
from posenc.attention.shifts import fit, ways
from posenc.attention.spans import spans
from posenc.families import ContentBias, no_autocast
from posenc.positions.checks import all_plain, may_look


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
        if not (may_look(call.q) and _is_plain(call)):
            return "a view of a vector is for the CPU's kernels; others want a mask whose rows are aligned in memory."
        return None

    def memory(self, call: Call) -> int:
        """Estimate vectors, results, what is formed of one block, and sums of gradients."""
        if one_query.fits(call):
            return one_query.memory(call)
        if not self.by_distance and products.fits(call):
            return shared.memory(call, plan.SHORT) if shared.fits(call) else products.memory(call)
        batch, n_heads, q_len, k_len = call.shape
        width, lanes = (8 if call.out_dtype == torch.float64 else 4), max(call.q.shape[-1], call.v.shape[-1])
        learns = torch.is_grad_enabled() and plan.learns_bias(call)
        if self.by_distance and (reach := far.reach(call, learns=learns)) is not None:
            return far.memory(call, reach, learns=learns)
        held = self._held(call, width, learns=learns)
        block = batch * n_heads * min(q_len, plan.SHORT) * _seen(call) * width
        rows = min(q_len, plan.rows(call))  # the result of the kernel, where nothing is formed
        if held or learns:
            rows = 3 * min(q_len, plan.SHORT)
        rows += (3 if learns else 2 * torch.is_grad_enabled()) * (q_len + k_len)  # sums of gradients
        return n_heads * (q_len + k_len) * width + batch * n_heads * rows * lanes * width + int(held * block)

    def _held(self, call: Call, width: int, *, learns: bool) -> float:
        """Return how many blocks of scores there are at a time."""
        if call.encoding.rescores:  # CoPE and DAPE as they are by default
            return 20.0 if torch.is_grad_enabled() else 12.0
        masked = bool(call.dropout_p) or call.mask is not None or call.document_ids is not None
        held = _formed(call) if not self.by_distance else max(2.0 * masked, _looked_up(call, width))
        return held + 3.0 * (learns or fused.forms(call)) + (learns and held > 0)

    def run(self, call: Call) -> Tensor:
        """Compute the call."""
        with no_autocast(call.q.device):
            if not (self.by_distance or _is_plain(call)):  # where it is by distance, `rejects` has looked
                return traced.run(call)
            if one_query.fits(call):
                return one_query.run(call)
            if not self.by_distance and shared.fits(call):
                return shared.run(call, partial(_run, by_distance=False), plan.SHORT)
            if not self.by_distance and products.fits(call):
                return products.run(call)
            return _run(call, by_distance=self.by_distance)


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
    found = ways(
        call.leaves, call, lambda: [b for part in spans(call) for b in part.blocks(plan.SHORT, plan.cuts(call))]
    )
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
    seen = k_len if call.window is None else min(k_len, call.window + plan.SHORT)
    if ids is None or not may_look(ids):
        return seen
    longest = max(int(row.unique(return_counts=True)[1].max()) for row in ids.reshape(-1, k_len))
    return min(seen, longest + plan.SHORT)


def _run(call: Call, *, by_distance: bool) -> Tensor:
    """Compute a call in blocks."""
    work, call = plan.cut(call, by_distance=by_distance)
    q, k, v, width = call.q, call.k, call.v, call.v.shape[-1]
    if not work.formed and width != q.shape[-1]:  # the kernel wants one width; zeros change nothing
        widest = max(width, q.shape[-1])
        q, k, v = (F.pad(t, (0, widest - t.shape[-1])) for t in (q, k, v))
    out: Tensor = _Attention.apply(work, q, k, v, *work.terms.tensors)
    return out[..., :width]


class _Attention(torch.autograd.Function):
    """Attention in blocks. What is kept: q, k, v, the result, one number a row, and what the terms are made of."""

    @staticmethod
    def forward(ctx: Any, work: Work, q: Tensor, k: Tensor, v: Tensor, *tensors: Tensor) -> Tensor:
        out = (v.new_zeros if work.beyond is None else v.new_empty)((*q.shape[:3], v.shape[-1]))
        wide = torch.float64 if q.dtype == torch.float64 else torch.float32
        lse = q.new_zeros(q.shape[:3], dtype=wide) if work.kept else None
        if work.beyond is not None:
            far.attend(work, q, k, v, out, lse)
        # the last have most keys, and the others then use their memory
        for block in reversed([] if work.beyond else work.forwards):
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
        kinds = [t.dtype for t in tensors]
        wanted, grad = ctx.needs_input_grad[4:], fused.dense(grad)
        # sums over many blocks, in half precision, would lose what is small
        wide = torch.float64 if q.dtype == torch.float64 else torch.float32
        sums = [torch.zeros_like(t, dtype=wide) for t in (q, k, v)]
        others = [torch.zeros_like(t, dtype=wide) if w else None for t, w in zip(tensors, wanted, strict=True)]
        terms_learn = any(wanted) and not ctx.work.formed
        whole = saved = Saved(q, k, v, out, lse, grad)
        if terms_learn:
            saved = saved._replace(k=formed.with_ones(k, wide), v=formed.with_ones(v, wide))
            for i in ctx.work.terms.raw:  # once for all blocks, whose shares of their gradients are then not rounded
                tensors[i] = tensors[i].to(wide)
        for block in reversed(ctx.work.backwards):
            if ctx.work.formed:
                formed.gradients(ctx.work, block, saved, tensors, sums, others)
            elif terms_learn:
                formed.gradients_of_terms(ctx.work, block, saved, tensors, sums, others)
            else:
                fused.gradients(ctx.work, block, saved, tensors, sums)
        if ctx.work.beyond is not None:
            far.gradients(ctx.work, whole, tensors, sums, others)
        ctx.work.terms.forget()
        found = [t.to(of.dtype) for t, of in zip(sums, (q, k, v), strict=True)]
        rest = [None if t is None else t.to(kind) for t, kind in zip(others, kinds, strict=True)]
        return None, *found, *rest


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
    """Whether all tensors are memory that can be written to in pieces, on whatever device, and there are queries."""
    if not call.q.numel():
        return False
    own = (p for leaf in call.leaves for p in leaf.encoding.parameters())
    masks = (t for t in (call.mask, call.document_ids) if t is not None)
    return all_plain((call.q, call.k, call.v, *masks, *own, *tensors(call.placed), *tensors(call.k_placed)))
