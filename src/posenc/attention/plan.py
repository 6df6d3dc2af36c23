"""What attention in blocks computes: which queries with which keys, and what joins their scores."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from posenc.attention import far, fused
from posenc.attention.call import Call
from posenc.attention.near import Near, near
from posenc.attention.spans import Block, Spans, blank, spans
from posenc.attention.terms import Terms
from posenc.positions.checks import may_look

LONG = 768  # queries a block where a kernel keeps the scores to itself, which takes 256 at a time of so many
WHOLE = 1024  # the same where all queries see all keys
SHORT = 256  # where they are formed


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
    beyond: far.Far | None = None  # blocks have near keys alone


class Saved(NamedTuple):
    """What a backward pass is given of a forward pass, and the gradient of its result."""

    q: Tensor
    k: Tensor
    v: Tensor
    out: Tensor
    lse: Tensor
    grad: Tensor


def cut(call: Call, *, by_distance: bool) -> tuple[Work, Call]:
    """Return what is to be computed of a call, and the call with queries and keys turned, of its result's dtype."""
    parts = spans(call)
    call = blank(call, parts)
    formed = fused.forms(call)
    vectors = by_distance and not call.encoding.rescores
    long, learns = rows(call) if vectors and not formed else SHORT, torch.is_grad_enabled() and learns_bias(call)
    reach = far.reach(call, learns=learns) if by_distance else None
    if reach is None:
        sizes, jumps = (long, SHORT if learns else long), cuts(call)
    else:
        sizes, jumps, call = far.sizes(), [], replace(call, window=reach)
        parts = spans(call)
    terms, forwards, backwards = _blocks(call, parts, sizes, jumps, vectors=vectors)
    beyond = None if reach is None else far.far(call, reach, terms)
    seed = call.seed
    if seed is None:
        seed = int(torch.randint(2**62, (), device="cpu")) if call.dropout_p else 0
    q, k = call.turned()
    q, k, v = (fused.dense(t.to(call.out_dtype)) for t in (q, k, call.v))
    counts = near(call, terms, q, k, v) if reach is None else Near(terms, {})
    kept = torch.is_grad_enabled() and any(t.requires_grad for t in (q, k, v, *terms.tensors))
    work = Work(
        terms, counts, forwards, backwards, call.scale, call.dropout_p, seed, formed=formed, kept=kept, beyond=beyond
    )
    return work, replace(call, q=q, k=k, v=v)


def _blocks(
    call: Call, parts: Sequence[Spans], sizes: tuple[int, int], jumps: list[int], *, vectors: bool
) -> tuple[Terms, list[Block], list[Block]]:
    """Return blocks of so many queries for the forward pass, and for the backward pass, and what joins their scores."""

    def of(size: int) -> list[Block]:
        return [block for part in parts for block in part.blocks(size, jumps)]

    long, short = sizes
    forwards = of(long)
    if long > SHORT and any(block.mixed or block.masked for block in forwards):  # a mask is formed for these
        return _blocks(call, parts, (SHORT, SHORT), jumps, vectors=vectors)
    backwards = forwards if short == long else of(short)
    terms = Terms(call, parts, [*forwards, *backwards], by_distance=vectors)
    if long > SHORT and (terms.leaves or terms.rows or None in terms.shifts.values()):  # as above
        return _blocks(call, parts, (SHORT, SHORT), jumps, vectors=vectors)
    return terms, forwards, backwards


def rows(call: Call) -> int:
    """Return how many queries a block has that a kernel takes: each is given keys that only the last of them sees."""
    q_len = call.shape[2]
    if fused.copies(call.out_dtype):  # more often, the shorter blocks are
        return max(SHORT, min(q_len // 8, 4 * SHORT))
    long = LONG if call.causal or call.window is not None else WHOLE
    return long if q_len >= 4 * long else SHORT


def learns_bias(call: Call) -> bool:
    """Whether gradients may go to a bias or a mask."""
    own = (p.requires_grad for leaf in call.leaves for p in leaf.encoding.parameters())
    return any(own) or (call.mask is not None and call.mask.requires_grad) or call.encoding.reads_qk


def cuts(call: Call) -> list[int]:
    """Return queries at which positions jump, so that blocks lie between; none if there are many."""
    pos = call.placed.pos
    if pos.ndim > 2 or call.placed.n_axes > 1 or pos.is_floating_point() or pos.shape[-1] < 2 or not may_look(pos):
        return []
    jumps = (pos.diff(dim=-1) != 1).reshape(-1, pos.shape[-1] - 1).any(0).nonzero()[:, 0] + 1
    return jumps.tolist() if len(jumps) <= pos.shape[-1] // 64 else []
