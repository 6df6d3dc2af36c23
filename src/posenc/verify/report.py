"""The result of a check: causes in words and numbers, and the parts that were not judged."""

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Status = Literal["pass", "equivalent", "fail", "cannot_tell"]
SCHEMA = 1


@dataclass(frozen=True)
class Cause:
    """One fault that explains the measurements.

    Args:
        code: Its name in `posenc rule`, family.aspect.fault.
        message: What the code computes, and what it should compute.
        evidence: The number that shows it; the message explains it.
        smallest_case: The smallest call that shows it.
        fix: What to do.
        consequences: Codes of checks that failed for no other reason.
    """

    code: str
    message: str
    evidence: float
    smallest_case: dict[str, Any] = field(default_factory=dict)
    fix: str = ""
    consequences: tuple[str, ...] = ()


@dataclass(frozen=True)
class Report:
    """The result of a check of one subject.

    Args:
        status: "pass"; "equivalent": other numbers, the same scores; "fail"; "cannot_tell".
        convention: How the subject was called.
        causes: The first one explains most; empty unless the status is "fail".
        because: Why the status is "equivalent" or "cannot_tell".
        definitions: The definitions it was compared with, with their versions.
        measured: Measured properties of the subject, by name.
        not_judged: The parts that were not judged, in sentences; a "pass" does not cover them.
    """

    status: Status
    convention: str
    causes: tuple[Cause, ...] = ()
    because: str = ""
    definitions: tuple[str, ...] = ()
    measured: dict[str, Any] = field(default_factory=dict)
    not_judged: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers, strings, lists and dicts, ready for JSON."""
        return {"schema": SCHEMA, **asdict(self), "not_judged": list(self.not_judged)}


@dataclass
class Findings:
    """The findings of a check of a model or an encoding, before they become a report.

    Args:
        causes: The faults, the first cause first.
        equivalent: A difference that changes no score; None if there is none.
        unknown: What could not be determined, so that "pass" is not possible; None if nothing.
        definitions: Names such as "yarn@transformers-5".
        measured: Measured properties of the subject.
        not_judged: The parts that were not judged, and why.
    """

    causes: list[Cause] = field(default_factory=list)
    equivalent: str | None = None
    unknown: str | None = None
    definitions: list[str] = field(default_factory=list)
    measured: dict[str, Any] = field(default_factory=dict)
    not_judged: dict[str, str] = field(default_factory=dict)

    def report(self, convention: str) -> Report:
        """Return the report: "fail" takes precedence over "cannot_tell", and that over "equivalent"."""
        why = None if self.causes else self.unknown or self.equivalent
        status: Status = "fail" if self.causes else "cannot_tell" if self.unknown else "equivalent" if why else "pass"
        left = tuple(f"{what}: {why}" for what, why in self.not_judged.items())
        return Report(status, convention, tuple(self.causes), why or "", tuple(self.definitions), self.measured, left)
