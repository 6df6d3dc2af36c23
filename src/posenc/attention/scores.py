"""Blocks whose scores are formed: for gradients of biases, score maps, dropout, and devices without a kernel."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from posenc.attention.call import softmax
from posenc.attention.spans import Block
from posenc.attention.terms import Terms

Sums = Sequence[Tensor | None]
NO_SECOND_DERIVATIVE = (
    "attend: this backend has no second derivative, because its backward pass computes the scores again without a "
    "graph. Pass backend='reference' to get one."
)


@dataclass(frozen=True)
class Work:
    """One call, cut into blocks, without its tensors: what both passes share."""

    terms: Terms
    blocks: Sequence[Block]
    scale: float
    dropout_p: float
    seed: int | None  # of dropout; None to let torch draw
    formed: bool  # whether scores are formed, since no kernel supports the call
    q_len: int


class Saved(NamedTuple):
    """The tensors that the forward pass saves, and the gradient of its result."""

    q: Tensor
    k: Tensor
    v: Tensor
    out: Tensor
    lse: Tensor | None
    grad: Tensor


def attend(work: Work, block: Block, q: Tensor, k: Tensor, v: Tensor, tensors: Sequence[Tensor]) -> Tensor:
    """Return the result of a block, given its queries, keys and values, in plain differentiable steps.

    A score map gets scores and biases of masked keys as well; the mask is applied after it.
    """
    terms, n_kv = work.terms, k.shape[1]
    q, k, v = (t.to(terms.dtype) for t in (q, k, v))
    scores = _of_heads(work.scale * (_grouped(q, n_kv) @ k.mT), q)
    bias = terms.mask(block, tensors)
    scores = scores if bias is None else scores + bias
    if terms.map is not None:
        scores, allowed = terms.rescored(scores, block, tensors), terms.allowed(block)
        scores = scores if allowed is None else scores.masked_fill(~allowed, -torch.inf)
    weights = softmax(scores)
    if work.dropout_p:
        weights = F.dropout(weights, work.dropout_p) if work.seed is None else weights * _kept(work, block, weights)
    return _of_heads(_grouped(weights, n_kv) @ v, q)


def gradients(
    work: Work, block: Block, saved: Saved, tensors: Sequence[Tensor], sums: Sequence[Tensor], others: Sums
) -> None:
    """Add a block's gradients to `sums` (q, k, v) and `others` (the terms), by computing it again under autograd."""
    at, keys = (block.batch, slice(None), block.rows), (block.batch, slice(None), work.terms.keys(block))
    with torch.enable_grad():
        q, k, v = (t[where].detach().requires_grad_() for t, where in zip(saved[:3], (at, keys, keys), strict=True))
        live = [t if s is None else t.detach().requires_grad_() for t, s in zip(tensors, others, strict=True)]
        out = attend(work, block, q, k, v, live)
    own = [sums[0][at], sums[1][keys], sums[2][keys], *others]  # views, so that adding to them adds to the sums
    wanted = [(t, s) for t, s in zip((q, k, v, *live), own, strict=True) if s is not None]
    found = torch.autograd.grad(out, [t for t, _ in wanted], saved.grad[at].to(out.dtype), allow_unused=True)
    for part, (_, total) in zip(found, wanted, strict=True):
        if part is not None:
            total += part.to(total.dtype)


def gradients_of_terms(
    work: Work, block: Block, saved: Saved, tensors: Sequence[Tensor], sums: Sequence[Tensor], others: Sums
) -> None:
    """Add the gradients of a block whose terms learn, with its weights computed from scores and log-sum-exp."""
    terms, n_kv = work.terms, saved.k.shape[1]
    at, keys = (block.batch, slice(None), block.rows), (block.batch, slice(None), terms.keys(block))
    assert saved.lse is not None  # the kernel returns it
    q, grad, out, lse = (t[at].to(terms.dtype) for t in (saved.q, saved.grad, saved.out, saved.lse))
    k, v = (t[keys].to(terms.dtype) for t in (saved.k, saved.v))
    weights = _of_heads(_grouped(q * work.scale, n_kv) @ k.mT, q)
    if (bias := terms.mask(block, tensors)) is not None:
        weights += bias
    weights.sub_(lse[..., None]).exp_()
    sums[2][keys] += _grouped(weights, n_kv).mT @ _grouped(grad, n_kv)
    d_scores = _of_heads(_grouped(grad, n_kv) @ v.mT, q)
    d_scores.sub_((grad * out).sum(-1, keepdim=True)).mul_(weights)
    of_keys = _grouped(d_scores, n_kv)
    sums[0][at] += _of_heads(of_keys @ k, q) * work.scale
    sums[1][keys] += (of_keys.mT @ _grouped(q, n_kv)) * work.scale
    terms.add_gradients(block, d_scores, tensors, others)


def _kept(work: Work, block: Block, weights: Tensor) -> Tensor:
    """Return dropout's factors for a block's weights: the same in both passes."""
    assert work.seed is not None  # as `attend` ensures
    number = (block.item or 0) * work.q_len + block.begin
    random = torch.Generator(weights.device).manual_seed(work.seed + number)
    keep = 1 - work.dropout_p
    return torch.empty_like(weights).bernoulli_(keep, generator=random) / keep


def _grouped(t: Tensor, n_kv: int) -> Tensor:
    """Fold the query heads that share a key head into the rows of that head: (batch, n_kv, rows, width)."""
    return t if t.shape[1] == n_kv else t.reshape(t.shape[0], n_kv, t.shape[1] // n_kv * t.shape[2], t.shape[3])


def _of_heads(t: Tensor, q: Tensor) -> Tensor:
    """Undo `_grouped`: return the rows of each query head."""
    return t.reshape(*q.shape[:3], t.shape[-1])


def once(backward: Callable[..., tuple[Tensor | None, ...]]) -> Callable[..., tuple[Tensor | None, ...]]:
    """Decorate a backward so that differentiating its results raises an error.

    torch's `once_differentiable` raises only if the incoming gradient has a graph; otherwise it returns no gradient
    without an error.
    """

    @wraps(backward)
    def wrapped(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        with torch.no_grad():
            found = backward(ctx, *grads)
        if not torch.is_grad_enabled():  # no second derivative is requested
            return found
        # attach results to all that they depend on, so that the gradient of any one of these raises
        depends = [t for t in (*ctx.saved_tensors, *grads) if isinstance(t, Tensor) and t.requires_grad]
        return tuple(None if t is None else _Raises.apply(t.detach(), *depends) for t in found)

    return wrapped


class _Raises(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, t: Tensor, *depends: Tensor) -> Tensor:
        return t.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        raise RuntimeError(NO_SECOND_DERIVATIVE)
