"""What is asked of a bias or a score_mod of ALiBi, and what it answers."""

import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from posenc.verify.engine import CannotTellError, Case, Family, Seen
from posenc.verify.engine.observe import fresh
from posenc.verify.engine.records import Array, Model, kind
from posenc.verify.families import bias_faults, slopes
from posenc.verify.families.bias_calls import ADDED, Asker
from posenc.verify.families.masks import HIDDEN, Mask, window
from posenc.verify.guard import SubjectError

NUMBERS = (6, 8, 12, 4, 2, 3, 5, 16, 20)
FALCONS = (6, 8, 16, 71)
SHORTEST = 130  # and most, of the long row
LONGEST = 1 << 17  # keys of one query
FAR = 33_000  # where 16 bits have ended
BIASES = ("near", "rest", "cached", "again")  # kinds of cases that a bias answers
STATE = "alibi.mask_cached_on_class"


def is_long(case: Case) -> bool:
    """Return whether a case asks for distances beyond the short ones that all else is judged by."""
    return bool(case.args[2] >= SHORTEST)


class Asked(Family):
    """The questions to one subject.

    Attributes:
        heads: How many heads are asked; 0 for a score_mod of which it is not said.
        found: The slopes that were read off, by the number of heads.
    """

    def __init__(self, convention: str, spec: Mapping[str, Any]) -> None:
        super().__init__(convention, spec)
        self.score_mod = convention == "score_mod"
        self.heads = int(spec.get("heads") or 0)
        said = spec.get("causal")
        self.causal = not spec.get("bidirectional") if said is None else bool(said)
        self.open = said is None and spec.get("bidirectional") is None  # which sides a query sees
        self.learned = spec.get("variant") == "learned"
        self.window = window(spec)
        self.kinds = (kind(STATE, "again", "near cached" if self.causal else "near"),)
        self.asker = Asker(self.score_mod, self.heads or None, STATE)
        self.truth = {
            **slopes.truth(spec),
            "causal": self.causal,
            "reach": None if self.window is None else self.window - 1,  # the largest distance that is seen
            "ahead": 0.0 if spec.get("variant") == "one-sided" else 1.0,  # what a distance ahead counts
            "penalty": None,  # of query - key and the call's size; None: the distance
            "place": None,  # where the first query stands; None: at k_len - q_len
            "bias": None,  # a whole formula of the slopes and the size
            "gain": 1.0,  # what a score_mod multiplies the score by
        }
        self.definition = slopes.definition(self.truth)
        self.found: dict[int, Array] = {}
        self.limit = 0  # the distance from which on a bias stays as it is
        self.lowest = 0.0  # the least bias of a step

    def cases(self) -> Iterator[Case]:
        """Yield squares, calls with a cache, a long row, and calls after others."""
        others = (n for n in (FALCONS if self.truth["falcon"] else NUMBERS) if not self.score_mod)
        numbers = [self.heads] if self.heads or self.score_mod else list(others)
        n = numbers[0]
        if self.score_mod:
            yield self._case("score", n, 5, 5)
            yield self._case("batch", n, 5, 5, optional=True)
        elif n > 3:
            yield self._case("near", n, n, n, optional=True)  # slopes along another axis fit in this one only
        yield from (self._case("near", n, size, size) for size in (7, 11, 4))
        for at, m in enumerate(numbers[1:], 12):  # sizes that no other number of heads was asked for
            yield self._case("near" if m & (m - 1) == 0 else "rest", m, at, at)
        if self.heads and not self.score_mod:
            yield from (self._case("other", m, size, size) for m, size in ((8, 40), (4, 41), (16, 42)) if m != n)
        if self.causal:
            yield from (self._case("cached", n, *size) for size in ((1, 2), (1, 9), (3, 8), (5, 6), (3, 7)))
        yield self._long(n)
        if self.score_mod and self.causal:
            yield self._case("cached", n, 1, FAR, optional=True)
        if not self.score_mod:
            yield from self._again(n)

    def _case(self, kind: str, *args: int, optional: bool = False, otherwise: Case | None = None) -> Case:
        size = args[0], args[1], args[2]
        return Case(kind, size, self.asker.words(size), optional, otherwise)

    def _long(self, n: int) -> Case:
        """Return the longest row that can be asked for; a table may end before."""
        usual = int(min(2200, math.sqrt(1.2e7 / max(n, 1))))
        beyond = min(2 * (self.window or 0) + 8, LONGEST)  # a window twice as wide must be seen to end too
        lengths = sorted({SHORTEST, 520, usual, max(usual, beyond)} if self.causal else {SHORTEST, 300})
        case = None
        for k_len in lengths:
            kind, q_len = ("cached", 1) if self.causal else ("near", k_len)
            case = self._case(kind, n, q_len, k_len, optional=True, otherwise=case)
        assert case is not None
        return case

    def _again(self, n: int) -> Iterator[Case]:
        """Yield calls after other calls; of an object for so many heads another one is asked for other numbers."""
        orders = [((n, 7, 7), (n, 11, 11)), ((n, 11, 11), (n, 7, 7))]
        orders += [((n, 3, 7), (n, 7, 7)), ((n, 1, 9), (n, 1, 2))] if self.causal else []
        side = 9 if self.heads else 7  # a size that was not asked for before, as those of other numbers of heads
        orders += [((n, side, side), (m, side, side)) for m in (2 * n, 4)]
        orders += [] if self.heads else [((m, 7, 7), (n, 7, 7)) for m in (2 * n, 4)]
        for size, before in orders:
            yield Case("again", (*size, before), f"{self.asker.words(size)} after {self.asker.words(before)}")

    def observe(self, subject: Any, case: Case) -> Seen:
        """Return the bias, or what a score_mod makes of scores."""
        one = fresh(subject)
        if case.args[0] == 0:
            self.heads = self.heads or self._count(one)
            case = replace(case, args=(self.heads, *case.args[1:]))
        if case.kind in ADDED:
            return self.asker.added(one, case)
        size = case.args[:3]
        if case.kind == "again":
            before = case.args[3]
            with suppress(SubjectError):
                self.asker.ask(fresh(subject) if self.heads and before[0] != size[0] else one, before)
        try:
            value, eps = self.asker.ask(one, size)
        except SubjectError as error:
            if case.kind == "other":  # only helps to say what is wrong with the number of heads that is asked
                return Seen(case, np.zeros(0))
            if is_long(case) and error.cause.code == "subject.shape":  # a table ends
                error.cause = replace(error.cause, code="subject.raises")
            raise
        if not is_long(case):
            self.lowest = min(self.lowest, float(value[value > HIDDEN].min(initial=0.0)) / max(size[2] - 1, 1))
            return Seen(case, value, eps, HIDDEN)
        # far keys are as low by their distance as near ones that are hidden
        return Seen(case, value, eps, min(HIDDEN, 2 * min(self.lowest, -1e-3) * size[2]))

    def _count(self, subject: Any) -> int:
        """Return how many heads a score_mod is for, by the most that it takes and by its slopes.

        Raises:
            CannotTellError: The slopes fit no number of heads.
        """
        for n in (64, 40, 32, 24, 20, 16, 12, 10, 8, 7, 6, 5, 4, 3, 2, 1):
            try:
                value, eps = self.asker.ask(subject, (n, 7, 7))
            except SubjectError:
                if n == 1:
                    raise
                continue
            if n < 64:
                return n
            linear = bias_faults.fit(Seen(Case("near", (n, 7, 7)), value, eps, HIDDEN), Mask(True))
            s = np.zeros(n) if linear is None else linear[0]
            for m in range(1, n + 1):
                if slopes.alike(s[:m], slopes.slopes_of(self.truth, m), 1e-3):
                    return m
            break
        raise CannotTellError("the number of heads is not said, and the slopes fit no number of them; say heads")

    def mask(self, model: Model) -> Mask:
        """Return which keys a query sees."""
        return Mask(model["causal"], model["reach"])
