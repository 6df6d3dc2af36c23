"""Advice by scenario, computed from a study's measurements: the best encodings, or that none stands out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from posenc.languages import tr

from .findings import bits_at, valued
from .measures import Encoding, Measures, Stat, leaders, signed, with_spread
from .sentences import Name, Parts, listed, said


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
        return Advice(kind, scenario, (), "", said("The study has no measurements for this."))
    front = leaders(stats, noise)
    if len(stats) == 1:
        parts = _only()
    elif len(front) > 1:
        parts = said("The numbers do not separate {names}.", names=listed((Name(n),) for n in front))
    else:
        second = min((n for n in stats if n != front[0]), key=lambda n: stats[n].mean)
        parts = said(
            "Better than every other encoding ({count}) by more than the spread over seeds; next is {second} with "
            "{value}.",
            count=str(len(stats) - len(front)),
            second=Name(second),
            value=number(second),
        )
    return Advice(kind, scenario, tuple(front), number(front[0]), parts)


def _only() -> Parts:
    return said("Only one encoding was measured, so there is nothing to compare.")


def _fewest(study: Measures) -> Advice:
    """Advise by the number of parameters, which is exact, then by the loss of those with the fewest."""
    scenario = tr("Fewest parameters")
    counts = {e.name: e.position_parameters for e in study.sound if e.position_parameters is not None}
    if not counts:
        return Advice("parameters", scenario, (), "", said("The study has no measurements for this."))
    lowest = min(counts.values())
    front = [n for n in counts if counts[n] == lowest]
    number = tr("{count} position parameters", count=f"{lowest:,}")
    if len(counts) == 1:
        return Advice("parameters", scenario, tuple(front), number, _only())
    if len(front) == 1:
        return Advice("parameters", scenario, tuple(front), number, said("All other encodings have more."))
    some, every = str(len(front)), str(len(counts))
    parts = said("{count} of {all} encodings have this number.", count=some, all=every)
    for length in dict.fromkeys(n for n in (study.base, study.longest) if n):
        stats = {n: s for n, s in bits_at(study, length).items() if n in front}
        if stats:
            best = leaders(stats, study.noise(length))
            at, names = study.times(length), valued(stats, best)
            if len(best) > 1:
                parts += said(" Lowest loss among them at {length}: {names}, not separated.", length=at, names=names)
            else:
                parts += said(" Lowest loss among them at {length}: {name}.", length=at, name=names)
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
        loss = tr("{value} bits per byte at {length}", value=with_spread(bits), length=study.times(longest))
        if not change:
            return loss
        near, moved = study.times(study.base), signed(change.mean)
        return tr("{loss}, {change} from {length}", loss=loss, change=moved, length=near)

    near = bits_at(study, study.base)
    steps = {e.name: e.step_ms for e in study.sound if e.step_ms}
    return [
        _pick(
            "long",
            tr("Train short, serve long"),
            bits_at(study, longest) if longest else {},
            study.noise(longest) if longest else 0.0,
            far,
        ),
        _pick(
            "trained",
            tr("Use only at the trained length"),
            near,
            study.noise(study.base),
            lambda n: tr(
                "{value} bits per byte at {length}", value=with_spread(near[n]), length=study.times(study.base)
            ),
        ),
        _pick(
            "step",
            tr("Cheapest training step"),
            steps,
            study.step_noise(),
            lambda n: tr("{value} ms per training step", value=with_spread(steps[n], 1)),
        ),
        _fewest(study),
    ]
