"""`posenc study` from its arguments to its exit code."""

import hashlib
import inspect
import json
import os
import platform
import shlex
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console

from posenc import registry
from posenc.study.board import Board, clock
from posenc.study.config import Config, make_config
from posenc.study.report import render
from posenc.study.schedule import Schedule
from posenc.study.store import Store
from posenc.study.text import load

INTERRUPTED = 130


def run(
    text: Sequence[str],
    encodings: Sequence[str],
    train_len: int,
    test_lens: Sequence[int],
    seeds: int,
    budget_s: float | None,
    steps: int | None,
    out: str,
    as_json: bool = False,
) -> int:
    """Run a study, or go on with one, and write its report.

    Args:
        text: Files; none means the prose that every Python installation carries.
        encodings: Names; none means the default ones.
        train_len: Tokens of a training sequence.
        test_lens: Tokens of context in the tests; none means up to 16 times `train_len`.
        seeds: How many.
        budget_s: Seconds for everything; None if steps are given.
        steps: Of every cell, instead of a budget.
        out: The directory.
        as_json: Print the results as JSON on standard output, and everything else on standard error.

    Returns:
        0 if all cells are done, 1 if some failed, 130 after Ctrl-C.

    Raises:
        ValueError: Bad input; nothing was overwritten.
        TypeError: A class that is no encoding, or needs options that the study does not know.
    """
    started = time.monotonic()
    config = make_config(encodings, train_len, test_lens, seeds, budget_s, steps)
    words = load(text, config)
    facts = words.facts(config)
    store = Store(out, _identity(config, facts))
    began = started - store.run.get("elapsed_s", 0.0)

    def record() -> dict[str, Any]:
        return _record(config, facts, _command(config, text, out, schedule.steps), schedule, began)

    console = Console(stderr=as_json, highlight=False)
    with closing(store), Board(config, console) as board:
        board.say(
            f"{len(config.encodings)} encodings, {len(config.seeds)} seeds, {facts['bytes']:,} bytes of {words.name}; "
            f"trained at {config.train_len} bytes, tested up to {config.test_lens[-1]}; results in {store.path}"
        )
        schedule = Schedule(config, words, store, board, config.fixed_steps or store.run.get("steps"), started)
        status = _run_cells(schedule, store, record)
        _write_all(store, record() | {"status": status}, schedule.results)
    _close(board, config, schedule, store.path, status, as_json)
    if status == "interrupted":
        return INTERRUPTED
    return 1 if schedule.problems else 0


def _run_cells(schedule: Schedule, store: Store, record: Any) -> str:
    """Run what is not finished; return "complete" or "interrupted"."""
    try:
        if schedule.todo:
            schedule.board.say(f"timing the first steps of {len(schedule.todo)} cells")
            try:
                steps = schedule.time_first_steps()
            except ValueError:
                if not store.run:
                    store.abandon()
                raise
            store.write_run(record() | {"status": "running"})
            done = f", {len(schedule.results)} cells are done already" if schedule.results else ""
            schedule.board.say(f"{steps} steps a cell, about {clock(schedule.left() or 0.0)}{done}")
            schedule.run()
        return "complete"
    except KeyboardInterrupt:
        return "interrupted"
    finally:
        schedule.stop()


def _record(config: Config, facts: dict[str, Any], command: str, schedule: Schedule, began: float) -> dict[str, Any]:
    """Return what run.json says."""
    earlier = schedule.store.run
    return {
        "steps": schedule.steps,
        "command": command,
        "created": earlier.get("created") or datetime.now(UTC).isoformat(timespec="seconds"),
        "elapsed_s": round(time.monotonic() - began, 1),
        "config": config.as_dict() | {"steps": schedule.steps},
        "text": facts,
        "machine": _machine(),
        "versions": {"python": platform.python_version()}
        | {package: version(package) for package in ("posenc", "torch", "numpy")},
        "cards": _cards(config),
        "problems": schedule.problems,
    }


def _identity(config: Config, facts: dict[str, Any]) -> dict[str, Any]:
    """Return what makes two studies the same: what was asked, of which text, by which code."""
    code = {package: version(package) for package in ("posenc", "torch")}
    for name in config.encodings:
        if ":" in name and (source := inspect.getsourcefile(registry.find_class(name))):
            code[name] = hashlib.sha256(Path(source).read_bytes()).hexdigest()
    asked = {name: value for name, value in config.as_dict().items() if name not in ("batch_size", "target_bytes")}
    return {**asked, "text": facts["sha256"], "code": code}


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
    words += ["--steps", str(steps)] if steps else ["--budget", f"{config.budget_s:g}s"]
    words += ["--out", out]
    return shlex.join(words + (["--text", ",".join(text)] if text else []))


def _write_all(store: Store, record: dict[str, Any], results: list[dict[str, Any]]) -> None:
    order = {name: i for i, name in enumerate(record["config"]["encodings"])}
    results.sort(key=lambda r: (order[r["encoding"]], r["seed"]))
    store.write_table(results)
    store.write("report.html", render(record, results))
    store.write_run(record)


def _close(board: Board, config: Config, schedule: Schedule, path: Path, status: str, as_json: bool) -> None:
    """Print how it ended and where the report is."""
    if schedule.results:
        board.console.print(board.table(schedule.results))
    if weak := sum(r["undertrained"] for r in schedule.results):
        limit = schedule.text.undertrained_above
        board.say(
            f"{weak} of {len(schedule.results)} cells are undertrained: above {limit} bits per byte at the trained "
            "length (rope: 0.81 of it). Give a larger --budget."
        )
    if status == "interrupted":
        missing = len(config.cells()) - len(schedule.results)
        board.say(f"interrupted with {missing} of {len(config.cells())} cells missing; the same command goes on.")
    board.say(f"report: {(path / 'report.html').resolve().as_uri()}")
    if as_json:
        summary = {
            "status": status,
            "out": str(path),
            "results": schedule.results,
            "problems": schedule.problems,
        }
        sys.stdout.write(json.dumps(summary) + "\n")
