"""Results as one document for a program: JSON, GitHub's annotations, SARIF 2.1.0, JUnit's XML.

`of_report` and `of_judgement` make a `Result`; `document` writes any number of them. Does not import torch.
"""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote
from xml.etree import ElementTree

import posenc
from posenc.verify import rules, sentences
from posenc.verify.report import Report, Status

if TYPE_CHECKING:
    from posenc.verify.configs import Judgement

_SARIF_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_SARIF_LEVELS = {"error": "error", "warning": "warning", "notice": "note"}
_LARGEST = 1 << 20  # the largest file, in bytes, in which the line of a key is looked up
# the level and the text if there is no finding; a pass is silent, since GitHub shows every annotation
_OPEN = {"cannot_tell": ("warning", "It could not be decided whether there is a fault"), "equivalent": ("notice", "")}


@dataclass(frozen=True)
class Finding:
    """One fault, at one place.

    Args:
        code: Its name in `posenc rule`.
        level: "error", "warning" or "notice".
        message: What is wrong.
        fix: What to do; may be empty.
        line: The line in the result's file, None if unknown.
    """

    code: str
    level: str
    message: str
    fix: str = ""
    line: int | None = None


@dataclass(frozen=True)
class Result:
    """The result of one target, ready for every format.

    Args:
        target: The target, as the user named it.
        check: The convention, such as "rope_fn", or "model" or "configuration".
        status: As in a `Report`.
        findings: The faults; empty unless the status is "fail".
        because: Why the status is "equivalent" or "cannot_tell".
        file: The path of the target, None for a module name or a program.
        text: The whole report as text.
        plain: The whole report ready for JSON.
    """

    target: str
    check: str
    status: Status
    findings: tuple[Finding, ...]
    because: str
    file: str | None
    text: str
    plain: Mapping[str, Any]


def of_report(
    report: Report, target: str, *, file: str | None = None, line: int | None = None, text: str | None = None
) -> Result:
    """Make a result from a report.

    Args:
        report: The report.
        target: The target, as the user named it.
        file: Its path, if it has one.
        line: The line in the file, if known.
        text: The report as text, if it has more than `sentences.text`.
    """
    found = tuple(Finding(cause.code, "error", cause.message, cause.fix, line) for cause in report.causes)
    plain = {"target": target, **report.to_dict()}
    said = sentences.text(report, target) if text is None else text
    return Result(target, report.convention, report.status, found, report.because, file, said, plain)


def of_judgement(judgement: "Judgement", text: str) -> Result:
    """Make a result from the judgement of `configs.judge`; each finding has the line of its key.

    Args:
        judgement: The judgement.
        text: The same as text.
    """
    file, lines = _lines(judgement.target)
    found = tuple(
        Finding(one.code, one.level, f"{one.message} Allowed: {one.allowed}.", one.fix, _line(lines, one.key))
        for one in judgement.findings
    )
    status, because = judgement.status, judgement.because
    return Result(judgement.target, "configuration", status, found, because, file, text, judgement.to_dict())


def _lines(target: str) -> tuple[str | None, list[str]]:
    path = Path(target)
    try:
        path = path / "config.json" if path.is_dir() else path
        return str(path), path.read_text("utf-8").splitlines() if path.stat().st_size <= _LARGEST else []
    except OSError:
        return None, []  # a known model
    except ValueError:
        return str(path), []


def _line(lines: Sequence[str], key: str) -> int | None:
    """Return the number of the first line that contains a key, None if there is none."""
    wanted = json.dumps(key.rsplit(".", 1)[-1])
    return next((i for i, line in enumerate(lines, 1) if wanted in line), None)


def document(wanted: str, results: Sequence[Result]) -> Any:
    """Return one document of all results: text, or an object ready for JSON in the formats json and sarif.

    Args:
        wanted: One of `FORMATS`.
        results: At least one; a single one is an object in JSON, several are an array.
    """
    return _WRITERS[wanted](results)


def github(results: Sequence[Result]) -> str:
    """Return workflow commands, one for each finding, which GitHub shows next to the file; nothing for a pass.

    >>> result = of_report(Report("equivalent", "rope_fn", because="pairs differ"), "a.py", file="a.py")
    >>> print(github([result]))
    ::notice file=a.py,title=equivalent::a.py: pairs differ
    """
    return "\n".join(
        _command(one.level, result.file, one, f"{result.target}: {one.message}" + (f"\n{one.fix}" if one.fix else ""))
        for result in results
        for one in _reported(result)
    )


def _reported(result: Result) -> tuple[Finding, ...]:
    """Return the findings, or a substitute if there is something to report without one."""
    if result.findings or result.status not in _OPEN:
        return result.findings
    return (Finding(result.status, _OPEN[result.status][0], result.because),)


def _command(level: str, file: str | None, one: Finding, said: str) -> str:
    """Return one workflow command, escaped like GitHub's toolkit does, so that the message cannot end it."""
    place = {"file": file and str(_path(file)), "line": one.line if file else None, "title": one.code}
    given = ((key, _escaped(str(value))) for key, value in place.items() if value)
    listed = ",".join(f"{key}={value.replace(':', '%3A').replace(',', '%2C')}" for key, value in given)
    return f"::{level} {listed}::{_escaped(said)}"


def _escaped(said: str) -> str:
    lines = said.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return "%0A".join(sentences.printable(line).replace("%", "%25") for line in lines)


def sarif(results: Sequence[Result]) -> dict[str, Any]:
    """Return a log of the Static Analysis Results Interchange Format, version 2.1.0 (OASIS, 2020), with one run.

    An undecided target is a result of kind "open". A pass or an equivalent target has no result, because GitHub's code
    scanning shows every result as an alert, whatever its kind.
    """
    shown = [(result, one) for result in results if result.status != "equivalent" for one in _reported(result)]
    codes = list(dict.fromkeys(one.code for _, one in shown))
    driver = {"name": "posenc", "version": posenc.__version__, "rules": [_rule(code) for code in codes]}
    found = [{**_sarif_result(result, one), "ruleIndex": codes.index(one.code)} for result, one in shown]
    run = {"tool": {"driver": driver}, "results": found}
    return {"$schema": _SARIF_SCHEMA, "version": "2.1.0", "runs": [run]}


def _rule(code: str) -> dict[str, Any]:
    known = rules.known().get(code)
    title = known.title if known else _OPEN.get(code, ("", code))[1]
    described: dict[str, Any] = {"id": code, "shortDescription": {"text": title}}
    if known:
        links = "".join(f"\n{link}" for link in known.reports)
        described["fullDescription"] = {"text": known.why}
        described["help"] = {"text": f"{known.why}\n\n{known.fix}{links and chr(10) + links}"}
    return described


def _sarif_result(result: Result, one: Finding) -> dict[str, Any]:
    said = one.message + (f"\n{one.fix}" if one.fix else "")
    # levels other than "none" require the kind "fail" (3.27.10), which is the default and left out
    kind = {"level": _SARIF_LEVELS[one.level]} if result.findings else {"kind": "open", "level": "none"}
    where: dict[str, Any] = {"logicalLocations": [{"fullyQualifiedName": result.target}]}
    if result.file is not None:
        region = {"startLine": one.line or 1}
        where["physicalLocation"] = {"artifactLocation": {"uri": _uri(result.file)}, "region": region}
    return {"ruleId": one.code, **kind, "message": {"text": said}, "locations": [where]}


def _uri(file: str) -> str:
    path = _path(file)
    return path.as_uri() if path.is_absolute() else quote(os.fsencode(path.as_posix()))


def _path(file: str) -> Path:
    """Return a path below the working directory as relative, since forges resolve it in the repository; else as is."""
    path = Path(os.path.abspath(file))
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def junit(results: Sequence[Result]) -> str:
    """Return JUnit's XML: one test case for each target, which fails, passes, or is skipped if undecided.

    Characters that XML forbids are spelt out, and those beyond ASCII are references, so the text is valid in any
    encoding.
    """
    failed, skipped = (sum(result.status == status for result in results) for status in ("fail", "cannot_tell"))
    counts = {"tests": str(len(results)), "failures": str(failed), "errors": "0", "skipped": str(skipped)}
    root = ElementTree.Element("testsuites")
    suite = ElementTree.SubElement(root, "testsuite", {"name": "posenc", **counts})
    for result in results:
        name, check = sentences.printable(result.target), f"posenc.{result.check}"
        case = ElementTree.SubElement(suite, "testcase", classname=check, name=name)
        whole = "\n".join(map(sentences.printable, result.text.split("\n")))
        if result.findings:
            first = result.findings[0]
            said = {"type": first.code, "message": sentences.printable(f"{first.code}: {first.message}")}
            ElementTree.SubElement(case, "failure", said).text = whole
        elif result.status == "cannot_tell":
            ElementTree.SubElement(case, "skipped", message=sentences.printable(result.because))
        else:
            ElementTree.SubElement(case, "system-out").text = whole
    ElementTree.indent(root)
    return str(ElementTree.tostring(root, "us-ascii", xml_declaration=True), "us-ascii")


def _text(results: Sequence[Result]) -> str:
    return "\n\n".join(result.text for result in results)


def _json(results: Sequence[Result]) -> Any:
    return results[0].plain if len(results) == 1 else [result.plain for result in results]


_WRITERS: Mapping[str, Callable[[Sequence[Result]], Any]] = {
    "text": _text,
    "json": _json,
    "github": github,
    "sarif": sarif,
    "junit": junit,
}
FORMATS = tuple(_WRITERS)
