"""Biases of which a block is one product: of queries with vectors of distances, or of factors with each other."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from posenc.attention.call import Call
from posenc.attention.leaves import alike_from
from posenc.attention.scratch import Scratch
from posenc.attention.spans import Block
from posenc.families import ContentBias

LINE = 16  # numbers of a cache line: rows of whole ones come out of a product 1.7 times as fast


class Rows:
    """A content bias that sees distances: q_i·vector[i - j] + of_key[j].

    One product with the vectors of all distances of a block gives each query a row of numbers, largest distance first.
    Query i of C finds key j in column C - 1 - i + j: a view of that memory whose rows are one number shorter. Of keys
    so far that their vectors are one (`alike_from`), that vector is taken off all: their columns are zero, and a
    softmax sees no difference. Keys that causality hides get no columns: the view finds in their place what the next
    row begins with and does not use, which is then hidden.

    Args:
        encoding: Makes the three.
        call: The call.
        distance: Of positions, falling, as far as blocks reach.
        add: Takes tensors and returns their numbers among those of the terms.
    """

    def __init__(
        self, encoding: ContentBias, call: Call, distance: Tensor, add: Callable[..., list[int]], dtype: torch.dtype
    ) -> None:
        q, k = call.before()
        scale = encoding.score_scale(q.shape[-1])
        of_key = encoding.of_keys(k.to(dtype))
        self.n = call.shape[3] if call.causal else len(distance)
        self.n_far = _count_far(encoding, call, distance[: self.n])
        last = distance[self.n - 1 : self.n]
        vectors = encoding.vectors(torch.cat((distance[self.n_far : self.n], last.expand(LINE))), dtype)
        if self.n_far:
            vectors = vectors - encoding.vectors(distance[self.n_far - 1 : self.n_far], dtype)
        parts = [encoding.queries(q.to(dtype)) * scale, vectors]
        self.q, self.vectors, *rest = add(*parts, *([] if of_key is None else [of_key * scale]))
        self.key = rest[0] if rest else None
        self.head_dims = {self.q: 1, self.vectors: 0} | dict.fromkeys(rest, 1)

    def bias(self, block: Block, begin: int, live: Sequence[Tensor], scratch: Scratch) -> Tensor:
        """Return the term of a block, (batch, heads, q_len, k_len): in `scratch`, where no gradients are kept."""
        n_far, near = self._reach(block, begin)
        q = live[self.q][block.batch, :, block.rows]
        rows = _product(q, live[self.vectors][None, :, near], scratch, f"rows {self.q}")
        if n_far:
            rows = _behind_zeros(rows, n_far, scratch, f"far {self.q}")
        found = _sheared(rows, block.size[1])
        if self.key is None:
            return found
        of_key = live[self.key][block.batch, :, None, block.keys]
        return found + of_key if torch.is_grad_enabled() else found.add_(of_key)

    def add_gradients(
        self,
        block: Block,
        begin: int,
        d_scores: Tensor,
        live: Sequence[Tensor],
        others: Sequence[Tensor | None],
        scratch: Scratch,
    ) -> None:
        """Add what the gradients of a block's scores give."""
        n_rows = block.size[0]
        q, vectors = live[self.q][block.batch, :, block.rows], live[self.vectors]
        n_far, near = self._reach(block, begin)
        first = max(0, n_far - n_rows + 1)  # the key from which on any is near to some query
        seen = d_scores[..., first:]
        width = n_far - first + near.stop - near.start
        d_rows = scratch.take("d_rows", (*seen.shape[:3], width), seen).zero_()
        _sheared(d_rows, seen.shape[3]).copy_(seen)
        i, column = (torch.arange(n, device=seen.device) for n in (n_rows, min(n_rows - 1, width)))
        # what the row before hides: zeros, or NaN of a query that is NaN
        d_rows[..., : len(column)].masked_fill_(i[:, None] + column < n_rows - 1, 0.0)
        d_rows = d_rows[..., n_far - first :]
        if (d_q := others[self.q]) is not None:
            d_q[block.batch, :, block.rows] += d_rows @ vectors[:, near]
        if (d_vectors := others[self.vectors]) is not None:
            found = (d_rows.transpose(-1, -2) @ q).sum(0)
            d_vectors[:, near] += found if vectors.shape[0] > 1 else found.sum(0, keepdim=True)
        if self.key is not None and (d_key := others[self.key]) is not None:
            d_key[block.batch, :, block.keys] += d_scores.sum(2)

    def _reach(self, block: Block, begin: int) -> tuple[int, slice]:
        """Return how many distances of a block are far, from number `begin` on, and where the others' vectors are.

        Of those there are some more than are seen, one at least: what is hidden is no row's own then.
        """
        n = min(sum(block.size) - 1, self.n - begin)
        n_far = min(max(0, self.n_far - begin), n)
        near = max(0, begin + n_far - self.n_far)
        return n_far, slice(near, near + LINE * (1 + (n - n_far) // LINE))


def _count_far(encoding: ContentBias, call: Call, distance: Tensor) -> int:
    """Return how many distances have one vector, if most have."""
    far = alike_from(encoding)
    if far is None or call.encoding.rescores:  # a map of scores would see what is taken off
        return 0
    n_far = int((distance >= far).sum())
    return n_far if 2 * n_far >= len(distance) else 0  # a copy of the others is to be small


class Products:
    """A bias that is a product of something of the query and something of the key, with many lanes: a_i·b_j."""

    def __init__(self, factors: tuple[Tensor, Tensor], add: Callable[..., list[int]], dtype: torch.dtype) -> None:
        self.a, self.b = add(*(factor.to(dtype) for factor in factors))
        self.head_dims = {self.a: 1, self.b: 1}

    def bias(self, block: Block, begin: int, live: Sequence[Tensor], scratch: Scratch) -> Tensor:
        """Return the term of a block, (batch, heads, q_len, k_len): in `scratch`, where no gradients are kept."""
        return _product(*self._of(block, live), scratch, f"rows {self.a}")

    def add_gradients(
        self,
        block: Block,
        begin: int,
        d_scores: Tensor,
        live: Sequence[Tensor],
        others: Sequence[Tensor | None],
        scratch: Scratch,
    ) -> None:
        """Add what the gradients of a block's scores give."""
        a, b = self._of(block, live)
        for mine, product in ((0, lambda: d_scores @ b), (1, lambda: d_scores.transpose(-1, -2) @ a)):
            total = others[(self.a, self.b)[mine]]
            if total is not None:
                part = _some(total, block)[:, :, (block.rows, block.keys)[mine]]
                part += product().sum_to_size(part.shape)

    def _of(self, block: Block, live: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        a, b = (_some(live[i], block) for i in (self.a, self.b))
        return a[:, :, block.rows], b[:, :, block.keys]


def _product(a: Tensor, b: Tensor, scratch: Scratch, purpose: str) -> Tensor:
    """Return a @ b.mT of (batch, heads, rows, lanes) each, b perhaps the same for all heads or items."""
    if torch.is_grad_enabled():
        return a @ b.transpose(-1, -2)
    # torch.broadcast_shapes goes through Python's tracing layer: 0.1 ms, a tenth of this product
    shape = [n if m == 1 else m for m, n in zip(a.shape[:2], b.shape[:2], strict=True)]
    a, b = (t.expand(*shape, -1, -1).flatten(0, 1) for t in (a, b))
    found: Tensor = scratch.product(purpose, a, b.transpose(-1, -2)).unflatten(0, shape)
    return found


def _behind_zeros(t: Tensor, n: int, scratch: Scratch, purpose: str) -> Tensor:
    if torch.is_grad_enabled():
        return F.pad(t, (n, 0))
    found = scratch.take(purpose, (*t.shape[:-1], n + t.shape[-1]), t)
    found[..., :n] = 0.0
    found[..., n:] = t
    return found


def _some(t: Tensor, block: Block) -> Tensor:
    return t[block.batch] if t.shape[0] > 1 else t


def _sheared(rows: Tensor, n_keys: int) -> Tensor:
    """Return the view (batch, heads, q_len, n_keys) in which column C - 1 - i + j of row i is element (i, j)."""
    batch, n_heads, n_rows, width = rows.shape
    strides = (n_heads * n_rows * width, n_rows * width, width - 1, 1)
    return rows.as_strided((batch, n_heads, n_rows, n_keys), strides, rows.storage_offset() + n_rows - 1)
