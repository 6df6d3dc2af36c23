"""Measure what the jobs of a study cost beyond the cells themselves, and write STUDY.md.

`python benchmarks/study_queue.py` makes a study's directory in which N cells are finished and N wait, for N of 20,
1,000 and 10,000, and takes the median of some calls of each operation of its workers and of its coordinator.
"""

import argparse
import io
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from posenc.bench import machine
from posenc.study.board import Board
from posenc.study.config import Cell, Config
from posenc.study.engines import Local
from posenc.study.plan import Estimate, kind
from posenc.study.queue import Claim, Heartbeat, Queue
from posenc.study.schedule import LOOK_S, LOOKING, MOST_LOOK_S, Schedule
from posenc.study.store import Store
from posenc.study.worker import Directory

SIZES, CALLS, WORKERS, CELL_S = (20, 1_000, 10_000), 9, 2, 5.0
GOAL = 0.01  # of the cells' time
OPERATIONS = (
    "a worker's first claim, which lists the queue",
    "each further claim",
    "a worker forgets a job that is done",
    "a look for workers that are gone",
    "a look of the coordinator",
    "a look of the coordinator in a terminal",
    "the coordinator notes a finished cell",
)


def result(cell: Cell) -> bytes:
    """Return a result of a usual size."""
    bits = {str(64 * 2**i): 2.5 for i in range(5)}
    measured = {"steps": 300, "train_seconds": 4.0, "test_seconds": 1.0, "bits_by_length": bits, "undertrained": False}
    return json.dumps(cell._asdict() | measured | {"bits_by_position": [2.5] * 64}).encode()


def median_ms(call: Callable[[], object], calls: int = CALLS) -> float:
    """Return the median time of some calls."""
    taken = []
    for _ in range(calls):
        begin = time.perf_counter()
        call()
        taken.append(time.perf_counter() - begin)
    return 1e3 * statistics.median(taken)


def measure(n: int, path: Path) -> list[float]:
    """Return the milliseconds of each operation, with so many cells that are finished and so many that wait."""
    config = Config(encodings=("nope",), seeds=tuple(range(2 * n)), fixed_steps=300)
    store = Store(path, {})
    store.write_run({"config": config.as_dict(), "text": None})
    directory, (*done, last) = Directory(path), config.cells()[: n + 1]
    for cell in done:
        directory.add(cell.name, "w", {"result.json": result(cell)})
    boards = [Board(config, Console(file=io.StringIO(), force_terminal=live, width=120)) for live in (False, True)]
    schedule = Schedule(config, store, boards[0], Local(WORKERS), 300)
    schedule.estimates[kind(last)] = Estimate(0.01, 2.0)
    schedule.time_first_steps(0.0)
    schedule.fill()
    waiting = {cell.name: cell for cell in schedule.todo}

    queue = Queue(path)
    hearts = [Heartbeat(queue), Heartbeat(Queue(path, "other"))]
    claims: list[Claim] = []
    taken = [
        median_ms(lambda: claims.extend(filter(None, [Queue(path, "other").claim()]))),
    ]
    while len(claims) > 1:  # one stays at work: a look has something to look at
        queue.give_back(claims.pop())
    taken += [
        median_ms(lambda: claims.extend(filter(None, [queue.claim()]))),
        median_ms(lambda: queue.done(claims.pop())),
        median_ms(queue.reclaim),
        median_ms(lambda: schedule.look(waiting, timing=False)),
    ]
    with boards[1]:
        schedule.board = boards[1]
        taken.append(median_ms(lambda: schedule.look(waiting, timing=False)))
    schedule.board = boards[0]
    directory.add(last.name, "w", {"result.json": result(last)})
    taken.append(median_ms(lambda: schedule._collect(last, timing=False)))
    for heart in hearts:
        heart.stop()
    store.close()
    return taken


def share(ms: list[float]) -> float:
    """Return the share of the time of cells that goes into their scheduling, with two workers and no terminal."""
    _, claim, done, gone, look, _, noted = (value / 1e3 for value in ms)
    pause = min(max(LOOK_S, look / LOOKING), MOST_LOOK_S)
    looks = (look + gone) / (pause + look + gone)  # the coordinator's, of one core's time
    return (claim + done + noted) / CELL_S + looks / WORKERS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("STUDY.md"), help="where the page goes")
    out = parser.parse_args().out
    columns = []
    for n in SIZES:
        with tempfile.TemporaryDirectory() as folder:
            columns.append(measure(n, Path(folder) / "s"))
    shares = [share(column) for column in columns]
    met = "met" if max(shares) < GOAL else "missed"
    lines = [
        "# What the jobs of a study cost\n",
        f"Written by `python benchmarks/study_queue.py` on {datetime.now(UTC):%Y-%m-%d}; as many cells wait as are "
        f"finished, two workers live, medians of {CALLS} calls. Machine: {machine.sentence(machine.examine())}\n",
        f"- Goal: under {GOAL:.0%} of the time of cells of {CELL_S:g} s with {WORKERS} workers: "
        f"{max(shares):.2%} with {SIZES[-1]:,} jobs, {met}.\n",
        "| operation | " + " | ".join(f"{n:,} jobs" for n in SIZES) + " |",
        "|---" * (1 + len(SIZES)) + "|",
        *(f"| {name} | " + " | ".join(f"{c[i]:.2f} ms" for c in columns) + " |" for i, name in enumerate(OPERATIONS)),
        "| all, of the cells' time | " + " | ".join(f"{s:.2%}" for s in shares) + " |",
    ]
    out.write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
