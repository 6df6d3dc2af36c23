"""The study's report: one self-contained HTML file that works offline and without its script."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from posenc.languages import tr

from . import sides, tables
from .advice import form_advice
from .answer import form_answer
from .charts import line_chart
from .claims import CANNOT_TELL, CONTRADICTED, SEEN, weigh_claims
from .findings import form_findings
from .marks import Mark, assign_marks, swatch
from .measures import BREAK, FLAT, SOLVED, TEXT, Measures, sizes_of, task_name, tasks_of
from .page import asset, write_page
from .scales import shorten, y_range
from .sentences import Name

Run = Mapping[str, Any]
Cells = Sequence[Mapping[str, Any]]


def _breakable(name: str) -> Markup:
    """Return a name, escaped; a long one may break after punctuation in a narrow column."""
    if len(name) <= 20:
        return Markup("{}").format(name)
    pieces = re.findall(r"[^.:_/\\-]*[.:_/\\-]*", name)
    return Markup("<wbr>").join(piece for piece in pieces if piece)


class _Setter:
    """Formats names of encodings within text, always escaped and with the encoding's own mark."""

    def __init__(self, marks: Mapping[str, Mark]) -> None:
        self.marks = marks
        short = {name: shorten(name, 30) for name in marks}
        seen = list(short.values())
        # names whose short forms are equal are not shortened
        self.short = {name: text if seen.count(text) == 1 else name for name, text in short.items()}

    def name(self, name: str, undertrained: bool = False, full: bool = False) -> Markup:
        """Format a name with its swatch; a long one is shortened, unless `full`."""
        mark, shown = self.marks[name], name if full else self.short[name]
        return Markup('<span class="enc" title="{}">{}<span>{}{}</span></span>').format(
            name, swatch(mark), _breakable(shown), tables.DAGGER if undertrained else ""
        )

    def chip(self, name: str) -> Markup:
        """Format a name for a button, shortened if it is long."""
        return Markup('<span class="enc" title="{}">{}<span>{}</span></span>').format(
            name, swatch(self.marks[name]), shorten(name, 24)
        )

    def parts(self, parts: Sequence[str]) -> Markup:
        """Format a sentence, with names highlighted."""
        return Markup("").join(
            Markup('<b class="nm {}" title="{}">{}</b>').format(
                self.marks[part].colour, part, _breakable(self.short[part])
            )
            if isinstance(part, Name)
            else Markup("{}").format(part.replace(" ± ", "\u00a0±\u00a0"))
            for part in parts
        )


def _text_charts(study: Measures, marks: Mapping[str, Mark], ident: str) -> dict[str, Any]:
    """Draw the two charts of text and return them with the facts for their captions."""
    by_length = tables.length_lines(study, marks)
    by_position, window = tables.position_lines(study, marks)
    first = round(2 ** min((line.xs[0] for line in by_position), default=0.0))
    drawn: dict[str, Any] = {"window": window}
    for key, lines, chart in (
        ("by_length", by_length, tables.length_chart(study, f"{ident}-by-length")),
        ("by_position", by_position, tables.position_chart(study, f"{ident}-by-position", window, first)),
    ):
        _, high, clipped = y_range([line for line in lines if line.ys])
        drawn[key] = {"svg": line_chart(chart, lines), "cut": f"{high:.1f}" if clipped else ""}
    return drawn


def _noise(study: Measures) -> dict[str, str]:
    """Return the pooled spreads that the section on limits quotes."""
    return {
        "base": f"{study.noise(study.base):.3f}" if study.sound else "",
        "longest": f"{study.noise(study.longest):.3f}" if study.longest else "",
    }


def _weak(study: Measures) -> list[str]:
    return [e.name for e in study.encodings.values() if e.undertrained]


def _text_part(run: Run, cells: Cells, study: Measures, marks: Mapping[str, Mark], ident: str) -> dict[str, Any]:
    """Return the contents of the sections about text."""
    return {
        "findings": form_findings(run, cells, study.size),
        "advice": form_advice(run, cells, study.size),
        "charts": _text_charts(study, marks, ident),
        "length_table": tables.length_table(study),
        "noise": _noise(study),
    }


def _task_part(run: Run, study: Measures, marks: Mapping[str, Mark], ident: str) -> dict[str, Any]:
    """Return the contents of the section of a task."""
    return {
        "study": study,
        "chart": line_chart(tables.length_chart(study, ident), tables.length_lines(study, marks)),
        "rows": sides.solved_rows(run, study),
        "source": sides.source(run, study),
        "undertrained": _weak(study),
    }


def _size_part(run: Run, cells: Cells, size: str, marks: Mapping[str, Mark], ident: str) -> dict[str, Any]:
    """Return the page's contents for one size of models."""
    studies = [Measures(run, cells, task, size) for task in tasks_of(run, cells)]
    text = next((study for study in studies if study.task == TEXT), None)
    main = text or studies[0]
    reference = main.reference()
    tasks = [study for study in studies if study.task != TEXT]
    return {
        "size": size,
        "study": main,
        "text": _text_part(run, cells, text, marks, ident) if text else {},
        "tasks": {of.task: _task_part(run, of, marks, f"{ident}-task-{k}") for k, of in enumerate(tasks)},
        "side": sides.side_by_side(studies, list(dict.fromkeys(n for study in studies for n in study.names))),
        "claims": weigh_claims(run, cells, size),
        "costs": tables.cost_rows(main, marks),
        "reference": reference.name if reference else "",
        "undertrained": _weak(main),
        "raw": [(study, rows) for study in studies if (rows := tables.raw_rows(study))],
    }


def _context(run: Run, cells: Cells) -> dict[str, Any]:
    """Return all variables of the template."""
    asked = map(str, (run.get("config") or {}).get("encodings") or [])
    marks = assign_marks(dict.fromkeys([*asked, *(str(cell.get("encoding")) for cell in cells)]))
    setter = _Setter(marks)
    parts = [_size_part(run, cells, size, marks, f"p{k}") for k, size in enumerate(sizes_of(run, cells))]
    expected, missing = sides.missing_cells(run, cells)
    measured = {str(cell.get("encoding")) for cell in cells}
    return {
        "answer": form_answer(run, cells, sum(len(seeds) for _, places in missing for seeds in places.values())),
        "facts": tables.facts(run, cells, expected),
        "expected": expected,
        "found": len(cells),
        "missing": [(name, sides.in_words(places)) for name, places in missing],
        "problems": list(run.get("problems") or []),
        "run": run,
        "config": run.get("config") or {},
        "parts": parts,
        "labels": tasks_of(run, cells),
        "text": bool(parts[0]["text"]),
        "seed_count": max(part["study"].seed_count for part in parts),
        "measured": measured,
        "chips": [(name, mark.index) for name, mark in marks.items() if name in measured],
        "methods": tables.method_rows(run, parts[0]["study"], marks),
        "verdicts": {
            SEEN: tr("seen"),
            CONTRADICTED: tr("contradicted"),
            CANNOT_TELL: tr("cannot tell at this size"),
        },
        "flat": f"{FLAT:.2f}",
        "broken": f"{BREAK:.2f}",
        "solved": f"{SOLVED:g}",
        "name": setter.name,
        "key": lambda name: marks[name].index,
        "chip": setter.chip,
        "sentence": setter.parts,
        "arxiv": tables.arxiv_link,
        "duration": tables.duration,
        "task_name": task_name,
    }


def render(run: dict[str, Any], cells: list[dict[str, Any]]) -> str:
    """Return the whole page of a study as one string of HTML, in the language of `posenc.languages.use`.

    Takes a study's `run` and `cells` as saved and changes neither; any or all cells may be missing. Every name,
    path and message in them is escaped. The page loads nothing: style, charts, script and data are inline.
    Raises TypeError or ValueError only for data of the wrong kind.
    """
    return write_page(asset("posenc.study", "report.html.j2"), _context(run, cells), {"run": run, "cells": cells})
