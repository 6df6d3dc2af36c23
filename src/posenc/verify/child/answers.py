"""What a child answers, on its way into JSON and out of it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from posenc.verify import rules
from posenc.verify.identity.identify import Identification
from posenc.verify.report import Cause, Report

Task = Literal["check", "identify"]
_DEEPEST = 16
_MOST = 1 << 16  # values in what was measured


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


def finding(code: str, message: str, evidence: float = 1.0, **case: Any) -> Cause:
    """Return what the user's code did, with the help that its rule has."""
    return Cause(code, message, evidence, case, rules.find(code).fix)


def outcome_of(answer: Mapping[str, Any], task: Task, printed: str = "") -> Outcome:
    """Return the outcome of a task by what `inside.examine` answers.

    Raises:
        KeyError: These are no fields of an answer.
        TypeError: Likewise.
    """
    if "refused" in answer:
        return Outcome(None, str(answer["refused"]), printed)
    fields = {key: value for key, value in answer[next(iter(answer))].items() if key != "schema"}
    if "identified" in answer:
        found = Identification(**fields | {"unknown": tuple(fields["unknown"])})
        return Outcome(None, printed=printed, identified=found)
    lists = {name: tuple(fields[name]) for name in ("definitions", "not_judged")}
    report = Report(**fields | lists | {"causes": tuple(_cause(**cause) for cause in fields["causes"])})
    if task == "check":
        return Outcome(report, printed=printed)
    why = tuple(f"{cause.message} ({cause.code})" for cause in report.causes) or (report.because,)
    return Outcome(None, printed=printed, identified=Identification(report.convention, unknown=why))


def _cause(evidence: float | None, consequences: list[str], **fields: Any) -> Cause:
    return Cause(evidence=math.nan if evidence is None else evidence, consequences=tuple(consequences), **fields)


def plain(value: Any) -> Any:
    """Return a value as JSON has it: tensors as lists, what is not finite as None, the rest in words.

    >>> plain({"shape": (2, 3), "error": float("nan")})
    {'shape': [2, 3], 'error': None}
    """
    return _plain(value, 0, [_MOST])


def _plain(value: Any, depth: int, left: list[int]) -> Any:
    left[0] -= 1
    if value is None or type(value) in (bool, str):
        return value
    if isinstance(value, int):
        return int(value) if value.bit_length() <= 256 else f"an integer of {value.bit_length()} bits"
    if left[0] < 0 or depth > _DEEPEST:
        return "..."
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(key): _plain(inner, depth + 1, left) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(inner, depth + 1, left) for inner in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    return string(value)


def string(value: Any, kind: str = "") -> str:
    """Return a value in words of at most 300 characters, though it may refuse to be written."""
    try:
        said = " ".join(str(value).split())[:300]
    except BaseException:
        said = f"(a {type(value).__name__} that cannot be written)"
    return f"{kind}: {said}" if kind and said else kind or said
