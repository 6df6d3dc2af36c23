"""A study's progress, read only from its directory, whether or not a process works on it."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from itertools import islice, product
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from posenc.study.index import KEY, Key, find_study, key_of, object_of, open_index, read_or_empty
from posenc.study.measures import number
from posenc.study.tables import duration
from posenc.verify.sentences import printable

_MOST = 100_000  # limit of cells counted from a configuration
_CELL = "{encoding} {task} {size} s{seed}"


def status(path: str | Path) -> dict[str, Any]:
    """Return a study's progress as plain JSON values.

    `cells`, `done` and `waiting` are counts. `running` has a cell's name, worker, step, steps and seen_s, the seconds
    since its heartbeat; `failed` a cell and its message; `unreadable` counts the files without a result;
    `matrix` is [done, planned] by task and encoding. `gone_s` and `left_s` are seconds, or None if unknown.

    Raises:
        ValueError: The path is no study's directory.
    """
    directory = find_study(path)
    run = read_or_empty(directory / "run.json")
    with closing(open_index(directory)) as index:
        done = set(index.execute(f"SELECT {', '.join(KEY)} FROM cells"))
        last, unreadable = index.execute("SELECT max(mtime_ns) / 1e9, count(problem) FROM files").fetchone()
    planned = _asked(run) | _cells(object_of(run, "plan").get("cells"))
    problems = _cells(run.get("problems")) | _cells(map(read_or_empty, _files(directory / "failed")))
    running = {key: claim for key, claim in _cells(_claims(directory)).items() if key not in done}
    failed = {key: problem for key, problem in problems.items() if key not in done and key not in running}
    cells = planned | {key: {} for key in sorted((done | failed.keys() | running.keys()) - planned.keys())}
    waiting = [key for key in cells if key not in done and key not in running and key not in failed]
    signs = [last or 0.0, *(time.time() - claim["seen_s"] for claim in running.values() if claim["seen_s"] is not None)]
    rest = [(cells[key], 1.0) for key in waiting] + [(cells[key], 1 - _share(c)) for key, c in running.items()]
    return {
        "path": str(directory),
        "status": run["status"] if isinstance(run.get("status"), str) else "unknown",
        "cells": len(cells),
        "done": len(done),
        "running": list(running.values()),
        "waiting": len(waiting),
        "failed": [dict(zip(KEY, key, strict=True)) | {"message": str(p.get("message"))} for key, p in failed.items()],
        "unreadable": unreadable,
        "matrix": _matrix(cells, done),
        "gone_s": _gone(directory, run, max(signs)),
        "left_s": _left(rest, run),
    }


def print_status(found: Mapping[str, Any], console: Console) -> None:
    """Print the result of `status`."""
    counts = f"{len(found['running'])} running, {found['waiting']} waiting, {len(found['failed'])} failed"
    head = f"{printable(found['status'])}: {found['done']} of {found['cells']} cells done, {counts}"
    head += "" if found["gone_s"] is None else f"; {duration(found['gone_s'])} elapsed"
    head += "" if found["left_s"] is None else f", about {duration(found['left_s'])} left"
    table = Table("encoding", box=None, pad_edge=False)
    for task in found["matrix"]:
        table.add_column(Text(printable(task)), justify="right")
    for name in dict.fromkeys(name for row in found["matrix"].values() for name in row):
        pairs = (row.get(name) for row in found["matrix"].values())
        table.add_row(Text(printable(name)), *("" if pair is None else "{}/{}".format(*pair) for pair in pairs))
    lines = []
    for claim in found["running"]:
        step = f"step {claim['step'] or 0} of {claim['steps']}" if claim["steps"] else "starting"
        seen = "no heartbeat" if claim["seen_s"] is None else f"heartbeat {claim['seen_s']:.0f} s ago"
        lines.append(f"{_CELL.format(**claim)}: {step}, worker {claim['worker']}, {seen}")
    lines += [f"{_CELL.format(**cell)} failed: {cell['message']}" for cell in found["failed"]]
    if found["unreadable"]:
        lines.append(f"cells whose result.json holds no result: {found['unreadable']}")
    console.print(Text(head), table, *(Text(printable(line)) for line in lines), sep="\n", soft_wrap=True)


def _asked(run: Mapping[str, Any]) -> dict[Key, dict[str, Any]]:
    """Return every cell of a configuration; a plan lacks those that were done before, or not timed."""
    config = object_of(run, "config")
    parts = [part if isinstance(part := config.get(f"{name}s"), list) else [None] for name in KEY]
    asked = (zip(KEY, values, strict=True) for values in islice(product(*parts), _MOST))
    return _cells({name: value for name, value in cell if value is not None} for cell in asked)


def _cells(found: Any) -> dict[Key, dict[str, Any]]:
    """Return the objects that identify a cell, by its key."""
    cells = {}
    for item in found if isinstance(found, Iterable) else ():
        with suppress(ValueError, TypeError):
            cells[key_of(item)] = item
    return cells


def _files(folder: Path) -> list[Path]:
    with suppress(OSError):
        return sorted(path for path in folder.iterdir() if path.name[0] != ".")
    return []


def _claims(directory: Path) -> Iterator[dict[str, Any]]:
    """Yield the running cells, from claims/ORDER~DEATHS~NAME~WORKER and the heartbeats workers/WORKER.json."""
    for path in _files(directory / "claims"):
        _, _, name, worker = ("~~~" + path.name).split("~")[-4:]
        file, seen = directory / "workers" / f"{worker}.json", None
        with suppress(OSError):
            seen = max(0.0, round(time.time() - file.stat().st_mtime, 1))
        beat = read_or_empty(file)
        step, steps = (beat[key] if beat.get("job") == name and type(beat.get(key)) is int else None
                       for key in ("step", "steps"))  # fmt: skip
        cell = {key: value for key, value in read_or_empty(path).items() if key in KEY}
        yield cell | {"worker": worker, "step": step, "steps": steps, "seen_s": seen}


def _share(claim: Mapping[str, Any]) -> float:
    """Return the share of its steps that a running cell has done."""
    return min(max((claim["step"] or 0) / (claim["steps"] or 1), 0.0), 1.0)


def _matrix(cells: Iterable[Key], done: set[Key]) -> dict[str, dict[str, list[int]]]:
    matrix: dict[str, dict[str, list[int]]] = {}
    for key in cells:
        pair = matrix.setdefault(key[1], {}).setdefault(key[0], [0, 0])
        pair[0] += key in done
        pair[1] += 1
    return matrix


def _gone(directory: Path, run: Mapping[str, Any], seen: float) -> float | None:
    """Return the seconds of work so far: those in run.json, and those from then to the last sign of a worker."""
    elapsed = number(run.get("elapsed_s"))
    if elapsed is None or run.get("status") == "complete":
        return elapsed
    return round(elapsed + max(0.0, seen - (directory / "run.json").stat().st_mtime), 1)


def _left(cells: Sequence[tuple[Mapping[str, Any], float]], run: Mapping[str, Any]) -> float | None:
    """Return the planned seconds of cells, each times its remaining share, divided by the number of workers."""
    seconds = [number(cell.get("seconds")) for cell, _ in cells]
    if None in seconds:
        return None
    work = sum((s or 0.0) * share for s, (_, share) in zip(seconds, cells, strict=True))
    return round(work / max(number(object_of(run, "plan").get("workers")) or 1.0, 1.0), 1)
