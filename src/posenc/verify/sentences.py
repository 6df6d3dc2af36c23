"""A verdict as a report: the only place where codes and numbers become sentences."""

from collections.abc import Mapping
from typing import Any

from posenc.verify import rules
from posenc.verify.engine.records import Fault, Verdict
from posenc.verify.report import Cause, Report


def report(verdict: Verdict, convention: str, definition: str) -> Report:
    """Return the report of a verdict.

    Args:
        verdict: What the engine found.
        convention: How the subject was called.
        definition: What it was compared with.
    """
    return Report(
        verdict.status,
        convention,
        tuple(_cause(fault, verdict) for fault in verdict.faults),
        verdict.because,
        (definition,),
        verdict.measured,
        tuple(dict.fromkeys(verdict.not_judged)),
    )


def _cause(fault: Fault, verdict: Verdict) -> Cause:
    """Return one fault in words."""
    rule = rules.find(fault.code)
    message = message_of(rule, fault)
    case = verdict.case if fault is verdict.faults[0] else dict(fault.case)
    found = {name: case[name] for name in ("found", "expected") if name in case}
    if found and "message" not in fault.values:
        message += "; " + ", ".join(f"{name} {_short(value)}" for name, value in found.items())
    help_ = fault.values.get("fix") or filled(rule.fix, fault.values) or rule.fix
    return Cause(fault.code, message, float(fault.values.get("evidence", verdict.evidence)), case, help_)


def message_of(rule: rules.Rule, fault: Fault) -> str:
    """Return what a finding says: the fault's own message, the rule's with its slots filled, or the title."""
    own = fault.values.get("message")
    said = str(own) if own else filled(rule.says, fault.values)
    return said or fault.values.get("words") or rule.title


def filled(template: str, values: Mapping[str, Any]) -> str:
    """Return a sentence with its slots filled; nothing where a value is missing.

    >>> filled("the base is {base:g}; it should be {asked:g}", {"base": 1e4, "asked": 5e5})
    'the base is 10000; it should be 500000'
    """
    try:
        return template.format(**values) if "{" in template else template
    except (KeyError, ValueError):
        return ""


def _short(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
