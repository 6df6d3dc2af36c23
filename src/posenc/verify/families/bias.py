"""ALiBi as `bias(heads, q_len, k_len)` or a score_mod: -slope * distance, by the authors' or Falcon's definition."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from posenc.definitions import versions
from posenc.verify.engine import CannotTellError, Case, Choice, Family, Fault, Seen
from posenc.verify.engine.observe import fresh
from posenc.verify.engine.records import Array, Model, kind
from posenc.verify.families import bias_faults, slopes, tables
from posenc.verify.families.bias_calls import ADDED, Asker, added, distance
from posenc.verify.families.masks import HIDDEN, Mask, on_both_sides, window
from posenc.verify.guard import SubjectError
from posenc.verify.report import Cause

NUMBERS = (6, 8, 12, 4, 2, 3, 5, 16, 20)
FALCONS = (6, 8, 16, 71)
SHORTEST = 130  # and most, of the long row
LONGEST = 1 << 17  # keys of one query
FAR = 33_000  # where 16 bits have ended
BIASES = ("near", "rest", "cached", "again")  # kinds of cases that a bias answers
STATE = "alibi.mask_cached_on_class"


def family(convention: str, spec: Mapping[str, Any]) -> Family:
    """Return the family of a bias for a specification.

    Raises:
        ValueError: The window or the order of heads is no such thing.
        CannotTellError: No check knows the encoding, or nothing of it can be seen.
    """
    encoding = spec.get("encoding")
    if encoding in ("swin", "swin_bias"):  # whose window is a piece of an image
        return tables.Window(convention, spec)
    if window(spec) == 1:
        raise CannotTellError("a window of 1 leaves each query its own key only: no bias can be seen")
    if encoding in ("t5", "relative_bias"):
        return tables.Line(convention, spec)
    if encoding not in (None, "alibi", *versions.BIASES):
        raise CannotTellError(f"{convention} has no check for encoding {encoding!r}")
    return Alibi(convention, spec)


class Alibi(Family):
    """ALiBi, up to a constant in each row, which no softmax sees.

    Attributes:
        heads: How many heads are asked; 0 for a score_mod of which it is not said.
        found: The slopes that were read off, by the number of heads.
    """

    mismatch = "alibi.mismatch"
    pairs = 0

    def __init__(self, convention: str, spec: Mapping[str, Any]) -> None:
        super().__init__(convention, spec)
        self.score_mod = convention == "score_mod"
        self.heads = int(spec.get("heads") or 0)
        self.causal = bool(spec.get("causal", not spec.get("bidirectional", False)))
        self.open = self.causal and spec.get("causal") is None and spec.get("bidirectional") is None
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
        lengths = (SHORTEST, 300, 520, usual, max(usual, beyond)) if self.causal else (SHORTEST, 300)
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
            if _is_long(case) and error.cause.code == "subject.shape":  # a table ends
                error.cause = replace(error.cause, code="subject.raises")
            raise
        if not _is_long(case):
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

    def prepare(self, seen: Sequence[Seen]) -> None:
        """Read the slopes off what is linear; learned ones are right as they are.

        Raises:
            CannotTellError: Learned slopes are all 0.
        """
        self.found = {}
        for s in (s for s in seen if s.case.kind in ("near", "rest", "other") and s.case.args[1] > 4):
            linear = None if _is_long(s.case) else bias_faults.fit(s, self.mask(self.truth))
            if linear is not None:
                self.found.setdefault(s.case.args[0], linear[0])
        self.limit = bias_faults.limit([s for s in seen if s.case.kind in BIASES], self.truth)
        if self.learned and self.found:
            if not any(s.any() for s in self.found.values()):
                raise CannotTellError("all learned slopes are 0: no bias can be seen")
            self.truth = {**self.truth, "given": {n: np.abs(s) for n, s in self.found.items()}}

    def predict(self, model: Model, case: Case) -> Array:
        """Return a bias with a model's parameters."""
        n, q_len, k_len = size = case.args[:3]
        if case.kind in ADDED:
            return added(case, model["gain"])
        if model["falcon"]:
            share = 1.0 if model["penalty"] is None else model["penalty"](np.ones(1), size)
            return np.broadcast_to(_falcon(n, k_len) * model["factor"] * share, size)
        slope = slopes.slopes_of(model, n)
        if model["bias"] is not None:
            return np.broadcast_to(model["bias"](slope, size), (len(slope), q_len, k_len))
        d = distance(size)
        if model["place"] is not None:
            d = d + model["place"](size) - (k_len - q_len)
        form = np.where(d < 0, -model["ahead"] * d, d) if model["penalty"] is None else model["penalty"](d, size)
        return -slope[:, None, None] * form

    def off(self, seen: Seen, predicted: Array, model: Model) -> Array:
        """Return the difference of each key that is seen, compared with the row's last one."""
        if seen.case.kind in ADDED:
            return np.abs(seen.value - predicted) / seen.note
        if seen.case.kind == "other":
            return np.zeros(1)
        if seen.value.shape != predicted.shape:
            return np.full(1, np.inf)
        size, mask = seen.case.args[:3], self.mask(model)
        gone = seen.value <= seen.note
        if (wrong := mask.wrong(size, gone)).any():
            return np.where(wrong, np.inf, 0.0)
        shown = mask.shown(size)
        with np.errstate(invalid="ignore"):
            difference = np.where(shown, seen.value - predicted, 0.0)
        found = np.where(shown, np.abs(seen.value), 0.0)
        slack = 4 * seen.eps * (found + bias_faults.last_of(found, shown) + np.abs(predicted)) + 1e-6
        if model["given"]:  # slopes that were read off, and are rough
            slack = slack + 2e-5 * np.abs(predicted)
        return np.abs(bias_faults.against_last(difference, shown)) / slack

    def same(self, seen: Seen, predicted: Array) -> bool:
        """Return whether the numbers are the same too, where keys are seen."""
        if seen.case.kind not in BIASES or _is_long(seen.case):
            return True
        shown = self.mask(self.truth).shown(seen.case.args[:3])
        with np.errstate(invalid="ignore"):
            shown = shown & (seen.value > seen.note)
            off = np.where(shown, np.abs(seen.value - predicted) - 4 * seen.eps * np.abs(predicted), 0.0)
        return bool((off <= 1e-6 + 2e-5 * bool(self.truth["given"]) * np.abs(predicted)).all())

    def unlike(self, seen: Sequence[Seen]) -> str:
        """Return what is different where scores are the same."""
        return "each row has a constant added, which a softmax over the row takes away"

    def free(self) -> Iterator[Choice]:
        """Yield what the specification leaves open: the keys ahead, what a window on both sides is, the heads' order."""
        if self.spec.get("order") == "any":
            wrong = [n for n, s in self.found.items() if not slopes.alike(s, slopes.slopes_of(self.truth, n), 1e-3)]
            if how := slopes.order(self.found, self.truth, wrong):
                exact = {n: _snapped(self.found[n], slopes.slopes_of(self.truth, n)) for n in wrong}
                words = "the heads have ALiBi's slopes in another order{how}, which the specification leaves free"
                yield Choice({"given": exact}, words.format(**how))
        ahead = [{}] if self.spec.get("variant") in ("symmetric", "one-sided") else [{}, {"ahead": 0.0}]
        if not self.causal:
            yield from (Choice(change) for change in ahead[1:])
        if self.window is not None and (self.open or not self.causal):
            for mask in on_both_sides(self.window):
                yield from (Choice({"causal": False, "reach": mask.reach, **change}) for change in ahead)

    def faults(self) -> Iterator[Fault]:
        """Yield wrong biases, those of public reports first."""
        yield from bias_faults.faults(self)

    def read(self, seen: Sequence[Seen], wrong: Sequence[Seen], model: Model) -> Fault | None:
        """Return what no formula explains: hidden keys, slopes on another axis, rows from another place, a memory."""
        biases = [s for s in seen if s.case.kind in BIASES]
        bad = [s for s in wrong if s.case.kind in BIASES]
        if bad and (fault := self._hidden(bad[0], self.mask(model))):
            return fault
        near = [s for s in wrong if s.case.kind in ("near", "rest") and not _is_long(s.case)]
        linear = all(
            bias_faults.fit(s, self.mask(model)) is not None
            for s in biases
            if s.case.kind in ("near", "rest") and not _is_long(s.case)
        )
        if self.learned and near and linear:
            return Fault("alibi.sign", {}, {"factor": "in part -1", "why": ""})
        if near and linear:
            numbers = [n for n in dict.fromkeys(s.case.args[0] for s in near) if n in self.found]
            bad_ones = [n for n in numbers if not slopes.alike(self.found[n], slopes.slopes_of(model, n), 1e-3)]
            return slopes.named(self.found, self.truth, bad_ones) or bias_faults.sides(near[0], self.mask(model))
        fault = bias_faults.along_axis(near, self.mask(model)) or bias_faults.shifted(self, biases, model)
        if fault is None and any(self.asker.stale(s.case.args[:3]) for s in wrong):
            fault = Fault(STATE)
        return fault

    def _hidden(self, seen: Seen, mask: Mask) -> Fault | None:
        """Return what is wrong with the keys that a bias hides."""
        size, gone = seen.case.args[:3], seen.value <= seen.note
        fault = mask.fault(size, gone, "alibi")
        if fault is not None and fault.code == "alibi.mask.both_sides" and self.open:
            return Mask(False, mask.reach).fault(size, gone, "alibi")
        return fault

    def refine(self, fault: Fault, wrong: frozenset[str], right: frozenset[str], seen: Sequence[Seen]) -> Fault:
        """Return what is behind a wrong bias: what becomes of the score, or a memory; and whose rounding it is."""
        if "score" in wrong and fault.code != "alibi.scale.applied_to_bias":
            return bias_faults.of_score(next(s for s in seen if s.case.kind == "score"))
        if "batch" in wrong and "score" not in wrong:
            return Fault("alibi.axis.batch")
        if fault.code.startswith("alibi.precision.") and not self.truth["falcon"]:
            rest = [s for s in seen if s.case.kind in BIASES]
            model = {**self.truth, "falcon": True}
            if all((self.off(s, self.predict(model, s.case), model) <= 1).all() for s in rest):
                return bias_faults.falcons(fault, self.definition)
        return fault

    def raised(self, cause: Cause, case: Case) -> Fault | None:
        """Return a memory of other calls, or a bias over the queries only."""
        if case.kind == "again" or cause.code == STATE:
            return Fault(STATE, {}, {"message": "", "fix": ""})
        if case.kind == "cached" and cause.code == "subject.shape":
            return Fault("alibi.kv_cache.bias_zero", {}, {"words": cause.message, "message": "", "fix": ""})
        return None

    def smallest(self, seen: Seen, predicted: Array, off: Array) -> dict[str, Any]:
        """Return the place that is off most, its value as it should be with the row's own constant."""
        size = dict(zip(("heads", "q_len", "k_len"), seen.case.args, strict=False))
        if off.shape != seen.value.shape or predicted.shape != seen.value.shape or off.ndim != 3:
            return size
        h, i, j = (int(v) for v in np.unravel_index(int(off.argmax()), off.shape))
        found, want = float(seen.value[h, i, j]) + 0.0, float(predicted[h, i, j]) + 0.0
        last = int(np.flatnonzero(self.mask(self.truth).shown(seen.case.args[:3])[i])[-1])
        if np.isfinite(found) and j != last:
            want += float(seen.value[h, i, last] - predicted[h, i, last])
        place = {"head": h, "query": i, "key": j, "found": found if math.isfinite(found) else str(found)}
        return {**size, **place, "expected": want}

    def measured(self, seen: Sequence[Seen], model: Model) -> dict[str, Any]:
        """Return the slopes, the longest row and how far a query sees where there is a window."""
        said: dict[str, Any] = {"slopes": s.tolist() for s in list(self.found.values())[:1]}
        if far := [s.case.args[2] for s in seen if _is_long(s.case)]:
            said["longest"] = max(far)
        if model["reach"] is not None:
            said["largest distance seen"] = model["reach"]
        return said

    def not_judged(self, seen: Sequence[Seen]) -> list[str]:
        """Return what was not looked at."""
        longest = max((s.case.args[2] for s in seen if _is_long(s.case)), default=0)
        return [f"distances from {longest:,} on"] if longest else ["distances from 11 on: no longer row could be asked"]


def _is_long(case: Case) -> bool:
    """Return whether a case asks for distances beyond the short ones that all else is judged by."""
    return bool(case.args[2] >= SHORTEST)


def _snapped(found: Array, want: Array) -> Array:
    """Return the wanted slopes in the order of the measured ones."""
    snapped = np.empty_like(want)
    snapped[np.argsort(found)] = np.sort(want)
    return snapped


def _falcon(n: int, k_len: int) -> Array:
    return np.asarray(versions.alibi_falcon(np.array([0.0]), np.arange(float(k_len)), n_heads=n))
