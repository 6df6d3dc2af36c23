"""What a check found: causes in words and numbers, and what was left open."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Status = Literal["pass", "equivalent", "fail", "cannot_tell"]
SCHEMA = 1


@dataclass(frozen=True)
class Cause:
    """One fault that explains what was measured.

    Args:
        code: Its name in `posenc rule`, family.aspect.fault.
        message: What the code computes, and what it should.
        evidence: The number that shows it; the message says of what.
        smallest_case: The least call on which it shows.
        help: How to fix it.
        consequences: Codes of checks that failed for no other reason.
    """

    code: str
    message: str
    evidence: float
    smallest_case: dict[str, Any] = field(default_factory=dict)
    help: str = ""
    consequences: tuple[str, ...] = ()


@dataclass(frozen=True)
class Report:
    """What a check says of a subject.

    Args:
        status: "pass"; "equivalent": other numbers, the same scores; "fail"; "cannot_tell".
        convention: How the subject was called.
        causes: The first one explains most; empty unless it fails.
        because: Why it is only equivalent, or why nothing can be said.
        definitions: Which definitions it was compared with, with their versions.
        measured: What was read off the subject, by name.
        not_judged: What was not looked at, in sentences; a "pass" says nothing of it.
    """

    status: Status
    convention: str
    causes: tuple[Cause, ...] = ()
    because: str = ""
    definitions: tuple[str, ...] = ()
    measured: dict[str, Any] = field(default_factory=dict)
    not_judged: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers, strings, lists and dicts, as JSON has them."""
        return {"schema": SCHEMA, **asdict(self), "not_judged": list(self.not_judged)}


@dataclass
class Findings:
    """What one family's checks found, before it is a report.

    Args:
        causes: What is wrong, the first cause first.
        equivalent: What differs without changing a score; None if nothing does.
        unknown: What could not be found out, so that no "pass" may be said; None if all was.
        definitions: Names as "yarn@transformers-5".
        measured: What was read off the subject.
        not_judged: What was not looked at, and why.
    """

    causes: list[Cause] = field(default_factory=list)
    equivalent: str | None = None
    unknown: str | None = None
    definitions: list[str] = field(default_factory=list)
    measured: dict[str, Any] = field(default_factory=dict)
    not_judged: dict[str, str] = field(default_factory=dict)

    def report(self, convention: str) -> Report:
        """Return the report: a fault outweighs what is open, and that what is merely different."""
        status: Status = "pass"
        if self.causes:
            status = "fail"
        elif self.unknown:
            status = "cannot_tell"
        elif self.equivalent:
            status = "equivalent"
        because = {"equivalent": self.equivalent, "cannot_tell": self.unknown}.get(status) or ""
        left = tuple(f"{what}: {why}" for what, why in self.not_judged.items())
        return Report(status, convention, tuple(self.causes), because, tuple(self.definitions), self.measured, left)


def first(causes: Sequence[Cause]) -> list[Cause]:
    """Return the first cause, with the codes of the others as its consequences."""
    if not causes:
        return []
    head, *rest = causes
    codes = dict.fromkeys((*head.consequences, *(c.code for c in rest)))
    return [Cause(head.code, head.message, head.evidence, head.smallest_case, head.help, tuple(codes))]
