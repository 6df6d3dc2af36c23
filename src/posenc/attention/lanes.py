"""A bias as extra lanes of q and k, which any flash kernel runs.

Attention with a bias of low rank by concatenation was published as FlashBias (Wu et al. 2025, arXiv 2505.12044).
What is added here keeps it exact: numbers are split into pieces whose products a kernel adds up without rounding, in
lanes ahead of all others, so that the large ones cancel before the first product of q and k joins them.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from posenc.attention import fused, products
from posenc.attention.blocked import Blocked
from posenc.attention.call import Call
from posenc.attention.heads import by_heads, cuts
from posenc.attention.leaves import FEW, Leaf, factors_of, n_lanes
from posenc.attention.scratch import Scratch
from posenc.attention.sdpa import plain, refuses_masks, single
from posenc.families import Bias, no_autocast
from posenc.positions.checks import is_plain, may_look

BITS = {torch.float32: 12, torch.bfloat16: 8}  # of a piece: two of them multiply exactly in float32
PIECES = 3
LEAST = 1e-6  # scale
PARTS = 4  # of a call without gradients
LONG = 2**17  # numbers of q, from which on lanes of all heads would take more memory than a few calls are worth
BRIEF = 3072  # queries; from there on the kernel's own way to hide what lies ahead is faster than a mask
WIDTH = 8  # lanes come in so many, which kernels like
BLOCKS = Blocked(by_distance=True)
Pair = tuple[Tensor, Tensor]  # lanes of queries and of keys (batch | 1, heads | 1, length | 1, lanes)


class Lanes:
    """Plain SDPA on queries and keys with more lanes, for biases that are products of something of each."""

    name = "lanes"

    def rejects(self, call: Call) -> str | None:
        """Refuse what has no factors, and masks that SDPA would need a matrix for."""
        if (reason := fused.mixed(call)) is not None:
            return reason
        if call.out_dtype == torch.float16:
            return "float16 ends at 65,504, which the product of a slope and a position exceeds."
        if call.encoding.rescores or not (leaves := call.leaves):
            return f"{call.encoding.name} has no bias that could be lanes."
        if call.backend != self.name and call.q.device.type == "cpu" and single(call):
            return "the bias of one query is a vector as it is, a mask that takes little."
        if call.scale < LEAST:
            return f"lanes are divided by the scale, which must be {LEAST:g} at least; with scale=0 none would be seen."
        if not torch.compiler.is_compiling() and call.shape[3] < call.shape[2]:
            return "there are more queries than keys, so that some see nothing."
        # lengths are compared last, since a compiler that leaves them open holds fast what was asked
        refused = next((reason for leaf in leaves if (reason := _refuses(call, leaf)) is not None), None)
        return refused or refuses_masks(call)

    def memory(self, call: Call) -> int:
        """q, k and v with more lanes: of some heads at a time, or with their gradients."""
        batch, n_heads, q_len, k_len = call.shape
        rest = self._wide(call)
        wide = sum(map(n_lanes, rest.leaves))
        width = max(call.q.shape[-1] + 2 * WIDTH + wide, call.v.shape[-1])
        itemsize = call.out_dtype.itemsize
        whole = batch * width * itemsize * (2 * n_heads * q_len + 2 * call.k.shape[1] * k_len)  # the result as well
        if torch.is_grad_enabled():
            return 3 * whole
        whole += batch * n_heads * 3 * wide * itemsize * max(q_len, k_len)  # while they are looked up
        some = 1 if _is_brief(call) else max(torch.get_num_threads(), n_heads // PARTS)
        part = min(n_heads, some) if cuts(rest, LONG) else n_heads
        return whole * part // n_heads

    def run(self, call: Call) -> Tensor:
        """Put the lanes first and run SDPA."""
        with no_autocast(call.q.device):
            few = [pair for leaf in call.leaves if n_lanes(leaf) <= FEW for pair in _lanes(call, leaf)]
            brief = _is_brief(call)
            parts = call.shape[1] if brief else PARTS
            # a thread gets whole heads, since the last queries of one see more than the first, but where blocks share
            return by_heads(self._wide(call), partial(_run, few), parts, least=LONG, by_thread=not brief)

    def _wide(self, call: Call) -> Call:
        """Return the call with those biases alone that are products of vectors as q and k are."""
        return replace(call, leaves=[leaf for leaf in call.leaves if n_lanes(leaf) > FEW])


def _run(few: Sequence[Pair], call: Call, heads: slice, scratch: Scratch | None, _: Tensor | None) -> Tensor:
    """Compute some heads, given those lanes of all heads that take little memory."""
    q, k, v = (t.to(call.out_dtype) for t in (*call.turned(), call.v))
    begin = sum(a.shape[-1] for a, _ in few)
    end = begin + sum(map(n_lanes, call.leaves))
    lanes = -(-end // WIDTH) * WIDTH
    # before what is formed for a part alone, so that the next finds that memory in one piece
    into = [_take(scratch, name, t, lanes + q.shape[-1]) for name, t in (("q", q), ("k", k), ("v", v))]
    more = [(_of(a, heads), _of(b, heads)) for a, b in few]
    more += [pair for leaf in call.leaves for pair in _lanes(call, leaf)]
    q = _joined([*(a for a, _ in more), q.new_zeros(1, 1, 1, lanes - end), q], into[0])
    k = _joined([*(b for _, b in more), k.new_zeros(1, 1, 1, lanes - end), k], into[1])
    del more
    if end > begin:
        q[..., begin:end] /= call.scale
    if (narrow := q.shape[-1] - v.shape[-1]) > 0:  # the kernel wants one width
        v = _joined([v.new_zeros(1, 1, 1, narrow), v], into[2])
    if scratch is None or not _is_brief(call):
        return plain(call, q, k, v, call.scale)[..., max(narrow, 0) :]
    return BLOCKS.run(replace(call, q=q, k=k, v=v))[..., max(narrow, 0) :]


def _is_brief(call: Call) -> bool:
    """Whether torch's kernel, given all queries of a head, would take more for scores than q and k have: in blocks."""
    return call.causal and call.out_dtype.itemsize < 4 and 1 < call.shape[2] < BRIEF


def _take(scratch: Scratch | None, name: str, t: Tensor, width: int) -> Tensor | None:
    return None if scratch is None else scratch.take(name, (*t.shape[:3], width), t)


def _joined(lanes: Sequence[Tensor], into: Tensor | None) -> Tensor:
    """Return lanes side by side, those of the last for all of its batch, heads and tokens."""
    return torch.cat([t.expand(*lanes[-1].shape[:3], -1) for t in lanes], -1, out=into)


def _of(lane: Tensor, heads: slice) -> Tensor:
    return lane if lane.shape[1] == 1 else lane[:, heads]


def _refuses(call: Call, leaf: Leaf) -> str | None:
    """Say why one encoding cannot be lanes of this call, or None."""
    encoding = leaf.encoding
    if leaf.shapes is None or not isinstance(encoding, Bias):
        return f"{encoding.name} is no product of something of the query and something of the key."
    if leaf.shapes[1][1] > 1 and call.k.shape[1] != call.q.shape[1]:
        return f"{encoding.name} gives each head other lanes of the keys, which several heads share here."
    if n_lanes(leaf) > FEW and call.out_dtype.itemsize < 4:
        return f"{encoding.name} would be rounded to {call.out_dtype} as q and k are, and a bias is not."
    if n_lanes(leaf) > FEW and call.backend != Lanes.name and call.q.device.type == "cpu":
        if not torch.compiler.is_compiling() and not is_plain(call.q):
            return f"{encoding.name} is within a transform, and torch's kernel has no forward derivative."
        if not torch.compiler.is_compiling() and products.fits(call):
            return f"{encoding.name} has so many lanes that blocks are faster, in which values get none."
    if encoding.factors_ahead:
        return None
    if not call.causal:
        return f"{encoding.name} is a product for keys behind the query alone, and causal=False shows others."
    if not all(may_look(p.pos) for p in (leaf.placed, leaf.k_placed)):
        if call.backend == Lanes.name:
            return None
        return (
            f"{encoding.name} is a product where positions do not fall along the sequence, which cannot be looked at "
            "here; ask for backend='lanes' if they do not."
        )
    same = leaf.k_placed.pos[..., leaf.k_placed.pos.shape[-1] - call.shape[2] :] == leaf.placed.pos
    if bool(same.all()) and bool((leaf.k_placed.pos.diff(dim=-1) >= 0).all()):
        return None
    return f"{encoding.name} is a product where positions do not fall along the sequence, as they do here."


def _lanes(call: Call, leaf: Leaf) -> list[Pair]:
    """Return lanes for queries and keys whose products, times the scale, are the bias but for something of the row."""
    factors, dtype = factors_of(leaf), call.out_dtype
    assert factors is not None  # others are refused
    a, b = factors
    if a.shape[-1] > FEW:
        return [(a.to(dtype), b.to(dtype))]
    a = a / call.scale
    if dtype not in BITS:
        return [(a.to(dtype), b.to(dtype))]
    b = b - b[..., :1, :].detach()  # far positions, which would need more bits; it is something of the row
    offset = call.shape[3] - call.shape[2]
    level = -(a * b[..., offset:, :]).detach().sum(-1, keepdim=True)  # scores of near keys then stay small
    found = [(level.to(dtype), level.new_ones(1, 1, 1, 1).to(dtype))]
    for of_query, of_key in zip(a.split(1, -1), b.split(1, -1), strict=True):
        rows, columns = _pieces(of_query, BITS[dtype]), _pieces(of_key, BITS[dtype])
        found += [(row.to(dtype), column.to(dtype)) for row in rows for column in columns]
    if dtype.itemsize >= 4:
        return found
    # AMX sums up lanes of even and of odd number apart, so that what is to cancel must have numbers of one kind
    nothing = level.new_zeros(1, 1, 1, 1).to(dtype)
    return [lanes for pair in found for lanes in (pair, (nothing, nothing))]


def _pieces(t: Tensor, bits: int) -> Sequence[Tensor]:
    """Return numbers of few bits that add up to those given, large ones first; the last carries the gradient."""
    pieces, rest = [], t
    for _ in range(PIECES - 1):
        mantissa, exponent = torch.frexp(rest.detach())
        piece = torch.ldexp((mantissa * 2**bits).round(), exponent - bits)
        pieces.append(piece)
        rest = rest - piece
        if not rest.requires_grad and may_look(rest) and not bool(rest.any()):
            return pieces
    return [*pieces, rest]
