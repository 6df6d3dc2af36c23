"""Attention under a compiler or within a transform, where no value can be read.

What `operator.py` does not take is written out in blocks of queries, each with the keys that indices leave.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Bool, Int64
from torch import Tensor
from torch.nn import functional as F
from torch.utils import _pytree as pytree

from posenc.attention import scores
from posenc.attention.call import Call, all_of, zero_empty_rows
from posenc.attention.leaves import biased
from posenc.attention.scores import Work
from posenc.attention.spans import Block, Spans
from posenc.attention.terms import Terms
from posenc.attention.whole import grouped

COMPILED = 8  # blocks at most that a compiler writes out, which takes about three seconds for each
ROWS = 256  # queries of a block, at least


def attend(call: Call) -> Tensor:
    """Compute a call under a compiler or within a transform, by what torch can trace.

    In blocks of queries, each with the keys that causality and a window leave; where lengths are open, with all.
    """
    return joined(call, [_of_strip(strip) for strip in strips(call)], 2)


def strips(call: Call) -> list[Call]:
    """Return a call as calls for some of its queries each, where a compiler leaves lengths open; else the call alone.

    Rows are as many whatever remains, so that a compiler need not ask what divides a length: the last query comes again
    until all are full, and `joined` takes it off.
    """
    q_len, k_len = call.shape[2:]
    if _are_known(q_len, k_len, call.window):
        return [call]
    if _are_known(q_len):
        n_rows = max(ROWS, -(-q_len // COMPILED))
        n = -(-q_len // n_rows)
    else:
        n_rows, n = q_len // COMPILED + 2, COMPILED  # two at least: of one a compiler makes another program
    if n <= 1:
        return [call]
    rows = torch.arange(n_rows, device=call.q.device)
    return [_strip(call, (rows + i * n_rows).clamp(max=q_len - 1)) for i in range(n)]


def _strip(call: Call, rows: Int64[Tensor, " rows"]) -> Call:
    """Return the call of some queries; what causality, a window and documents hide of them, a mask does."""
    dim, offset = call.placed.seq_dim, call.shape[3] - call.shape[2]
    q, placed = call.q.index_select(2, rows), pytree.tree_map(lambda t: t.index_select(dim, rows), call.placed)
    here, there = rows + offset, torch.arange(call.shape[3], device=rows.device)
    terms = [seen[None, None] for seen in call.by_index(here[:, None], there)]
    if (ids := call.document_ids) is not None:
        same = ids.index_select(-1, here)[..., None] == ids[..., None, :]
        terms.append(same[None, None] if ids.ndim == 1 else same[:, None])
    mask = call.mask
    if mask is not None and mask.shape[2] > 1:
        mask = mask.index_select(2, rows)
    if mask is not None and mask.dtype == torch.bool:
        terms.append(mask)
    seen = all_of(terms)
    if call.added() is None:
        mask = seen
    elif mask is not None and seen is not None:
        mask = mask.masked_fill(~seen, -torch.inf)
    leaves = biased(q, call.k, call.encoding, placed, call.k_placed)
    rest = replace(call, q=q, placed=placed, mask=mask, leaves=leaves)
    return replace(rest, causal=False, window=None, document_ids=None)


def joined(call: Call, found: list[Tensor], dim: int) -> Tensor:
    """Return the results of a call's strips as one."""
    if len(found) == 1:
        return found[0]
    return torch.cat(found, dim).index_select(dim, torch.arange(call.shape[2], device=call.q.device))


def _of_strip(call: Call) -> Tensor:
    part, found = Spans(call), blocks(call)
    call = _blanked(call, part, found)
    terms = Terms(call, [part], [])
    q, k = call.turned()
    outs = [_of_block(call, terms, b, q[:, :, b.rows], k[:, :, b.keys], call.v[:, :, b.keys]) for b in found]
    return outs[0] if len(outs) == 1 else torch.cat(outs, 2)


def _of_block(call: Call, terms: Terms, block: Block, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Return the result of a block, given its own queries, keys and values."""
    dtype = call.out_dtype
    if not torch.compiler.is_compiling() and block.first == block.last:
        return q.new_zeros((*q.shape[:3], v.shape[-1]), dtype=dtype)
    mask = None if call.encoding.rescores else terms.mask(block, terms.tensors)
    # within a transform torch's choice of a kernel does not see that a mask learns
    transformed = mask is not None and (not torch.compiler.is_compiling() or within_transform())
    if call.dropout_p or call.encoding.rescores or transformed:
        work = Work(terms, [block], call.scale, call.dropout_p, None, True, call.shape[2])
        out = scores.attend(work, block, q, k, v, terms.tensors)
    else:
        # a bias of 50 loses its fraction in half precision; the CPU adds a float32 mask to half precision scores, and
        # other devices demand one dtype, so that all of it is float32 there
        kind = dtype if mask is None or dtype.itemsize >= 4 or call.q.device.type == "cpu" else torch.float32
        q, k, v = (t.to(kind) for t in (q, k, v))
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=call.scale, enable_gqa=grouped(call))
    return zero_empty_rows(out, terms.allowed(block)).to(dtype)


def blocks(call: Call) -> list[Block]:
    """Return blocks of queries by what indices say alone; one of a strip, where a compiler leaves lengths open.

    Some may have no keys.
    """
    q_len, k_len = call.shape[2:]
    ragged = call.causal or call.window is not None
    mixed, masked = call.document_ids is not None, call.mask is not None
    if not _are_known(q_len, k_len, call.window):
        return [Block(None, 0, q_len, 0, k_len, ragged, mixed, masked)]
    n_rows = max(ROWS, -(-q_len // COMPILED)) if torch.compiler.is_compiling() else ROWS
    found, offset, window = [], k_len - q_len, call.window or q_len + k_len
    for begin in range(0, max(q_len, 1), n_rows):
        end = min(begin + n_rows, q_len)
        last = min(k_len, end + offset if call.causal else end + offset + window - 1)
        first = max(0, min(begin + offset - window + 1, last))
        found.append(Block(None, begin, end, first, max(first, last), ragged, mixed, masked))
    return found


def within_transform() -> bool:
    """Whether a compiler follows a transform (`vmap`, `grad`, ...) here."""
    return isinstance(torch._C._functorch.peek_interpreter_stack(), torch._C._functorch.CInterpreter)


def _are_known(*lengths: int | None) -> bool:
    """Whether lengths are numbers, rather than what a compiler leaves open."""
    from torch.fx.experimental import symbolic_shapes  # slow to import

    is_known = getattr(symbolic_shapes, "has_static_value", None) or symbolic_shapes.is_concrete_int  # before 2.8
    return all(n is None or is_known(n) for n in lengths)


def all_seen(part: Spans, block: Block) -> Bool[Tensor, "batch heads rows keys"]:
    """Return who sees whom in a block of a call in which something hides, whose queries and keys are all there."""
    seen = part.allowed(block)
    assert seen is not None  # something hides
    return seen.expand(torch.broadcast_shapes(seen.shape, (1, 1, *block.size)))


def _blanked(call: Call, part: Spans, cover: Sequence[Block]) -> Call:
    """Zero queries that see nothing and slots that nobody sees, given blocks that cover all queries."""
    longer = call.causal and _are_known(part.q_len, part.k_len) and part.q_len > part.k_len
    if call.mask is None and call.window is None and call.document_ids is None and not longer:
        return call  # a causal mask alone shows each key to somebody, and each query something
    rows, keys = [], []
    for block in cover:
        seen = all_seen(part, block)
        rows.append(seen.any(-1))
        keys.append(F.pad(seen.any(-2).any(1), (block.first, part.k_len - block.last)))
    blind, unseen = ~call.see(torch.cat(rows, -1))[..., None], ~torch.stack(keys).any(0)[:, None, :, None]
    k, v = call.k.masked_fill(unseen, 0.0), call.v.masked_fill(unseen, 0.0)
    return replace(call, q=call.q.masked_fill(blind, 0.0), k=k, v=v)
