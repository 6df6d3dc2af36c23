"""The table of text and tasks side by side, the tables of a task, and a study's missing cells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from statistics import fmean
from typing import Any

from posenc.languages import template, tr

from .measures import TEXT, Measures, sizes_of, task_fact, task_name, tasks_of, with_spread
from .tables import DAGGER, NONE, Row, arxiv_link

Cells = Sequence[Mapping[str, Any]]
Shown = tuple[str, str]  # a table cell's text, and its class: "all" seeds solve a length, "no" seed does, or ""


def shown(study: Measures, name: str, length: int) -> Shown:
    """Format the loss of an encoding at a length, or its exact match with the seeds that solve it: "0.98 · 3/3"."""
    encoding = study.encodings.get(name)
    stat = encoding.by_length.get(length) if encoding else None
    if stat is None:
        return NONE, ""
    if study.task == TEXT:
        return with_spread(stat) + (DAGGER if encoding and encoding.undertrained else ""), ""
    count, total = study.solved(name, length)
    return f"{fmean(stat.values):.2f} · {count}/{total}", "all" if count == total else "" if count else "no"


def side_by_side(studies: Sequence[Measures], names: Sequence[str]) -> Row:
    """Return the headings and rows of the table of all tasks, each at the trained and at the longest length."""
    columns = [(study, n) for study in studies for n in dict.fromkeys((study.base, *study.lengths[-1:]))]
    heads = [
        (study.task, [(n, study.times(n) if n != study.base else tr("trained")) for of, n in columns if of is study])
        for study in studies
    ]
    rows = [(name, [shown(study, name, n) for study, n in columns]) for name in names]
    return {"heads": heads, "rows": rows}


def _probes(run: Mapping[str, Any], study: Measures) -> dict[str, Measures]:
    """Return the measures on the probes of a task, by the probe's label."""
    cells = [cell for e in study.encodings.values() for cell in e.cells]
    labels = dict.fromkeys(str(label) for cell in cells for label in cell.get("probes") or {})
    return {
        label: Measures(run, [{**cell, **probe} for cell in cells if (probe := (cell.get("probes") or {}).get(label))],
                        study.task, study.size)
        for label in labels
    }  # fmt: skip


def solved_rows(run: Mapping[str, Any], study: Measures) -> list[tuple[str, str, list[Shown]]]:
    """Return exact match by length, a row per encoding and, below it, one per probe of the task."""
    tables = {"": study, **_probes(run, study)}
    return [
        (name, label, [shown(table, name, n) for n in study.lengths])
        for name in study.encodings
        for label, table in tables.items()
        if name in table.encodings
    ]


def source(run: Mapping[str, Any], study: Measures) -> Row:
    """Return the facts of a task: its format, the unit of a length, and its source."""
    card = task_fact(run, "tasks", study.task)
    words = {key: template(str(card.get(key) or "")) for key in ("format", "length", "paper")}
    return words | {"arxiv": arxiv_link(card.get("arxiv"))}


def missing_cells(run: Mapping[str, Any], cells: Cells) -> tuple[int, list[tuple[str, dict[str, list[str]]]]]:
    """Return how many cells were planned, and the encodings with missing cells, with seeds by task."""
    config, tasks, sizes = run.get("config") or {}, tasks_of(run, cells), sizes_of(run, cells)

    def key(cell: Mapping[str, Any]) -> tuple[str, str, str, Any]:
        return (
            str(cell.get("encoding")),
            str(cell.get("task") or TEXT),
            str(cell.get("size") or sizes[0]),
            cell.get("seed"),
        )

    asked = [key(cell) for cell in (run.get("plan") or {}).get("cells") or []] or list(
        product(map(str, config.get("encodings") or []), tasks, sizes, config.get("seeds") or [])
    )
    have = {key(cell) for cell in cells}
    absent: dict[str, dict[str, list[str]]] = {}
    for name, task, size, seed in asked:
        if (name, task, size, seed) not in have:
            place = " ".join(word for word, many in ((task_name(task), len(tasks) > 1), (size, len(sizes) > 1)) if many)
            absent.setdefault(name, {}).setdefault(place, []).append(str(seed))
    return len(asked), list(absent.items())


def in_words(places: Mapping[str, Sequence[str]]) -> str:
    """Return tasks with their missing seeds, as in "copy seeds 0, 1; text seed 1"."""
    return tr("; ").join(
        (
            tr("{place} seed {seed}", place=place, seed=seeds[0])
            if len(seeds) == 1
            else tr("{place} seeds {seeds}", place=place, seeds=tr(", ").join(seeds))
        ).strip()
        for place, seeds in places.items()
    )
