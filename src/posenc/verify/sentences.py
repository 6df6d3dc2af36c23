"""Write reports in words: only here do codes and numbers become sentences; `formats` writes them for programs."""

import math
import textwrap
from collections.abc import Mapping
from string import Formatter
from typing import TYPE_CHECKING, Any

from posenc.verify import rules
from posenc.verify.report import Cause, Report

if TYPE_CHECKING:
    from posenc.verify.engine.records import Fault, Verdict


def report(verdict: "Verdict", convention: str, definition: str) -> Report:
    """Return the report of a verdict."""
    causes = tuple(_cause_of(fault, verdict) for fault in verdict.faults)
    left = tuple(dict.fromkeys(verdict.not_judged))
    return Report(verdict.status, convention, causes, verdict.because, (definition,), verdict.measured, left)


def _cause_of(fault: "Fault", verdict: "Verdict") -> Cause:
    rule, values = rules.find(fault.code), fault.values
    message = message_of(rule, fault)
    case = verdict.case if fault is verdict.faults[0] else dict(fault.case)
    numbers = {name: _value(case[name]) for name in ("found", "expected") if name in case}
    if "message" not in values and numbers and len(set(numbers.values())) == len(numbers):  # rounded, they may be alike
        message += "; " + ", ".join(f"{name} {value}" for name, value in numbers.items())
    fix = values.get("fix") or _filled(rule.fix, values) or rule.fix
    return Cause(fault.code, message, float(values.get("evidence", verdict.evidence)), case, fix)


def message_of(rule: rules.Rule, fault: "Fault") -> str:
    """Return the message of a finding: the fault's own, the rule's with its slots filled, or the title."""
    own = fault.values.get("message")
    return str(own or _filled(rule.says, fault.values) or fault.values.get("words") or rule.title)


ASKED = ("asked", "usual", "window", "top")  # slots for what should be


def _filled(template: str, values: Mapping[str, Any]) -> str:
    """Return a sentence with its slots filled; empty if a value is missing, or if a value should be what it is."""
    slots = [f"{{{name}:{form}}}" for _, name, form, _ in Formatter().parse(template) if name]
    try:
        filled = {slot: slot.format(**values) for slot in slots}
    except (KeyError, ValueError, TypeError):
        return ""
    wanted = [text for slot, text in filled.items() if slot[1:].partition(":")[0] in ASKED]
    alike = [name for name, text in filled.items() if text in wanted and name[1:].partition(":")[0] not in ASKED]
    return "" if alike else template.format(**values)


def finding(code: str, message: str, evidence: float = 1.0, **case: Any) -> Cause:
    """Return a cause with a message of its own and the fix of its rule."""
    return Cause(code, message, evidence, case, rules.find(code).fix)


def text(report: Report, target: str, width: int = 80) -> str:
    """Return a report in lines of at most `width`: the verdict, then each cause, the first one first.

    >>> print(text(Report("pass", "slopes_fn", definitions=("alibi@authors",)), "mine.py"))
    pass: mine.py as slopes_fn
      compared with: alibi@authors
    """
    lines = [_verdict(report, printable(target))]
    if report.because:
        lines.append(wrapped(f"because {report.because}", width, "  "))
    for cause in report.causes:
        case = ", ".join(f"{key} {_value(value)}" for key, value in cause.smallest_case.items())
        parts = {"smallest case: ": case, "evidence: ": _value(cause.evidence), "fix: ": cause.fix}
        parts["follows from it: "] = ", ".join(cause.consequences)
        said = [cause.message, *(f"{name}{words}" for name, words in parts.items() if words)]
        lines += ["", f"  {printable(cause.code)}", *(wrapped(words, width, "    ") for words in said), ""]
    lines += [wrapped(f"not judged: {what}", width, "  ") for what in report.not_judged]
    if report.definitions:
        lines.append(wrapped(f"compared with: {', '.join(report.definitions)}", width, "  "))
    if report.causes:
        lines.append(f"`posenc rule {printable(report.causes[0].code)}` explains it.")
    return "\n".join(lines)


def printable(said: str) -> str:
    """Return text with control characters escaped, since errors quote text of the user's code.

    >>> printable("a" + chr(27) + "[31m")
    'a\\\\x1b[31m'
    """
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in said)


def string(value: Any, kind: str = "") -> str:
    """Return a value in at most 300 characters, even if its own conversion fails."""
    try:
        said = " ".join(str(value).split())[:300]
    except BaseException:
        said = f"(a {type(value).__name__} that cannot be printed)"
    return f"{kind}: {said}" if kind and said else kind or said


def _verdict(report: Report, target: str) -> str:
    convention = f" as {report.convention}" if report.convention else ""
    return f"{report.status.replace('_', ' ')}: {target}{convention}"


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}" if math.isfinite(value) else "not finite"
    return str(value)


def wrapped(said: str, width: int, indent: str, hang: int = 2) -> str:
    """Return text in lines of at most a width, all but the first one indented by `hang` more."""
    wrapper = textwrap.TextWrapper(width, indent, indent + " " * hang, break_long_words=False, break_on_hyphens=False)
    return wrapper.fill(printable(" ".join(said.split())))
