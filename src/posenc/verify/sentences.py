"""Reports in words: the only place where codes and numbers become sentences, for people and for a forge's log."""

import math
import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from posenc.verify import rules
from posenc.verify.report import Cause, Report

if TYPE_CHECKING:
    from posenc.verify.engine.records import Fault, Verdict

_LEVELS = {"fail": "error", "cannot_tell": "warning"}


def report(verdict: "Verdict", convention: str, definition: str) -> Report:
    """Return the report of a verdict."""
    causes = tuple(_cause_of(fault, verdict) for fault in verdict.faults)
    left = tuple(dict.fromkeys(verdict.not_judged))
    return Report(verdict.status, convention, causes, verdict.because, (definition,), verdict.measured, left)


def _cause_of(fault: "Fault", verdict: "Verdict") -> Cause:
    rule, values = rules.find(fault.code), fault.values
    message = message_of(rule, fault)
    case = verdict.case if fault is verdict.faults[0] else dict(fault.case)
    if "message" not in values and ("found" in case or "expected" in case):
        message += "; " + ", ".join(f"{name} {_value(case[name])}" for name in ("found", "expected") if name in case)
    help_ = values.get("fix") or _filled(rule.fix, values) or rule.fix
    return Cause(fault.code, message, float(values.get("evidence", verdict.evidence)), case, help_)


def message_of(rule: rules.Rule, fault: "Fault") -> str:
    """Return what a finding says: the fault's own message, the rule's with its slots filled, or the title."""
    own = fault.values.get("message")
    return str(own or _filled(rule.says, fault.values) or fault.values.get("words") or rule.title)


def _filled(template: str, values: Mapping[str, Any]) -> str:
    """Return a sentence with its slots filled; nothing where a value is missing."""
    try:
        return template.format(**values) if "{" in template else template
    except (KeyError, ValueError):
        return ""


def finding(code: str, message: str, evidence: float = 1.0, **case: Any) -> Cause:
    """Return what the user's code did, with the help that its rule has."""
    return Cause(code, message, evidence, case, rules.find(code).fix)


def text(report: Report, target: str, width: int = 80) -> str:
    """Return a report in lines of at most `width`: the verdict, then each cause, the first one first.

    >>> print(text(Report("pass", "slopes_fn", definitions=("alibi@authors",)), "mine.py"))
    pass: mine.py as slopes_fn
      compared with: alibi@authors
    """
    lines = [_verdict(report, printable(target))]
    if report.because:
        lines.append(_wrapped(f"because {report.because}", width, "  "))
    for cause in report.causes:
        case = ", ".join(f"{key} {_value(value)}" for key, value in cause.smallest_case.items())
        parts = {"smallest case: ": case, "evidence: ": _value(cause.evidence), "fix: ": cause.help}
        parts["follows from it: "] = ", ".join(cause.consequences)
        said = [cause.message, *(f"{name}{words}" for name, words in parts.items() if words)]
        lines += ["", f"  {printable(cause.code)}", *(_wrapped(words, width, "    ") for words in said), ""]
    lines += [_wrapped(f"not judged: {what}", width, "  ") for what in report.not_judged]
    if report.definitions:
        lines.append(_wrapped(f"compared with: {', '.join(report.definitions)}", width, "  "))
    if report.causes:
        lines.append(f"`posenc rule {printable(report.causes[0].code)}` says more.")
    return "\n".join(lines)


def github(report: Report, target: str, file: str | None = None, line: int | None = None) -> str:
    """Return workflow commands, one a cause, which GitHub shows next to the file.

    Args:
        report: The report.
        target: What was checked.
        file: Its path as the forge knows it, or None for a module by name.
        line: Where in the file, or None.

    >>> print(github(Report("pass", "slopes_fn"), "mine.py", "mine.py"))
    ::notice file=mine.py,title=posenc verify%3A pass::mine.py as slopes_fn
    """
    said = [(c.code, f"{target}: {c.message}" + (f"\n{c.help}" if c.help else "")) for c in report.causes]
    if not said:
        verdict, _, rest = _verdict(report, target).partition(": ")
        said = [(f"posenc verify: {verdict}", rest + (f": {report.because}" if report.because else ""))]
    level, place = _LEVELS.get(report.status, "notice"), {"file": file, "line": line if file else None}
    return "\n".join(command(level, {**place, "title": title}, words) for title, words in said)


def command(level: str, properties: Mapping[str, Any], said: str) -> str:
    """Return one workflow command of GitHub Actions, which what it says cannot break out of."""
    given = ((key, _escaped(str(value))) for key, value in properties.items() if value)
    listed = ",".join(f"{key}={value.replace(':', '%3A').replace(',', '%2C')}" for key, value in given)
    return f"::{level} {listed}::{_escaped(said)}"


def printable(said: str) -> str:
    """Return text without what a terminal would obey: errors quote what strangers' code says.

    >>> printable("a" + chr(27) + "[31m")
    'a\\\\x1b[31m'
    """
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in said)


def _verdict(report: Report, target: str) -> str:
    convention = f" as {report.convention}" if report.convention else ""
    return f"{report.status.replace('_', ' ')}: {target}{convention}"


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}" if math.isfinite(value) else "not finite"
    return str(value)


def _wrapped(said: str, width: int, indent: str) -> str:
    wrapper = textwrap.TextWrapper(width, indent, indent + "  ", break_long_words=False, break_on_hyphens=False)
    return wrapper.fill(printable(" ".join(said.split())))


def _escaped(said: str) -> str:
    lines = said.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return "%0A".join(printable(line).replace("%", "%25") for line in lines)
