"""What the engine and the families exchange: cases, answers, faults and the verdict."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from posenc.verify.report import Status

Array = NDArray[np.float64]
Model = Mapping[str, Any]  # the definition's parameters, by name; a fault changes some of them
FLOAT32 = 1.2e-7


class CannotTellError(Exception):
    """The specification leaves open what is right, or the subject shows nothing that could be judged."""


@dataclass(frozen=True)
class Case:
    """One question to a subject.

    Args:
        kind: What a failure of this case alone means: "near", "far", "single", "again", "grad", ...
        args: What is asked; the family's `observe` and `predict` read it.
        words: The question in words, for messages.
        optional: Where the subject raises an error, the case is not judged; otherwise that is a finding.
        otherwise: A smaller question to ask where this one raises an error.
    """

    kind: str
    args: tuple[Any, ...] = ()
    words: str = ""
    optional: bool = False
    otherwise: "Case | None" = None


@dataclass(frozen=True)
class Seen:
    """What the subject answered.

    Args:
        case: The question.
        value: The answer in float64.
        eps: The rounding of its dtype, never finer than float32's.
        note: What else the family keeps of it.
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
        values: What the rule's message says of this fault: numbers and words by slot.
        case: More of the smallest case.
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
        because: Why scores do not see it, for "equivalent"; empty where the specification leaves it free ("pass").
    """

    change: Model
    because: str = ""


@dataclass(frozen=True)
class Kind:
    """A fault that shows by which kinds of cases are wrong, whatever their numbers are.

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
    """What the engine found.

    Args:
        status: As in a report.
        faults: What explains the wrong cases, the first one first.
        evidence: The largest difference from the definition.
        case: The smallest wrong case.
        because: Why it is only equivalent, or why nothing can be said.
        wrong: Kinds of cases that are wrong.
        not_judged: What was not looked at, in sentences.
        measured: What was read off the subject.
    """

    status: Status
    faults: list[Fault] = field(default_factory=list)
    evidence: float = 0.0
    case: dict[str, Any] = field(default_factory=dict)
    because: str = ""
    wrong: frozenset[str] = frozenset()
    not_judged: list[str] = field(default_factory=list)
    measured: dict[str, Any] = field(default_factory=dict)
