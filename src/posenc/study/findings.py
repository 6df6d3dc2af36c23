"""Sentences computed from a study's measurements.

Pure functions of `run` and `cells`. The numbers and their spread over seeds decide which encodings a sentence
names and whether it claims a difference; only `nope`, the reference of step times, is fixed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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


class Name(str):
    """The name of an encoding within a sentence, so that a page can format it."""


Parts = tuple[str, ...]


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


def listed(items: Iterable[Parts]) -> Parts:
    """Join sentence parts as in "a, b and c"."""
    found = list(items)
    joined: list[str] = []
    for place, parts in enumerate(found):
        joined += [] if place == 0 else [" and "] if place == len(found) - 1 else [", "]
        joined += parts
    return tuple(joined)


def valued(stats: Mapping[str, Stat], names: Iterable[str], sign: bool = False, unit: str = "") -> Parts:
    """List names, each with its value and spread in brackets."""
    return listed((Name(n), f" ({with_spread(stats[n], sign=sign, unit=unit)})") for n in names)


def bits_at(study: Measures, length: int) -> dict[str, Stat]:
    """Return the loss of every sound encoding measured at `length`."""
    return {e.name: e.by_length[length] for e in study.sound if length in e.by_length}


def _bytes(length: int) -> str:
    return f"{length:,} bytes"


def _best(study: Measures, length: int, place: str) -> Finding | None:
    """Report the encoding with the lowest loss at a length, and those not separated from it."""
    stats = bits_at(study, length)
    if not stats:
        return None
    noise = study.noise(length)
    front = leaders(stats, noise)
    first, rest = front[0], front[1:]
    parts: Parts = (f"With {_bytes(length)} of context, {place}, ", Name(first))
    value = f"{with_spread(stats[first])} bits per byte"
    if len(stats) == 1:
        parts += (f" has a loss of {value}; there is no other encoding to compare.",)
    elif rest:
        parts += (f" has the lowest mean, {value}, but is not separated from ", *valued(stats, rest))
        parts += (".",)
    else:
        second = min((n for n in stats if n != first), key=lambda n: stats[n].mean)
        gap = plain(stats[second].mean - stats[first].mean)
        parts += (f" has the lowest loss: {value}. Next is ", *valued(stats, [second]))
        noise_is = "the spread over seeds" if study.seed_count > 1 else "twice the standard error"
        parts += (f", {gap} higher, which is more than {noise_is}.",)
    lead = f"Best at {study.times(length)}" if len(stats) > 1 else f"Loss at {study.times(length)}"
    return Finding("best_base" if length == study.base else "best_longest", lead, parts)


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
            found.append((Name(encoding.name), f" ({with_spread(change, sign=True)} at {study.times(best)})"))
    if found:
        parts: Parts = ("Context beyond the trained length lowers the loss of ", *listed(found), ".")
    elif study.longest is not None:
        parts = (
            f"With context beyond the trained length, no encoding's loss falls by more than {FLAT} bits per byte and "
            "by more than the spread over seeds.",
        )
    else:
        return None
    return Finding("gains", "Gains from more context", parts)


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
    parts: Parts = ("The ranking at the trained length does not hold at longer ones: ", Name(name))
    parts += (f" falls from rank {places[0][name]} of {len(shared)} at {study.times(study.base)}",)
    parts += (f" to rank {places[1][name]} at {study.times(longest)}, the largest drop.",)
    return Finding("rank", "Ranking changes", parts)


def _cost(study: Measures) -> Finding | None:
    """Report the cost of a step relative to the reference, and the encodings that seeds do not separate from it."""
    reference = study.reference()
    timed = [e for e in study.sound if e.step_ms and reference and e.name != reference.name]
    if not (reference and reference.step_ms and timed):
        return None
    parts: Parts = ("A training step with ", Name(reference.name))
    parts += (f" takes {with_spread(reference.step_ms, 1)} ms on this machine.",)
    same: list[Encoding] = []
    apart: list[Encoding] = []
    for encoding in sorted(timed, key=lambda e: e.step_ms.mean if e.step_ms else 0.0):
        close = encoding.step_ms and tied(encoding.step_ms, reference.step_ms, study.step_noise())
        (same if close else apart).append(encoding)
    ratios = {e.name: r for e in timed if (r := study.ratio(e))}
    for word, group in (
        ("Cheaper", [e for e in apart if ratios[e.name].mean < 1]),
        ("More expensive", [e for e in apart if ratios[e.name].mean >= 1]),
    ):
        if len(group) > 4:
            ends = [valued(ratios, [e.name], unit="×") for e in (group[0], group[-1])]
            parts += (f" {word}: {len(group)} encodings, from ", *ends[0], " to ", *ends[1], ".")
        elif group:
            parts += (f" {word}: ", *valued(ratios, [e.name for e in group], unit="×"), ".")
    if same:
        parts += (" Not separated from it: ", *listed((Name(e.name),) for e in same), ".")
    return Finding("cost", "Cost of a step", parts)


def form_findings(run: Mapping[str, Any], cells: Sequence[Mapping[str, Any]], size: str | None = None) -> list[Finding]:
    """Return the findings that the numbers support, in reading order.

    Takes a study's `run` and `cells` as saved, and a size (None: the first). Leaves out encodings with an
    undertrained cell. Returns an empty list if nothing was measured; raises nothing for missing cells or fields.
    """
    study = Measures(run, cells, size=size)
    if not study.sound:
        return []
    longest = study.longest
    found = [_best(study, study.base, "the trained length")]
    if longest is not None:
        found += [_best(study, longest, "the longest tested"), _rank(study, longest), _gains(study)]
    found.append(_cost(study))
    return [finding for finding in found if finding]
