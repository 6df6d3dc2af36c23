"""What a child answers: reports and identifications, out of the JSON in which they came."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from posenc.verify.identity.identify import Identification
from posenc.verify.report import Cause, Report, Status

_STATUSES: tuple[Status, ...] = ("pass", "equivalent", "fail", "cannot_tell")


@dataclass(frozen=True)
class Outcome:
    """What came of a check or an identification, or why there was nothing to do.

    Args:
        report: The report, or None if the use was wrong or nothing was checked.
        refused: What was wrong with the use.
        printed: What the user's code wrote to stdout and stderr, the beginning of it.
        identified: What was found without a spec, or None if that was not asked for.
    """

    report: Report | None
    refused: str = ""
    printed: str = ""
    identified: Identification | None = None


def as_identified(outcome: Outcome) -> Outcome:
    """Return an outcome with an identification where there is a report: the code failed before anything was told."""
    if (report := outcome.report) is None:
        return outcome
    why = tuple(f"{cause.message} ({cause.code})" for cause in report.causes) or (report.because,)
    return replace(outcome, report=None, identified=Identification(report.convention, unknown=why))


def identified_of(fields: Mapping[str, Any]) -> Identification:
    """Return the identification that to_dict has written.

    Raises:
        TypeError: These are no fields of an identification.
        KeyError: Likewise.
    """
    told = {key: value for key, value in fields.items() if key != "schema"}
    return Identification(**told | {"unknown": tuple(map(str, told["unknown"]))})


def report_of(fields: Mapping[str, Any]) -> Report:
    """Return the report that to_dict has written.

    Raises:
        ValueError: These are no fields of a report.
        TypeError: Likewise.
        KeyError: Likewise.
    """
    if fields["status"] not in _STATUSES:
        raise ValueError(f"verify: no status is called {fields['status']!r}.")
    causes = tuple(
        Cause(
            str(c["code"]),
            str(c["message"]),
            math.nan if c["evidence"] is None else float(c["evidence"]),  # JSON has no word for it
            dict(c["smallest_case"]),
            str(c["help"]),
            tuple(map(str, c["consequences"])),
        )
        for c in fields["causes"]
    )
    definitions = tuple(map(str, fields["definitions"]))
    convention, because = str(fields["convention"]), str(fields["because"])
    not_judged = tuple(map(str, fields["not_judged"]))
    return Report(fields["status"], convention, causes, because, definitions, dict(fields["measured"]), not_judged)
