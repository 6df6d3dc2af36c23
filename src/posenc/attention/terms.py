"""The terms added to the scores of a block: biases, a floating mask, and minus infinity at masked keys."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.func import functional_call

from posenc.attention.call import Call, added, light
from posenc.attention.distances import MOST, ByDistance, ByRows, LookedUp, shifts_of
from posenc.attention.leaves import BiasModule, Leaf, learning, may_slice, sees_distance, with_parts
from posenc.attention.spans import Block, Spans, cut
from posenc.families import ContentBias
from posenc.positions.checks import is_traced
from posenc.private import shared_copy


class Term(Protocol):
    """One term of the scores.

    Attributes:
        tensors: The tensors that may get gradients.
    """

    tensors: list[Tensor]

    def cut(self, block: Block, tensors: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Return the views that a block needs, of the tensors or of the sums of their gradients."""

    def of(self, block: Block, tensors: Sequence[Tensor]) -> Tensor | None:
        """Return the term of a block (batch | 1, heads | 1, q_len, k_len), given its `cut`."""


class Formed:
    """The term of an encoding's own `bias` or `rescore`, computed block by block."""

    def __init__(self, leaf: Leaf, call: Call, dtype: torch.dtype) -> None:
        self.leaf, self.dtype, self.empty = leaf, dtype, light(call)
        named = dict(leaf.encoding.named_parameters())
        self.names, parts = list(named), learning((leaf.placed, leaf.k_placed))
        self.n_parts = len(parts)
        self.reads_qk = leaf.encoding.reads_qk or leaf.encoding.rescores
        self.tensors = [*(call.unrotated_qk() if self.reads_qk else ()), *parts, *named.values()]

    def cut(self, block: Block, tensors: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Return the queries and keys of the block, and all other tensors whole."""
        found = list(tensors)
        for i, part in enumerate((block.rows, block.keys) if self.reads_qk else ()):
            t = found[i]
            found[i] = None if t is None else t[block.batch, :, part]
        return found

    def of(self, block: Block, tensors: Sequence[Tensor], *scores: Tensor | None) -> Tensor | None:
        """Run the encoding on a block, with the given tensors in place of its own."""
        empty = self.empty.q[block.batch, :, block.rows], self.empty.k[block.batch, :, block.keys]
        q, k = (t.to(self.dtype) for t in tensors[:2]) if self.reads_qk else empty
        first = 2 * self.reads_qk
        parts, learned = tensors[first : first + self.n_parts], tensors[first + self.n_parts :]
        placed, k_placed = self.leaf.placed, self.leaf.k_placed
        # in a graph no block is computed twice, and no tensor is replaced
        traced = is_traced()
        if not traced:
            placed, k_placed = with_parts((placed, k_placed), parts)
        placed = placed.rows(block.begin, block.end, block.batch)
        k_placed = k_placed.rows(block.first, block.last, block.batch)
        if traced:
            return BiasModule(self.leaf.encoding)(q, k, placed, k_placed, *scores)  # type: ignore[no-any-return]
        named = {f"encoding.{name}": t for name, t in zip(self.names, learned, strict=True)}
        module = BiasModule(shared_copy(self.leaf.encoding))
        found: Tensor | None = functional_call(module, named, (q, k, placed, k_placed, *scores))
        return found


class Added:
    """The finite part of the caller's floating mask. `Spans.allowed` handles masked entries."""

    def __init__(self, mask: Tensor) -> None:
        self.tensors = [mask]

    def cut(self, block: Block, tensors: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Return the block of the mask."""
        return [None if t is None else cut(t, block) for t in tensors]

    def of(self, block: Block, tensors: Sequence[Tensor]) -> Tensor | None:
        """Return the finite part of the block."""
        return added(tensors[0])


@dataclass(frozen=True)
class Slot:
    """A term and its slice of all tensors; `backwards` if its keys run in reverse."""

    term: Term
    own: slice
    backwards: bool


class Terms:
    """All terms of a call, in blocks.

    Attributes:
        tensors: The tensors of all terms that may get gradients.
        backwards: Whether keys run in reverse, which makes a bias by distance a view of a vector.
    """

    def __init__(self, call: Call, parts: Sequence[Spans], blocks: Sequence[Block]) -> None:
        self.parts = {part.item: part for part in parts}
        self.k_len, self.dtype = call.shape[3], call.wide
        self.tensors: list[Tensor] = []
        self.slots: list[Slot] = []
        self.distance: ByDistance | None = None
        rest = self._by_distance(call, call.leaves, blocks) if blocks and call.shape[2] > 1 else call.leaves
        for leaf in rest:
            self._take(Formed(leaf, call, self.dtype))
        self.map: Slot | None = None  # the encoding's `rescore`, which maps whole rows of scores
        if call.encoding.rescores:
            whole = Leaf(call.encoding, call.placed, call.k_placed)
            self.map = self._slot(Formed(whole, call, self.dtype), backwards=False)
        if call.mask is not None and call.mask.dtype != torch.bool:
            self._take(Added(call.mask))
        empty = light(call)  # so that the tensors saved for a backward pass hold q, k and v only once
        for part in parts:
            part.call = empty

    @property
    def backwards(self) -> bool:
        """Whether keys run in reverse."""
        return self.distance is not None

    def _by_distance(self, call: Call, leaves: Sequence[Leaf], blocks: Sequence[Block]) -> list[Leaf]:
        """Add the biases that depend on distances as vectors; return the others."""
        offset = call.shape[3] - call.shape[2]
        sums = [leaf for leaf in leaves if sees_distance(leaf)]
        shifts = shifts_of(sums, blocks, offset)
        rest = [leaf for leaf in leaves if leaf not in sums]
        varies = None in shifts.values() or len(set(shifts.values())) > MOST
        if varies or call.encoding.rescores:  # a score map may depend on the order of keys
            for leaf in sums:
                if leaf.is_near:
                    self._take(LookedUp(leaf, self.dtype))
            return rest + [leaf for leaf in sums if not leaf.is_near]
        rows = self._by_rows(rest, blocks, offset)
        rest = [leaf for leaf in rest if leaf not in rows]
        for leaf, shift in rows.items():
            self._take(ByRows(leaf, call, shift, self.dtype), backwards=True)
        if sums or rows or not leaves:
            self.distance = ByDistance(call, sums, shifts, self.dtype)
            self._take(self.distance, backwards=True)
        return rest

    def _by_rows(self, leaves: Sequence[Leaf], blocks: Sequence[Block], offset: int) -> dict[Leaf, int]:
        """Return the content biases whose blocks are one product each, with the shift of their positions."""
        found = {}
        for leaf in leaves:
            if isinstance(leaf.encoding, ContentBias) and may_slice(leaf):
                ways = set(shifts_of([leaf], blocks, offset).values())
                if len(ways) == 1 and (way := ways.pop()) is not None:
                    found[leaf] = way[0]
        return found

    def _take(self, term: Term, *, backwards: bool = False) -> None:
        self.slots.append(self._slot(term, backwards=backwards))

    def _slot(self, term: Term, *, backwards: bool) -> Slot:
        begin = len(self.tensors)
        self.tensors += term.tensors
        return Slot(term, slice(begin, len(self.tensors)), backwards)

    def keys(self, block: Block) -> slice:
        """Return the slice of a block's keys, in reverse numbering if keys run in reverse."""
        return slice(self.k_len - block.last, self.k_len - block.first) if self.backwards else block.keys

    def view(self, block: Block, tensors: Sequence[Tensor]) -> Tensor | None:
        """Return all terms of a block as one view of a vector; None if that is impossible."""
        if self.distance is None or len(self.slots) > 1 or block.masked or block.mixed:
            return None
        return self._of(self.slots[0], block, tensors)

    def mask(self, block: Block, tensors: Sequence[Tensor]) -> Tensor | None:
        """Return the sum of a block's terms, with -inf at masked keys; None if there are no terms.

        For a score map, masked keys keep their terms: the mask is applied after the map.
        """
        if (view := self.view(block, tensors)) is not None:
            return view
        found = [t for slot in self.slots if (t := self._of(slot, block, tensors)) is not None]
        product = bool(self.slots) and isinstance(self.slots[0].term, ByRows)
        total = _sum(found, own=product and not torch.is_grad_enabled())
        if self.map is not None:
            return total
        allowed = self.allowed(block) if block.mixed or block.masked or not self.backwards else None
        if allowed is None:
            return total
        if total is None:
            total = torch.zeros((), device=allowed.device, dtype=self.dtype)
        return total.masked_fill(~allowed, -torch.inf)

    def allowed(self, block: Block) -> Tensor | None:
        """Return which queries see which keys in a block (..., q_len, k_len); None if all see all."""
        seen = self.parts[block.item].allowed(block)
        return seen.flip(-1) if seen is not None and self.backwards and seen.shape[-1] > 1 else seen

    def rescored(self, scores: Tensor, block: Block, tensors: Sequence[Tensor]) -> Tensor:
        """Return a block's scores after the score map; the same scores if there is no map."""
        if self.map is None:
            return scores
        own: Any = self.map.term.cut(block, tensors[self.map.own])
        assert isinstance(self.map.term, Formed)
        found = self.map.term.of(block, own, scores, self.allowed(block))
        assert found is not None  # a score map returns scores
        return found

    def _of(self, slot: Slot, block: Block, tensors: Sequence[Tensor]) -> Tensor | None:
        own: Any = slot.term.cut(block, tensors[slot.own])
        found = slot.term.of(block, own)
        if found is None:
            return None
        found = found.to(self.dtype)
        return found.flip(-1) if self.backwards and not slot.backwards and found.shape[-1] > 1 else found

    def add_gradients(
        self, block: Block, d_scores: Tensor, tensors: Sequence[Tensor], sums: Sequence[Tensor | None]
    ) -> None:
        """Add a block's gradients to the sums for all tensors, given the gradients of its scores."""
        for slot in self.slots:
            own = slot.term.cut(block, sums[slot.own])
            if isinstance(slot.term, ByDistance | LookedUp):
                slot.term.add_gradients(block, d_scores, own)
            elif any(t is not None for t in own):
                self._add_formed(slot, block, d_scores, tensors, own)

    def _add_formed(
        self, slot: Slot, block: Block, d_scores: Tensor, tensors: Sequence[Tensor], own: Sequence[Tensor | None]
    ) -> None:
        """Compute a term again, under autograd, for the gradients of its tensors."""
        given = slot.term.cut(block, tensors[slot.own])
        with torch.enable_grad():
            live: Any = [
                t if t is None or s is None else t.detach().requires_grad_() for t, s in zip(given, own, strict=True)
            ]
            term = slot.term.of(block, live)
        if term is None or not term.requires_grad:
            return
        d_term = d_scores.flip(-1) if self.backwards and not slot.backwards else d_scores
        wanted = [t for t, s in zip(live, own, strict=True) if s is not None]
        found = torch.autograd.grad(term, wanted, d_term.sum_to_size(term.shape).to(term.dtype), allow_unused=True)
        for part, total in zip(found, (s for s in own if s is not None), strict=True):
            if part is not None:
                total += part.to(total.dtype)


def _sum(terms: Sequence[Tensor], *, own: bool) -> Tensor | None:
    """Add terms up, in place of the first one if its memory is `own`."""
    if not terms:
        return None
    total = terms[0]
    for term in terms[1:]:
        fits = own and torch.broadcast_shapes(total.shape, term.shape) == total.shape
        total = total.add_(term) if fits else total + term
        own = own or not torch.is_grad_enabled()
    return total
