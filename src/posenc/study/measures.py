"""What a study measured, per encoding, with the spread over seeds; shared by findings, claims and the page.

Everything is computed from the plain `run` and `cells` data of a study, which may be incomplete: cells can be
missing after an interruption, and a value that is absent or not finite counts as not measured.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any

FLAT = 0.05  # bits per byte: a change up to this, in every seed, is called flat
BREAK = 0.30  # bits per byte: a loss beyond this is called a break
UNKNOWN_NOISE = 0.05  # bits per byte, when neither a second seed nor a standard error says anything
UNKNOWN_STEP_NOISE = 0.05  # share of a step's time, when there is only one seed


def number(value: object) -> float | None:
    """Return `value` as a finite float, or None where it is absent or not finite."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if math.isfinite(value) else None


@dataclass(frozen=True)
class Stat:
    """One quantity over the seeds of an encoding; `values` holds at least one finite number."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """The mean over seeds."""
        return fmean(self.values)

    @property
    def spread(self) -> float:
        """The range over seeds, highest less lowest; 0 for a single seed."""
        return max(self.values) - min(self.values)


@dataclass(frozen=True)
class Encoding:
    """The measurements of one encoding; dictionaries are keyed by test length."""

    name: str
    cells: tuple[Mapping[str, Any], ...]
    bits: Mapping[int, Stat] = field(default_factory=dict)
    change: Mapping[int, Stat] = field(default_factory=dict)
    stderr: Mapping[int, float] = field(default_factory=dict)
    step_ms: Stat | None = None
    peak_mib: Stat | None = None
    position_parameters: int | None = None
    parameters: int | None = None
    undertrained: bool = False


def _by_length(cell: Mapping[str, Any], key: str) -> dict[int, float]:
    """Return the finite entries of a cell's length table under integer keys, shortest first."""
    table = {int(length): number(value) for length, value in (cell.get(key) or {}).items()}
    return {length: value for length, value in sorted(table.items()) if value is not None}


def _gather(tables: Iterable[Mapping[int, float]]) -> dict[int, Stat]:
    """Join one table per seed into one Stat per length."""
    values: dict[int, list[float]] = {}
    for table in tables:
        for length, value in table.items():
            values.setdefault(length, []).append(value)
    return {length: Stat(tuple(found)) for length, found in sorted(values.items())}


def _stat(cells: Sequence[Mapping[str, Any]], key: str) -> Stat | None:
    found = [value for cell in cells if (value := number(cell.get(key))) is not None]
    return Stat(tuple(found)) if found else None


def _whole(cells: Sequence[Mapping[str, Any]], key: str) -> int | None:
    stat = _stat(cells, key)
    return round(stat.mean) if stat else None


def _encoding(name: str, cells: Sequence[Mapping[str, Any]], base: int) -> Encoding:
    """Measure one encoding; changes pair each length with the same seed's own loss at `base`."""
    tables = [_by_length(cell, "bits_by_length") for cell in cells]
    changes = [
        {length: bits - table[base] for length, bits in table.items() if length != base}
        for table in tables
        if base in table
    ]
    errors = _gather(_by_length(cell, "bits_by_length_stderr") for cell in cells)
    return Encoding(
        name=name,
        cells=tuple(sorted(cells, key=lambda cell: cell.get("seed", 0))),
        bits=_gather(tables),
        change=_gather(changes),
        stderr={length: stat.mean for length, stat in errors.items()},
        step_ms=_stat(cells, "step_ms"),
        peak_mib=_stat(cells, "peak_mib"),
        position_parameters=_whole(cells, "position_parameters"),
        parameters=_whole(cells, "parameters"),
        undertrained=any(bool(cell.get("undertrained")) for cell in cells),
    )


class Measures:
    """All measurements of a study.

    Attributes:
        names: the encodings asked for, in the study's order, then any others that have cells.
        base: the trained length, against which changes are taken.
        lengths: every test length asked for or measured, shortest first.
        encodings: those that have at least one cell, by name.
        sound: those of them that findings may speak of (trained far enough, and measured at `base`).
    """

    def __init__(self, run: Mapping[str, Any], cells: Sequence[Mapping[str, Any]]) -> None:
        """Take a study's `run` and `cells` as they were saved; neither is changed."""
        config = run.get("config") or {}
        grouped: dict[str, list[Mapping[str, Any]]] = {}
        for cell in cells:
            grouped.setdefault(str(cell.get("encoding")), []).append(cell)
        asked = [str(name) for name in config.get("encodings") or []]
        self.names = list(dict.fromkeys([*asked, *grouped]))
        measured = {length for cell in cells for length in _by_length(cell, "bits_by_length")}
        self.lengths = sorted({int(length) for length in config.get("test_lens") or []} | measured)
        self.base = int(config.get("train_len") or (self.lengths[0] if self.lengths else 0))
        self.encodings = {name: _encoding(name, grouped[name], self.base) for name in self.names if name in grouped}
        self.sound = [e for e in self.encodings.values() if not e.undertrained and self.base in e.bits]
        self.seed_count = max((len(e.cells) for e in self.encodings.values()), default=0)

    @property
    def longest(self) -> int | None:
        """The longest length at which a sound encoding was measured past the trained one, or None."""
        return max((length for e in self.sound for length in e.change if length > self.base), default=None)

    def times(self, length: int) -> str:
        """Return `length` as a multiple of the trained length: "16×", or "1.5×"."""
        return f"{length / self.base:g}×" if self.base else "?×"

    def noise(self, length: int) -> float:
        """Return the difference at `length` below which two encodings count as not separated.

        It is the median over encodings of the range over seeds, so that two seeds that happen to agree do not
        make a small difference look certain. With a single seed, twice the standard error over windows.
        """
        spreads = [e.bits[length].spread for e in self.sound if length in e.bits and len(e.bits[length].values) > 1]
        if spreads:
            return median(spreads)
        errors = [e.stderr[length] for e in self.sound if length in e.stderr]
        return 2 * median(errors) if errors else UNKNOWN_NOISE

    def change_noise(self, length: int) -> float:
        """Return the change from the trained length to `length` below which nothing counts as seen."""
        found = [e.change[length] for e in self.sound if length in e.change]
        spreads = [stat.spread for stat in found if len(stat.values) > 1]
        return median(spreads) if spreads else math.hypot(self.noise(length), self.noise(self.base))

    def step_noise(self) -> float:
        """Return the difference in milliseconds per step below which two steps count as equally dear."""
        steps = [e.step_ms for e in self.sound if e.step_ms]
        spreads = [step.spread for step in steps if len(step.values) > 1]
        if spreads:
            return median(spreads)
        return UNKNOWN_STEP_NOISE * median(step.mean for step in steps) if steps else 0.0

    def reference(self) -> Encoding | None:
        """Return the encoding that step times are compared with: nope, else the cheapest, else None."""
        nope = self.encodings.get("nope")
        if nope and nope.step_ms:
            return nope
        timed = [e for e in self.encodings.values() if e.step_ms]
        return min(timed, key=lambda e: e.step_ms.mean if e.step_ms else 0.0, default=None)

    def ratio(self, encoding: Encoding) -> Stat | None:
        """Return the step time of `encoding` over the reference's mean, per seed, or None if not timed."""
        reference = self.reference()
        if not (reference and reference.step_ms and encoding.step_ms) or reference.step_ms.mean <= 0:
            return None
        return Stat(tuple(value / reference.step_ms.mean for value in encoding.step_ms.values))


def tied(one: Stat, other: Stat, noise: float) -> bool:
    """Return whether two means differ by no more than `noise` or either's own spread over seeds."""
    return abs(one.mean - other.mean) <= max(one.spread, other.spread, noise) + 1e-9


def leaders(stats: Mapping[str, Stat], noise: float) -> list[str]:
    """Return the name with the lowest mean, then all names not separated from it, lowest first."""
    ranked = sorted(stats, key=lambda name: stats[name].mean)
    return [name for name in ranked if tied(stats[ranked[0]], stats[name], noise)]


def plain(value: float, digits: int = 2) -> str:
    """Return a number with `digits` decimals and thousands separators, minus set as a true minus sign."""
    text = f"{value:,.{digits}f}"
    return text.lstrip("-") if not text.strip("-0.,") else text.replace("-", "−")


def signed(value: float, digits: int = 2) -> str:
    """Return a change with its sign; one that rounds to nothing has none."""
    text = plain(value, digits)
    return text if text.startswith("−") or not text.strip("0.,") else f"+{text}"


def with_spread(stat: Stat, digits: int = 2, sign: bool = False, unit: str = "") -> str:
    """Return mean, its `unit`, and ± half the range over seeds; no range for a single seed."""
    text = (signed(stat.mean, digits) if sign else plain(stat.mean, digits)) + unit
    return f"{text} ± {plain(stat.spread / 2, digits)}" if len(stat.values) > 1 else text
