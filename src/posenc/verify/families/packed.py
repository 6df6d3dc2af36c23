"""Positions of packed documents: each begins at 0, whatever its length and whatever stands before it."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from posenc.verify.engine import Case, Fault, Seen
from posenc.verify.engine.records import kind
from posenc.verify.families.counts import FAR, Counts
from posenc.verify.families.counts_calls import packed
from posenc.verify.families.counts_faults import of_documents, of_numbers

DOCUMENTS: tuple[tuple[int, ...], ...] = (
    *((1,), (2,), (1, 2), (2, 1), (2, 2), (1, 1, 1), (2, 2, 2), (5,), (3, 2), (2, 4), (3, 3, 3)),
    *((4, 1, 6, 2), (2, 7, 1, 1, 5), (3, 5, 4, 6, 2, 3)),
)
EMPTY: tuple[tuple[int, ...], ...] = ((3, 2, 0, 4), (0, 4), (2, 3, 0, 0, 3), (3, 4, 0), (4, 0, 0))
BATCHES = ((((2,), (1, 2)), (1, 0)), (((2, 3), (4, 1, 2), (3,)), (2, 0, 4)), (((2, 2, 2), (1, 1, 3, 3)), (2, 0)))


class Documents(Counts):
    """Positions of packed documents, of their bounds or of a mask with their numbers: each begins at 0."""

    definition = "positions@restart-by-document"
    kinds = (kind("positions.state_kept", "again", "near"), kind("positions.packed.empty_document", "empty", "near"))

    def __init__(self, convention: str, spec: Mapping[str, Any]) -> None:
        super().__init__(convention, spec)
        self.of_bounds = convention == "packed_position_fn"
        self.large = (
            40,
            300,
            9000 if self.of_bounds else 2200,
            9,
        )  # columns of a mask may be compared with one another
        self.open = [] if self.of_bounds else ["decode steps and chunks: masks with documents are asked as whole rows"]
        self.modulus = 512.0

    def cases(self) -> Iterator[Case]:
        """Yield small packings, a large one, documents of no tokens, some beyond 16 bits, and small ones again."""
        near = [packed([lengths]) for lengths in (*DOCUMENTS, self.large)]
        for rows, pads in () if self.of_bounds or self.side == "none" else BATCHES:
            for before in {"left": [pads], "both": [pads, (0, 0, 0)]}.get(self.side, [(0, 0, 0)]):
                near.insert(-1, packed(rows, before[: len(rows)]))
        yield from (Case("near", (call,), call.text) for call in near)
        for lengths in EMPTY if self.of_bounds else ():
            yield Case("empty", (packed([lengths]),), f"documents of {list(lengths)} tokens", optional=True)
        each = min(self.top or FAR, FAR)
        if -(-FAR // each) < 38 and (self.of_bounds or self.top):
            yield Case("far", (packed([(2, *[each] * -(-FAR // each), 9)]),), f"{each} tokens each", optional=True)
        yield from self.again([packed([(2, 7, 1, 1, 5)])], near[-1:])
        yield from self.again([packed([(2, 3, 2, 1, 1)])], [packed([(3, 3, 3)])])  # as many tokens

    def look(self, seen: Sequence[Seen]) -> None:
        """Read off after how many tokens positions begin anew, too."""
        super().look(seen)
        large = next((s.value[0] for s in seen if s.case.args[0].total == sum(self.large)), np.zeros(1))
        self.modulus = float(next(iter(np.flatnonzero(large[1:] == large[0])), 511) + 1)

    def faults(self) -> Iterator[Fault]:
        """Yield a constant, ways to count, and large numbers."""
        yield from self.constants()
        yield from of_documents(self.modulus, max(self.end - self.truth["start"], 1.0))
        yield from of_numbers(self.truth["start"], self.end)
