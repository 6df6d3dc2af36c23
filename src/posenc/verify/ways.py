"""One encoding, many ways to its numbers: whole or in pieces, pair by pair, head by head, in place. All must agree.

The laws ask in the ways that an attention layer does without a compiler or a GPU. What else an encoding offers, kernels
and ranks of tensor parallelism use, and a fault in one of them is seen by no test of the others.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import chain

import torch
from torch import Tensor
from torch.func import vmap
from torch.utils._pytree import tree_flatten, tree_unflatten

from posenc import positions
from posenc.encoding import Encoding, Placed
from posenc.families.bias import Bias
from posenc.families.rotary import Rotary
from posenc.laws.case import TOLERANCE, Case

SHAPES = ((4, 6), (3, 4), (2, 2))  # of images, whose differences are fewer than their pairs; windows may be small


def differences(encoding: Encoding) -> Iterator[tuple[str, float]]:
    """Yield (way, largest difference, as a share of the largest number) of each way that gives other numbers.

    >>> from posenc.encodings import ALiBi
    >>> list(differences(ALiBi(n_heads=3)))
    []
    """
    for dtype, bound in TOLERANCE.items():  # positions are integers in float32 alone
        case = Case(encoding, dtype)
        for pos in _places(case):
            x = case.tokens(pos.shape[-1 - (case.encoding.n_axes > 1)])
            placed = case.place(pos, x)
            q, k, _ = case.project(x, placed)
            inner, of_layer = case.encoding.layer(case.index, placed)
            found = _pairs(inner, q.detach(), k.detach(), of_layer)
            for way, got, wanted in chain(found, _row_alone(case, x, pos, placed)):
                off = _off(got.detach(), wanted.detach())
                if not off <= bound:
                    yield way, off


def _off(got: Tensor, wanted: Tensor) -> float:
    if got.shape != wanted.shape:
        return math.inf
    return float((got - wanted).abs().max() / wanted.abs().max().clamp(min=1.0)) if got.numel() else 0.0


def _places(case: Case) -> Iterator[Tensor]:
    """Yield tokens in a row, apart, and a batch of rows; or the cells of the largest image that fits."""
    row = case.positions(16)
    batch = torch.stack((row, row + 3)), torch.stack((7 * row, 3 * row + 41))
    options = [*batch, 9 * row] if case.encoding.n_axes == 1 else []
    options += [positions.grid(*shape) for shape in SHAPES] if case.encoding.n_axes == 2 else [row]
    for pos in options:
        try:
            case.place(pos, case.tokens(pos.shape[-1 - (case.encoding.n_axes > 1)]))
        except ValueError:  # a smaller window
            continue
        yield pos
        if case.encoding.n_axes == 2:
            yield torch.stack((pos, pos.flip(0)))
            return


def _row_alone(case: Case, x: Tensor, pos: Tensor, placed: Placed) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield what a batch of rows with positions of their own gives to the last, and what that row gets alone."""
    if pos.ndim == 1 + (case.encoding.n_axes > 1):
        return
    alone = case.place(pos[-1:], x[-1:])
    yield "embed, of a row in a batch", case.encoding.embed(x, placed)[-1:], case.encoding.embed(x[-1:], alone)
    (q, k, _), (own_q, own_k, _) = case.project(x, placed), case.project(x[-1:], alone)
    yield "scores, of a row in a batch", case.scores(q, k, placed)[-1:], case.scores(own_q, own_k, alone)


@torch.no_grad()
def _pairs(encoding: Encoding, q: Tensor, k: Tensor, placed: Placed) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield (way, what it gives, what it should)."""
    whole = encoding.bias(q, k, placed, placed)
    if whole is not None:
        yield "bias, row by row", _by_rows(encoding, q, k, placed), whole
        yield from _traced(encoding, q, k, placed, whole)
    if isinstance(encoding, Bias) and whole is not None:
        yield "score_mod", _by_pairs(encoding, placed, whole), whole
        yield from _mapped(encoding, placed, whole)
        yield from _of_heads(encoding, q, k, placed, whole)
        yield from _of_factors(encoding, placed, whole)
    if isinstance(encoding, Rotary):
        yield from _turned(encoding, q, k, placed)


def _by_rows(encoding: Encoding, q: Tensor, k: Tensor, placed: Placed) -> Tensor:
    """Ask for a query at a time, against a few keys and then the others, as blocked attention does."""
    n, cut = q.shape[2], q.shape[2] // 3
    rows = []
    for i in range(n):
        parts = ((0, cut), (cut, n))
        here = [
            encoding.bias(q[:, :, i : i + 1], k[:, :, a:b], placed.rows(i, i + 1), placed.rows(a, b)) for a, b in parts
        ]
        rows.append(torch.cat([t for t in here if t is not None], -1))
    return torch.cat(rows, -2)


def _by_pairs(encoding: Bias, placed: Placed, whole: Tensor) -> Tensor:
    """Ask for a few scores, each by itself, as FlexAttention does; the others are left as the bias has them."""
    batch, n_heads, n, _ = whole.shape
    mod, score, found = encoding.score_mod(placed), whole.new_tensor(0.5), whole.clone()
    for i in range(0, n, 3):
        for j in range(1, n, 4):
            for h in range(n_heads):
                at = (torch.tensor(t) for t in (batch - 1, h, i, j))
                found[batch - 1, h, i, j] = mod(score, *at) - score
    return found


def _mapped(encoding: Bias, placed: Placed, whole: Tensor) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield the scores of the last queries against all keys, mapped over indices as FlexAttention maps them."""
    batch, n_heads, n, _ = whole.shape
    ahead = placed.rows(n // 2, n)
    found: Callable[..., Tensor] = encoding.score_mod(ahead, placed)
    for axis in range(4):
        found = vmap(found, in_dims=(0, *(0 if i == 3 - axis else None for i in range(4))))
    zeros = whole.new_zeros(batch, n_heads, n - n // 2, n)
    got = None
    with suppress(RuntimeError, ValueError):  # what a transform cannot trace is the compiler's to refuse
        got = found(zeros, *(torch.arange(size) for size in zeros.shape))
    if got is not None:
        yield "score_mod, mapped", got, whole[:, :, n // 2 :]


def _traced(
    encoding: Encoding, q: Tensor, k: Tensor, placed: Placed, whole: Tensor
) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield the bias as a transform sees it, which may look at no value, as a compiler may not."""
    leaves, spec = tree_flatten(placed)

    def bias(q: Tensor, k: Tensor, *leaves: Tensor) -> Tensor | None:
        inner = tree_unflatten(list(leaves), spec)
        return encoding.bias(q, k, inner, inner)

    got = None
    with suppress(RuntimeError, ValueError):
        got = vmap(bias)(*(t.expand(2, *t.shape) if isinstance(t, Tensor) else t for t in (q, k, *leaves)))
    if got is not None:
        yield "bias, traced", got[0].expand_as(whole), whole


def _of_heads(
    encoding: Bias, q: Tensor, k: Tensor, placed: Placed, whole: Tensor
) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield what ranks of tensor parallelism have: the first head, and the others."""
    first, n = encoding.held
    cuts = ((first, 1), (first + 1, n - 1)) if n > 1 else ()
    for begin, count in cuts:
        mine = slice(begin - first, begin - first + count)
        rank = encoding.of_heads(begin, count)
        yield "of_heads", rank.bias(q[:, mine], k, placed, placed).expand_as(whole[:, mine]), whole[:, mine]
        yield "score_mod of of_heads", _by_pairs(rank, placed, whole[:, mine]), whole[:, mine]
        yield from _of_factors(rank, placed, whole[:, mine])


def _of_factors(encoding: Bias, placed: Placed, whole: Tensor) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield the products of factors, up to what a row has alone."""
    n = whole.shape[-1]
    found = encoding.factors(placed.rows(n // 2, n), placed)  # fewer queries than keys, as with a cache
    if found is None:
        return
    a, b = (t.to(torch.promote_types(t.dtype, whole.dtype)) for t in found)
    seen = torch.ones(whole.shape[-2:], dtype=torch.bool)
    seen = (seen if encoding.factors_ahead else seen.tril())[n // 2 :]
    got, wanted = (t - t[..., :1] for t in (a @ b.mT, whole[..., n // 2 :, :]))
    yield "factors", got.masked_fill(~seen, 0.0).expand_as(wanted), wanted.masked_fill(~seen, 0.0)


def _turned(encoding: Rotary, q: Tensor, k: Tensor, placed: Placed) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield the ways to turn queries and keys that stand at other positions than one another."""
    n = q.shape[2]
    q, ahead = q[:, :, n // 2 :], placed.rows(n // 2, n)
    wanted = encoding.rotate_q(q, ahead), encoding.rotate_k(k, placed)
    slots = torch.full_like(q, torch.nan), torch.full_like(k, torch.nan)
    narrow = slots[0].bfloat16(), slots[1].bfloat16()
    own = q.clone(), k.clone()
    encoding.rotate_(*own, ahead, placed)
    ways = {
        "rotate": encoding.rotate(q, k, ahead, placed),
        "rotate into slots": encoding.rotate(q, k, ahead, placed, out=slots),
        "rotate_": own,
    }
    for way, got in ways.items():
        yield from ((way, g, w) for g, w in zip(got, wanted, strict=True))
    got = encoding.rotate(q, k, ahead, placed, out=narrow)
    yield from (("rotate into bfloat16", g.float(), w.bfloat16().float()) for g, w in zip(got, wanted, strict=True))
    with suppress(ValueError):  # some turn whole heads alone, and say so
        part = encoding.of_slice()
        lanes = slice(encoding.rotary_dim) if encoding.rotary_side == "first" else slice(-encoding.rotary_dim, None)
        yield "of_slice", part.rotate_k(k[..., lanes], placed), wanted[1][..., lanes]
