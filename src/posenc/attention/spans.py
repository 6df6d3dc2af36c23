"""The keys that each query may see, as ranges: masks by index without a matrix."""

from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

import torch
from jaxtyping import Bool, Int64, Shaped
from torch import Tensor

from posenc.attention.call import Call, all_of, visible
from posenc.positions.checks import may_look
from posenc.private import is_known

SHORTEST = 64  # a document of at least so many tokens gets its own blocks
COMPILED = 8  # the most blocks in a compiled graph, each of which takes about three seconds to compile
ROWS = 256  # the fewest queries of a block that is cut by index
APART = 32  # with at least so many queries, rows of a batch that are padded differently run one by one


class Block(NamedTuple):
    """Some queries and all keys that any of them sees.

    Args:
        item: Item of the batch; None for the whole batch.
        begin: The first query.
        end: One past the last query.
        first: The first key.
        last: One past the last key.
        ragged: Causality or a window masks some of these keys for some of the queries.
        mixed: The tokens are of several documents.
        masked: The caller's mask must be applied.
    """

    item: int | None
    begin: int
    end: int
    first: int
    last: int
    ragged: bool
    mixed: bool
    masked: bool

    @property
    def batch(self) -> slice:
        """The items of the batch."""
        return slice(None) if self.item is None else slice(self.item, self.item + 1)

    @property
    def rows(self) -> slice:
        """The queries."""
        return slice(self.begin, self.end)

    @property
    def keys(self) -> slice:
        """The keys."""
        return slice(self.first, self.last)

    @property
    def size(self) -> tuple[int, int]:
        """The numbers of queries and of keys."""
        return self.end - self.begin, self.last - self.first


class Spans:
    """The ranges [low, high) of keys that the queries of a call see, for some items of its batch.

    Both ends rise with the query, so a block of queries sees one range as well. Documents and padding
    become ranges if their values can be read and are contiguous; otherwise `mixed` and `masked` mark the
    blocks that need a mask.
    """

    def __init__(self, call: Call, item: int | None = None) -> None:
        self.call, self.item = call, item
        self.q_len, self.k_len = call.shape[2:]
        self.offset = self.k_len - self.q_len
        self.ids = _of_item(call.document_ids, item, 2)
        self.runs = None if self.ids is None else _runs(self.ids)
        self.mixed = self.ids is not None and self.runs is None
        self.padding = _padding(call, item)
        self.masked = call.mask is not None and self.padding is None

    @cached_property
    def ends(self) -> tuple[Int64[Tensor, " q_len"], Int64[Tensor, " q_len"]]:
        """The first key that each query sees, and one past the last; equal where it sees none."""
        call = self.call
        here = torch.arange(self.offset, self.k_len, device="cpu")  # where reading it does not wait
        low, high = torch.zeros_like(here), torch.full_like(here, self.k_len)
        if call.window is not None:
            low = here - call.window + 1
            high = here + call.window
        if call.causal:
            high = here + 1
        if self.runs is not None:
            begin, end = self.runs
            low, high = torch.maximum(low, begin[here]), torch.minimum(high, end[here])
        first, last = (0, self.k_len) if self.padding is None else self.padding
        low, high = low.clamp(first, last), high.clamp(first, last)
        return low, torch.maximum(low, high)

    def blocks(self, n_rows: int) -> list[Block]:
        """Return blocks of at most `n_rows` queries that cover all queries that see a key.

        The first block is the short one, since in a causal call it has the fewest keys. A block of short documents has
        at most `SHORTEST` queries, since it also computes scores across documents.
        """
        low, high = (t.tolist() for t in self.ends)
        short = self._in_short_documents()
        found, at = [], 0
        for stop in sorted({*self._document_cuts(), self.q_len}):
            while at < stop:
                if low[at] == high[at]:
                    at += 1
                    continue
                rows = min(n_rows, SHORTEST) if short[at] else n_rows
                end = min(at - (at - stop) % rows + rows, stop)  # the short block comes first
                found.append(self._block(at, end, low, high))
                at = end
        return [b for b in found if b.last > b.first]

    def _block(self, begin: int, end: int, low: list[int], high: list[int]) -> Block:
        while low[end - 1] == high[end - 1]:  # padding at the end sees no key
            end -= 1
        documents = False
        if self.runs is not None:
            starts = self.runs[0]
            documents = bool(starts[begin + self.offset] != starts[end - 1 + self.offset])
        ragged = low[begin] != low[end - 1] or high[begin] != high[end - 1]
        keys = low[begin], high[end - 1]
        return Block(self.item, begin, end, *keys, ragged, self.mixed or documents, self.masked)

    def _document_cuts(self) -> list[int]:
        """Return the queries at which long documents begin or end."""
        if self.runs is None:
            return []
        begin, end = self.runs
        long = end - begin >= SHORTEST
        here = torch.arange(self.k_len, device=begin.device)
        edges = here[(here == begin) & (long | long.roll(1))]
        return [e for e in (edges - self.offset).tolist() if 0 < e < self.q_len]

    def _in_short_documents(self) -> list[bool]:
        """Return which queries belong to documents that are too short for their own blocks."""
        if self.runs is None:
            return [False] * self.q_len
        begin, end = self.runs
        found: list[bool] = (end - begin < SHORTEST)[self.offset :].tolist()
        return found

    def allowed(self, block: Block) -> Bool[Tensor, "... q_len k_len"] | None:
        """Return which queries see which keys in a block, by causality, window, documents and mask; None if all do."""
        call, device = self.call, self.call.q.device
        terms: list[Tensor] = []
        if block.ragged:
            here = torch.arange(block.begin, block.end, device=device)[:, None] + self.offset
            there = torch.arange(block.first, block.last, device=device)
            terms += call.by_index(here, there)
        if block.mixed and self.ids is not None:
            rows = slice(block.begin + self.offset, block.end + self.offset)
            terms.append((self.ids[..., rows, None] == self.ids[..., None, block.keys]).unsqueeze(-3))
        if block.masked:
            terms.append(visible(cut(call.mask, block)))
        return all_of(terms)


def spans(call: Call) -> list[Spans]:
    """Return the ranges of a call: one for the whole batch, or one for each item if they differ."""
    batch, q_len = call.q.shape[0], call.shape[2]
    by_ids = call.document_ids is not None and call.document_ids.ndim == 2 and call.document_ids.shape[0] > 1
    by_mask = is_padding(call) and call.mask is not None and call.mask.shape[0] > 1
    if batch > 1 and q_len >= APART and (by_ids or by_mask) and may_look(call.q):
        return [Spans(call, item) for item in range(batch)]
    return [Spans(call)]


def blank(call: Call, parts: list[Spans]) -> Call:
    """Zero each query that sees no key and each slot that no query sees, since they may hold NaN.

    0 times NaN is NaN: in the sum over keys, and in all gradients.
    """
    if call.tame or (call.mask is None and call.window is None and call.document_ids is None):
        return call  # with only a causal mask each key is seen, and blocks leave out rows that see no key
    batch, _, q_len, k_len = call.shape
    heads = 1 if call.mask is None else call.mask.shape[1]
    rows = torch.zeros(batch, heads, q_len, dtype=torch.bool, device=call.q.device)
    keys = torch.zeros(batch, k_len, dtype=torch.bool, device=call.q.device)
    for part in parts:
        for block in part.blocks(1024):
            seen = part.allowed(block) if block.mixed or block.masked else None  # each key in the range is seen
            rows[block.batch, :, block.rows] |= True if seen is None else _any(seen, -1)
            keys[block.batch, block.keys] |= True if seen is None else _any(_any(seen, -2), -2)
    blind, unseen = ~call.see(rows)[..., None], ~keys[:, None, :, None]
    k, v = call.k.masked_fill(unseen, 0.0), call.v.masked_fill(unseen, 0.0)
    return replace(call, q=call.q.masked_fill(blind, 0.0), k=k, v=v)


def _any(seen: Tensor, dim: int) -> Tensor:
    """Return whether any entry along a dimension is true; leave a tensor without that dimension as it is."""
    return seen.any(dim) if seen.ndim >= -dim else seen


def is_padding(call: Call) -> bool:
    """Whether the mask depends only on the key, and its values can be read."""
    mask = call.mask
    if mask is None or mask.shape[1] > 1 or mask.shape[2] > 1 or not may_look(mask) or mask.requires_grad:
        return False
    return mask.dtype == torch.bool or bool(((mask == 0) | ~visible(mask)).all())


def cut(mask: Tensor | None, block: Block) -> Tensor:
    """Return a block of a mask that broadcasts to (batch, n_heads, q_len, k_len)."""
    assert mask is not None  # only a call with a mask has masked blocks
    for dim, part in ((0, block.batch), (2, block.rows), (3, block.keys)):
        if mask.shape[dim] > 1:
            mask = mask[(slice(None),) * dim + (part,)]
    return mask


def _of_item(t: Tensor | None, item: int | None, ndim: int) -> Tensor | None:
    return t if t is None or item is None or t.ndim < ndim or t.shape[0] == 1 else t[item]


def _runs(ids: Tensor) -> tuple[Int64[Tensor, " k_len"], Int64[Tensor, " k_len"]] | None:
    """Return for each token the ends of its document, if each document is one run in one row of ids."""
    row = ids[0] if ids.ndim == 2 and ids.shape[0] == 1 else ids
    if row.ndim > 1 or not may_look(row):
        return None
    new = torch.ones_like(row, dtype=torch.bool)
    new[1:] = row[1:] != row[:-1]
    starts = new.nonzero()[:, 0]
    if len(starts) != len(row.unique()):
        return None
    which = new.cumsum(0) - 1
    ends = torch.cat((starts[1:], starts.new_tensor([len(row)])))
    return starts[which], ends[which]


def _padding(call: Call, item: int | None) -> tuple[int, int] | None:
    """Return the range of keys that the mask allows, if the mask is one range."""
    if not is_padding(call) or call.mask is None:
        return None
    rows = call.mask if item is None or call.mask.shape[0] == 1 else call.mask[item : item + 1]
    if rows.shape[0] > 1:
        return None
    row = rows[0, 0, 0].expand(call.shape[3])
    seen = visible(row).nonzero()[:, 0]
    if len(seen) == 0:
        return 0, 0
    first, last = int(seen[0]), int(seen[-1]) + 1
    return (first, last) if last - first == len(seen) else None


def blocks_by_index(call: Call) -> list[Block]:
    """Return blocks of queries that are cut only by index; one block if a compiler leaves lengths open.

    Some blocks may have no keys.
    """
    q_len, k_len = call.shape[2:]
    ragged = call.causal or call.window is not None
    mixed, masked = call.document_ids is not None, call.mask is not None
    if not are_known(q_len, k_len, call.window):
        return [Block(None, 0, q_len, 0, k_len, ragged, mixed, masked)]
    n_rows = max(ROWS, -(-q_len // COMPILED)) if torch.compiler.is_compiling() else ROWS
    found, offset, window = [], k_len - q_len, call.window or q_len + k_len
    for begin in range(0, max(q_len, 1), n_rows):
        end = min(begin + n_rows, q_len)
        last = min(k_len, end + offset if call.causal else end + offset + window - 1)
        first = max(0, min(begin + offset - window + 1, last))
        found.append(Block(None, begin, end, first, max(first, last), ragged, mixed, masked))
    return found


def are_known(*lengths: int | None) -> bool:
    """Whether lengths are numbers, not symbols of a compiler."""
    return all(n is None or is_known(n) for n in lengths)


def all_seen(part: Spans, block: Block) -> Bool[Tensor, "batch heads rows keys"]:
    """Return which queries see which keys in a block of a masked call, broadcast to all its queries and keys."""
    seen = part.allowed(block)
    assert seen is not None  # the call is masked
    return seen.expand(torch.broadcast_shapes(seen.shape, (1, 1, *block.size)))


def block_ends(t: Shaped[Tensor, "*rows n"], size: int) -> tuple[Tensor, Tensor]:
    """Return the minimum and maximum of each block of `size` entries of a row; the last block may be short."""
    short = -t.shape[-1] % size
    blocks = torch.cat((t, t[..., -1:].expand(*t.shape[:-1], short)), -1).unflatten(-1, (-1, size))
    return blocks.amin(-1), blocks.amax(-1)
