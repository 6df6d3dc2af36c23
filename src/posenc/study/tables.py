"""Rows, lines and texts of the report, without layout."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from posenc.languages import tr

from .charts import Chart
from .marks import Mark, bar, spark
from .measures import TEXT, Encoding, Measures, number, plain, tasks_of, with_spread
from .scales import Line, y_range

NONE = "–"
DAGGER = "†"
_ARXIV = re.compile(r"\d{4}\.\d{4,5}(v\d+)?|[a-z-]+(\.[A-Z]{2})?/\d{7}(v\d+)?")

Row = dict[str, Any]


def duration(seconds: float | None) -> str:
    """Return a time such as "48 s", "4 min 2 s" or "1 h 3 min"."""
    if seconds is None:
        return ""
    whole = round(seconds)
    if whole < 60:
        return tr("{s}\u00a0s", s=whole)
    if whole < 3600:
        return tr("{min}\u00a0min\u00a0{s}\u00a0s", min=whole // 60, s=whole % 60)
    return tr("{h}\u00a0h\u00a0{min}\u00a0min", h=whole // 3600, min=whole % 3600 // 60)


def listing(value: object) -> list[str]:
    """Return a list of strings from a list, from one string, or from nothing."""
    if isinstance(value, str):
        return [value] if value else []
    return [str(item) for item in value] if isinstance(value, (list, tuple)) else []


def _log2(value: float) -> float:
    return math.log2(value) if value > 0 else 0.0


def length_lines(study: Measures, marks: Mapping[str, Mark]) -> list[Line]:
    """Return one line per encoding: mean loss by test length, with range and values over seeds."""
    return [
        Line(
            name=e.name,
            mark=marks[e.name],
            xs=tuple(_log2(length) for length in e.by_length),
            ys=tuple(stat.mean for stat in e.by_length.values()),
            # seeds solve a task or fail, and whiskers would hide how many do which
            ranges=tuple((min(s.values), max(s.values)) for s in e.by_length.values()) if study.task == TEXT else (),
            seeds=tuple(stat.values for stat in e.by_length.values()),
            note=DAGGER if e.undertrained else "",
        )
        for e in study.encodings.values()
        if e.by_length
    ]


def _by_position(encoding: Encoding) -> dict[tuple[float, float], list[float]]:
    """Collect the bits of every seed by bin of positions."""
    bins: dict[tuple[float, float], list[float]] = {}
    for cell in encoding.cells:
        table = cell.get("bits_by_position") or {}
        edges = table.get("edges") or []
        for low, high, bits in zip(edges, edges[1:], table.get("bits") or [], strict=False):
            if (value := number(bits)) is not None:
                bins.setdefault((low, high), []).append(value)
    return dict(sorted(bins.items()))


def position_lines(study: Measures, marks: Mapping[str, Mark]) -> tuple[list[Line], int]:
    """Return one line per encoding, mean loss by position in the longest window, and that window's length."""
    lines, window = [], 0
    for e in study.encodings.values():
        bins = _by_position(e)
        if not bins:
            continue
        window = max(window, round(max(high for _, high in bins)))
        # a bin is drawn at the middle of its span on the log axis, where the first has no lower end
        middle = [_log2(math.sqrt(max(low, high / 2) * high)) for low, high in bins]
        means = tuple(sum(values) / len(values) for values in bins.values())
        note = DAGGER if e.undertrained else ""
        lines.append(Line(e.name, marks[e.name], tuple(middle), means, note=note, points=len(bins) <= 12))
    return lines, window


def length_chart(study: Measures, ident: str) -> Chart:
    """Return the texts and ticks of the chart of loss, or of exact match, by test length."""
    ticks = tuple((_log2(n), f"{n:,}" if n >= 10_000 else str(n), study.times(n)) for n in study.lengths)
    lengths = tr(", ").join(map(str, study.lengths))
    if study.task == TEXT:
        return Chart(
            ident,
            tr("Loss by test length, one line per encoding"),
            tr(
                "Bits per byte on the same target bytes with {lengths} bytes of context. All values are in the table "
                "of cells at the end of the page.",
                lengths=lengths,
            ),
            ticks,
            tr("bytes of context"),
            *_boundary(study),
            tr("Bits per byte, lower is better"),
            tr("bits per byte"),
        )
    return Chart(
        ident,
        tr("Exact match by length on {task}, one line per encoding", task=study.task),
        tr(
            "Share of lines of length {lengths} without an error, mean over seeds. All values are in the tables below.",
            lengths=lengths,
        ),
        ticks,
        tr("length of a line"),
        *_boundary(study),
        tr("Share of lines without an error, higher is better"),
        tr("of lines exact"),
        (-0.08, 1.03),  # room for the label at the bottom, and for markers at both ends
    )


def _boundary(study: Measures) -> tuple[float | None, tuple[str, str]]:
    """Return where the trained length is on the x axis, and the name of the region beyond it."""
    return _log2(study.base) if study.base else None, (tr("past the trained length"), tr("past trained"))


def position_chart(study: Measures, ident: str, window: int, first: int) -> Chart:
    """Return the texts and ticks of the chart of loss by position within the longest window."""
    exponents = range(max(round(_log2(first)), 0), round(_log2(window)) + 1) if window else range(0)
    every = 1 if len(exponents) <= 8 else 2
    ticks = tuple((float(k), str(2**k), "") for k in exponents if (len(exponents) - 1 - k) % every == 0)
    return Chart(
        ident,
        tr("Loss by position within a window of {window} bytes, one line per encoding", window=window),
        tr("Mean bits per byte within each bin of positions, mean over seeds; the trained length is marked."),
        ticks,
        tr("position, bytes"),
        *_boundary(study),
        tr("Bits per byte, lower is better"),
        tr("bits per byte"),
    )


def card_of(run: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return the card of an encoding, or an empty one if the run has none."""
    return (run.get("cards") or {}).get(name) or {}


def arxiv_link(ident: object) -> Markup:
    """Return an arXiv id as text, with a link if it is well-formed."""
    text = str(ident or "")
    if _ARXIV.fullmatch(text):
        return Markup('<a href="https://arxiv.org/abs/{0}">arXiv:{0}</a>').format(text)
    return Markup("{}").format(text)


def method_rows(run: Mapping[str, Any], study: Measures, marks: Mapping[str, Mark]) -> list[Row]:
    """Return one row per encoding: its card, and its measured extrapolation."""
    low, high, _ = y_range(length_lines(study, marks))
    spans = [_log2(n) for n in study.lengths] or [0.0]
    width = (spans[-1] - spans[0]) or 1.0
    first = next((n for n in study.lengths if n > study.base), None)
    rows = []
    for name in study.names:
        card, e = card_of(run, name), study.encodings.get(name) or Encoding(name, ())
        ratio = study.ratio(e)
        changes = [e.change.get(n) if n else None for n in (first, study.lengths[-1] if study.lengths else None)]
        places = [((_log2(n) - spans[0]) / width, (s.mean - low) / (high - low)) for n, s in e.by_length.items()]
        relative = card.get("relative")
        rows.append(
            {
                "name": name,
                "undertrained": e.undertrained,
                "family": card.get("family") or NONE,
                "kind": "" if relative is None else tr("relative") if relative else tr("absolute"),
                "parameters": NONE if e.position_parameters is None else f"{e.position_parameters:,}",
                "near": with_spread(e.by_length[study.base]) if study.base in e.by_length else NONE,
                "changes": [with_spread(c, sign=True) if c else NONE for c in changes],
                "spark": spark(marks[name], places),
                "ratio": with_spread(ratio) if ratio else NONE,
                "used_by": tr(", ").join(listing(card.get("used_by"))),
                "paper": card.get("paper") or NONE,
                "year": card.get("year") or "",
                "arxiv": arxiv_link(card.get("arxiv")),
                "formula": card.get("formula") or "",
                "cost": card.get("cost") or "",
            }
        )
    return rows


def cost_rows(study: Measures, marks: Mapping[str, Mark]) -> list[Row]:
    """Return one row per timed encoding, cheapest step first."""
    timed = sorted(
        (e for e in study.encodings.values() if e.step_ms), key=lambda e: e.step_ms.mean if e.step_ms else 0.0
    )
    top = max((max(e.step_ms.values) for e in timed if e.step_ms), default=0.0)
    most = max((max(e.peak_mib.values) for e in timed if e.peak_mib), default=0.0)
    rows = []
    for e in timed:
        step, peak, mark, ratio = e.step_ms, e.peak_mib, marks[e.name], study.ratio(e)
        assert step is not None  # only timed encodings are here
        share = f"{100 * (e.position_parameters or 0) / e.parameters:.1f}" if e.parameters else ""
        rows.append(
            {
                "name": e.name,
                "undertrained": e.undertrained,
                "bar": bar(mark, step.mean, min(step.values), max(step.values), top),
                "step": with_spread(step, 1),
                "ratio": with_spread(ratio) if ratio else NONE,
                "peak": with_spread(peak, 0) if peak else tr("not measured"),
                "peak_bar": bar(mark, peak.mean, min(peak.values), max(peak.values), most) if peak else "",
                "parameters": NONE if e.position_parameters is None else f"{e.position_parameters:,}",
                "share": share,
            }
        )
    return rows


def raw_rows(study: Measures) -> list[Row]:
    """Return one row per cell with all its numbers."""

    def shown(cell: Mapping[str, Any], key: str, digits: int) -> str:
        value = number(cell.get(key))
        return NONE if value is None else plain(value, digits)

    rows = []
    for e in study.encodings.values():
        for cell in e.cells:
            table, errors = e.seeds.get(cell.get("seed", 0), {}), cell.get("bits_by_length_stderr") or {}
            losses = []
            for length in study.lengths:
                value, error = table.get(length), number(errors.get(str(length)))
                losses.append((NONE if value is None else plain(value, 3), "" if error is None else plain(error, 3)))
            rows.append(
                {
                    "name": e.name,
                    "undertrained": bool(cell.get("undertrained")),
                    "seed": cell.get("seed", NONE),
                    "steps": cell.get("steps", NONE),
                    "seconds": shown(cell, "train_seconds", 1),
                    "step": shown(cell, "step_ms", 2),
                    "peak": shown(cell, "peak_mib", 1),
                    "parameters": shown(cell, "parameters", 0),
                    "position": shown(cell, "position_parameters", 0),
                    "train": shown(cell, "train_bits", 3),
                    "losses": losses,
                }
            )
    return rows


def facts(run: Mapping[str, Any], cells: Sequence[Mapping[str, Any]], expected: int) -> list[str]:
    """Return the pieces of the line of facts below the title, without unknown ones."""
    config, text = run.get("config") or {}, run.get("text") or {}
    size, planned = number(text.get("bytes")), number(config.get("steps"))
    tasks, base = tasks_of(run, cells), number(config.get("train_len"))
    steps = sorted({int(s) for cell in cells if (s := number(cell.get("steps")))}) or (
        [round(planned)] if planned else []
    )
    seeds, others = len(config.get("seeds") or []), len(tasks) - (TEXT in tasks)
    pieces = [str(text.get("name") or "")]
    if size and pieces[0]:
        pieces = [tr("{name}, {size} bytes", name=pieces[0], size=f"{size:,.0f}")]
    if others:
        pieces.append(tr("1 task") if others == 1 else tr("{count} tasks", count=others))
    if steps:
        low, high = f"{steps[0]:,}", f"{steps[-1]:,}"
        done = low if low == high else tr("{low} to {high}", low=low, high=high)
        pieces.append(
            tr("{steps} steps at {base} bytes", steps=done, base=f"{base:,.0f}")
            if base and not others
            else tr("{steps} steps", steps=done)
        )
    if seeds:
        pieces.append(tr("1 seed") if seeds == 1 else tr("{count} seeds", count=seeds))
    if expected:
        found = len(cells)
        pieces.append(
            tr("{found} of 1 cell", found=found)
            if expected == 1
            else tr("{found} of {expected} cells", found=found, expected=expected)
        )
    pieces.append(duration(number(run.get("elapsed_s"))))
    return [piece for piece in pieces if piece]


def length_table(study: Measures) -> list[tuple[str, list[str]]]:
    """Return mean ± half the range by length per encoding: the chart's numbers as a table."""
    return [
        (e.name, [with_spread(e.by_length[n]) if n in e.by_length else NONE for n in study.lengths])
        for e in study.encodings.values()
    ]
