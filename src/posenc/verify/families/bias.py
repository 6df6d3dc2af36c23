"""ALiBi as slopes, `bias(heads, q_len, k_len)` or a score_mod: -slope * distance, by the authors or by Falcon."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from torch import Tensor

from posenc.definitions import versions
from posenc.verify.engine import CannotTellError, Case, Choice, Family, Fault, Seen
from posenc.verify.engine.observe import fresh
from posenc.verify.engine.records import Array, Model
from posenc.verify.families import bias_faults, slopes, tables
from posenc.verify.families.bias_calls import ADDED, FAR, LONGEST, Biases, added, distance, gone, invoke
from posenc.verify.guard import SubjectError
from posenc.verify.report import Cause

NUMBERS = (6, 8, 12, 4, 2, 3, 5, 16, 20)
FALCONS = (6, 8, 16, 71)
PAST_INT16 = 33_000


def family(convention: str, spec: Mapping[str, Any]) -> Family:
    """Return the family of slopes or a bias for a specification."""
    encoding = spec.get("encoding")
    if convention == "slopes_fn":
        if spec.get("variant") == "learned":
            raise CannotTellError("learned slopes have no right values")
        return Slopes(convention, spec)
    if encoding in ("swin", "swin_bias"):  # whose window is a piece of an image
        return tables.Window(convention, spec)
    if encoding not in (None, "alibi", "t5", "relative_bias", *versions.BIASES):
        raise CannotTellError(f"{convention} has no check for encoding {encoding!r}")
    made = (tables.Line if encoding in ("t5", "relative_bias") else Alibi)(convention, spec)
    if made.window == 1:
        raise CannotTellError("a window of 1 leaves each query its own key only: no bias can be seen")
    return made


class Alibi(Biases):
    """ALiBi, up to a constant in each row, which no softmax sees."""

    word, mismatch = "alibi", "alibi.mismatch"

    def __init__(self, convention: str, spec: Mapping[str, Any]) -> None:
        super().__init__(convention, spec)
        self.truth = {
            **slopes.truth(spec),
            "mask": self.masks()[0],
            "ahead": 0.0 if spec.get("variant") == "one-sided" else 1.0,  # what a distance ahead counts
            "form": None,  # another formula of the slopes and the call's size
            "flat": None,  # for which numbers of queries and keys there is no bias
            "gain": 1.0,  # what a score_mod multiplies the score by
        }
        self.definition = slopes.definition(self.truth)
        self.found: dict[int, Array] = {}  # the slopes that were read off, by the number of heads
        self.limit = 0  # the distance from which on a bias stays as it is; 0 if there is none

    def cases(self) -> Iterator[Case]:
        """Yield squares, calls with a cache, calls after others, and a long row."""
        numbers = [self.heads] if self.heads or self.score_mod else FALCONS if self.truth["falcon"] else NUMBERS
        n = numbers[0]
        if self.score_mod:
            yield Case("score", (n, 5, 5))
            yield Case("batch", (n, 5, 5), optional=True)
        elif n > 3:
            yield Case("near", (n, n, n), optional=True)  # slopes along another axis fit in this one only
        yield from (Case("near", (n, size, size)) for size in (7, 11, 4))
        for at, m in enumerate(numbers[1:], 12):  # sizes that no other number of heads was asked for
            yield Case("near" if slopes.is_power(m) else "rest", (m, at, at))
        yield from self.steps(n)
        if not self.score_mod:
            yield Case("again", (n, 9, 9, 2 * n, 9, 9))
            if not self.heads:
                yield Case("again", (2 * n, 10, 10, n, 10, 10))
        yield self._long(n)
        if self.score_mod and self.causal:
            yield Case("cached", (n, 1, PAST_INT16), optional=True)

    def _long(self, n: int) -> Case:
        """Return the longest row that can be asked for; a table may end before."""
        usual = int(min(2200, (1.2e7 / max(n, 1)) ** 0.5))
        beyond = min(2 * (self.window or 0) + 8, LONGEST)  # a window twice as wide must be seen to end too
        case = Case("cached", (n, 1, FAR), optional=True) if self.causal else Case("near", (n, FAR, FAR), optional=True)
        for k_len in sorted({520, usual, max(usual, beyond)}) if self.causal else (300,):
            case = Case(case.kind, (n, 1 if self.causal else k_len, k_len), optional=True, otherwise=case)
        return case

    def count(self, subject: Any) -> int:
        """Return how many heads a score_mod is for, by the most that it takes and by its slopes."""
        n = super().count(subject)
        if n < 64:
            return n
        s = bias_faults.fit(self.observe(subject, Case("near", (n, 7, 7))), self.truth["mask"])
        for m in range(1, n + 1):
            if s is not None and slopes.alike(s[:m], slopes.slopes_of(self.truth, m), 1e-3):
                return m
        raise CannotTellError("the number of heads is not said, and the slopes fit no number of them; say heads")

    def look(self, seen: Sequence[Seen]) -> None:
        """Read the slopes off what is linear, and from where on it stays; learned slopes are right as they are."""
        self.found = {}
        for s in (s for s in seen if s.case.kind in ("near", "rest") and 4 < s.case.args[1] < FAR):
            if (slope := bias_faults.fit(s, self.truth["mask"])) is not None:
                self.found.setdefault(s.case.args[0], slope)
        for s in (s for s in seen if s.case.args[2] >= FAR):
            row = s.value[0, -1][~gone(s)[0, -1]]
            most = (row[-1:] - row).max(initial=0) / slopes.slopes_of(self.truth, s.case.args[0])[0]
            self.limit = round(most) if 0.5 < most < len(row) - 2.5 and abs(most - round(most)) < 0.25 else 0
        if self.spec.get("variant") == "learned" and self.found:
            if not any(s.any() for s in self.found.values()):
                raise CannotTellError("all learned slopes are 0: no bias can be seen")
            self.truth = {**self.truth, "given": {n: np.abs(s) for n, s in self.found.items()}}

    def predict(self, model: Model, case: Case) -> Array:
        """Return a bias with a model's parameters, or what becomes of scores."""
        if case.kind in ADDED:
            return added(case, model["gain"])
        n, q_len, k_len = size = case.args[:3]
        if model["flat"] is not None and model["flat"](q_len, k_len):
            return np.zeros(size)
        if model["falcon"]:
            row = versions.alibi_falcon(np.array([0.0]), np.arange(float(k_len)), n_heads=n)
            return np.broadcast_to(np.asarray(row) * model["factor"], size)
        slope, d = slopes.slopes_of(model, n)[:, None, None], distance(size)
        if model["form"] is None:
            return -slope * np.where(d < 0, -model["ahead"] * d, d)
        return np.broadcast_to(model["form"](slope, d, size), (len(slope), q_len, k_len))

    def visible(self, value: Array, case: Case) -> Array:
        """Return a bias compared with that of the query's own key."""
        with np.errstate(invalid="ignore"):
            return value if case.kind in ADDED else value - _own(value)

    def slack(self, seen: Seen, predicted: Array, model: Model) -> Array | float:
        """Return the rounding of both numbers that are subtracted; slopes that were read off are rough."""
        found = np.abs(seen.value) + np.abs(_own(seen.value)) + np.abs(predicted)
        rough: Array = 4 * seen.eps * found + 1e-6 + 2e-5 * bool(model["given"]) * np.abs(predicted)
        return rough

    def same(self, seen: Seen, predicted: Array) -> bool:
        """Return whether the numbers are the same too, where keys are seen."""
        if seen.case.kind in ADDED or seen.case.args[2] >= FAR:
            return True
        off = np.where(gone(seen), 0.0, np.abs(seen.value - predicted)) <= self.slack(seen, predicted, self.truth)
        return bool(off[:, self.truth["mask"].sees(distance(seen.case.args[:3]))].all())

    def unlike(self, seen: Sequence[Seen]) -> str:
        """Return what is different where scores are the same."""
        return "each row has a constant added, which a softmax over the row takes away"

    def free(self) -> Iterator[Choice]:
        """Yield what the specification leaves open: the heads' order, the keys ahead, a window on both sides."""
        wants = {n: slopes.slopes_of(self.truth, n) for n in self.found if self.spec.get("order") == "any"}
        wrong = [n for n, want in wants.items() if not slopes.alike(self.found[n], want, 1e-3)]
        if slopes.order(self.found, self.truth, wrong):
            exact = {n: np.sort(wants[n])[self.found[n].argsort().argsort()] for n in wrong}
            words = "the heads have ALiBi's slopes in another order, which the specification leaves free"
            yield Choice({"given": exact}, words)
        for mask in (mask for mask in self.masks() if not mask.causal):
            for ahead in (1.0, 0.0) if self.spec.get("variant") not in ("symmetric", "one-sided") else (1.0,):
                yield Choice({"mask": mask, "ahead": ahead * self.truth["ahead"]})

    faults = bias_faults.faults

    def read(self, seen: Sequence[Seen], wrong: Sequence[Seen], model: Model) -> Fault | None:
        """Return what no formula explains: hidden keys, or slopes by no known rule."""
        if fault := super().read(seen, wrong, model):
            return fault
        near = [s.case.args[0] for s in wrong if s.case.kind in ("near", "rest")]
        if not near or not set(near) <= set(self.found):
            return None
        if self.spec.get("variant") == "learned":
            return Fault("alibi.sign", {}, {"factor": "in part -1", "why": ""})
        bad = [n for n, s in self.found.items() if not slopes.alike(s, slopes.slopes_of(model, n), 1e-3)]
        return slopes.named(self.found, self.truth, bad)

    def raised(self, cause: Cause, case: Case) -> Fault | None:
        """Return a memory of other calls, or a bias over the queries only."""
        if case.kind == "cached" and cause.code == "subject.shape":
            return Fault("alibi.kv_cache.bias_zero", {}, {"words": cause.message, "message": "", "fix": ""})
        return super().raised(cause, case)

    def measured(self, seen: Sequence[Seen], model: Model) -> dict[str, Any]:
        """Return the slopes by the number of heads."""
        return {"slopes": {str(n): s.tolist() for n, s in self.found.items()}}

    def not_judged(self, seen: Sequence[Seen]) -> list[str]:
        """Return what was not looked at."""
        longest = max((s.case.args[2] for s in seen if s.case.args[2] >= FAR), default=11)
        return [*super().not_judged(seen), f"distances from {longest:,} on"]


class Slopes(Alibi):
    """`slopes(n_heads)` for one number of heads, or for many: a bias of five tokens is made of them."""

    first: Mapping[int, Array] = {}  # answers that came before other calls

    def cases(self) -> Iterator[Case]:
        """Yield powers of two, other numbers of heads, and some of both again after others."""
        numbers = [self.heads] if self.heads else [4, 8, 16, 32, 2, 1, 3, 5, 6, 12, 20, 40]
        for n in numbers:
            yield Case("near" if n > 2 and slopes.is_power(n) else "rest", (n, 5, 5), f"slopes({n})", optional=n == 1)
        for n in numbers if self.heads else (12, 8, 5):
            yield Case("again", (n, 5, 5, 2 * n, 40, 3, 8), f"slopes({n}) after others")

    def observe(self, subject: Any, case: Case) -> Seen:
        """Return a bias of the slopes."""
        n, one = case.args[0], fresh(subject)
        for m in case.args[3:]:
            with suppress(SubjectError):
                invoke(one, m, what=f"slopes({m})")
        s = _numbers(invoke(one, n, what=case.words), n)
        return Seen(case, -s[:, None, None] * distance(case.args[:3]), note=-np.inf)

    def look(self, seen: Sequence[Seen]) -> None:
        """Keep the first answers, and read the slopes off them."""
        self.first = {s.case.args[0]: s.value for s in reversed(seen)}
        self.found = {n: -value[:, 1, 0] for n, value in self.first.items() if len(value)}

    def predict(self, model: Model, case: Case) -> Array:
        """Return a bias of a model's slopes, or the one that was found before other calls."""
        if case.kind == "again" and case.args[0] in self.first:
            return self.first[case.args[0]]
        return -slopes.slopes_of(model, case.args[0])[:, None, None] * distance(case.args[:3])

    def refine(self, fault: Fault, wrong: frozenset[str], right: frozenset[str], seen: Sequence[Seen]) -> Fault:
        """Return a memory of other calls where there is one: it spoils what comes after it."""
        return Fault(self.state) if "again" in wrong else fault

    def raised(self, cause: Cause, case: Case) -> Fault | None:
        """Return a memory of other calls, or slopes for powers of two only."""
        if case.kind != "again" and cause.code == "subject.raises" and not slopes.is_power(case.args[0]):
            how = {"how": f"no slopes at all: {cause.message}", "message": "", "fix": ""}
            return Fault("alibi.slopes.not_power_of_two", {}, how)
        return super().raised(cause, case)

    def smallest(self, seen: Seen, predicted: Array, off: Array) -> dict[str, Any]:
        """Return the slope that is off most."""
        case = {"n_heads": seen.case.args[0]}
        if seen.value.shape != predicted.shape:
            return case
        h = int(off[:, 1, 0].argmax())
        return {**case, "head": h, "found": -float(seen.value[h, 1, 0]) + 0.0, "expected": -float(predicted[h, 1, 0])}

    def not_judged(self, seen: Sequence[Seen]) -> list[str]:
        """Return nothing: all that is asked is compared."""
        return []


def _own(value: Array) -> Array:
    """Return the bias of each query's own key, (.., q_len, 1)."""
    q_len, k_len = value.shape[-2:]
    return np.diagonal(value, k_len - q_len, -2, -1)[..., None]


def _numbers(found: Any, n: int) -> Array:
    """Return slopes of any kind of list as a vector."""
    try:
        if isinstance(found, Mapping):
            raise TypeError("a dict has no order")
        s = np.array([float(s) for s in (found.detach().cpu().flatten() if isinstance(found, Tensor) else found)])
    except (TypeError, ValueError) as error:
        message = f"slopes({n}) must return a list of numbers; got {type(found).__name__}"
        raise SubjectError(Cause("subject.shape", message, 1.0, {"n_heads": n})) from error
    if not np.isfinite(s).all():
        message = f"slopes({n}) returns {s.tolist()[:4]}, which are not all finite"
        raise SubjectError(Cause("subject.not_finite", message, 1.0, {"n_heads": n}))
    return s
