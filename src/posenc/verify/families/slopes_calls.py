"""`slopes(n_heads)` as a convention."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from posenc.verify.engine import CannotTellError, Case, Choice, Family, Fault, Seen
from posenc.verify.engine.observe import fresh
from posenc.verify.engine.records import Array, Model
from posenc.verify.families import slopes
from posenc.verify.families.bias_calls import invoke
from posenc.verify.guard import SubjectError
from posenc.verify.report import Cause

STATE = "alibi.mask_cached_on_class"


def family(convention: str, spec: Mapping[str, Any]) -> Family:
    """Return the family of `slopes(n_heads)` for a specification.

    Raises:
        CannotTellError: Slopes that are learned have no right values.
    """
    if spec.get("variant") == "learned":
        raise CannotTellError("learned slopes have no right values")
    return Slopes(convention, spec)


class Slopes(Family):
    """The slopes of one number of heads, or of many."""

    mismatch = "alibi.mismatch"
    pairs = 0

    def __init__(self, convention: str, spec: Mapping[str, Any]) -> None:
        super().__init__(convention, spec)
        self.heads = int(spec.get("heads") or 0)
        self.truth = slopes.truth(spec)
        self.definition = slopes.definition(self.truth)
        self.found: dict[int, Array] = {}

    def cases(self) -> Iterator[Case]:
        """Yield powers of two, other numbers of heads, and some of both again after others."""
        n = self.heads
        if n:  # other numbers only help to say what is wrong with this one
            yield from (_case("other", m) for m in (8, 4) if m != n and n & (n - 1))
            yield _case("rest" if n & (n - 1) else "near", n)
            yield _case("other", 2 * n)
            yield _case("again", n, 2 * n, 8)
            return
        yield from (_case("near" if m > 2 else "few", m) for m in (4, 8, 16, 32, 2, 1))
        yield from (_case("rest", m) for m in (3, 5, 6, 12, 20, 40))
        yield from (_case("again", m, 16, 40, 3, 6) for m in (12, 8, 5))

    def observe(self, subject: Any, case: Case) -> Seen:
        """Return the slopes; after other calls, the largest difference from the first time."""
        n, *before = case.args
        one = fresh(subject)
        for m in (*before, *([n] if case.kind == "other" else [])):
            try:
                self.found.setdefault(m, _numbers(invoke(one, m, what=f"slopes({m})"), m))
            except SubjectError:
                continue
        if case.kind == "other":
            return Seen(case, self.found.get(n, np.zeros(0)))
        now = _numbers(invoke(one, n, what=case.words), n)
        clean = self.found.setdefault(n, now)
        if case.kind == "again":
            off = np.abs(now - clean).max(initial=0.0) if now.shape == clean.shape else np.inf
            return Seen(case, np.array([off]))
        return Seen(case, now)

    def look(self, seen: Sequence[Seen]) -> None:
        """Take the measured slopes from the answers."""
        self.found = {s.case.args[0]: s.value for s in seen if s.case.kind != "again" and len(s.value)}

    def predict(self, model: Model, case: Case) -> Array:
        """Return the slopes of a model."""
        return np.zeros(1) if case.kind == "again" else slopes.slopes_of(model, case.args[0])

    def off(self, seen: Seen, predicted: Array, model: Model) -> Array:
        """Return 0 for numbers of heads that are not asked for."""
        return np.zeros(1) if seen.case.kind == "other" else super().off(seen, predicted, model)

    def slack(self, seen: Seen, predicted: Array, model: Model) -> Array:
        """Return a share of each slope."""
        share: Array = 1e-5 * np.abs(predicted) + 1e-12
        return share

    def same(self, seen: Seen, predicted: Array) -> bool:
        """Return True: `slack` has compared every slope."""
        return True

    def free(self) -> Iterator[Choice]:
        """Yield another order of the heads where the specification says that any is right."""
        wrong = [n for n, s in self.found.items() if not slopes.alike(s, slopes.slopes_of(self.truth, n))]
        if self.spec.get("order") == "any" and slopes.order(self.found, self.truth, wrong):
            words = "the heads have ALiBi's slopes in another order, which the specification leaves free"
            yield Choice({"given": self.found}, words)

    def faults(self) -> Iterator[Fault]:
        """Yield wrong slopes."""
        yield from slopes.faults(self.found, self.truth, self.spec.get("head_dim"))

    def read(self, seen: Sequence[Seen], wrong: Sequence[Seen], model: Model) -> Fault | None:
        """Return what slopes of no known formula look like."""
        return slopes.named(self.found, self.truth, [s.case.args[0] for s in wrong if s.case.kind != "again"])

    def refine(self, fault: Fault, wrong: frozenset[str], right: frozenset[str], seen: Sequence[Seen]) -> Fault:
        """Return a memory of other calls where there is one: it spoils what comes after it."""
        return Fault(STATE) if "again" in wrong else fault

    def raised(self, cause: Cause, case: Case) -> Fault | None:
        """Return a memory of other calls, or slopes for powers of two only."""
        if case.kind == "again":
            return Fault(STATE, {}, {"message": "", "fix": ""})
        if case.kind == "rest" and cause.code == "subject.raises" and any(n & (n - 1) == 0 for n in self.found):
            how = f"no slopes at all: {cause.message}"
            return Fault("alibi.slopes.not_power_of_two", {}, {"how": how, "message": "", "fix": ""})
        return None

    def smallest(self, seen: Seen, predicted: Array, off: Array) -> dict[str, Any]:
        """Return the first wrong head."""
        case: dict[str, Any] = {"n_heads": seen.case.args[0]}
        if seen.value.shape != predicted.shape or seen.case.kind == "again":
            return case
        h = int((off > 1).argmax())
        return {**case, "head": h, "found": float(seen.value[h]) + 0.0, "expected": float(predicted[h])}

    def measured(self, seen: Sequence[Seen], model: Model) -> dict[str, Any]:
        """Return the slopes."""
        return {"slopes": {str(n): s.tolist() for n, s in self.found.items()}}


def _case(kind: str, n: int, *before: int) -> Case:
    return Case(kind, (n, *before), f"slopes({n})", optional=n == 1)


def _numbers(found: Any, n: int) -> Array:
    """Return slopes of any kind of list as a vector.

    Raises:
        SubjectError: They are no numbers, or not finite.
    """
    numbers = found.detach().cpu().flatten().tolist() if isinstance(found, Tensor) else found
    try:
        if isinstance(found, Mapping):
            raise TypeError("a dict has no order")
        numbers = np.array([float(s) for s in numbers])
    except (TypeError, ValueError) as error:
        message = f"slopes({n}) must return a list of numbers; got {type(found).__name__}"
        cause = Cause("subject.shape", message, 1.0, {"n_heads": n}, "Return one number per head.")
        raise SubjectError(cause) from error
    if not np.isfinite(numbers).all():
        message = f"slopes({n}) returns {numbers.tolist()[:4]}, which are not all finite"
        raise SubjectError(Cause("subject.not_finite", message, 1.0, {"n_heads": n}, "Return finite slopes."))
    return numbers
