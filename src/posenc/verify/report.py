"""What a check found: causes in words and numbers, and what was left open."""

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
    """What the checks of a model or an encoding found, before it is a report.

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
        why = None if self.causes else self.unknown or self.equivalent
        status: Status = "fail" if self.causes else "cannot_tell" if self.unknown else "equivalent" if why else "pass"
        left = tuple(f"{what}: {why}" for what, why in self.not_judged.items())
        return Report(status, convention, tuple(self.causes), why or "", tuple(self.definitions), self.measured, left)
