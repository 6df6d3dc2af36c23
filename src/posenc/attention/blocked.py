"""Attention in blocks of queries, each with the keys that the masks allow: with gradients, in O(seq_len) memory."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from posenc import private
from posenc.attention import scores
from posenc.attention.call import Call, mixed, widened
from posenc.attention.leaves import sees_distance, unregistered
from posenc.attention.scores import Saved, Work, once
from posenc.attention.spans import Block, blank, spans
from posenc.attention.terms import Terms
from posenc.families import no_autocast

LONG = 512  # queries of a block if the kernel forms the scores and biases are views
SHORT = 256  # the most queries of a block whose scores or biases are formed
FORMED = 2**22  # about the most scores of a block whose biases are formed: larger blocks allocate new memory each time
LEAST = 32  # the fewest queries of such a block


class Blocked:
    """Blocks of queries; the backward pass computes them again instead of keeping them."""

    name = "blocked"

    def rejects(self, call: Call) -> str | None:
        """Refuse mixed dtypes, and encodings whose gradients would be lost."""
        if (reason := mixed(call)) is not None or not torch.is_grad_enabled():
            return reason
        for encoding in {call.encoding, *(leaf.encoding for leaf in call.leaves)}:
            if (name := unregistered(encoding)) is not None:
                return (
                    f"{name} carries gradients but is not a parameter, so the backward pass, which computes blocks "
                    "again, would lose them. Make it a parameter, or pass it with torch.func.functional_call."
                )
        return None

    def memory(self, call: Call) -> int:
        """Estimate the reversed keys, the scores and biases of one block, and the sums of gradients."""
        batch, n_heads, q_len, k_len = call.shape
        width, head_dim = call.wide.itemsize, max(call.q.shape[-1], call.v.shape[-1])
        trains, held = torch.is_grad_enabled(), _held(call)
        n_rows = min(q_len, SHORT if _forms(call) else _few(call))
        n_keys = k_len if call.window is None else min(k_len, call.window + n_rows)
        pairs = (
            n_rows * n_keys * (held * batch * n_heads * width + 8 * bool(held))
        )  # the last term is for int64 distances
        tokens = 2 * call.k.shape[1] * k_len + trains * 2 * (n_heads * q_len + 2 * call.k.shape[1] * k_len)
        return int(pairs) + batch * tokens * head_dim * width + n_heads * (q_len + k_len) * width

    def run(self, call: Call) -> Tensor:
        """Compute the call."""
        with no_autocast(call.q.device):
            work, q, k, v = cut(call)
            out: Tensor = _Attention.apply(work, q, k, v, *work.terms.tensors)
            return out[..., : call.v.shape[-1]]


def _held(call: Call) -> float:
    """Return about how many blocks of scores are in memory at a time, as measured."""
    trains = torch.is_grad_enabled()
    if call.encoding.rescores:  # measured with CoPE and DAPE at their defaults
        return 20.0 if trains else 10.0
    if _forms(call):
        return 6.0 if trains else 4.0
    views = all(sees_distance(leaf) and leaf.shift is not None for leaf in call.leaves)
    formed = 0.0 if views and (call.mask is None or call.mask.dtype == torch.bool) else 2.0
    return formed + 3.0 * (trains and _learns(call))


def cut(call: Call) -> tuple[Work, Tensor, Tensor, Tensor]:
    """Return a call in blocks, and its queries, keys and values in the form that blocks need."""
    parts = spans(call)
    call = blank(call, parts)
    formed = _forms(call)
    n_rows = _rows(call, formed=formed)
    blocks = [block for part in parts for block in part.blocks(n_rows)]
    terms = Terms(call, parts, blocks)
    if n_rows == LONG and any(terms.view(block, terms.tensors) is None for block in blocks[-1:]):
        blocks = [block for part in parts for block in part.blocks(_few(call))]
        terms = Terms(call, parts, blocks)
    seed = call.seed
    if seed is None and call.dropout_p:
        seed = int(torch.randint(2**62, (), device="cpu"))
    q, k, v = call.operands()
    if terms.backwards:
        k, v = k.flip(2), v.flip(2)
    if not formed:  # the kernel requires contiguous rows of one width; padding with zeros changes nothing
        widest = max(q.shape[-1], v.shape[-1])
        q, k, v = (widened(t if t.stride(-1) == 1 else t.contiguous(), widest) for t in (q, k, v))
    return Work(terms, blocks, call.scale, call.dropout_p, seed, formed, call.shape[2]), q, k, v


def _forms(call: Call) -> bool:
    """Whether scores must be formed, since no kernel supports the call."""
    return call.dropout_p > 0 or call.encoding.rescores or not private.has_attention() or call.q.device.type != "cpu"


def _rows(call: Call, *, formed: bool) -> int:
    """Return the number of queries of a block."""
    if formed:  # one size, so that dropout is the same with gradients and without
        return SHORT
    if torch.is_grad_enabled() and _learns(call):
        return _few(call)
    return LONG


def _few(call: Call) -> int:
    """Return the number of queries that have about `FORMED` scores."""
    batch, n_heads, _, k_len = call.shape
    return max(LEAST, min(SHORT, FORMED // max(1, batch * n_heads * k_len)))


def _learns(call: Call) -> bool:
    """Whether gradients may go to a bias or a mask."""
    own = (p.requires_grad for leaf in call.leaves for p in leaf.encoding.parameters())
    return any(own) or (call.mask is not None and call.mask.requires_grad) or call.encoding.reads_qk


def forwards(work: Work, q: Tensor, k: Tensor, v: Tensor, given: Sequence[Tensor]) -> tuple[Tensor, Tensor | None]:
    """Return the result, and the log-sum-exp of each row if the kernel returns it."""
    out = v.new_zeros((*q.shape[:3], v.shape[-1]))  # no block has the rows that see no key
    lse = None if work.formed else q.new_zeros(q.shape[:3], dtype=work.terms.dtype)
    for block in work.blocks:
        at, keys = (block.batch, slice(None), block.rows), (block.batch, slice(None), work.terms.keys(block))
        if lse is None:
            out[at] = scores.attend(work, block, q[at], k[keys], v[keys], given).to(out.dtype)
        else:
            out[at], lse[at] = private.attention_forward(q[at], k[keys], v[keys], _mask(work, block, given), work.scale)
    return out, lse


def backwards(
    work: Work, saved: Saved, given: Sequence[Tensor], wanted: Sequence[bool]
) -> tuple[list[Tensor], list[Tensor | None]]:
    """Return the gradients of q, k and v, and of the wanted tensors of the terms."""
    # sums over many blocks would lose small addends in half precision
    wide = work.terms.dtype
    sums = [torch.zeros_like(t, dtype=wide) for t in saved[:3]]
    others = [torch.zeros_like(t, dtype=wide) if w else None for t, w in zip(given, wanted, strict=True)]
    for block in work.blocks:
        if work.formed:
            scores.gradients(work, block, saved, given, sums, others)
        elif any(wanted):
            scores.gradients_of_terms(work, block, saved, given, sums, others)
        else:
            _fused_gradients(work, block, saved, given, sums)
    found = [t.to(of.dtype) for t, of in zip(sums, saved[:3], strict=True)]
    return found, [None if t is None else t.to(of.dtype) for t, of in zip(others, given, strict=True)]


def _fused_gradients(work: Work, block: Block, saved: Saved, given: Sequence[Tensor], sums: Sequence[Tensor]) -> None:
    """Add the kernel's gradients of q, k and v."""
    at, keys = (block.batch, slice(None), block.rows), (block.batch, slice(None), work.terms.keys(block))
    assert saved.lse is not None  # the kernel returns it
    grad, q, out, lse = (t[at] for t in (saved.grad, saved.q, saved.out, saved.lse))
    mask = _mask(work, block, given)
    found = private.attention_backward(grad, q, saved.k[keys], saved.v[keys], out, lse, mask, work.scale)
    for total, where, part in zip(sums, (at, keys, keys), found, strict=True):
        total[where] += part


def _mask(work: Work, block: Block, given: Sequence[Tensor]) -> Tensor | None:
    """Return the sum of a block's terms in the shape that the kernel requires."""
    mask = work.terms.mask(block, given)
    if mask is None:
        return None
    mask = mask[(None,) * (4 - mask.ndim)]
    return mask if mask.shape[-2:] == block.size else mask.expand(*mask.shape[:2], *block.size)


class _Attention(torch.autograd.Function):
    """Attention in blocks. Saves q, k, v, the result, one number for each row, and the tensors of the terms."""

    @staticmethod
    def forward(ctx: Any, work: Work, q: Tensor, k: Tensor, v: Tensor, *given: Tensor) -> Tensor:
        out, lse = forwards(work, q, k, v, given)
        ctx.work = work
        work.terms.tensors = []  # they are saved below
        ctx.save_for_backward(q, k, v, out, lse, *given)
        return out

    @staticmethod
    @once
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, lse, *given = ctx.saved_tensors
        grad = grad if grad.stride(-1) == 1 else grad.contiguous()
        found, others = backwards(ctx.work, Saved(q, k, v, out, lse, grad), given, ctx.needs_input_grad[4:])
        return None, *found, *others
