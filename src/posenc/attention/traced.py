"""Attention under a compiler or within a transform: blocks by index alone, since no value can be read."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from posenc.attention import formed, plan
from posenc.attention.call import Call, zero_empty_rows
from posenc.attention.near import Near
from posenc.attention.plan import Work
from posenc.attention.sdpa import grouped
from posenc.attention.spans import Block, Spans
from posenc.attention.terms import Terms

COMPILED = 8  # blocks at most under a compiler, which takes about three seconds for each


def run(call: Call) -> Tensor:
    """Compute a call under a compiler or within a transform, by what torch can trace.

    In blocks of queries, each with the keys that causality and a window leave; or in one, where lengths are open.
    """
    part, blocks = Spans(call), _blocks(call)
    call = _blanked(call, part, blocks)
    terms = Terms(call, [part], [], by_distance=False)
    q, k = call.turned()
    again, found = len(blocks) > 1 and _forms_again(call), []
    for block in blocks:
        attend = partial(_of_block, call, terms, block)
        own = q[:, :, block.rows], k[:, :, block.keys], call.v[:, :, block.keys]
        found.append(checkpoint(attend, *own, use_reentrant=False) if again else attend(*own))
    return found[0] if len(found) == 1 else torch.cat(found, 2)


def _forms_again(call: Call) -> bool:
    """Whether blocks are formed again in the backward pass, of what a compiler would else keep.

    Not with dropout, which without a compiler's own partition would be drawn anew; nor where an export or a transform
    cannot hold what is to be formed again.
    """
    if not torch.compiler.is_dynamo_compiling() or torch.compiler.is_exporting():
        return False
    within = isinstance(torch._C._functorch.peek_interpreter_stack(), torch._C._functorch.CInterpreter)
    return torch.is_grad_enabled() and not call.dropout_p and not within


def _of_block(call: Call, terms: Terms, block: Block, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Return the result of a block, given its own queries, keys and values."""
    dtype = call.out_dtype
    if not torch.compiler.is_compiling() and block.first == block.last:
        return q.new_zeros((*q.shape[:3], v.shape[-1]), dtype=dtype)
    mask = None if call.encoding.rescores else terms.dense(block, None)
    # within a transform torch's choice of a kernel does not see that a mask learns
    transformed = mask is not None and not torch.compiler.is_compiling()
    if call.dropout_p or call.encoding.rescores or transformed:
        work = Work(terms, Near(terms, {}), [block], [block], call.scale, call.dropout_p, 0, True, True)
        out = formed.attend(work, block, q, k, v, None)
    else:
        # a bias of 50 loses its fraction in half precision; the CPU adds a float32 mask to half precision scores, and
        # other devices demand one dtype, so that all of it is float32 there
        kind = dtype if mask is None or dtype.itemsize >= 4 or call.q.device.type == "cpu" else torch.float32
        q, k, v = (t.to(kind) for t in (q, k, v))
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=call.scale, enable_gqa=grouped(call))
    return zero_empty_rows(out, terms.allowed(block)).to(dtype)


def _blocks(call: Call) -> list[Block]:
    """Return blocks of queries by what indices say alone; one, where a compiler leaves lengths open.

    Some may have no keys.
    """
    q_len, k_len = call.shape[2:]
    ragged = call.causal or call.window is not None
    mixed, masked = call.document_ids is not None, call.mask is not None
    if not _are_known(q_len, k_len, call.window):
        return [Block(None, 0, q_len, 0, k_len, ragged, mixed, masked)]
    n_rows = max(plan.SHORT, -(-q_len // COMPILED)) if torch.compiler.is_compiling() else plan.SHORT
    found, offset, window = [], k_len - q_len, call.window or q_len + k_len
    for begin in range(0, max(q_len, 1), n_rows):
        end = min(begin + n_rows, q_len)
        last = min(k_len, end + offset if call.causal else end + offset + window - 1)
        first = max(0, min(begin + offset - window + 1, last))
        found.append(Block(None, begin, end, first, max(first, last), ragged, mixed, masked))
    return found


def _are_known(*lengths: int | None) -> bool:
    """Whether lengths are numbers, rather than what a compiler leaves open."""
    from torch.fx.experimental.symbolic_shapes import has_static_value  # slow to import

    return all(n is None or has_static_value(n) for n in lengths)


def _blanked(call: Call, part: Spans, blocks: Sequence[Block]) -> Call:
    """Zero queries that see nothing and slots that nobody sees, given blocks that cover all queries."""
    longer = _are_known(part.q_len, part.k_len) and part.q_len > part.k_len
    if call.mask is None and call.window is None and call.document_ids is None and not longer:
        return call  # a causal mask alone shows each key to somebody, and each query something
    rows, keys = [], []
    for block in blocks:
        seen = part.allowed(block)
        assert seen is not None  # something hides
        seen = seen.expand(torch.broadcast_shapes(seen.shape, (1, 1, *block.size)))
        rows.append(seen.any(-1))
        keys.append(F.pad(seen.any(-2).any(1), (block.first, part.k_len - block.last)))
    blind, unseen = ~call.see(torch.cat(rows, -1))[..., None], ~torch.stack(keys).any(0)[:, None, :, None]
    k, v = call.k.masked_fill(unseen, 0.0), call.v.masked_fill(unseen, 0.0)
    return replace(call, q=call.q.masked_fill(blind, 0.0), k=k, v=v)
