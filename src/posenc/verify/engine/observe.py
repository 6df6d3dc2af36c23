"""Ask a subject the cases of a family; what it raises is a finding, or a case that is not judged."""

import copy
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from posenc.verify.engine.family import Family
from posenc.verify.engine.records import Case, Seen
from posenc.verify.guard import NotAnsweredError, SubjectError
from posenc.verify.report import Cause


@dataclass
class Observed:
    """What became of the questions.

    Args:
        seen: The answers.
        refused: The first call that cannot be used and its case; None where all can.
        not_judged: Cases without an answer, in sentences.
    """

    seen: list[Seen] = field(default_factory=list)
    refused: tuple[Cause, Case] | None = None
    not_judged: list[str] = field(default_factory=list)


def fresh(subject: Any) -> Any:
    """Return a copy of a subject as it is now; itself where it cannot be copied."""
    try:
        return copy.deepcopy(subject)
    except Exception:  # user code decides what can be copied
        return subject


def observe(family: Family, subject: Any, cases: Iterable[Case] | None = None) -> Observed:
    """Return a subject's answers to the cases of a family."""
    found = Observed()
    for case in family.cases() if cases is None else cases:
        if not _ask(family, subject, case, found):
            break
    return found


def _ask(family: Family, subject: Any, case: Case, found: Observed) -> bool:
    """Ask one case, and smaller ones where it raises; return whether to go on."""
    asked: Case | None = case
    while asked is not None:
        try:
            found.seen.append(family.observe(subject, asked))
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
