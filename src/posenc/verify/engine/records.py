"""The data that the engine and the families exchange: cases, answers, faults and the verdict."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from posenc.verify.guard import CannotTellError as CannotTellError
from posenc.verify.report import Status

Array = NDArray[np.float64]
Model = Mapping[str, Any]  # the definition's parameters, by name; a fault changes some of them
FLOAT32 = 1.2e-7


@dataclass(frozen=True)
class Case:
    """One question to a subject.

    Args:
        kind: What a failure of only this case means: "near", "far", "single", "again", "grad", ...
        args: The question, which the family's `observe` and `predict` read.
        words: The question in words, for messages.
        optional: If the subject raises an error, the case is not judged; otherwise the error is a finding.
        otherwise: A smaller question for the case that this one raises an error.
    """

    kind: str
    args: tuple[Any, ...] = ()
    words: str = ""
    optional: bool = False
    otherwise: "Case | None" = None


@dataclass(frozen=True)
class Seen:
    """A subject's answer.

    Args:
        case: The question.
        value: The answer in float64.
        eps: The rounding error of its dtype, never finer than float32's.
        note: Further data for the family.
    """

    case: Case
    value: Array
    eps: float = FLOAT32
    note: Any = None


@dataclass(frozen=True)
class Fault:
    """One way to be wrong, as a change of the model's parameters.

    Args:
        code: Its name in the rules.
        change: Parameters of the model and their wrong values.
        values: Numbers and words for the slots of the rule's message.
        case: Additions to the smallest case.
    """

    code: str
    change: Model = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)
    case: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Choice:
    """A change of the model that is no fault.

    Args:
        change: Parameters and their other values.
        because: Why scores do not show it, for "equivalent"; empty if the specification allows it ("pass").
    """

    change: Model
    because: str = ""


@dataclass(frozen=True)
class Kind:
    """A fault that is recognised by which kinds of cases are wrong, whatever their numbers are.

    Args:
        code: Its name in the rules.
        wrong: Kinds that are all wrong.
        right: Kinds that are all right.
    """

    code: str
    wrong: frozenset[str]
    right: frozenset[str] = frozenset()


def kind(code: str, wrong: str, right: str = "") -> Kind:
    """Return a Kind from its kinds of cases in words.

    >>> kind("rope.state_kept", "again far", "near").right
    frozenset({'near'})
    """
    return Kind(code, frozenset(wrong.split()), frozenset(right.split()))


@dataclass
class Verdict:
    """The result of the engine.

    Args:
        status: As in a report.
        faults: The faults that explain the wrong cases, the first one first.
        evidence: The largest difference from the definition.
        case: The smallest wrong case.
        because: Why the status is "equivalent" or "cannot_tell".
        wrong: Kinds of cases that are wrong.
        not_judged: The parts that were not judged, in sentences.
        measured: Measured properties of the subject.
    """

    status: Status
    faults: list[Fault] = field(default_factory=list)
    evidence: float = 0.0
    case: dict[str, Any] = field(default_factory=dict)
    because: str = ""
    wrong: frozenset[str] = frozenset()
    not_judged: list[str] = field(default_factory=list)
    measured: dict[str, Any] = field(default_factory=dict)
