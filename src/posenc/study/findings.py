"""Sentences computed from a study's measurements.

Pure functions of `run` and `cells`. The numbers and their spread over seeds decide which encodings a sentence
names and whether it claims a difference; only `nope`, the reference of step times, is fixed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from posenc.languages import tr

from .measures import (
    FLAT,
    Encoding,
    Measures,
    Stat,
    leaders,
    plain,
    tied,
    with_spread,
)
from .sentences import Name, Parts, listed, said


@dataclass(frozen=True)
class Finding:
    """One finding: a short `lead` and the `parts` of its sentences (names of encodings are `Name`)."""

    kind: str
    lead: str
    parts: Parts

    @property
    def text(self) -> str:
        """The sentences as plain text."""
        return "".join(self.parts)


def valued(stats: Mapping[str, Stat], names: Iterable[str], unit: str = "") -> Parts:
    """List names, each with its value and spread in brackets."""
    return listed(said("{name} ({value})", name=Name(n), value=with_spread(stats[n], unit=unit)) for n in names)


def bits_at(study: Measures, length: int) -> dict[str, Stat]:
    """Return the loss of every sound encoding measured at `length`."""
    return {e.name: e.by_length[length] for e in study.sound if length in e.by_length}


def _best(study: Measures, length: int, place: str) -> Finding | None:
    """Report the encoding with the lowest loss at a length, and those not separated from it."""
    stats = bits_at(study, length)
    if not stats:
        return None
    noise = study.noise(length)
    front = leaders(stats, noise)
    first, rest = front[0], front[1:]
    value = with_spread(stats[first])
    lead = tr("Best at {length}", length=study.times(length))
    if len(stats) == 1:
        lead = tr("Loss at {length}", length=study.times(length))
        parts = said(
            "{first} has a loss of {value} bits per byte; there is no other encoding to compare.",
            first=Name(first),
            value=value,
        )
    elif rest:
        parts = said(
            "{first} has the lowest mean, {value} bits per byte, but is not separated from {rest}.",
            first=Name(first),
            value=value,
            rest=valued(stats, rest),
        )
    else:
        second = min((n for n in stats if n != first), key=lambda n: stats[n].mean)
        parts = said(
            "{first} has the lowest loss: {value} bits per byte. Next is {second}, {gap} higher, which is more than "
            "{noise}.",
            first=Name(first),
            value=value,
            second=valued(stats, [second]),
            gap=plain(stats[second].mean - stats[first].mean),
            noise=tr("the spread over seeds") if study.seed_count > 1 else tr("twice the standard error"),
        )
    where = said("With {length} bytes of context, {place}, {clause}", length=f"{length:,}", place=place, clause=parts)
    return Finding("best_base" if length == study.base else "best_longest", lead, where)


def _gains(study: Measures) -> Finding | None:
    """List the encodings whose loss falls with context beyond the trained length."""
    past = [length for length in study.lengths if length > study.base]
    found: list[Parts] = []
    for encoding in study.sound:
        changes = {length: encoding.change[length] for length in past if length in encoding.change}
        if not changes:
            continue
        best = min(changes, key=lambda length: changes[length].mean)
        change = changes[best]
        seen = -change.mean > max(FLAT, change.spread, study.change_noise(best))
        if seen:
            shown = {"change": with_spread(change, sign=True), "length": study.times(best)}
            found.append(said("{name} ({change} at {length})", name=Name(encoding.name), **shown))
    if found:
        parts = said("Context beyond the trained length lowers the loss of {names}.", names=listed(found))
    elif study.longest is not None:
        parts = said(
            "With context beyond the trained length, no encoding's loss falls by more than {flat} bits per byte and "
            "by more than the spread over seeds.",
            flat=str(FLAT),
        )
    else:
        return None
    return Finding("gains", tr("Gains from more context"), parts)


def _rank(study: Measures, longest: int) -> Finding | None:
    """Report the encoding that falls the most ranks between the trained and the longest length."""
    before, after = bits_at(study, study.base), bits_at(study, longest)
    shared = [n for n in before if n in after]
    if len(shared) < 3:
        return None
    places = [{n: sorted(shared, key=lambda m: s[m].mean).index(n) + 1 for n in shared} for s in (before, after)]
    name = max(shared, key=lambda n: places[1][n] - places[0][n])
    fall = places[1][name] - places[0][name]
    overtakers = [n for n in shared if places[0][n] > places[0][name] and places[1][n] < places[1][name]]
    beaten = [n for n in overtakers if not tied(after[n], after[name], study.noise(longest))]
    if fall < 2 or not beaten:
        return None
    parts = said(
        "The ranking at the trained length does not hold at longer ones: {name} falls from rank {before} of {count} at "
        "{near} to rank {after} at {far}, the largest drop.",
        name=Name(name),
        before=str(places[0][name]),
        count=str(len(shared)),
        near=study.times(study.base),
        after=str(places[1][name]),
        far=study.times(longest),
    )
    return Finding("rank", tr("Ranking changes"), parts)


def _cost(study: Measures) -> Finding | None:
    """Report the cost of a step relative to the reference, and the encodings that seeds do not separate from it."""
    reference = study.reference()
    timed = [e for e in study.sound if e.step_ms and reference and e.name != reference.name]
    if not (reference and reference.step_ms and timed):
        return None
    parts = said(
        "A training step with {name} takes {value} ms on this machine.",
        name=Name(reference.name),
        value=with_spread(reference.step_ms, 1),
    )
    same: list[Encoding] = []
    apart: list[Encoding] = []
    for encoding in sorted(timed, key=lambda e: e.step_ms.mean if e.step_ms else 0.0):
        close = encoding.step_ms and tied(encoding.step_ms, reference.step_ms, study.step_noise())
        (same if close else apart).append(encoding)
    ratios = {e.name: r for e in timed if (r := study.ratio(e))}
    if cheaper := [e.name for e in apart if ratios[e.name].mean < 1]:
        parts += said(" Cheaper: {names}.", names=_ends(ratios, cheaper))
    if dearer := [e.name for e in apart if ratios[e.name].mean >= 1]:
        parts += said(" More expensive: {names}.", names=_ends(ratios, dearer))
    if same:
        parts += said(" Not separated from it: {names}.", names=listed((Name(e.name),) for e in same))
    return Finding("cost", tr("Cost of a step"), parts)


def _ends(ratios: Mapping[str, Stat], names: Sequence[str]) -> Parts:
    """List up to four names with their ratios; of more, the first and the last."""
    if len(names) <= 4:
        return valued(ratios, names, unit="×")
    first, last = (valued(ratios, [name], unit="×") for name in (names[0], names[-1]))
    return said("{count} encodings, from {first} to {last}", count=str(len(names)), first=first, last=last)


def form_findings(run: Mapping[str, Any], cells: Sequence[Mapping[str, Any]], size: str | None = None) -> list[Finding]:
    """Return the findings that the numbers support, in reading order.

    Takes a study's `run` and `cells` as saved, and a size (None: the first). Leaves out encodings with an
    undertrained cell. Returns an empty list if nothing was measured; raises nothing for missing cells or fields.
    """
    study = Measures(run, cells, size=size)
    if not study.sound:
        return []
    longest = study.longest
    found = [_best(study, study.base, tr("the trained length"))]
    if longest is not None:
        found += [_best(study, longest, tr("the longest tested")), _rank(study, longest), _gains(study)]
    found.append(_cost(study))
    return [finding for finding in found if finding]
