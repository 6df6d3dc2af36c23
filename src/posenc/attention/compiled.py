"""Attention under a compiler or within a transform, where no value can be read.

One operator, `posenc::attend`, gets biases by distance as a vector and runs the blocks of eager code outside of the
graph. Its arguments are tensors and numbers, so its graph runs in any process that has imported posenc. All other calls
are traced as blocks of queries.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from posenc.attention import blocked, finite, scores
from posenc.attention.call import Call, grouped, widened, zero_empty_rows
from posenc.attention.distances import ByDistance, LookedUp, over
from posenc.attention.leaves import REACH, Leaf, is_by_distance, reach
from posenc.attention.scores import NO_SECOND_DERIVATIVE, Saved, Work
from posenc.attention.spans import Block, Spans, all_seen, are_known, blocks_by_index
from posenc.attention.terms import Terms
from posenc.encoding import Encoding, Placed
from posenc.families import Bias, of_each_head
from posenc.private import has_attention, within_transform
from posenc.versions import is_exporting

CALL = (
    "Tensor q, Tensor k, Tensor v, Tensor? vector, Tensor? pos, Tensor? k_pos, Tensor? mask, Tensor? document_ids, "
    "bool causal, SymInt? window, float scale"
)


class _Vector(Bias):
    """A bias that is looked up in a vector (heads, distances), for distances from -reach to reach."""

    by_distance = True

    def __init__(self, vector: Tensor) -> None:
        super().__init__(n_heads=len(vector))
        self.vector, self.reach = vector, vector.shape[1] // 2

    def at(self, h: Tensor, q: Any, k: Any) -> Tensor:
        distance: Tensor = q - k
        if distance.numel() and int(distance.abs().max()) > self.reach:
            raise ValueError(
                f"attend: in a compiled graph biases come from a table, so positions must lie within {self.reach} of "
                f"each other (about {REACH} times the lengths of q and k); got a distance of "
                f"{int(distance.abs().max())}. Pass backend='reference', or leave this call out of the graph."
            )
        return self.vector[h, distance + self.reach]


def fits(call: Call) -> bool:
    """Whether `posenc::attend` can run a call: it is being compiled, and its biases depend only on distances.

    Not for exported files, which may run without posenc; nor with dropout or a learned mask.
    """
    if not torch.compiler.is_dynamo_compiling() or is_exporting() or within_transform():
        return False
    if call.q.device.type != "cpu" or not has_attention() or call.dropout_p or call.encoding.rescores:
        return False
    if call.mask is not None and call.mask.requires_grad:
        return False
    ends = {(id(leaf.placed.pos), id(leaf.k_placed.pos)) for leaf in call.leaves}
    return len(ends) <= 1 and all(isinstance(leaf.encoding, Bias) and is_by_distance(leaf) for leaf in call.leaves)


def run(call: Call) -> Tensor:
    """Compute a call that fits."""
    q, k, v = call.operands()
    vector, pos, k_pos = None, None, None
    if call.leaves:
        most = reach(call.shape[2] + call.shape[3])
        distance = torch.arange(-most, most + 1, device=q.device)
        found = [over(leaf.encoding, leaf.placed, distance) for leaf in call.leaves]
        vector = sum(found[1:], start=found[0])
        pos, k_pos = call.leaves[0].placed.pos, call.leaves[0].k_placed.pos
    rest = call.mask, call.document_ids, call.causal, call.window, float(call.scale)
    out: Tensor = attend(q, k, v, vector, pos, k_pos, *rest)[0]
    return out


@torch.library.custom_op("posenc::attend", mutates_args=(), schema=f"({CALL}) -> (Tensor, Tensor)")
def attend(*arguments: Any) -> tuple[Tensor, Tensor]:
    """Attend as eager code does; return the result and the log-sum-exp of each row of scores."""
    call, spoiled = _call(*arguments)
    work, q, k, v = blocked.cut(call)
    out, lse = blocked.forwards(work, q, k, v, work.terms.tensors)
    assert lse is not None  # the kernel returns it
    out = out[..., : call.v.shape[-1]].contiguous()
    return out if spoiled is None else out.masked_fill(spoiled[..., None], torch.nan), lse


@attend.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    return q.new_empty((*q.shape[:3], v.shape[-1])), q.new_empty(q.shape[:3], dtype=wide)


_GIVEN = f"(Tensor grad, Tensor out, Tensor lse, bool learns, {CALL}) -> Tensor[]"


@torch.library.custom_op("posenc::attend_backward", mutates_args=(), schema=_GIVEN)
def attend_backward(grad: Tensor, out: Tensor, lse: Tensor, learns: bool, *arguments: Any) -> list[Tensor]:
    """Return the gradients of q, k and v, and of the vector if it learns."""
    call, spoiled = _call(*arguments)
    if spoiled is not None:  # rows of NaN get no gradients
        out, grad = (t.masked_fill(spoiled[..., None], 0.0) for t in (out, grad))
    work, *qkv = blocked.cut(call)
    out, grad = (widened(t, qkv[2].shape[-1]) for t in (out, grad))
    saved = Saved(qkv[0], qkv[1], qkv[2], out, lse, grad.contiguous())
    own = work.terms.slots[0].own  # tensors of a floating mask come after the vector's
    wanted = [learns and i < own.stop for i in range(len(work.terms.tensors))]
    found, others = blocked.backwards(work, saved, work.terms.tensors, wanted)
    if work.terms.backwards:
        found[1:] = (t.flip(2) for t in found[1:])
    found = [t[..., : of.shape[-1]].contiguous() for t, of in zip(found, arguments[:3], strict=True)]
    vector = arguments[3]
    return [*found, _of_vector(vector, work.terms, others[own])] if learns and vector is not None else found


@attend_backward.register_fake
def _(grad: Tensor, out: Tensor, lse: Tensor, learns: bool, *arguments: Any) -> list[Tensor]:
    return [torch.empty_like(t, memory_format=torch.contiguous_format) for t in arguments[: 3 + learns]]


def _of_vector(vector: Tensor, terms: Terms, others: Sequence[Tensor | None]) -> Tensor:
    """Return the gradients of the vector, given those of the terms that were cut from it."""
    total, reach, term = torch.zeros_like(vector), vector.shape[1] // 2, terms.slots[0].term
    if isinstance(term, LookedUp):
        starts = [term.low]
    else:
        assert isinstance(term, ByDistance)  # the only other term of a vector
        starts = [term.lowest + shift for (shift,) in term.ways]
    for start, t in zip(starts, others, strict=True):
        assert t is not None  # the vector learns
        total[:, start + reach : start + reach + t.shape[1]] += t
    return total


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.causal, ctx.window, ctx.scale = inputs
    ctx.save_for_backward(*tensors, *output)


def _gradients(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    *tensors, out, lse = ctx.saved_tensors
    learns = ctx.needs_input_grad[3]
    found = attend_backward(grad, out, lse, learns, *tensors, ctx.causal, ctx.window, ctx.scale)
    return (*found, *[None] * (11 - len(found)))


def _twice(ctx: Any, *grads: Any) -> None:
    raise RuntimeError(NO_SECOND_DERIVATIVE)


attend.register_autograd(_gradients, setup_context=_keep)
attend_backward.register_autograd(_twice)


def _call(
    q: Tensor, k: Tensor, v: Tensor, vector: Tensor | None, pos: Tensor, k_pos: Tensor, *rest: Any
) -> tuple[Call, Tensor | None]:
    """Return the call that the operator's arguments describe, and which rows of its result are NaN."""
    mask, document_ids, causal, window, scale = rest
    encoding, leaves = Encoding(), []
    placed = k_placed = Placed(torch.zeros(0, dtype=torch.int64), (), 1)
    if vector is not None:
        encoding = _Vector(vector)
        placed, k_placed = Placed(pos, (pos,), 1), Placed(k_pos, (k_pos,), 1)
        leaves = [Leaf(encoding, placed, k_placed)]
    masks = causal, mask, window, document_ids, scale, 0.0, "blocked", q.dtype, leaves
    call = Call(q, k, v, encoding, placed, k_placed, True, *masks)
    return finite.without_nonfinite(call, call.backend)


def traced(call: Call) -> Tensor:
    """Compute a call with operations that torch can trace: blocks of queries, each with the keys it may see by index.

    Symbolic lengths give one block.
    """
    part, found = Spans(call), blocks_by_index(call)
    call = _blanked(call, part, found)
    terms = Terms(call, [part], [])
    q, k, v = *call.rotated_qk(), call.v
    if not are_known(*call.shape[2:]):  # exporters cannot fold heads into rows for symbolic lengths
        k, v = of_each_head(k, call.shape[1]), of_each_head(v, call.shape[1])
    outs = [_of_block(call, terms, b, q[:, :, b.rows], k[:, :, b.keys], v[:, :, b.keys]) for b in found]
    return outs[0] if len(outs) == 1 else torch.cat(outs, 2)


def _of_block(call: Call, terms: Terms, block: Block, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Return the result of a block, given its own queries, keys and values."""
    dtype = call.out_dtype
    if not torch.compiler.is_compiling() and block.first == block.last:
        return q.new_zeros((*q.shape[:3], v.shape[-1]), dtype=dtype)
    mask = None if call.encoding.rescores else terms.mask(block, terms.tensors)
    # within a transform torch chooses a kernel without noticing that a mask learns
    transformed = mask is not None and (not torch.compiler.is_compiling() or within_transform())
    if call.dropout_p or call.encoding.rescores or transformed:
        work = Work(terms, [block], call.scale, call.dropout_p, None, True, call.shape[2])
        out = scores.attend(work, block, q, k, v, terms.tensors)
    else:
        # a bias of 50 loses its fraction in half precision. The CPU adds a float32 mask to half precision scores; other
        # devices require one dtype, so there everything is float32
        kind = dtype if mask is None or dtype.itemsize >= 4 or call.q.device.type == "cpu" else torch.float32
        q, k, v = (t.to(kind) for t in (q, k, v))
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=call.scale, enable_gqa=grouped(q, k))
    return zero_empty_rows(out, terms.allowed(block)).to(dtype)


def _blanked(call: Call, part: Spans, cover: Sequence[Block]) -> Call:
    """Zero queries that see no key and slots that no query sees, given blocks that cover all queries."""
    longer = call.causal and are_known(part.q_len, part.k_len) and part.q_len > part.k_len
    if call.mask is None and call.window is None and call.document_ids is None and not longer:
        return call  # with only a causal mask each key is seen, and each query sees a key
    rows, keys = [], []
    for block in cover:
        seen = all_seen(part, block)
        rows.append(seen.any(-1))
        keys.append(F.pad(seen.any(-2).any(1), (block.first, part.k_len - block.last)))
    blind, unseen = ~call.see(torch.cat(rows, -1))[..., None], ~torch.stack(keys).any(0)[:, None, :, None]
    k, v = call.k.masked_fill(unseen, 0.0), call.v.masked_fill(unseen, 0.0)
    return replace(call, q=call.q.masked_fill(blind, 0.0), k=k, v=v)
