"""`posenc evaluate` from its options to its exit code: measure the missing cells, then write the report."""

import csv
import hashlib
import io
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from posenc.extend.evaluate import measures, report
from posenc.extend.evaluate.findings import Findings
from posenc.extend.evaluate.measures import POSITION, SLIDING, Row
from posenc.extend.evaluate.plan import Job, Options, Plan, make_plan
from posenc.extend.evaluate.targets import WHO, Model
from posenc.raised import describe
from posenc.study.board import clock
from posenc.study.queue import read_json, write

CELLS = "cells"
INTERRUPTED = 130
_FIXED = ("model", "method", "measure", "length")
_FACTS = ("depth", "piece", "bits", "without", "exact")
Say = Callable[[str], None]
Cell = dict[str, Any]


def evaluate(options: Options, say: Say) -> tuple[int, dict[str, Any]]:
    """Measure models, or resume an interrupted run, and write the report.

    Args:
        options: The options.
        say: Called with a line for each cell, and with the report's path.

    Returns:
        The exit code (0, 1 if a cell failed, 130 after Ctrl-C) and the main findings.

    Raises:
        ValueError: Bad input; nothing was written.
    """
    plan, folder = make_plan(options), Path(options.out)
    _check_folder(folder, plan.record["identity"], options.force)
    done = {job: cell | job._asdict() for job in plan.jobs if (cell := read_json(_file(folder, plan, job)))}
    problems: list[dict[str, Any]] = []
    status = "complete"
    try:
        _measure(plan, folder, options.device, done, problems, say)
    except KeyboardInterrupt:
        status = "interrupted"
    cells = [done[job] for job in plan.jobs if job in done]
    record = plan.record | {"status": status, "problems": problems, "expected": len(plan.jobs)}
    if cells:
        write(folder / "report.html", report.render(record, cells).encode(), sync=True)
        write(folder / "results.csv", _table(cells), sync=True)
        write(folder / "run.json", json.dumps(record, indent=1).encode(), sync=True)
        say(f"report: {(folder / 'report.html').resolve().as_uri()}")
    if status == "interrupted":
        say(f"interrupted with {len(plan.jobs) - len(cells)} cells missing; the same command resumes")
        return INTERRUPTED, Findings(record, cells).summary()
    return 1 if problems else 0, Findings(record, cells).summary()


def _measure(
    plan: Plan, folder: Path, device: str, done: dict[Job, Cell], problems: list[dict[str, Any]], say: Say
) -> None:
    """Measure the missing cells, one model at a time, and write each when it is finished."""
    here = _device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    todo = [job for job in plan.jobs if job not in done]
    total, gone, spent = sum(map(plan.tokens, todo)), 0, 0.0  # tokens, tokens, seconds without the loading of models
    for path, target in plan.targets.items():
        jobs = [job for job in todo if job.model == path]
        if not jobs:
            continue
        model = _load(plan, path, here)
        say(f"{path}: {len(jobs)} cells to measure; results in {folder}")
        for job in jobs:
            began = time.monotonic()
            try:
                model.use(plan.stretched[job.method])
                rows = _rows(plan, model, job)
            except (RuntimeError, ValueError) as error:  # out of memory, or a scaling that the model rejects
                problems.append({**job._asdict(), "message": describe(error)})
                say(f"{job.method} {job.length:,} {job.measure} failed: {describe(error)}")
                continue
            done[job] = {**job._asdict(), "rows": rows}
            (folder / CELLS).mkdir(parents=True, exist_ok=True)
            write(_file(folder, plan, job), json.dumps(done[job]).encode())
            gone, spent = gone + plan.tokens(job), spent + time.monotonic() - began
            bits, left = sum(row["bits"] for row in rows) / len(rows), spent * (total / gone - 1)
            what = f"{Path(path).name} {job.method} {job.length:,} {job.measure}"
            say(f"{what}: {bits:.3f} bits per {target.unit} ({clock(left)} left)")


def _device(name: str) -> torch.device:
    try:
        return torch.empty(1, device=name).device
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"{WHO}: cannot compute on --device {name}: {str(error).splitlines()[0]}") from error


def _load(plan: Plan, path: str, device: torch.device) -> Model:
    """Load a model, and check that it can read the longest text and is causal.

    Raises:
        ValueError: It cannot, or is not.
    """
    text = plan.text
    try:
        model = plan.targets[path].load(device)
        model.score(text.tokens[None, : text.longest + 1], 1)
    except (RuntimeError, IndexError) as error:  # a position table that is too short, or out of memory
        raise ValueError(f"{WHO}: {path} cannot read {text.longest} tokens: {error}") from error
    pair = text.tokens[:16].expand(2, -1).clone()
    pair[1, -1] = text.tokens[text.tokens != pair[0, -1]][0]
    with torch.inference_mode():
        one, other = model.logits(pair.to(device), 8)[:, :-1].float()
    if (one - other).abs().max() > 0.01 * one.abs().max():
        raise ValueError(f"{WHO}: {path} is not causal: a later token changes its predictions. Give a causal model.")
    return model


def _rows(plan: Plan, model: Model, job: Job) -> list[Row]:
    target = plan.targets[job.model]
    if job.measure in (POSITION, SLIDING):
        rows = measures.read(model, target, plan.text, job.measure, job.length)
    else:
        rows = measures.find_needles(model, target, plan.text, job.measure, job.length, plan.record["trials"])
    if not all(abs(row["bits"]) < float("inf") for row in rows):
        raise ValueError(f"{WHO}: the loss is not finite.")
    return rows


def _file(folder: Path, plan: Plan, job: Job) -> Path:
    """Return the file of a cell; its name contains a hash of everything that its numbers depend on."""
    identity = plan.record["identity"]
    own = {**identity, "models": identity["models"][job.model], "parameters": identity["parameters"][job.method]}
    key = hashlib.sha256(json.dumps([own | {"lengths": job.length}, job.measure], sort_keys=True).encode()).hexdigest()
    return folder / CELLS / f"{job.measure}-{job.length}-{key[:16]}.json"


def _check_folder(folder: Path, identity: dict[str, Any], force: bool) -> None:
    """Refuse a directory with another run or foreign files, unless its report may be replaced."""
    try:
        found = sorted(entry.name for entry in folder.iterdir() if entry.name != CELLS) if folder.exists() else []
    except OSError as error:
        raise ValueError(f"{WHO}: cannot read --out {folder}: {error.strerror}. Choose another directory.") from error
    run = read_json(folder / "run.json") or {}
    if found and run.get("identity") != identity and not force:
        what = "another evaluation" if "identity" in run else found[0]
        raise ValueError(
            f"{WHO}: --out {folder} holds {what}. Nothing in it was changed. Choose another directory, or --force to "
            "replace run.json, report.html and results.csv there; finished cells are kept."
        )


def _table(cells: Sequence[Cell]) -> bytes:
    """Return a row for each model, method, measure, length, depth and piece as CSV."""
    table = io.StringIO()
    writer = csv.writer(table)
    writer.writerow([*_FIXED, *_FACTS])
    for cell in cells:
        writer.writerows([*(cell[key] for key in _FIXED), *(row.get(key) for key in _FACTS)] for row in cell["rows"])
    return table.getvalue().encode()
