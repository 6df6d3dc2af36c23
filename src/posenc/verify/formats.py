"""A report as text for people, as JSON for programs, and as annotations for a forge's log."""

import math
import textwrap
from typing import Any

from posenc.verify.report import Cause, Report

FORMATS = ("text", "json", "github")
_VERDICTS = {"pass": "pass", "equivalent": "equivalent", "fail": "fail", "cannot_tell": "cannot tell"}
_LEVELS = {"pass": "notice", "equivalent": "notice", "fail": "error", "cannot_tell": "warning"}


def text(report: Report, target: str, width: int = 80) -> str:
    """Return a report in lines of at most `width`: the verdict, then each cause, the first one first.

    >>> print(text(Report("pass", "slopes_fn", definitions=("alibi@authors",)), "mine.py"))
    pass: mine.py as slopes_fn
      compared with: alibi@authors
    """
    convention = f" as {report.convention}" if report.convention else ""
    lines = [f"{_VERDICTS[report.status]}: {printable(target)}{convention}"]
    if report.because:
        lines.append(_wrapped(f"because {report.because}", width, "  "))
    for cause in report.causes:
        lines += _cause(cause, width)
    lines += [_wrapped(f"not judged: {what}", width, "  ") for what in report.not_judged]
    if report.definitions:
        lines.append(_wrapped(f"compared with: {', '.join(report.definitions)}", width, "  "))
    if report.causes:
        lines.append(f"`posenc rule {printable(report.causes[0].code)}` says more.")
    return "\n".join(lines)


def as_json(report: Report, target: str) -> dict[str, Any]:
    """Return a report as JSON has it, with what was checked."""
    return {"target": target, **report.to_dict()}


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
    level = _LEVELS[report.status]
    if not report.causes:
        said = f"{target} as {report.convention}" if report.convention else target
        said += f": {report.because}" if report.because else ""
        return _command(level, file, line, f"posenc verify: {_VERDICTS[report.status]}", said)
    commands = []
    for cause in report.causes:
        said = f"{target}: {cause.message}" + (f"\n{cause.help}" if cause.help else "")
        commands.append(_command(level, file, line, cause.code, said))
    return "\n".join(commands)


def printable(said: str) -> str:
    """Return text without what a terminal would obey: errors quote what strangers' code says.

    >>> printable("a" + chr(27) + "[31m")
    'a\\\\x1b[31m'
    """
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in said)


def _cause(cause: Cause, width: int) -> list[str]:
    lines = ["", f"  {printable(cause.code)}", _wrapped(cause.message, width, "    ")]
    if cause.smallest_case:
        case = ", ".join(f"{key} {_value(value)}" for key, value in cause.smallest_case.items())
        lines.append(_wrapped(f"smallest case: {case}", width, "    "))
    lines.append(f"    evidence: {_value(cause.evidence)}")
    if cause.help:
        lines.append(_wrapped(f"fix: {cause.help}", width, "    "))
    if cause.consequences:
        lines.append(_wrapped(f"follows from it: {', '.join(cause.consequences)}", width, "    "))
    return [*lines, ""]


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}" if math.isfinite(value) else "not finite"
    return str(value)


def _wrapped(said: str, width: int, indent: str) -> str:
    words = printable(" ".join(said.split()))
    return textwrap.fill(
        words,
        width,
        initial_indent=indent,
        subsequent_indent=indent + "  ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def _command(level: str, file: str | None, line: int | None, title: str, said: str) -> str:
    where = {"file": file, "line": line if file else None, "title": title}
    properties = ",".join(f"{key}={_property(str(value))}" for key, value in where.items() if value is not None)
    return f"::{level} {properties}::{_escaped(said)}"


def _escaped(said: str) -> str:
    lines = said.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return "%0A".join(printable(line).replace("%", "%25") for line in lines)


def _property(said: str) -> str:
    return _escaped(said).replace(":", "%3A").replace(",", "%2C")
