"""Compare the different ways to compute an encoding: whole or in pieces, by pair, by head, in place. All must agree.

The laws test the ways that an eager attention layer uses. Kernels and ranks of tensor parallelism use other ways, and a
fault in one of them does not show in a test of the others.
"""

import math
import warnings
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap

from posenc import positions
from posenc.encoding import Encoding, Placed
from posenc.families.bias import Bias, ContentBias
from posenc.families.rotary import Rotary
from posenc.laws.case import TOLERANCE, Case
from posenc.laws.ways_devices import narrow
from posenc.laws.ways_reading import embedded, end_of_text, hidden_positions, other_contents
from posenc.laws.ways_rotations import rotated
from posenc.placed import map_tensors, tensors

SHAPES = ((4, 6), (3, 4), (2, 2))  # images with fewer differences than pairs; small, because windows may be small


def differences(encoding: Encoding) -> Iterator[tuple[str, float]]:
    """Yield (way, largest difference relative to the largest number) for each way that gives other numbers.

    >>> from posenc.encodings import ALiBi
    >>> list(differences(ALiBi(n_heads=3)))
    []
    """
    for dtype, bound in TOLERANCE.items():  # only in float32 do positions stay integers
        case = Case(encoding, dtype)
        for pos, x in _texts(case):
            placed = case.place(pos, x)
            q, k, _ = case.project(x, placed)
            inner, of_layer = case.encoding.layer(case.index, placed)
            found = _pairs(inner, q.detach(), k.detach(), of_layer)
            for way, got, wanted in chain(found, _row_alone(case, x, pos, placed), embedded(case, x, pos, placed)):
                if off := _off(got.detach(), wanted.detach(), bound):
                    yield way, off
        more = (narrow(case), end_of_text(case)) if dtype == torch.float32 else ()
        for way, got, wanted in chain(_long_text(case), hidden_positions(case), *more):
            if off := _off(got.detach(), wanted.detach(), bound):
                yield way, off


def _off(got: Tensor, wanted: Tensor, bound: float) -> float:
    """Return the largest difference, relative to the largest number; 0 within the bound of the dtype of the results."""
    if got.shape != wanted.shape:
        return math.inf
    if not got.numel():
        return 0.0
    apart = (got - wanted).abs().masked_fill(got == wanted, 0.0)  # the same infinity, as in a window, does not differ
    off = float(apart.max() / wanted.masked_fill(wanted.isinf(), 0.0).abs().max().clamp(min=1.0))
    return 0.0 if off <= max(bound, *(TOLERANCE.get(t.dtype, 0.0) for t in (got, wanted))) else off


def _texts(case: Case) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield positions and tokens in a batch of two; if the encoding reads tokens, also in batches of one and three."""
    for pos in _places(case):
        for batch in (2, 1, 3) if case.encoding.reads_x and pos.ndim == 1 else (2,):
            yield pos, case.tokens(pos.shape[-1 - (case.encoding.n_axes > 1)], batch)


def _places(case: Case) -> Iterator[Tensor]:
    """Yield positions in a row, spread out, and in a batch of rows; or the cells of the largest image that fits."""
    row = case.positions(16)
    back = 11 * row.flip(0)
    batch = torch.stack((row, row + 3)), torch.stack((7 * row, 3 * row + 41)), torch.stack((back, back + 3))
    options = [*batch, 2 * row, 9 * row, 131 * row] if case.encoding.n_axes == 1 else []
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
    """Yield the results of the last row in a batch of rows with different positions, and of that row on its own."""
    if pos.ndim == 1 + (case.encoding.n_axes > 1):
        return
    alone = case.place(pos[-1:], x[-1:])
    yield "embed, of a row in a batch", case.encoding.embed(x, placed)[-1:], case.encoding.embed(x[-1:], alone)
    (q, k, _), (own_q, own_k, _) = case.project(x, placed), case.project(x[-1:], alone)
    yield "scores, of a row in a batch", case.scores(q, k, placed)[-1:], case.scores(own_q, own_k, alone)


def _long_text(case: Case) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield the results of some tokens in a text of 1,100 tokens, or an image of 20 x 55, and of these tokens only."""
    encoding, kinds = case.encoding, ("additive", "rotary", "values", "bias", "content_bias")
    if encoding.family not in kinds or encoding.reads_x or case.max_len is not None:
        return
    pos = case.positions(1100, start=300)
    if encoding.n_axes == 2:
        yield from _of_long(case, positions.grid(20, 55))
        return
    yield from _of_long(case, pos)
    # larger positions, every second position, and padding with one common position
    for other in (pos + 724, 2 * pos, pos.clamp(max=310)) if encoding.family in ("rotary", "values") else ():
        try:
            case.place(other, case.tokens(1100, batch=1))
        except ValueError:  # beyond the reach of amplitudes that are powers of the position
            continue
        yield from _of_long(case, other)


def _of_long(case: Case, pos: Tensor) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield the results of some of 1,100 tokens, with the others and without."""
    encoding, x, q = case.encoding, case.tokens(1100, batch=1), case.normal(1, case.n_heads, 1100, case.head_dim)
    some = torch.tensor([0, 1, 211, 212, 213, 511, 512, 513, 723, 724, 1024, 1099])
    placed, few = case.place(pos, x), case.place(pos[some], x[:, some])
    yield "embed, in a long text", encoding.embed(x, placed)[:, some], encoding.embed(x[:, some], few)
    (inner, placed), (_, few) = encoding.layer(case.index, placed), encoding.layer(case.index, few)
    yield "rotate_q, in a long text", inner.rotate_q(q, placed)[:, :, some], inner.rotate_q(q[:, :, some], few)
    k = case.normal(1, case.n_kv_heads, 1100, case.head_dim)
    yield "rotate_v, in a long text", inner.rotate_v(k, placed)[:, :, some], inner.rotate_v(k[:, :, some], few)
    whole = inner.bias(q[:, :, some], k, few, placed)
    if whole is not None:
        alone = inner.bias(q[:, :, some], k[:, :, some], few, few)
        yield "bias, in a long text", whole[..., some], alone if alone is not None else whole[..., some]


@torch.no_grad()
def _pairs(encoding: Encoding, q: Tensor, k: Tensor, placed: Placed) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield (way, its result, the expected result)."""
    whole = encoding.bias(q, k, placed, placed)
    if whole is not None:
        yield "bias, row by row", _by_rows(encoding, q, k, placed), whole
        yield from _traced(encoding, q, k, placed, whole)
        yield from _by_distance(encoding, q, k, placed, whole)
    if isinstance(encoding, Bias) and whole is not None:
        yield "score_mod", _by_pairs(encoding, placed, whole), whole
        yield from _several_pairs(encoding, placed, whole)
        yield from _mapped(encoding, placed, whole)
        yield from _dense(encoding, placed, whole)
        yield from _of_heads(encoding, q, k, placed, whole)
    if isinstance(encoding, Rotary):
        yield from rotated(encoding, q, k, placed)
    yield from other_contents(encoding, q, k, placed)


def _by_distance(
    encoding: Encoding, q: Tensor, k: Tensor, placed: Placed, whole: Tensor
) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield the bias from a vector over all distances, if the encoding declares that it depends only on these."""
    if not getattr(encoding, "by_distance", False) or encoding.n_axes > 1:
        return
    apart = placed.pos[..., :, None] - placed.pos[..., None, :]
    least, most = int(apart.min()) - 200, int(apart.max())
    every = torch.arange(least, most + 1)
    if isinstance(encoding, Bias):
        of = encoding.over(every.double() if whole.dtype == torch.float64 else every)
        got = of[:, apart - least].transpose(0, 1) if apart.ndim == 3 else of[:, apart - least][None]
        yield "over", got.to(whole.dtype), whole
    elif isinstance(encoding, ContentBias):
        vectors, queries = encoding.vectors(every, whole.dtype), encoding.queries(q)
        products = queries @ vectors.mT
        place = (apart - least).expand(len(q), *apart.shape[-2:])[:, None].expand(-1, q.shape[1], -1, -1)
        of_keys = encoding.of_keys(k)
        got = products.gather(-1, place) + (0.0 if of_keys is None else of_keys[:, :, None])
        yield "vectors", got * encoding.score_scale(q.shape[-1]), whole


def _by_rows(encoding: Encoding, q: Tensor, k: Tensor, placed: Placed) -> Tensor:
    """Compute the bias of one query at a time, for some keys and then for the others, as blocked attention does."""
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
    """Compute some scores one by one, as FlexAttention does; take the others from the whole bias."""
    batch, n_heads, n, _ = whole.shape
    mod, score, found = encoding.score_mod(placed), whole.new_tensor(0.5), whole.clone()
    for i in range(0, n, 3):
        for j in range(1, n, 4):
            h = (i // 3 + j // 4) % n_heads
            at = (torch.tensor(t) for t in (batch - 1, h, i, j))
            found[batch - 1, h, i, j] = mod(score, *at) - score
    return found


def _several_pairs(encoding: Bias, placed: Placed, whole: Tensor) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield some scores computed in one call, with lists of heads, queries and keys: `at` must be elementwise."""
    batch, n_heads, n, _ = whole.shape
    h, i, j = torch.cartesian_prod(*(torch.arange(0, size, 3) for size in (n_heads, n, n))).unbind(-1)
    b = torch.full_like(h, batch - 1)
    got = encoding.score_mod(placed)(whole.new_zeros(len(h)), b, h, i, j)
    yield "score_mod, of several pairs at once", got, whole[b, h, i, j]


def _dense(encoding: Bias, placed: Placed, whole: Tensor) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield the dense bias of the last queries for all keys, without and with the causal mask."""
    if encoding.reads_x:
        return
    n = whole.shape[-1]
    ahead, wanted = placed.rows(n // 2, n), whole[..., n // 2 :, :]
    yield "dense", encoding.dense(ahead.pos, placed.pos, dtype=whole.dtype).expand_as(wanted), wanted
    hidden = ~torch.ones(wanted.shape[-2:], dtype=torch.bool).tril(n // 2)
    got = encoding.dense(ahead.pos, placed.pos, causal=True, dtype=whole.dtype)
    least = -2 * float(wanted.detach().abs().max()) - 1.0
    yield (
        "dense, causal",
        got.masked_fill(got == -torch.inf, least).expand_as(wanted),
        wanted.masked_fill(hidden, least),
    )


def _mapped(encoding: Bias, placed: Placed, whole: Tensor) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield the bias of the last queries for all keys from a score_mod, mapped over indices as by FlexAttention."""
    batch, n_heads, n, _ = whole.shape
    ahead = placed.rows(n // 2, n)
    found: Callable[..., Tensor] = encoding.score_mod(ahead, placed)
    for axis in range(4):
        found = vmap(found, in_dims=(0, *(0 if i == 3 - axis else None for i in range(4))))
    zeros = whole.new_zeros(max(batch, 2), n_heads, n - n // 2, n)  # a batch may share positions
    got = _as_traced(found, zeros, *(torch.arange(size) for size in zeros.shape))
    if got is not None:
        yield "score_mod, mapped", got, whole[:, :, n // 2 :].expand_as(got)


def _as_traced(run: Callable[..., Tensor], *given: Any) -> Tensor | None:
    """Return the result under a transform; None if it cannot trace the code, which the compiler will report."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns about operations that are slow under vmap
            return run(*given)
    except (RuntimeError, ValueError) as error:
        if not any(word in str(error) for word in ("vmap", "functorch", "data-dependent", "storage", "numpy")):
            raise
        return None


def _traced(
    encoding: Encoding, q: Tensor, k: Tensor, placed: Placed, whole: Tensor
) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield the bias of the last queries under a transform, which, like a compiler, cannot read values."""
    n = whole.shape[-1]
    both = placed.rows(n // 2, n), placed

    def bias(q: Tensor, k: Tensor, *parts: Tensor) -> Tensor:
        given = iter(parts)
        found = encoding.bias(q, k, *map_tensors(lambda _: next(given), both))
        return torch.zeros_like(whole) if found is None else found

    given = (q[:, :, n // 2 :], k, *tensors(both))
    got = _as_traced(vmap(bias), *(t.expand(2, *t.shape) for t in given))
    if got is not None:
        wanted = whole[:, :, n // 2 :]
        yield "bias, traced", got[0].expand_as(wanted), wanted


def _of_heads(
    encoding: Bias, q: Tensor, k: Tensor, placed: Placed, whole: Tensor
) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield the biases of two ranks of tensor parallelism: the first head, and the others."""
    first, n = encoding.held
    cuts = ((first, 1), (first + 1, n - 1)) if n > 1 else ()
    for begin, count in cuts:
        mine = slice(begin - first, begin - first + count)
        rank = encoding.of_heads(begin, count)
        yield "of_heads", rank.bias(q[:, mine], k, placed, placed).expand_as(whole[:, mine]), whole[:, mine]
        yield "score_mod of of_heads", _by_pairs(rank, placed, whole[:, mine]), whole[:, mine]
