"""The interface of a family of conventions: how to call it, what is right, what is free, and what may be wrong."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from posenc.verify.engine.records import Array, Case, Choice, Fault, Kind, Model, Seen
from posenc.verify.report import Cause


class Family(ABC):
    """One convention with one specification.

    Args:
        convention: A name in `conventions.CONVENTIONS`.
        spec: The specification in our words.

    Attributes:
        truth: The model's parameters that the specification declares.
        definition: The definition to compare with, such as "alibi@authors".
        mismatch: The code if nothing explains a difference.
        kinds: Faults that are recognised by the kinds of cases that are wrong.
        pairs: How many of the first faults are also tried in pairs.
        reads_first: Whether the faults of `read` precede faults that explain wrong cases of only one kind.
        branches: Kinds of cases that run other code, so each may have its own fault.
        tolerance: The rounding error, if `slack` is not overridden.

    Raises:
        ValueError: The specification is incomplete or impossible.
        CannotTellError: It does not determine what is right.
    """

    truth: Model
    definition: str
    mismatch: str
    kinds: Sequence[Kind] = ()
    pairs = 40
    reads_first = False
    branches: Sequence[str] = ()
    tolerance = 1e-5

    def __init__(self, convention: str, spec: Mapping[str, Any]) -> None:
        self.convention, self.spec = convention, spec

    @abstractmethod
    def cases(self) -> Iterable[Case]:
        """Yield the questions, the smallest of each kind first."""

    @abstractmethod
    def observe(self, subject: Any, case: Case) -> Seen | None:
        """Ask a fresh copy of the subject one question; None if nothing is compared with the definition.

        Raises:
            SubjectError: The result cannot be used.
        """

    @abstractmethod
    def predict(self, model: Model, case: Case) -> Array:
        """Return the answer of a subject with these parameters."""

    @abstractmethod
    def faults(self) -> Iterable[Fault]:
        """Yield the known faults, the likeliest first."""

    def look(self, seen: Sequence[Seen]) -> None:  # noqa: B027 (most families need no numbers of the subject)
        """Measure the numbers that choices and faults need from the answers, such as a constant or a modulus.

        Raises:
            CannotTellError: The answers show nothing that can be judged.
        """

    def plausible(self, faults: Sequence[Fault], wrong: Sequence[Seen]) -> Sequence[Fault]:
        """Return the faults that the wrong answers do not exclude at a glance, which saves predictions."""
        return faults

    def excludes(self, seen: Seen, model: Model) -> bool:
        """Return True if a quick look shows that a model does not explain an answer, which saves a prediction."""
        return False

    def free(self) -> Iterable[Choice]:
        """Yield the allowed alternatives to the truth, and differences that scores do not show."""
        return ()

    def visible(self, value: Array, case: Case) -> Array:
        """Return an answer without the part that scores do not show, such as a constant added to a row."""
        return value

    def slack(self, seen: Seen, predicted: Array, model: Model) -> Array | float:
        """Return the rounding error of each element."""
        largest = float(np.abs(predicted[np.isfinite(predicted)]).max(initial=0.0))
        return self.tolerance + 4 * seen.eps * largest

    def off(self, seen: Seen, predicted: Array, model: Model) -> Array:
        """Return the error of each element relative to the rounding error: up to 1, rounding explains it."""
        got, want = self.visible(seen.value, seen.case), self.visible(predicted, seen.case)
        if got.shape != want.shape:
            return np.full(1, np.inf)
        with np.errstate(invalid="ignore", over="ignore"):
            difference = np.where(got == want, 0.0, np.abs(got - want))
            return np.nan_to_num(difference / self.slack(seen, predicted, model), nan=np.inf, posinf=np.inf)

    def same(self, seen: Seen, predicted: Array) -> bool:
        """Return whether an answer equals the definition even in the part that scores do not show."""
        return True

    def unlike(self, seen: Sequence[Seen]) -> str:
        """Return the difference if scores are the same, as an "equivalent" report prints it."""
        return "the numbers differ in a way that does not change scores"

    def smallest(self, seen: Seen, predicted: Array, off: Array) -> dict[str, Any]:
        """Return the smallest wrong case of an answer: the question, the found and the expected value."""
        return {"case": seen.case.words} if seen.case.words else {}

    def raised(self, cause: Cause, case: Case) -> Fault | None:
        """Return the fault behind an unusable call; None if the cause already has the right code."""
        return None

    def read(self, seen: Sequence[Seen], wrong: Sequence[Seen], model: Model) -> Fault | None:
        """Return a fault that is measured from the answers if no known fault explains them."""
        return None

    def unknown(self, seen: Sequence[Seen], wrong: Sequence[Seen], model: Model) -> Fault:
        """Return the finding if nothing explains the difference."""
        return Fault(self.mismatch)

    def refine(self, fault: Fault, wrong: frozenset[str], right: frozenset[str], seen: Sequence[Seen]) -> Fault:
        """Return a fault with the code that the kinds of wrong and right cases suggest."""
        return fault

    def measured(self, seen: Sequence[Seen], model: Model) -> dict[str, Any]:
        """Return the measured properties of the subject for the report."""
        return {}

    def not_judged(self, seen: Sequence[Seen]) -> list[str]:
        """Return the parts that this convention cannot judge, in sentences."""
        return []
