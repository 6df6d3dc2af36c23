"""Compare a subject's answers with the definition, and find the fault that explains the difference."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations, islice
from typing import Any

import numpy as np

from posenc.verify import rules
from posenc.verify.engine.family import Family
from posenc.verify.engine.observe import STATE_KEPT, observe
from posenc.verify.engine.records import CannotTellError, Choice, Fault, Model, Seen, Verdict
from posenc.verify.report import Cause

LARGE = 1 << 14  # numbers of the smallest wrong answer, above which pairs of faults take too long to try
ENOUGH = 16  # a fault does not explain this many numbers of one answer by chance


@dataclass(frozen=True)
class Reading:
    """The answers, and the model that fits them best.

    Args:
        family: The questions and what is right.
        seen: All answers.
        wrong: Those that the best model does not explain.
        best: The truth, or an allowed choice that explains more.
        tried: The results of changes that were tried.
    """

    family: Family
    seen: Sequence[Seen]
    wrong: Sequence[Seen]
    best: Model
    tried: dict[tuple[int, int], tuple[Model, bool]] = field(default_factory=dict)  # by object ids; keeps the objects

    @property
    def wrong_kinds(self) -> frozenset[str]:
        """The kinds of cases with a wrong case."""
        return frozenset(s.case.kind for s in self.wrong)

    @property
    def right_kinds(self) -> frozenset[str]:
        """The kinds of cases that are all right."""
        return frozenset(s.case.kind for s in self.seen) - self.wrong_kinds

    def explains(self, change: Model, some: Sequence[Seen]) -> bool:
        """Return whether a changed model predicts some answers, the smallest first."""
        return all(self._explains_one(change, s) for s in sorted(some, key=_size))

    def _explains_one(self, change: Model, s: Seen) -> bool:
        key = id(change), id(s)
        if key not in self.tried:
            self.tried[key] = change, explains(self.family, {**self.best, **change}, [s])
        return self.tried[key][1]


def _size(s: Seen) -> int:
    return s.value.size


def judge(family: Family, subject: Any) -> Verdict:
    """Ask a subject the cases of a family and return the verdict."""
    refused = None
    try:
        observed = observe(family, subject)
        refused = observed.refused
        verdict = settle(family, observed.seen) if observed.seen or refused is None else None
    except CannotTellError as open_:
        if refused is None or refused[1].kind != "score":  # a score that is lost is wrong whatever the bias is
            return Verdict("cannot_tell", because=str(open_))
        verdict = None
    if refused is not None and (verdict is None or verdict.status != "fail" or _is_state(family, refused[0], verdict)):
        cause, case = refused
        fault = family.raised(cause, case) or Fault(cause.code)
        values = {"message": cause.message, "fix": cause.fix, **fault.values}
        fault = Fault(fault.code, fault.change, values, {**cause.smallest_case, **fault.case})
        verdict = Verdict("fail", [fault], cause.evidence, dict(fault.case), wrong=frozenset({case.kind}))
    assert verdict is not None
    verdict.not_judged += [*observed.not_judged, *family.not_judged(observed.seen)]
    return verdict


def _is_state(family: Family, cause: Cause, verdict: Verdict) -> bool:
    """Return whether state between calls explains more than the reported fault."""
    of_state = {kind.code for kind in family.kinds if "again" in kind.wrong}
    return cause.code == STATE_KEPT and verdict.faults[0].code not in of_state


def settle(family: Family, seen: Sequence[Seen]) -> Verdict:
    """Return the verdict on answers, however they were obtained."""
    if not seen:
        return Verdict("cannot_tell", because="no case has an answer, so nothing was compared")
    family.look(seen)
    choices = [Choice({}), *family.free()]
    models = [{**family.truth, **choice.change} for choice in choices]
    for choice, model in zip(choices, models, strict=True):
        if explains(family, model, seen):
            return _right(family, seen, choice, model)
    counts = [[s for s in seen if not explains(family, model, [s])] for model in models]
    tied = [(wrong, model) for wrong, model in zip(counts, models, strict=True) if len(wrong) == min(map(len, counts))]
    if len(tied) > 1:
        tied.sort(key=lambda pair: _far(family, seen, pair[1]))
    return _wrong([Reading(family, seen, wrong, model) for wrong, model in tied])


def _far(family: Family, seen: Sequence[Seen], model: Model) -> float:
    """Return the typical distance of answers from a model: the closest allowed choice is the one to judge by."""
    off = (family.off(s, family.predict(model, s.case), model) for s in seen)
    return sum(float(np.median(np.log1p(np.minimum(t, 1e30)))) for t in off)


def explains(family: Family, model: Model, some: Sequence[Seen]) -> bool:
    """Return whether a model predicts all given answers, as far as scores show."""
    return all(
        not family.excludes(s, model) and bool((family.off(s, family.predict(model, s.case), model) <= 1).all())
        for s in some
    )


def _right(family: Family, seen: Sequence[Seen], choice: Choice, model: Model) -> Verdict:
    measured = family.measured(seen, model)
    if choice.because:
        return Verdict("equivalent", because=choice.because, measured=measured)
    if all(family.same(s, family.predict(model, s.case)) for s in seen):
        return Verdict("pass", measured=measured)
    return Verdict("equivalent", because=family.unlike(seen), measured=measured)


def _wrong(readings: Sequence[Reading]) -> Verdict:
    """Return the verdict on answers if some are wrong, by the models that explain most."""
    reading, explained = explanation(readings)
    family, first = reading.family, reading.wrong[0]
    faults = [family.refine(fault, reading.wrong_kinds, reading.right_kinds, reading.seen) for fault in explained]
    predicted = family.predict(reading.best, first.case)
    case = family.smallest(first, predicted, family.off(first, predicted, reading.best))
    return Verdict(
        "fail",
        faults,
        _evidence(family, reading),
        {**case, **faults[0].case} or {"case": first.case.words or first.case.kind},
        wrong=reading.wrong_kinds,
        measured=family.measured(reading.seen, reading.best),
    )


def _evidence(family: Family, reading: Reading) -> float:
    """Return the largest error; 1 if there is no number."""
    largest = 0.0
    for s in reading.wrong:
        got = family.visible(s.value, s.case)
        want = family.visible(family.predict(reading.best, s.case), s.case)
        if got.shape == want.shape:
            with np.errstate(invalid="ignore"):
                difference = np.abs(got - want)
            largest = max(largest, float(difference[np.isfinite(difference)].max(initial=0.0)))
    return largest or 1.0


def explanation(readings: Sequence[Reading]) -> tuple[Reading, list[Fault]]:
    """Return the faults that explain the wrong answers, the first cause first, and the reading they belong to."""
    reading = readings[0]
    by_kind = _by_kind(reading)
    if by_kind is not None and "near" not in reading.wrong_kinds:
        return reading, [by_kind]
    faults = reading.family.plausible([f for f in reading.family.faults() if _says_something(f)], reading.wrong)
    for each in readings:
        if (fault := _first(each, faults, [each.seen, each.wrong])) is not None:
            return each, [fault, *_of_branches(each, faults, fault)]
    return _weaker(readings, faults, by_kind)


def _weaker(readings: Sequence[Reading], faults: Sequence[Fault], by_kind: Fault | None) -> tuple[Reading, list[Fault]]:
    """Return a fault that is measured, explains part of the answers, or explains them together with another."""
    reading = readings[0]
    family, of_kinds = reading.family, list(_of_kinds(reading))
    if not family.reads_first and (fault := _first(reading, faults, of_kinds)) is not None:
        return reading, [fault, *_of_branches(reading, faults, fault)]
    for each in readings:
        fault = family.read(each.seen, each.wrong, each.best)
        if fault is not None and _says_something(fault):
            return each, [fault]
    if family.reads_first and (fault := _first(reading, faults, of_kinds)) is not None:
        return reading, [fault]
    if (pair := _two(reading, faults[: family.pairs])) is not None:
        return reading, list(pair)
    if by_kind is not None:
        return reading, [by_kind]
    last = _most(reading, faults) or family.unknown(reading.seen, reading.wrong, reading.best)
    return reading, [last if _says_something(last) else Fault(family.mismatch)]


def _says_something(fault: Fault) -> bool:
    """Return whether the fault's message has different values for what was found and what was asked."""
    return "message" in fault.values or not rules.find(fault.code).says_nothing(fault.values)


def _first(reading: Reading, faults: Sequence[Fault], parts: Sequence[Sequence[Seen]]) -> Fault | None:
    """Return the first fault that explains one of several parts of the answers, the first part first."""
    return next((fault for some in parts for fault in _alone(reading, faults, some)), None)


def _by_kind(reading: Reading) -> Fault | None:
    """Return the fault that the kinds of wrong and right cases identify."""
    for kind in reading.family.kinds:
        if kind.wrong <= reading.wrong_kinds and kind.right <= reading.right_kinds:
            return Fault(kind.code)
    return None


def _of_kinds(reading: Reading) -> Iterator[Sequence[Seen]]:
    """Yield the wrong answers of each kind, first with all right ones, which a fault should leave right."""
    is_wrong = {id(s) for s in reading.wrong}
    right = [s for s in reading.seen if id(s) not in is_wrong]
    kinds = dict.fromkeys(s.case.kind for s in reading.wrong)
    of_kind = [[s for s in reading.wrong if s.case.kind == kind] for kind in kinds]
    yield from ([*some, *right] for some in of_kind)
    yield from of_kind


def _alone(reading: Reading, faults: Sequence[Fault], some: Sequence[Seen]) -> Iterator[Fault]:
    """Yield the faults that explain some answers by themselves, which the best model does not."""
    for fault in faults:
        if reading.explains(fault.change, some) and not reading.explains({}, some):
            yield fault


def _of_branches(reading: Reading, faults: Sequence[Fault], first: Fault) -> Iterator[Fault]:
    """Yield the faults of branches that the first fault leaves wrong."""
    for kind in reading.family.branches:
        some = [s for s in reading.wrong if s.case.kind == kind]
        if some and not reading.explains(first.change, some):
            yield from islice(_alone(reading, faults, some), 1)


def _two(reading: Reading, faults: Sequence[Fault]) -> tuple[Fault, Fault] | None:
    """Return two faults that together explain what neither of them explains."""
    if min(s.value.size for s in reading.wrong) > LARGE:
        return None
    for one, other in combinations(faults, 2):
        if set(one.change) & set(other.change):
            continue
        if reading.explains({**one.change, **other.change}, reading.wrong):
            return one, other
    return None


def _most(reading: Reading, faults: Sequence[Fault]) -> Fault | None:
    """Return the fault that explains most of the wrong answers, at least a third; another branch is wrong too."""
    best, most = None, -(-len(reading.wrong) // 3) - 1
    for fault in faults:
        explained: list[Seen] = []
        for left, s in zip(range(len(reading.wrong), 0, -1), reading.wrong, strict=True):
            if len(explained) + left <= most:
                break  # it cannot explain more than the best one does
            explained += [s] if reading.explains(fault.change, [s]) else []
        if len(explained) > most and (len(explained) > 1 or explained[0].value.size >= ENOUGH):
            best, most = fault, len(explained)
    return best
