"""Published outcomes next to a study's measurements; each verdict is computed from pairs of seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from posenc.languages import template, tr

from .intervals import interval
from .measures import TEXT, Measures, plain, signed, tasks_of
from .published import EACH, EVERY, PUBLISHED, Published, Rule

SEEN, CONTRADICTED, CANNOT_TELL = "seen", "contradicted", "cannot tell at this size"
SHOWN = 3  # comparisons listed for one claim


@dataclass(frozen=True)
class Claim:
    """One published outcome, the rule that tests it, our numbers, and the verdict."""

    claim: str
    source: str
    arxiv: str
    rule: str
    measured: str
    verdict: str


@dataclass(frozen=True)
class _Comparison:
    """One number, or paired difference, in words; its verdict; and how far its mean is on the claim's side."""

    words: str
    verdict: str
    margin: float


def _judge(differences: Sequence[float], rule: Rule) -> tuple[str, str]:
    """Return the verdict on paired differences and, if undecided, the reason."""
    sign = 1 if rule.above else -1
    sides = [sign * (value - rule.limit) for value in differences]
    ends = interval(sides)
    if ends is None:
        return CANNOT_TELL, tr("one pair of seeds") if sides else tr("no pair of seeds")
    # with many pairs, the interval can be clear of the limit although a single pair lies across it
    if ends[0] > 0 and min(sides) > 0:
        return SEEN, ""
    if ends[1] < 0 and max(sides) < 0:
        return CONTRADICTED, ""
    return CANNOT_TELL, tr("seeds disagree") if min(sides) < 0 < max(sides) else tr("the interval crosses the limit")


def _on(name: str, task: str) -> str:
    return tr("{name} on {task}", name=name, task=task)


def _lack(study: Measures | None, name: str, task: str, rule: Rule) -> tuple[str, str] | None:
    """Return why an encoding's number cannot be used, and the encoding's name; None if it can."""
    who = name if task == TEXT else _on(name, task)
    if study is None or name not in study.encodings:
        return tr("not run"), f"…{task}" if name == EACH else who if study else task
    # on a task, the score at the trained length itself measures the training, so it is not excluded
    if study.encodings[name].undertrained and (task == TEXT or rule.at != "trained"):
        return tr("undertrained"), who
    if study.by_seed(name, rule.at):
        return None
    if rule.at == "trained":
        return tr("not measured at the trained length"), who
    return tr("not measured past the trained length"), who


def _compare(study: Measures, name: str, bare: Measures, other: str, rule: Rule) -> _Comparison:
    """Compare an encoding with another over the seeds that both have, or with the limit only."""
    values = study.by_seed(name, rule.at)
    rivals = bare.by_seed(other, rule.at) if other else dict.fromkeys(values, 0.0)
    differences = [values[seed] - rivals[seed] for seed in values if seed in rivals]
    verdict, why = _judge(differences, rule)
    words = f"{name} − {other}" if other else name
    if other and study.task != bare.task:
        words = f"{_on(name, study.task)} − {_on(other, bare.task)}"
    margin = 0.0
    if differences:
        mean, ends = fmean(differences), interval(differences)
        digits = signed if other or rule.at in ("change", "worst") else plain
        words += f" {digits(mean)}"
        if ends:
            words = tr("{mean} ({low} to {high})", mean=words, low=digits(ends[0]), high=digits(ends[1]))
        margin = (mean - rule.limit) * (1 if rule.above else -1)
    return _Comparison(tr("{mean}, {reason}", mean=words, reason=why) if why else words, verdict, margin)


def _expand(row: Published, studies: Mapping[str, Measures]) -> list[Published]:
    """Return, for a row of EACH, a row for each encoding that was run with and without its variant; else the row."""
    found = []
    for label in (label for label in studies if row.who == EACH and label.endswith(row.task)):
        stem = label.removesuffix(row.task)
        for name in studies[label].encodings if stem in studies else ():
            claim = tr("{claim}: {name} on {task}", claim=row.claim, name=name, task=stem)
            found.append(replace(row, claim=claim, who=name, task=label, than=(name,), plain=stem))
    return found or [row]


def _lacks(sides: Sequence[tuple[Measures | None, str, str]], rule: Rule) -> str:
    """Describe what is missing on these sides of comparisons (study, encoding, task)."""
    reasons: dict[str, dict[str, None]] = {}
    for study, name, task in sides:
        if lack := _lack(study, name, task, rule):
            reasons.setdefault(lack[0], {})[lack[1]] = None
    reaches = {(study.base, study.longest) for study, _, _ in sides if study}
    if not reasons and len(reaches) > 1:
        return tr("not tested at the same lengths")
    return tr("; ").join(
        tr("{reason}: {names}", reason=why, names=tr(", ").join(whose)) for why, whose in reasons.items()
    )


def _summed(found: list[_Comparison], study: Measures, rule: Rule) -> tuple[str, str]:
    """Return the least favourable comparisons of a claim in words, and the verdict on all of them."""
    found = sorted(found, key=lambda comparison: comparison.margin)
    verdicts = {comparison.verdict for comparison in found}
    words = [comparison.words for comparison in found[:SHOWN]]
    if len(found) > SHOWN:
        words.append(tr("and {count} more", count=len(found) - SHOWN))
    if rule.at == "worst":
        words.append(tr("at the worst longer length"))
    elif rule.at != "trained":
        words.append(tr("at {length}", length=study.times(study.longest or 0)))
    return tr("; ").join(
        words
    ), CONTRADICTED if CONTRADICTED in verdicts else CANNOT_TELL if CANNOT_TELL in verdicts else SEEN


def _weigh(row: Published, studies: Mapping[str, Measures]) -> Claim:
    """Return a claim with its verdict: seen if every comparison is, contradicted if one is."""
    task = row.plain or row.task.split("@")[0]
    study, bare = studies.get(row.task), studies.get(task)
    sound = [e.name for e in study.sound] if study else []
    names = sound if row.who == EVERY and study else [row.who]
    others = [n for n in sound if n != row.who] if row.than == (EVERY,) else list(row.than)
    measured, verdict = _lacks([(study, n, row.task) for n in names] + [(bare, n, task) for n in others], row.rule), ""
    if study and bare and not measured:
        if names and (others or not row.than):
            found = [_compare(study, name, bare, other, row.rule) for name in names for other in others or [""]]
            measured, verdict = _summed(found, study, row.rule)
        weak = [e.name for e in study.encodings.values() if e.undertrained and e.name not in sound]
        if weak and EVERY in (row.who, *row.than):
            left_out = tr("left out as undertrained: {names}", names=tr(", ").join(weak))
            measured = tr("; ").join(filter(None, (measured, left_out)))
    measured = measured or tr("no other encoding to compare")
    return Claim(row.claim, row.source, row.arxiv, _rule(row), measured, verdict or CANNOT_TELL)


def _rule(row: Published) -> str:
    """Return a claim's rule in words, such as "difference in the loss at the trained length below 0.00"."""
    measure = tr("loss") if row.task == TEXT else tr("share of exact lines")
    number = {
        "trained": tr("{measure} at the trained length", measure=measure),
        "longest": tr("{measure} at the longest length", measure=measure),
        "change": tr("change of the {measure} to the longest length", measure=measure),
        "worst": tr("change of the {measure} to every longer length", measure=measure),
    }[row.rule.at]
    if row.than or row.who == EACH:
        number = tr("difference in the {number}", number=number)
    limit = f"{row.rule.limit:.2f}"
    if row.rule.above:
        return tr("{number} above {limit}", number=number, limit=limit)
    return tr("{number} below {limit}", number=number, limit=limit)


def weigh_claims(run: Mapping[str, Any], cells: Sequence[Mapping[str, Any]], size: str | None = None) -> list[Claim]:
    """Return every published outcome with our numbers and a verdict; raises nothing for missing data.

    Args:
        run: The record of a study.
        cells: All cells, as saved.
        size: The size of the models; None for the first size. The verdict is CANNOT_TELL if something was not run,
            is undertrained or has fewer than two pairs of seeds, or if seeds or the interval do not decide.
    """
    studies = {task: Measures(run, cells, task, size) for task in tasks_of(run, cells)}
    outcomes = [replace(row, claim=template(row.claim), source=template(row.source)) for row in PUBLISHED]
    return [_weigh(row, studies) for outcome in outcomes for row in _expand(outcome, studies)]
