"""Advice by scenario, computed from a study's measurements: the best encodings, or that none stands out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .findings import Name, Parts, bits_at, listed, valued
from .measures import Encoding, Measures, Stat, leaders, signed, with_spread

_ONLY: Parts = ("Only one encoding was measured, so there is nothing to compare.",)


@dataclass(frozen=True)
class Advice:
    """The advice for one scenario; `winners` is empty if nothing was measured."""

    kind: str
    scenario: str
    winners: tuple[str, ...]
    number: str
    parts: Parts

    @property
    def text(self) -> str:
        """The sentences as plain text."""
        return "".join(self.parts)


def _pick(kind: str, scenario: str, stats: Mapping[str, Stat], noise: float, number: Callable[[str], str]) -> Advice:
    """Advise the encoding with the lowest value, or all that the numbers do not separate from it."""
    if not stats:
        return Advice(kind, scenario, (), "", ("The study has no measurements for this.",))
    front = leaders(stats, noise)
    others = len(stats) - len(front)
    if len(stats) == 1:
        parts = _ONLY
    elif len(front) > 1:
        parts = ("The numbers do not separate ", *listed((Name(n),) for n in front), ".")
    else:
        second = min((n for n in stats if n != front[0]), key=lambda n: stats[n].mean)
        parts = (f"Better than all {others} others by more than the spread over seeds; next is ", Name(second))
        parts += (f" with {number(second)}.",)
    return Advice(kind, scenario, tuple(front), number(front[0]), parts)


def _fewest(study: Measures) -> Advice:
    """Advise by the number of parameters, which is exact, then by the loss of those with the fewest."""
    scenario = "Fewest parameters"
    counts = {e.name: e.position_parameters for e in study.sound if e.position_parameters is not None}
    if not counts:
        return Advice("parameters", scenario, (), "", ("The study has no measurements for this.",))
    lowest = min(counts.values())
    front = [n for n in counts if counts[n] == lowest]
    number = f"{lowest:,} position parameters"
    if len(counts) == 1:
        return Advice("parameters", scenario, tuple(front), number, _ONLY)
    if len(front) == 1:
        return Advice("parameters", scenario, tuple(front), number, ("All other encodings have more.",))
    parts: Parts = (f"{len(front)} of {len(counts)} encodings have this number.",)
    for length in dict.fromkeys(n for n in (study.base, study.longest) if n):
        stats = {n: s for n, s in bits_at(study, length).items() if n in front}
        if stats:
            best = leaders(stats, study.noise(length))
            parts += (f" Lowest loss among them at {study.times(length)}: ", *valued(stats, best))
            parts += (", not separated." if len(best) > 1 else ".",)
    return Advice("parameters", scenario, tuple(front), number, parts)


def form_advice(run: Mapping[str, Any], cells: Sequence[Mapping[str, Any]], size: str | None = None) -> list[Advice]:
    """Return one piece of advice for each of four scenarios, computed only from the numbers.

    Takes a study's `run` and `cells` as saved, and a size (None: the first). Leaves out encodings with an
    undertrained cell. Raises nothing for missing cells or fields.
    """
    study = Measures(run, cells, size=size)
    by_name: dict[str, Encoding] = {e.name: e for e in study.sound}
    longest = study.longest

    def far(name: str) -> str:
        assert longest is not None  # `far` is called only for lengths that were measured
        bits, change = by_name[name].by_length[longest], by_name[name].change.get(longest)
        moved = f", {signed(change.mean)} from {study.times(study.base)}" if change else ""
        return f"{with_spread(bits)} bits per byte at {study.times(longest)}{moved}"

    near = bits_at(study, study.base)
    steps = {e.name: e.step_ms for e in study.sound if e.step_ms}
    return [
        _pick(
            "long",
            "Train short, serve long",
            bits_at(study, longest) if longest else {},
            study.noise(longest) if longest else 0.0,
            far,
        ),
        _pick(
            "trained",
            "Use only at the trained length",
            near,
            study.noise(study.base),
            lambda n: f"{with_spread(near[n])} bits per byte at {study.times(study.base)}",
        ),
        _pick(
            "step",
            "Cheapest training step",
            steps,
            study.step_noise(),
            lambda n: f"{with_spread(steps[n], 1)} ms per training step",
        ),
        _fewest(study),
    ]
