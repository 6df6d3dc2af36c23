"""Running the cells of a study within a time budget, on any engine."""

import os
import statistics
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Any

from posenc.study import plan
from posenc.study.board import Board
from posenc.study.callbacks import Callback, call
from posenc.study.config import Cell, Config
from posenc.study.engines import Engine
from posenc.study.plan import Estimate, Kind, kind
from posenc.study.queue import Queue, read_json
from posenc.study.store import Store, room

LOOK_S, MOST_LOOK_S = 0.2, 10.0  # between two checks for results
LOOKING = 0.005  # at most this share of the time is spent on checks


class Schedule:
    """The unfinished cells of a study, and the engine that runs them.

    Args:
        config: The study.
        store: The study's directory.
        board: Displays progress.
        engine: Runs the jobs.
        steps: Steps per cell, if given or set by an interrupted run; else None.
        callbacks: Called with every cell that this run finishes, by name.
    """

    def __init__(
        self,
        config: Config,
        store: Store,
        board: Board,
        engine: Engine,
        steps: int | None,
        callbacks: Mapping[str, Callback] = MappingProxyType({}),
    ) -> None:
        self.callbacks = callbacks
        self.config, self.store, self.board, self.engine, self.steps = config, store, board, engine, steps
        self.queue = Queue(store.path)
        with room(store.path):
            self.queue.reclaim()  # jobs killed with an earlier run did not fail
            self.queue.clear(failed=True)
        self.results = store.results(config.cells())
        self.problems: list[dict[str, Any]] = []
        self.estimates: dict[Kind, Estimate] = {}
        self.plan: dict[str, Any] = {"cells": [], "seconds": 0.0, "workers": engine.workers}
        self.slower: list[float] = []  # measured over planned time, for each finished cell
        done = {result_cell(r) for r in self.results}
        for result in self.results:
            self.estimates[kind(result_cell(result))] = _measured(result)
        self.todo = [cell for cell in config.cells() if cell not in done]
        self._started, self._ended = False, set[str]()  # names of the cells that ended in this run

    def time_first_steps(self, gone_s: float) -> int:
        """Time a few steps of each kind of cell, make the plan, and return the steps per cell.

        Args:
            gone_s: Seconds of the budget used before this call.

        Raises:
            ValueError: The budget is too small for one step of each cell.
        """
        begin = time.monotonic()
        unknown = {kind(cell): cell for cell in reversed(self.todo) if kind(cell) not in self.estimates}
        self._put((cell, 0) for cell in reversed(unknown.values()))
        self._watch({_job(cell, 0): cell for cell in unknown.values()}, timing=True)
        failed = {kind(cell) for cell in unknown.values()} - self.estimates.keys()
        self.todo = [cell for cell in self.todo if kind(cell) not in failed]
        if self.steps is None and not self.todo:
            self.steps = 1  # unused: no cell is left
        if self.steps is None:
            gone_s += time.monotonic() - begin
            budget_s = self.config.budget_s or 0.0
            self.steps = plan.affordable(self.todo, self.estimates, budget_s, gone_s, self.engine.workers)
        self.plan = plan.make(self.todo, self.estimates, self.steps, self.engine.workers)
        return self.steps

    def fill(self) -> None:
        """Put every unfinished cell into the queue, in the order of the plan."""
        assert self.steps is not None
        order = {row["name"]: i for i, row in enumerate(self.plan["cells"])}
        self._put((cell, self.steps) for cell in sorted(self.todo, key=lambda cell: order.get(cell.name, 0)))

    def run(self) -> None:
        """Run every unfinished cell."""
        self.fill()
        self._watch({cell.name: cell for cell in self.todo}, timing=False)

    def stop(self) -> None:
        """Stop the engine; its unfinished jobs return to the queue."""
        self.engine.stop()

    def left(self) -> float | None:
        """Return the estimated seconds until all cells are done, or None before the plan is made."""
        if not self.plan["cells"]:
            return None
        rest: list[float] = [row["seconds"] for row in self.plan["cells"] if row["name"] not in self._ended]
        slower = statistics.median(self.slower) if self.slower else 1.0
        going: float = sum(b["step"] / b["steps"] for b in self._beats() if b.get("steps"))
        mean = sum(rest) / len(rest) if rest else 0.0
        return max(0.0, slower * (plan.makespan(rest, self.engine.workers) - mean * going / self.engine.workers))

    def _put(self, jobs: Iterable[tuple[Cell, int]]) -> None:
        """Queue jobs, except those that a worker of an earlier run is still running."""
        self.queue.clear()
        claimed = self.queue.claimed()
        with room(self.store.path):
            for order, (cell, steps) in enumerate(jobs):
                if _job(cell, steps) not in claimed:
                    self.queue.put(order, _job(cell, steps), cell._asdict() | {"steps": steps})

    def _watch(self, waiting: dict[str, Cell], *, timing: bool) -> None:
        """Poll the engine until every job has finished or failed."""
        if waiting and not self._started:
            self.engine.start(self.store.path)
            self._started = True
        while waiting:
            self.engine.poll()
            begin = time.monotonic()
            self.look(waiting, timing=timing)
            time.sleep(min(max(LOOK_S, (time.monotonic() - begin) / LOOKING), MOST_LOOK_S))

    def look(self, waiting: dict[str, Cell], *, timing: bool) -> None:
        """Remove the jobs that ended from `waiting`, and redraw the board.

        Args:
            waiting: The cells of the awaited jobs, by name.
            timing: Whether the jobs are timings of cells.
        """
        folder, failed = self.store.path / ("timings" if timing else "cells"), self.store.path / "failed"
        for name in waiting.keys() & {entry.removesuffix(".json") for entry in os.listdir(folder)}:
            if self._collect(waiting[name], timing=timing):
                del waiting[name]
        for name in waiting.keys() & {entry.removesuffix(".json") for entry in os.listdir(failed)}:
            problem = read_json(failed / f"{name}.json") or {}
            message = str(problem.get("message") or f"the reason is unknown, because failed/{name}.json cannot be read")
            self._fail(waiting.pop(name), message, every_seed=timing)
        self.board.draw(self.results, self._running, self.left)

    def _collect(self, cell: Cell, *, timing: bool) -> bool:
        """Read a job's result, if there is one."""
        if timing:
            timed = read_json(self.store.path / "timings" / f"{_job(cell, 0)}.json") or {}
            with suppress(KeyError):
                self.estimates[kind(cell)] = Estimate(timed["step_s"], timed["tests_s"])
            return kind(cell) in self.estimates
        found = self.store.results([cell])
        if found:
            self.results += found
            self._ended.add(cell.name)
            steps = self.steps or 1
            self.slower.append(_measured(found[0]).cell(steps) / self.estimates[kind(cell)].cell(steps))
            self.board.finished(found[0], self.left() or 0.0)
            call(self.callbacks, self.store.path / "cells" / cell.name, found[0], self.board.say)
        return bool(found)

    def _fail(self, cell: Cell, message: str, *, every_seed: bool) -> None:
        """Record a failed cell; one that fails during timing is given up with all its seeds."""
        failed = [c for c in self.todo if kind(c) == kind(cell)] if every_seed else [cell]
        self.problems += [{**c._asdict(), "name": c.name, "message": message} for c in failed]
        self._ended |= {c.name for c in failed}
        self.board.say(f"{cell.encoding} failed: {message}")

    def _beats(self) -> list[dict[str, Any]]:
        beats = self.queue.workers()
        return [b for b in beats if b.get("job") and all(isinstance(b.get(k), int | float) for k in ("step", "steps"))]

    def _running(self) -> list[str]:
        return [f"{beat['job']} {beat['step']}/{beat['steps']}" for beat in self._beats()]


def result_cell(result: dict[str, Any]) -> Cell:
    """Return the cell of a result."""
    return Cell(*(result[part] for part in Cell._fields))


def _job(cell: Cell, steps: int) -> str:
    """Return the name of a job; timings of a cell have a suffix."""
    return cell.name if steps else f"{cell.name}.timing"


def _measured(result: dict[str, Any]) -> Estimate:
    return Estimate(result["train_seconds"] / result["steps"], result["test_seconds"])
