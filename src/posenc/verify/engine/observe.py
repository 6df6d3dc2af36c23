"""Ask a subject the cases of a family; an error is a finding, or a case that is not judged."""

import copy
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from posenc.verify.engine.family import Family
from posenc.verify.engine.records import Case, Seen
from posenc.verify.guard import NotAnsweredError, SubjectError
from posenc.verify.report import Cause

STATE_KEPT = "subject.state_kept"


@dataclass
class Observed:
    """The results of the questions.

    Args:
        seen: The answers.
        refused: The first call that cannot be used and its case; None if there is none.
        not_judged: Cases without an answer, in sentences.
    """

    seen: list[Seen] = field(default_factory=list)
    refused: tuple[Cause, Case] | None = None
    not_judged: list[str] = field(default_factory=list)


def fresh(subject: Any) -> Any:
    """Return a copy of a subject in its current state, or the subject itself if it cannot be copied."""
    try:
        return copy.deepcopy(subject)
    except Exception:  # user code decides what can be copied
        return subject


def observe(family: Family, subject: Any, cases: Iterable[Case] | None = None) -> Observed:
    """Return a subject's answers to the cases of a family."""
    found = Observed()
    for case in family.cases() if cases is None else cases:
        if not _ask(family, subject, case, found):
            return found
    if found.seen:
        with suppress(NotAnsweredError, SubjectError):
            _ask_again(family, subject, found)
    return found


def _ask_again(family: Family, subject: Any, found: Observed) -> None:
    """Ask the first question again after all others, because copies share the state of closures."""
    case, first = found.seen[0].case, found.seen[0].value
    seen = family.observe(subject, case)
    again = first if seen is None else seen.value
    if again.shape != first.shape or not np.allclose(again, first, 1e-3, 1e-3, equal_nan=True):
        message = "the first call, repeated after all others, gives another result"
        found.refused = Cause(STATE_KEPT, message, 1.0, {"case": _words(case)}), case


def _ask(family: Family, subject: Any, case: Case, found: Observed) -> bool:
    """Ask one case, and smaller ones if it raises; return whether to continue."""
    asked: Case | None = case
    while asked is not None:
        try:
            seen = family.observe(subject, asked)
            found.seen += [] if seen is None else [seen]
            return True
        except NotAnsweredError as error:
            found.not_judged.append(f"{_words(asked)}: {error}")
            return True
        except SubjectError as error:
            cause = error.cause
            if cause.code == "subject.raises" and (asked.otherwise is not None or asked.optional):
                found.not_judged.append(f"{_words(asked)}: {cause.message}")
                asked = asked.otherwise
                continue
            found.refused = (cause, asked)
            return False
    return True


def _words(case: Case) -> str:
    return case.words or case.kind
