"""What joins the scores of a call, block by block: biases by distance, by elements or by content, and a mask."""

import threading
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.func import functional_call

from posenc.attention import vectors
from posenc.attention.call import Call, light, shown
from posenc.attention.heads import ALL, Heads, parts_of_heads
from posenc.attention.leaves import (
    Door,
    Leaf,
    apart,
    factors_of,
    is_fresh,
    is_product,
    learning,
    may_slice,
    sees_distance,
    with_parts,
)
from posenc.attention.rows import Products, Rows
from posenc.attention.scratch import Scratch
from posenc.attention.shifts import fit, shifts_of
from posenc.attention.spans import Block, Spans, cut
from posenc.families import ContentBias, Piece, join


class Terms:
    """The terms of a call as functions of a block and of tensors, so that a backward pass can form them again.

    Args:
        call: The call; its queries and keys as they were before the turn.
        blocks: Those that will be asked for.
        by_distance: True if biases that see distances alone are to be vectors over the distances.

    Attributes:
        tensors: What gradients may go to: vectors, parameters, placed parts, the floating mask, q and k.
    """

    def __init__(self, call: Call, parts: Sequence[Spans], blocks: Iterable[Block], *, by_distance: bool) -> None:
        self.tensors: list[Tensor] = []
        self.parts = {part.item: part for part in parts}
        self.offset = call.shape[3] - call.shape[2]
        self.k_len, self.dtype = call.shape[3], torch.float64 if call.out_dtype == torch.float64 else torch.float32
        leaves, blocks = call.leaves, list(blocks)
        # the bias of one query is a vector as it is
        sums = [leaf for leaf in leaves if by_distance and call.shape[2] > 1 and sees_distance(leaf)]
        shifts = shifts_of(sums, blocks, self.offset)
        if not fit(sums, call, shifts.values()):
            sums, shifts = [], shifts_of([], blocks, self.offset)
        self.sums, self.shifts = sums, shifts
        self.rows = self._as_rows(call, [leaf for leaf in leaves if leaf not in sums], blocks)
        apart = {id(leaf) for leaf in (*self.sums, *self.rows)}
        self.leaves = [self._with_tensors(leaf) for leaf in leaves if id(leaf) not in apart]
        self.map: Leaf | None = None  # what makes other scores of whole rows
        if call.encoding.rescores:
            self.map = self._with_tensors(Leaf(call.encoding, call.placed, call.k_placed))
        self.reads_qk = self.map is not None or any(leaf.encoding.reads_qk for leaf in self.leaves)
        self.raw = self.add(*(call.before() if self.reads_qk else ()))
        added = call.added()
        self.mask = self.add(*(() if added is None else (added,)))
        found = vectors.summed(call, self.sums, self.shifts, self.dtype)
        self.vectors = {shifts: self.add(vector)[0] for shifts, vector in found.items()}
        tables = vectors.tables(self.sums) if None in self.shifts.values() else []
        self.tables = [(self.add(table)[0], lowest) for table, lowest in tables]
        self._scratch: dict[int, Scratch] = {}  # by thread: several may go back over one graph
        # what is kept for the backward pass shall not hold q, k and v once more
        self.hollow = light(call)
        for part in parts:
            part.call = self.hollow

    @property
    def scratch(self) -> Scratch:
        """Memory for what blocks of one pass form."""
        return self._scratch.setdefault(threading.get_ident(), Scratch())

    def form_in(self, scratch: Scratch) -> None:
        """Form blocks in memory that others of this thread had before."""
        self._scratch[threading.get_ident()] = scratch

    def forget(self) -> None:
        """Free what a pass needed."""
        self.tensors = []
        self._scratch.pop(threading.get_ident(), None)

    def of_block(self, block: Block, tensors: Sequence[Tensor | None]) -> list[Any]:
        """Return tensors, or sums of their gradients, and of q, k and the mask what the block sees."""
        found: list[Any] = list(tensors)
        for i, rows in zip(self.raw, (block.rows, block.keys), strict=False):
            found[i] = None if found[i] is None else found[i][block.batch, :, rows]
        for i in self.mask:
            found[i] = None if found[i] is None else cut(found[i], block)
        return found

    def heads(self, block: Block, q: Tensor, k: Tensor, *, forwards: bool) -> list[Heads]:
        """Return which heads of a block follow each other.

        `forwards` asks for those of the forward pass, where the kernel keeps the scores to itself, and terms that are
        no products are formed of all heads.
        """
        mask = self.hollow.mask if block.masked else None
        if mask is not None and mask.shape[1] > 1:
            return [ALL]
        if forwards and (not self.rows or self.leaves or self.sums):
            return [ALL]
        batch = q.shape[0] if block.item is None else 1
        return parts_of_heads(batch, q.shape[1], k.shape[1], block.size, rows=bool(self.rows))

    def of_heads(self, tensors: Sequence[Tensor | None], heads: Heads) -> list[Any]:
        """Return tensors, or sums of their gradients, and of vectors and factors those of some heads."""
        found: list[Any] = list(tensors)
        dims = dict.fromkeys(self.vectors.values(), 0)
        for one in self.rows.values():
            dims |= one.head_dims
        for i, dim in dims.items():
            t = found[i]
            found[i] = t if t is None or t.shape[dim] == 1 else t[(slice(None),) * dim + (heads.of_q,)]
        return found

    def view(self, block: Block, tensors: Sequence[Tensor]) -> Float[Tensor, "1 heads q_len k_len"] | None:
        """Return all terms of a block, its queries in reverse, as a view of a vector; None if they are no such thing.

        With the queries in reverse, element (i, j) is number i + j of the distances in falling order.
        """
        return None if self.leaves or self.rows or block.masked or block.mixed else self._vector(block, tensors)

    def _vector(self, block: Block, tensors: Sequence[Tensor]) -> Tensor | None:
        slot = self.vectors.get(self.shifts[block])
        if slot is None:
            return None
        vector, size = tensors[slot], block.size
        begin = vector.storage_offset() + self.begin(block)
        return vector.as_strided((1, vector.shape[0], *size), (0, vector.stride(0), 1, 1), begin)

    def needed(self, block: Block) -> bool:
        """Whether anything joins the scores of a block."""
        return bool(self.leaves or self.rows or self.sums or block.ragged or block.mixed or block.masked)

    def slot(self, block: Block) -> int:
        """Return which of the tensors is the vector that `view` shows."""
        return self.vectors[self.shifts[block]]

    def begin(self, block: Block) -> int:
        """Return the number of the block's largest distance in a vector of distances in falling order."""
        return self.k_len - 1 - (block.end - 1 + self.offset - block.first)

    def dense(self, block: Block, tensors: Sequence[Tensor] | None, *, hide: bool = True) -> Tensor | None:
        """Return all terms of a block and -inf where nothing is seen, (... q_len k_len); None if there are none.

        `tensors` stand for those of `self.tensors`, as `of_block` gives them; None to take the live ones. `hide=False`
        leaves out what masks hide, which `allowed` says then.
        """
        live = self.of_block(block, self.tensors) if tensors is None else tensors
        found = self.pieces(block, tensors, hide=hide)
        found += [of_all(term.to(self.dtype), block) for term in self.row_terms(block, live)]
        total = self._sum(found, block)
        if not hide:
            return total
        if torch.is_grad_enabled() or not self.shifts:  # no blocks were named: within a compiler or a transform
            allowed = self.allowed(block)
            if allowed is None:
                return total
            blank = torch.zeros((), device=allowed.device, dtype=self.dtype) if total is None else total
            return blank.masked_fill(~allowed, -torch.inf)
        # memory of a sum or a product, that nobody else sees
        own = len(found) > 1 or bool(self.rows) or bool(self.sums)
        own = own or (len(self.leaves) == 1 and is_fresh(self.leaves[0], total, live))
        if total is not None and total.shape[-2:] != block.size:  # of each query, key or head alone
            total, own = total.expand(torch.broadcast_shapes(total.shape, block.size)), False
        if total is not None and not own and block.hides:
            total = self.scratch.take("hidden", total.shape, total).copy_(total)
        return self.hide(total, block)

    def pieces(self, block: Block, tensors: Sequence[Tensor] | None, *, hide: bool) -> list[Piece]:
        """Return all terms of a block but for those that are products, and the keys they are of; as `dense` does."""
        live = self.of_block(block, self.tensors) if tensors is None else tensors
        terms = [self._leaf(leaf, block, tensors) for leaf in self.leaves]
        if self.sums:
            terms.append(self._by_distance(block, live))
        if self.mask and block.masked:
            mask = live[self.mask[0]]
            terms.append(mask if hide else mask.masked_fill(~shown(mask), 0.0))
        found: list[Piece] = []
        for term in terms:
            if term is not None:
                found += [of_all(term, block)] if isinstance(term, Tensor) else term
        return [piece._replace(term=piece.term.to(self.dtype)) for piece in found]

    def _sum(self, pieces: Sequence[Piece], block: Block) -> Tensor | None:
        """Return what pieces add up to: in scratch, where they are not of all keys and nothing learns."""
        if all(piece[:2] == (0, block.size[1]) for piece in pieces):
            terms = [piece.term for piece in pieces]
            return None if not terms else sum(terms[1:], start=terms[0])
        if torch.is_grad_enabled() or not self.shifts:  # no blocks were named: within a compiler or a transform
            return join(pieces)
        shape = torch.broadcast_shapes(*(piece.term.shape[:-1] for piece in pieces), block.size[:1])
        return join(pieces, self.scratch.take("joined", (*shape, block.size[1]), pieces[0].term))

    def hide(self, scores: Tensor | None, block: Block) -> Tensor | None:
        """Write -inf where nothing is seen, into scores (... q_len k_len) or a mask of their own; None if all is."""
        if scores is not None:
            return self.parts[block.item].hide(scores, block)
        allowed = self.allowed(block)
        if allowed is None:
            return None
        return torch.zeros((), device=allowed.device, dtype=self.dtype).masked_fill(~allowed, -torch.inf)

    def row_terms(self, block: Block, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return those terms of a block that are products."""
        return [one.bias(block, self.begin(block), tensors, self.scratch) for one in self.rows.values()]

    def add_row_gradients(
        self, block: Block, d_scores: Tensor, tensors: Sequence[Tensor], others: Sequence[Tensor | None]
    ) -> None:
        """Add the gradients of those terms that are products with vectors of distances."""
        for one in self.rows.values():
            one.add_gradients(block, self.begin(block), d_scores, tensors, others, self.scratch)

    def _as_rows(self, call: Call, leaves: Sequence[Leaf], blocks: Sequence[Block]) -> dict[Leaf, Rows | Products]:
        """Return those leaves of which a block is one product."""
        found: dict[Leaf, Rows | Products] = {}
        for leaf in leaves:
            encoding = leaf.encoding
            if blocks and is_product(leaf) and (factors := factors_of(leaf)) is not None:
                found[leaf] = Products(factors, self.add, self.dtype)
            if not (isinstance(encoding, ContentBias) and may_slice(leaf)) or not blocks:
                continue
            shifts = set(shifts_of([leaf], blocks, self.offset).values())
            shift = shifts.pop()
            if shifts or shift is None:
                continue
            found[leaf] = Rows(encoding, call, vectors.indices(call, blocks) + shift[0], self.add, self.dtype)
        return found

    def allowed(self, block: Block) -> Tensor | None:
        """Return who sees whom in a block, (... q_len k_len); None if all do."""
        return self.parts[block.item].allowed(block)

    def rescored(self, scores: Tensor, block: Block, tensors: Sequence[Tensor] | None) -> Tensor:
        """Return what a score map makes of a block's scores; themselves if there is none."""
        if self.map is None:
            return scores
        allowed = self.allowed(block)
        found: Tensor = self._run(self.map, block, tensors, scores, allowed)
        return found

    def _leaf(self, leaf: Leaf, block: Block, tensors: Sequence[Tensor] | None) -> Tensor | Sequence[Piece] | None:
        """Return what one encoding adds to the scores of a block."""
        found: Tensor | Sequence[Piece] | None = self._run(leaf, block, tensors)
        return found

    def _run(self, leaf: Leaf, block: Block, tensors: Sequence[Tensor] | None, *scores: Any) -> Any:
        """Run an encoding's bias, or its map of scores, on a block, with the given tensors for its own."""
        live = self.of_block(block, self.tensors) if tensors is None else tensors
        placed, k_placed = leaf.placed, leaf.k_placed
        if tensors is not None and leaf.parts[1]:
            placed, k_placed = with_parts((placed, k_placed), live[slice(*leaf.parts)])
        placed = placed.rows(block.begin, block.end, block.batch)
        k_placed = k_placed.rows(block.first, block.last, block.batch)
        empty = self.hollow.q[block.batch, :, block.rows], self.hollow.k[block.batch, :, block.keys]
        q, k = (live[i].to(self.dtype) for i in self.raw) if self.reads_qk else empty
        if tensors is None or not leaf.names:
            return Door(leaf.encoding)(q, k, placed, k_placed, *scores)
        named = {f"encoding.{name}": t for name, t in zip(leaf.names, live[slice(*leaf.learned)], strict=True)}
        return functional_call(Door(apart(leaf.encoding)), named, (q, k, placed, k_placed, *scores))

    def _by_distance(self, block: Block, live: Sequence[Tensor]) -> Tensor:
        """Return the sum of the biases that see distances alone: by the vector, or looked up in tables."""
        if (found := self._vector(block, live)) is not None:
            return found.flip(-2)
        total: Tensor | None = None
        for leaf, (slot, lowest) in zip(self.sums, self.tables, strict=True):
            rows = leaf.placed.rows(block.begin, block.end, block.batch).pos
            keys = leaf.k_placed.rows(block.first, block.last, block.batch).pos + lowest
            bias = live[slot][:, rows[..., :, None] - keys[..., None, :]]
            bias = bias.transpose(0, 1) if bias.ndim == 4 else bias
            total = bias if total is None else total + bias
        assert total is not None  # there is at least one
        return total

    def _with_tensors(self, leaf: Leaf) -> Leaf:
        named = dict(leaf.encoding.named_parameters())
        learned = self.add(*named.values())
        parts = self.add(*learning((leaf.placed, leaf.k_placed)))
        return replace(leaf, names=tuple(named), learned=_slice(learned), parts=_slice(parts))

    def add(self, *tensors: Tensor) -> list[int]:
        """Take tensors that may learn; return where they lie in `tensors`."""
        begin = len(self.tensors)
        self.tensors += tensors
        return list(range(begin, len(self.tensors)))


def of_all(term: Tensor, block: Block) -> Piece:
    """Return a term of all keys of a block."""
    return Piece(0, block.size[1], term)


def _slice(indices: list[int]) -> tuple[int, int]:
    return (indices[0], indices[-1] + 1) if indices else (0, 0)
