"""A study's measurements on one task, per encoding, with the spread over seeds; the basis of the whole report.

On text a number is a loss in bits per byte, on every other task the share of lines without an error. Everything is
computed from the plain `run` and `cells` data of a study, which may be incomplete: cells can be missing after an
interruption, and a value that is absent or not finite counts as not measured.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any

from posenc.languages import tr

TEXT = "text"
SOLVED = 0.9  # a length counts as solved from this share of lines without an error
FLAT = 0.05  # bits per byte: a change up to this, in every seed, counts as flat
BREAK = 0.30  # bits per byte: a larger increase counts as a break
UNKNOWN_NOISE = 0.05  # bits per byte, without a second seed and without a standard error
UNKNOWN_STEP_NOISE = 0.05  # share of a step's time, with only one seed


def number(value: object) -> float | None:
    """Return `value` as a finite float, or None if it is absent or not finite."""
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
        """The range over seeds, highest minus lowest; 0 for a single seed."""
        return max(self.values) - min(self.values)


@dataclass(frozen=True)
class Encoding:
    """The measurements of one encoding; dictionaries are keyed by test length, `seeds` by seed first."""

    name: str
    cells: tuple[Mapping[str, Any], ...]
    seeds: Mapping[Any, Mapping[int, float]] = field(default_factory=dict)
    by_length: Mapping[int, Stat] = field(default_factory=dict)
    change: Mapping[int, Stat] = field(default_factory=dict)
    stderr: Mapping[int, float] = field(default_factory=dict)
    step_ms: Stat | None = None
    peak_mib: Stat | None = None
    position_parameters: int | None = None
    parameters: int | None = None
    undertrained: bool = False


def tasks_of(run: Mapping[str, Any], cells: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the labels of the configured tasks, then of others that have cells; text if there is none."""
    asked = (run.get("config") or {}).get("tasks") or []
    return list(dict.fromkeys([*map(str, asked), *(str(cell.get("task") or TEXT) for cell in cells)])) or [TEXT]


def task_name(task: str) -> str:
    """Return a task's label as a reader sees it."""
    return tr("text") if task == TEXT else task


def sizes_of(run: Mapping[str, Any], cells: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the configured sizes, then others that have cells; one empty name if there is none."""
    asked = (run.get("config") or {}).get("sizes") or []
    named = (str(size) for cell in cells if (size := cell.get("size")))
    return list(dict.fromkeys([*map(str, asked), *named])) or [""]


def task_fact(run: Mapping[str, Any], kind: str, task: str) -> Mapping[str, Any]:
    """Return the entry of a task under `tasks` or `lengths`; the entry of NAME[:FORMAT] holds for every stream."""
    table = (run if kind == "tasks" else run.get("config") or {}).get(kind) or {}
    return table.get(task) or table.get(task.split("@")[0]) or {}


def _by_length(cell: Mapping[str, Any], key: str) -> dict[int, float]:
    """Return the finite entries of a cell's length table under integer keys, shortest first."""
    entries = (cell.get(key) or {}).items()
    table = {int(length): number(value) for length, value in entries if str(length).isdecimal()}
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


def _encoding(name: str, cells: Sequence[Mapping[str, Any]], base: int, key: str) -> Encoding:
    """Measure one encoding; changes are relative to the same seed's value at `base`."""
    cells = sorted(cells, key=lambda cell: cell.get("seed") or 0)
    tables = [_by_length(cell, key) for cell in cells]
    changes = [
        {length: bits - table[base] for length, bits in table.items() if length != base}
        for table in tables
        if base in table
    ]
    errors = _gather(_by_length(cell, f"{key}_stderr") for cell in cells)
    return Encoding(
        name=name,
        cells=tuple(cells),
        seeds={cell.get("seed", 0): table for cell, table in zip(cells, tables, strict=True)},
        by_length=_gather(tables),
        change=_gather(changes),
        stderr={length: stat.mean for length, stat in errors.items()},
        step_ms=_stat(cells, "step_ms"),
        peak_mib=_stat(cells, "peak_mib"),
        position_parameters=_whole(cells, "position_parameters"),
        parameters=_whole(cells, "parameters"),
        undertrained=any(bool(cell.get("undertrained")) for cell in cells),
    )


class Measures:
    """All measurements of a study on one task at one size.

    Attributes:
        task: The task's label.
        size: As in the configuration, or an empty string.
        names: The configured encodings, in the study's order, then others that have cells.
        base: The longest trained length, the reference of changes.
        lengths: Every configured or measured test length, shortest first.
        encodings: Those that have at least one cell, by name.
        sound: Those that findings may use (sufficiently trained, and measured at `base`).
    """

    def __init__(
        self, run: Mapping[str, Any], cells: Sequence[Mapping[str, Any]], task: str = TEXT, size: str | None = None
    ) -> None:
        """Read a study's `run` and `cells` as saved, without changing them.

        Args:
            run: The record of the study.
            cells: All cells; a missing task means text, a missing size the first size.
            task: The label of the task.
            size: As in the configuration; None for the first.
        """
        first = sizes_of(run, cells)[0]
        self.task, self.size = task, first if size is None else size
        grouped: dict[str, list[Mapping[str, Any]]] = {}
        for cell in cells:
            if (str(cell.get("task") or TEXT), str(cell.get("size") or first)) == (task, self.size):
                grouped.setdefault(str(cell.get("encoding")), []).append(cell)
        config, key = run.get("config") or {}, "bits_by_length" if task == TEXT else "exact_by_length"
        asked = [str(name) for name in config.get("encodings") or []]
        self.names = list(dict.fromkeys([*asked, *grouped]))
        measured = {length for found in grouped.values() for cell in found for length in _by_length(cell, key)}
        lengths, card = task_fact(run, "lengths", task), task_fact(run, "tasks", task)
        trained, tests = lengths.get("train") or card.get("train_lengths"), lengths.get("test")
        if task == TEXT:
            trained, tests = [config.get("train_len") or 0], config.get("test_lens")
        self.lengths = sorted({int(length) for length in tests or []} | measured)
        self.base = int(max(trained or [0])) or (self.lengths[0] if self.lengths else 0)
        self.encodings = {
            name: _encoding(name, grouped[name], self.base, key) for name in self.names if name in grouped
        }
        self.sound = [e for e in self.encodings.values() if not e.undertrained and self.base in e.by_length]
        self.seed_count = max((len(e.cells) for e in self.encodings.values()), default=0)

    @property
    def longest(self) -> int | None:
        """The longest length at which a sound encoding was measured past the trained one, or None."""
        return max((length for e in self.sound for length in e.change if length > self.base), default=None)

    def by_seed(self, name: str, at: str) -> dict[Any, float]:
        """Return one number for each seed of an encoding.

        Args:
            name: One of `encodings`.
            at: "trained" or "longest" for the value at that length, "change" for the change from the trained to
                the longest length, "worst" for the highest change at any longer length.
        """
        found = {}
        for seed, table in self.encodings[name].seeds.items():
            near, far = table.get(self.base), table.get(self.longest or 0)
            if at == "worst" and far is not None:
                far = max(value for length, value in table.items() if length > self.base)
            value = near if at == "trained" else far
            if at in ("change", "worst") and value is not None:
                value = None if near is None else value - near
            if value is not None:
                found[seed] = value
        return found

    def solved(self, name: str, length: int) -> tuple[int, int]:
        """Return how many seeds of an encoding solve a length of the task, and how many were tested there."""
        values = [table[length] for table in self.encodings[name].seeds.values() if length in table]
        return sum(value >= SOLVED for value in values), len(values)

    def times(self, length: int) -> str:
        """Return `length` as a multiple of the trained length: "16×", or "1.5×"."""
        return f"{length / self.base:g}×" if self.base else "?×"

    def noise(self, length: int) -> float:
        """Return the difference at `length` below which two encodings count as not separated.

        The median over encodings of the range over seeds, so that two seeds that agree by chance do not make a small
        difference look certain. With a single seed, twice the standard error over windows.
        """
        spreads = [
            e.by_length[length].spread
            for e in self.sound
            if length in e.by_length and len(e.by_length[length].values) > 1
        ]
        if spreads:
            return median(spreads)
        errors = [e.stderr[length] for e in self.sound if length in e.stderr]
        return 2 * median(errors) if errors else UNKNOWN_NOISE

    def change_noise(self, length: int) -> float:
        """Return the change from the trained length to `length` below which no change counts as measured."""
        found = [e.change[length] for e in self.sound if length in e.change]
        spreads = [stat.spread for stat in found if len(stat.values) > 1]
        return median(spreads) if spreads else math.hypot(self.noise(length), self.noise(self.base))

    def step_noise(self) -> float:
        """Return the difference in milliseconds per step below which two steps count as equally expensive."""
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
    """Return a number with `digits` decimals, thousands separators and a true minus sign."""
    text = f"{value:,.{digits}f}"
    return text.lstrip("-") if not text.strip("-0.,") else text.replace("-", "−")


def signed(value: float, digits: int = 2) -> str:
    """Return a change with its sign; one that rounds to zero has none."""
    text = plain(value, digits)
    return text if text.startswith("−") or not text.strip("0.,") else f"+{text}"


def with_spread(stat: Stat, digits: int = 2, sign: bool = False, unit: str = "") -> str:
    """Return the mean, its `unit`, and ± half the range over seeds; no range for a single seed."""
    text = (signed(stat.mean, digits) if sign else plain(stat.mean, digits)) + unit
    return f"{text} ± {plain(stat.spread / 2, digits)}" if len(stat.values) > 1 else text
