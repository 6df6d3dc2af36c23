"""`posenc study` from its arguments to its exit code."""

import hashlib
import inspect
import json
import os
import platform
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text as Plain

from posenc import registry
from posenc.languages import tr
from posenc.study import tasks
from posenc.study.board import Board, clock
from posenc.study.callbacks import call, find
from posenc.study.config import TEXT, Config
from posenc.study.engines import Engine
from posenc.study.export import export
from posenc.study.queue import read_json
from posenc.study.report import render
from posenc.study.schedule import Schedule, result_cell
from posenc.study.store import Store
from posenc.study.text import Text, load
from posenc.study.worker import Directory

INTERRUPTED = 130
LENGTHS = "lengths.toml"  # a plan with the lengths of tasks, if a study sets its own


def run(
    config: Config,
    text: Sequence[str],
    out: str,
    engine: Engine,
    *,
    callbacks: Sequence[str] = (),
    dry_run: bool = False,
    wait: bool = True,
    as_json: bool = False,
) -> int:
    """Run or resume a study, and write its report, in the language of `posenc.languages.use`.

    Args:
        config: The study.
        text: Files; none means the prose that every Python installation contains.
        out: The directory.
        engine: Runs the jobs.
        callbacks: tensorboard, mlflow, wandb, or package.module:function; called with every finished cell.
        dry_run: Time a few steps, print the plan, and leave no files.
        wait: Run the cells; otherwise leave them in the directory for workers.
        as_json: Print the results (or the plan) as JSON on standard output, and everything else on standard error.

    Returns:
        0 if all cells are done, 1 if some failed or the engine stopped, 130 after Ctrl-C.

    Raises:
        ValueError: Bad input; nothing was overwritten.
        TypeError: A class that is no encoding, or needs options that the study does not set.
    """
    started = time.monotonic()
    called = {name: find(name) for name in callbacks}
    words = load(text, config) if TEXT in config.tasks else None
    facts = words.facts(config) if words else None
    with ExitStack() as stack:
        if dry_run:
            out = str(Path(stack.enter_context(TemporaryDirectory(prefix="posenc-"))) / "study")
        store = stack.enter_context(closing(Store(out, _identity(config, facts))))
        began = started - store.run.get("elapsed_s", 0.0)
        board = stack.enter_context(Board(config, Console(stderr=as_json, highlight=False)))
        read = [f"{facts['bytes']:,} bytes of {facts['name']}"] if facts else []
        board.say(
            f"{len(config.encodings)} encodings, {len(config.seeds)} seeds, {', '.join([*read, *config.puzzles])}"
            + (f"; trained at {config.train_len} bytes, tested up to {config.test_lens[-1]}" if facts else "")
            + ("" if dry_run else f"; results in {store.path}")
        )
        schedule = Schedule(config, store, board, engine, config.fixed_steps or store.run.get("steps"), called)

        def record(status: str) -> dict[str, Any]:
            command = _command(config, text, out, schedule.steps)
            return _record(config, facts, command, schedule, began) | {"status": status}

        _write_given(store, config, words)
        halted = ""
        try:
            status = _run_cells(schedule, store, record, started, dry_run=dry_run, wait=wait)
        except RuntimeError as error:  # the engine stopped
            status, halted = "interrupted", str(error)
        if dry_run and status == "planned":
            return _print_plan(board, schedule, as_json)
        if dry_run and not halted:
            return INTERRUPTED
        _write_all(store, record(status), schedule.results)
        _close(board, config, schedule, words, store.path, status, as_json)
        if halted:
            board.say(f"study: {halted}")
            return 1
    if status == "interrupted":
        return INTERRUPTED
    return 1 if schedule.problems else 0


def _write_given(store: Store, config: Config, text: Text | None) -> None:
    """Write the files that workers need besides run.json, and the lengths that no option sets."""
    if text:
        store.write("text", text.data)
    if config.lengths:
        tables = (
            f'[lengths."{label}"]\n' + "".join(f"{word} = {values}\n" for word, values in own.items())
            for label, own in config.lengths.items()
        )
        store.write(LENGTHS, "".join(tables))


def _run_cells(
    schedule: Schedule,
    store: Store,
    record: Callable[[str], dict[str, Any]],
    started: float,
    *,
    dry_run: bool,
    wait: bool,
) -> str:
    """Run the unfinished cells; return "complete", "interrupted" or "waiting"."""
    try:
        if schedule.todo:
            fresh = not store.run
            if fresh:
                store.write_run(record("timing"))
            if wait or dry_run:
                schedule.board.say(f"timing the first steps of {len(schedule.todo)} cells")
                try:
                    steps = schedule.time_first_steps(time.monotonic() - started)
                except ValueError:
                    schedule.stop()
                    if fresh:
                        store.abandon()
                    raise
                if dry_run:
                    return "planned"
            store.write_run(record("running"))
            if not wait:
                schedule.fill()
                return "waiting"
            done = f"; {len(schedule.results)} cells were done before" if schedule.results else ""
            schedule.board.say(f"{steps} steps per cell, about {clock(schedule.left() or 0.0)}{done}")
            schedule.run()
        return "complete"
    except KeyboardInterrupt:
        return "interrupted"
    finally:
        schedule.stop()


def report(path: Path, callbacks: Sequence[str] = ()) -> int:
    """Write a study's report from the files in its directory, in the language of `posenc.languages.use`.

    Args:
        path: The directory.
        callbacks: As in `run`; called with every finished cell.

    Raises:
        ValueError: The directory holds no study.
    """
    called = {name: find(name) for name in callbacks}
    directory = Directory(path)
    config, run = directory.config, directory.run
    store = Store(path, run.get("identity", {}))
    with closing(store), Board(config, Console(highlight=False)) as board:
        results = store.results(config.cells())
        failed = [
            read_json(p) or {"encoding": p.stem, "message": f"{p} cannot be read"}
            for p in sorted(path.glob("failed/*.json"))
        ]
        if len(results) == len(config.cells()):
            run["status"] = "complete"
        _write_all(store, run | {"problems": failed or run.get("problems", [])}, results)
        for result in results:
            call(called, path / "cells" / result_cell(result).name, result, board.say)
        for table in board.tables(results):
            board.console.print(table)
        found, planned = len(results), len(config.cells())
        board.say(
            tr("{found} of {planned} cells are done, {failed} failed", found=found, planned=planned, failed=len(failed))
        )
        board.say(tr("report: {path}", path=(path / "report.html").resolve().as_uri()))
    return 1 if failed else 0


def _print_plan(board: Board, schedule: Schedule, as_json: bool) -> int:
    """Print the cells of a plan and their cost."""
    plan = schedule.plan
    if as_json:
        sys.stdout.write(json.dumps(plan | {"problems": schedule.problems}) + "\n")
        return 1 if schedule.problems else 0
    table = Table(box=None, pad_edge=False)
    for head in ("encoding", "task", "size", "seed", "steps", "seconds"):
        table.add_column(head, justify="right" if head in ("seed", "steps", "seconds") else "left", no_wrap=True)
    for row in plan["cells"]:
        table.add_row(*(Plain(str(row[head])) for head in ("encoding", "task", "size", "seed", "steps", "seconds")))
    board.console.print(table)
    board.say(f"{len(plan['cells'])} cells, about {clock(plan['seconds'])} with {plan['workers']} workers")
    return 1 if schedule.problems else 0


def _record(
    config: Config, facts: dict[str, Any] | None, command: str, schedule: Schedule, began: float
) -> dict[str, Any]:
    """Return the contents of run.json."""
    earlier = schedule.store.run
    return {
        "steps": schedule.steps,
        "command": command,
        "created": earlier.get("created") or datetime.now(UTC).isoformat(timespec="seconds"),
        "elapsed_s": round(time.monotonic() - began, 1),
        "config": config.as_dict() | {"steps": schedule.steps, "target_bytes": config.target_bytes},
        "plan": schedule.plan,
        "text": facts,
        "machine": _machine(),
        "versions": {"python": platform.python_version()}
        | {package: version(package) for package in ("posenc", "torch", "numpy")},
        "cards": _cards(config),
        "tasks": {label: tasks.split(label)[0].card() for label in config.puzzles},
        "problems": schedule.problems,
    }


def _identity(config: Config, facts: dict[str, Any] | None) -> dict[str, Any]:
    """Return what two equal studies share: the configuration, the text and the code."""
    code = {package: version(package) for package in ("posenc", "torch")}
    for name in config.encodings:
        if ":" in name and (source := inspect.getsourcefile(registry.find_class(name))):
            code[name] = hashlib.sha256(Path(source).read_bytes()).hexdigest()
    return {**config.as_dict(), "text": facts and facts["sha256"], "code": code}


def _cards(config: Config) -> dict[str, Any]:
    """Return the cards of the registered encodings."""
    cards = [registry.card(name) for name in config.encodings if ":" not in name]
    relative = {card.name: None if card.family == "none" else card.traits["shift_invariant"] for card in cards}
    return {card.name: card.as_dict() | {"relative": relative[card.name]} for card in cards}


def _machine() -> dict[str, Any]:
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        models = (line.partition(":")[2].strip() for line in info.read_text().splitlines() if "model name" in line)
        cpu = next(models, cpu)
    memory = None
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        memory = round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "memory_gib": memory,
        "system": f"{platform.system()} {platform.release()}",
    }


def _command(config: Config, text: Sequence[str], out: str, steps: int | None) -> str:
    """Return the command line that repeats this study."""
    words = [
        "posenc",
        "study",
        "--encodings",
        ",".join(config.encodings),
        "--train-len",
        str(config.train_len),
    ]
    words += ["--test-len", ",".join(map(str, config.test_lens)), "--seeds", str(len(config.seeds))]
    words += ["--task", ",".join(config.tasks)] if config.tasks != Config.tasks else []
    words += ["--size", ",".join(config.sizes)] if config.sizes != Config.sizes else []
    words += ["--steps", str(steps)] if steps else ["--budget", f"{config.budget_s:g}s"]
    words += ["--plan", str(Path(out) / LENGTHS)] if config.lengths else []  # no option sets them
    words += ["--out", out]
    return shlex.join(words + (["--text", ",".join(text)] if text else []))


def _write_all(store: Store, record: dict[str, Any], results: list[dict[str, Any]]) -> None:
    order = {name: i for i, name in enumerate(record["config"]["encodings"])}
    results.sort(key=lambda r: (r["task"], r["size"], order[r["encoding"]], r["seed"]))
    store.write("report.html", render(record, results))
    export(store.path, "csv")
    store.write_run(record)


def _close(
    board: Board, config: Config, schedule: Schedule, text: Text | None, path: Path, status: str, as_json: bool
) -> None:
    """Print how the study ended, and the path of the report."""
    if schedule.results:
        for table in board.tables(schedule.results):
            board.console.print(table)
    read = [r for r in schedule.results if r["task"] == TEXT]
    if text and (weak := sum(r["undertrained"] for r in read)):
        board.say(
            tr(
                "{weak} of {read} cells are undertrained: above {limit} bits per byte at the trained length (rope: "
                "0.81 of that). Give a larger --budget.",
                weak=weak,
                read=len(read),
                limit=text.undertrained_above,
            )
        )
    if status == "interrupted":
        planned = len(config.cells())
        board.say(
            tr(
                "interrupted with {missing} of {planned} cells missing; the same command resumes.",
                missing=planned - len(schedule.results),
                planned=planned,
            )
        )
    if status == "waiting":
        board.say(
            tr(
                "{count} cells are waiting: run  posenc study worker {path}  in any number of processes, on any "
                "machines, and then  posenc study report {path}",
                count=len(schedule.todo),
                path=path,
            )
        )
    board.say(tr("report: {path}", path=(path / "report.html").resolve().as_uri()))
    if as_json:
        summary = {
            "status": status,
            "out": str(path),
            "results": schedule.results,
            "problems": schedule.problems,
        }
        sys.stdout.write(json.dumps(summary) + "\n")
