"""Positions of packed documents: each begins at 0, whatever its length and whatever stands before it."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from posenc.verify.engine import Case, Fault, Seen
from posenc.verify.engine.judge import explains
from posenc.verify.engine.records import Array, Model, kind
from posenc.verify.families.counts import FAR, Counts
from posenc.verify.families.counts_calls import packed
from posenc.verify.families.counts_faults import of_documents, of_numbers
from posenc.verify.report import Cause

DOCUMENTS: tuple[tuple[int, ...], ...] = (
    *((1,), (2,), (1, 2), (2, 1), (2, 2), (1, 1, 1), (2, 2, 2), (5,), (3, 2), (2, 4), (3, 3, 3)),
    *((4, 1, 6, 2), (2, 7, 1, 1, 5), (3, 5, 4, 6, 2, 3)),
)
EMPTY: tuple[tuple[int, ...], ...] = ((3, 2, 0, 4), (0, 4), (2, 3, 0, 0, 3), (3, 4, 0), (4, 0, 0))
BATCHES = ((((2,), (1, 2)), (1, 0)), (((2, 3), (4, 1, 2), (3,)), (2, 0, 4)), (((2, 2, 2), (1, 1, 3, 3)), (2, 0)))


class Documents(Counts):
    """Positions of packed documents, of their bounds or of a mask with their numbers: each begins at 0."""

    definition = "positions@restart-by-document"
    kinds = (
        kind("positions.state_kept", "again", "near"),
        kind("positions.packed.empty_document", "empty", "near"),
    )

    def __init__(self, convention: str, spec: Mapping[str, Any]) -> None:
        super().__init__(convention, spec)
        self.of_bounds = convention == "packed_position_fn"
        self.large = (40, 300, 9000, 9)
        if not self.of_bounds:  # which may be compared with one another, column by column
            self.large = (40, 300, 2200, 9)
            self.open = ["decode steps and chunks: masks with documents are asked as whole rows"]
        self.later: tuple[float, ...] = (1.0, -1.0)
        self.moduli = (64, 512)

    def cases(self) -> Iterator[Case]:
        """Yield small packings, a large one, documents of no tokens, some beyond 16 bits, and small ones again."""
        near = [packed([lengths]) for lengths in (*DOCUMENTS, self.large)]
        batches = [] if self.of_bounds or self.side == "none" else BATCHES
        for rows, pads in batches:
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

    def raised(self, cause: Cause, case: Case) -> Fault | None:
        """Return documents of no tokens as the reason where only they are answered in another shape."""
        of_none = (case.kind, cause.code) == ("empty", "subject.shape")
        return Fault("positions.packed.empty_document") if of_none else None

    def look(self, seen: Sequence[Seen]) -> None:
        """Read off what is added in later documents, and after how many tokens positions begin anew, too."""
        super().look(seen)
        alone = {tuple(s.case.args[0].bounds): s.value[0] for s in seen if len(s.value) == 1}
        two, large = alone.get((0, 2, 4)), alone.get(tuple(packed([self.large]).bounds))
        if two is not None:
            self.later = tuple(dict.fromkeys((float(two[2] - two[0]), *self.later)))
        if large is not None:
            self.moduli = (_anew(large), _anew(large[340:-9]))

    def read(self, seen: Sequence[Seen], wrong: Sequence[Seen], model: Model) -> Fault | None:
        """Return which documents are counted, where all others are constant."""
        found: dict[str, set[tuple[bool, bool]]] = {"counted": set(), "constant": set(), "other": set()}
        for s in seen:
            (call,), want = s.case.args, self.predict(model, s.case)
            for row, document, here in call.pieces():
                got = s.value[row, here]
                how = "counted" if (got == want[row, here]).all() else "constant" if (got == got[0]).all() else "other"
                found[how] |= {(document == 1, document == call.last[row, 0])} if len(got) > 1 else set()
        counted, constant, other = found.values()
        if other or not counted or not constant:
            return None
        if all(is_last for _, is_last in constant):
            return Fault("positions.packed.last_document")
        if all(is_first for is_first, _ in counted):
            return Fault("positions.packed.first_only")
        if all(is_last for _, is_last in counted):
            return Fault("positions.packed.last_only")
        return Fault("positions.packed.partly")

    def refine(self, fault: Fault, wrong: frozenset[str], right: frozenset[str], seen: Sequence[Seen]) -> Fault:
        """Return what `read` says in place of a fault that explains only some of the answers."""
        if explains(self, {**self.truth, **fault.change}, [s for s in seen if s.case.kind == "near"]):
            return fault
        return self.read(seen, (), self.truth) or fault

    def faults(self) -> Iterator[Fault]:
        """Yield a constant, ways to count, and large numbers."""
        yield from self.constants()
        yield from of_documents(self.later, self.moduli)
        yield from of_numbers(self.truth["start"], self.end)


def _anew(count: Array) -> int:
    """Return after how many tokens the first position comes again; 0 where it does not."""
    again = np.flatnonzero(count[1:] == count[0])
    return int(again[0]) + 1 if again.size else 0
