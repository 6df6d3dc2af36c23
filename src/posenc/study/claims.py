"""Published outcomes set beside what a study measured; each verdict is computed, none is assumed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .measures import BREAK, FLAT, Measures, Stat, leaders, plain, signed, tied, with_spread

SEEN, NOT_SEEN, CANNOT_TELL = "seen", "not seen", "cannot tell"
NEAR = 0.10  # bits per byte: two encodings this close at a length are called near each other


@dataclass(frozen=True)
class Claim:
    """One published outcome, the rule it is tested by, our number, and the verdict."""

    encodings: tuple[str, ...]
    claim: str
    source: str
    arxiv: str
    rule: str
    measured: str
    verdict: str


_Test = Callable[[Measures], tuple[str, bool | None]]


def _reason(study: Measures, names: Sequence[str]) -> str:
    """Return why a claim about these encodings cannot be tested, or an empty string where it can."""
    absent = [n for n in names if n not in study.encodings]
    if absent:
        return f"{', '.join(absent)} not run"
    undertrained = [n for n in names if study.encodings[n].undertrained]
    if undertrained:
        return f"{', '.join(undertrained)} undertrained"
    short = [n for n in names if study.base not in study.encodings[n].by_length]
    return f"{', '.join(short)} not measured at the trained length" if short else ""


def _change(study: Measures, name: str) -> tuple[str, Stat | None]:
    """Return the change at the longest length in words, and over seeds where it was measured."""
    longest = study.longest
    stat = study.encodings[name].change.get(longest) if longest else None
    if stat is None or longest is None:
        return f"{name} not measured past the trained length", None
    return f"{name} {with_spread(stat, sign=True)} at {study.times(longest)}", stat


def _agreed(text: str, holds: Sequence[bool]) -> tuple[str, bool | None]:
    """Return an outcome that all seeds share; where they disagree it is open, and the text says so."""
    if any(holds) and not all(holds):
        return f"{text}; seeds disagree", None
    return text, all(holds)


def _stays(name: str) -> _Test:
    """Test that the loss at no longer length is more than FLAT above that at the trained length."""

    def test(study: Measures) -> tuple[str, bool | None]:
        text, change = _change(study, name)
        past = {n: stat for n, stat in study.encodings[name].change.items() if n > study.base}
        if change is None or not past:
            return text, None
        worst = max(past, key=lambda n: past[n].mean)
        if worst != study.longest:
            text += f", at worst {signed(past[worst].mean)} at {study.times(worst)}"
        return _agreed(text, [value <= FLAT for value in past[worst].values])

    return test


def _breaks(name: str) -> _Test:
    """Test that the loss at the longest length is more than BREAK above that at the trained length."""

    def test(study: Measures) -> tuple[str, bool | None]:
        text, change = _change(study, name)
        return (text, None) if change is None else _agreed(text, [value > BREAK for value in change.values])

    return test


def _near(name: str, other: str) -> _Test:
    """Test that one encoding's loss at the longest length is no more than NEAR above another's."""

    def test(study: Measures) -> tuple[str, bool | None]:
        length = study.longest
        one, two = (study.encodings[n].by_length.get(length) if length else None for n in (name, other))
        if one is None or two is None or length is None:
            return "not measured past the trained length", None
        gap = one.mean - two.mean
        text = f"{name} {plain(one.mean)}, {other} {plain(two.mean)} at {study.times(length)}"
        text += f" (difference {signed(gap)})"
        if gap > NEAR and tied(one, two, study.noise(length)):
            return f"{text}; not separated", None
        return text, gap <= NEAR

    return test


def _best_inside(name: str) -> _Test:
    """Test that the loss at the trained length is the lowest, by more than seeds differ."""

    def test(study: Measures) -> tuple[str, bool | None]:
        stats = {e.name: e.by_length[study.base] for e in study.sound}
        text = f"{name} {with_spread(stats[name])} at {study.times(study.base)}"
        if len(stats) < 2:
            return f"{text}, nothing to compare with", None
        front = leaders(stats, study.noise(study.base))
        rival = min((n for n in stats if n != name), key=lambda n: stats[n].mean)
        text += f"; lowest other is {rival} {plain(stats[rival].mean)}"
        if name in front and len(front) > 1:
            return f"{text}; not separated", None
        return text, name in front

    return test


def _less_than_each(text: str, mine: Stat, rest: Sequence[Stat], noise: float) -> tuple[str, bool | None]:
    """Return whether one quantity is below each of the others, by more than seeds differ; open where it ties."""
    if any(mine.mean > stat.mean and not tied(mine, stat, noise) for stat in rest):
        return text, False
    if any(tied(mine, stat, noise) for stat in rest):
        return f"{text}; not separated", None
    return text, True


def _ahead_inside(name: str, others: Sequence[str]) -> _Test:
    """Test that the loss at the trained length is below that of each of the others, by more than seeds differ."""

    def test(study: Measures) -> tuple[str, bool | None]:
        mine, *rest = (study.encodings[n].by_length[study.base] for n in (name, *others))
        values = zip((name, *others), (mine, *rest), strict=True)
        text = ", ".join(f"{n} {with_spread(stat)}" for n, stat in values) + f" at {study.times(study.base)}"
        return _less_than_each(text, mine, rest, study.noise(study.base))

    return test


def _loses_less(name: str, others: Sequence[str]) -> _Test:
    """Test that one encoding loses less by the longest length than each of the others, beyond the spread."""

    def test(study: Measures) -> tuple[str, bool | None]:
        found = [_change(study, n) for n in (name, *others)]
        text = "; ".join(words for words, _ in found)
        stats = [stat for _, stat in found if stat is not None]
        if len(stats) < len(found) or study.longest is None:
            return text, None
        mine, *rest = stats
        return _less_than_each(text, mine, rest, study.change_noise(study.longest))

    return test


_WORSE = f"change at the longest length above +{BREAK:.2f}"
_LESS = "smaller change at the longest length than each, beyond the spread"

# what is published: encodings, claim, source, arXiv id, rule in words, test
_CLAIMS: tuple[tuple[tuple[str, ...], str, str, str, str, _Test], ...] = (
    (
        ("alibi",),
        "ALiBi stays about flat past the trained length",
        "Press et al. 2021",
        "2108.12409",
        f"change at every longer length at most +{FLAT:.2f}",
        _stays("alibi"),
    ),
    (
        ("kerple", "alibi"),
        "KERPLE extrapolates about as well as ALiBi, or better",
        "Chi et al. 2022",
        "2205.09921",
        f"loss at the longest length at most {NEAR:.2f} above ALiBi's",
        _near("kerple", "alibi"),
    ),
    (
        ("sinusoidal",),
        "Sinusoidal breaks past the trained length",
        "Press et al. 2021",
        "2108.12409",
        _WORSE,
        _breaks("sinusoidal"),
    ),
    (
        ("learned",),
        "Learned positions break past the trained length: those rows were never trained",
        "follows from the method; Vaswani et al. 2017 chose sinusoids for this reason",
        "1706.03762",
        _WORSE,
        _breaks("learned"),
    ),
    (
        ("rope", "sinusoidal", "learned"),
        "RoPE is ahead of absolute encodings inside the trained length",
        "Su et al. 2021",
        "2104.09864",
        "lower loss at the trained length than each, beyond the spread",
        _ahead_inside("rope", ("sinusoidal", "learned")),
    ),
    (
        ("rope",),
        "RoPE is the best of all inside the trained length",
        "often said; Su et al. 2021 compare absolute encodings only",
        "2104.09864",
        "lowest loss at the trained length, beyond the spread",
        _best_inside("rope"),
    ),
    (
        ("rope",),
        "RoPE is much worse beyond the trained length",
        "Press et al. 2021; Chen et al. 2023",
        "2306.15595",
        _WORSE,
        _breaks("rope"),
    ),
    (
        ("xpos", "rope"),
        "xPos loses less than RoPE beyond the trained length",
        "Sun et al. 2022",
        "2212.10554",
        _LESS,
        _loses_less("xpos", ("rope",)),
    ),
    (
        ("t5", "sinusoidal", "rope"),
        "The T5 bias loses less than sinusoidal and RoPE beyond the trained length",
        "Press et al. 2021",
        "2108.12409",
        _LESS,
        _loses_less("t5", ("sinusoidal", "rope")),
    ),
)


def weigh_claims(run: Mapping[str, Any], cells: Sequence[Mapping[str, Any]]) -> list[Claim]:
    """Return every published outcome with our measured number and a verdict.

    Takes a study's `run` and `cells` as saved. The verdict is SEEN or NOT_SEEN, or CANNOT_TELL where an
    encoding was not run, is undertrained, or was not measured where the claim speaks, and where seeds
    disagree or do not separate what the claim compares. Raises nothing.
    """
    study = Measures(run, cells)
    weighed = []
    for names, claim, source, arxiv, rule, test in _CLAIMS:
        measured, outcome = _reason(study, names), None
        if not measured:
            measured, outcome = test(study)
        verdict = CANNOT_TELL if outcome is None else SEEN if outcome else NOT_SEEN
        weighed.append(Claim(names, claim, source, arxiv, rule, measured, verdict))
    return weighed
