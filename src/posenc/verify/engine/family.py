"""What a family of conventions says: how to ask, what is right, what is free, and what may be wrong."""

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
        truth: The model's parameters as the specification asks for them.
        definition: What it is compared with, as "alibi@authors".
        mismatch: The code where nothing explains a difference.
        kinds: Faults that show by which kinds of cases are wrong.
        pairs: How many of the first faults are also tried two at a time.
        reads_first: Whether what `read` finds goes before faults that explain wrong cases of one kind only.
        branches: Kinds of cases that run other code, so that each may have a fault of its own.
        tolerance: What rounding explains, where `slack` is not overridden.

    Raises:
        ValueError: The specification says too little, or something impossible.
        CannotTellError: It leaves open what is right.
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
        """Yield the questions; the smallest of each kind first."""

    @abstractmethod
    def observe(self, subject: Any, case: Case) -> Seen:
        """Ask one question of a fresh copy of the subject.

        Raises:
            SubjectError: The call cannot be used.
        """

    @abstractmethod
    def predict(self, model: Model, case: Case) -> Array:
        """Return what a subject with these parameters answers."""

    @abstractmethod
    def faults(self) -> Iterable[Fault]:
        """Yield the known faults, the likeliest first."""

    def look(self, seen: Sequence[Seen]) -> None:  # noqa: B027 (most families need no numbers of the subject)
        """Read off the answers the numbers that choices and faults need, such as a constant or a modulus.

        Raises:
            CannotTellError: The answers show nothing that could be judged.
        """

    def plausible(self, fault: Fault, wrong: Sequence[Seen]) -> bool:
        """Return False where a look at the wrong answers excludes a fault, which saves predictions."""
        return True

    def free(self) -> Iterable[Choice]:
        """Yield what is allowed besides the truth, or what scores do not see."""
        return ()

    def visible(self, value: Array, case: Case) -> Array:
        """Return an answer without what scores do not see of it, such as a constant added to a row."""
        return value

    def slack(self, seen: Seen, predicted: Array, model: Model) -> Array | float:
        """Return what rounding explains of a difference, in each element."""
        largest = float(np.abs(predicted[np.isfinite(predicted)]).max(initial=0.0))
        return self.tolerance + 4 * seen.eps * largest

    def off(self, seen: Seen, predicted: Array, model: Model) -> Array:
        """Return how far an answer is from a prediction, in each element: 1 is as much as rounding explains."""
        got, want = self.visible(seen.value, seen.case), self.visible(predicted, seen.case)
        if got.shape != want.shape:
            return np.full(1, np.inf)
        with np.errstate(invalid="ignore", over="ignore"):
            difference = np.where(got == want, 0.0, np.abs(got - want))
            return np.nan_to_num(difference / self.slack(seen, predicted, model), nan=np.inf, posinf=np.inf)

    def same(self, seen: Seen, predicted: Array) -> bool:
        """Return whether an answer equals the definition also in what scores do not see, if there is such a thing."""
        return True

    def unlike(self, seen: Sequence[Seen]) -> str:
        """Return what is different where scores are the same, as "equivalent" says it."""
        return "the numbers differ in a way that no score sees"

    def smallest(self, seen: Seen, predicted: Array, off: Array) -> dict[str, Any]:
        """Return the smallest wrong case of an answer: what was asked, what was found, what is right."""
        return {"case": seen.case.words} if seen.case.words else {}

    def raised(self, cause: Cause, case: Case) -> Fault | None:
        """Return the fault that an unusable call stands for; None where the cause's own code says it."""
        return None

    def read(self, seen: Sequence[Seen], wrong: Sequence[Seen], model: Model) -> Fault | None:
        """Return what can be read off the answers where no known fault explains them."""
        return None

    def unknown(self, seen: Sequence[Seen], wrong: Sequence[Seen], model: Model) -> Fault:
        """Return what is said where nothing explains the difference."""
        return Fault(self.mismatch)

    def refine(self, fault: Fault, wrong: frozenset[str], right: frozenset[str], seen: Sequence[Seen]) -> Fault:
        """Return a fault under the name that the kinds of wrong and right cases give it."""
        return fault

    def measured(self, seen: Sequence[Seen], model: Model) -> dict[str, Any]:
        """Return what the report says was read off the subject."""
        return {}

    def not_judged(self, seen: Sequence[Seen]) -> list[str]:
        """Return what this convention cannot look at, in sentences."""
        return []
