"""Running the cells of a study on two processes within a budget of time."""

import heapq
import statistics
import time
from collections.abc import Iterable
from multiprocessing.connection import wait
from typing import Any, NamedTuple

from posenc.study.board import Board
from posenc.study.config import Config
from posenc.study.store import Store
from posenc.study.text import Text
from posenc.study.worker import Worker

WORKERS = 2
MARGIN = 0.88  # of the budget: what else runs on the machine should not break the promise
REPORT_S = 2.0  # for the report


class Estimate(NamedTuple):
    """What one encoding costs, in seconds."""

    step_s: float
    tests_s: float

    def cell(self, steps: int) -> float:
        """Return the seconds of a whole cell."""
        return steps * self.step_s + self.tests_s


class Schedule:
    """The cells of a study that are not finished, and the processes that work on them.

    Args:
        config: The study.
        text: Its text.
        store: Its directory.
        board: Hears of everything.
        steps: Of every cell, where a run that is resumed has set them; else None.
        began: When this run began, by time.monotonic(): the budget counts from there.
    """

    def __init__(self, config: Config, text: Text, store: Store, board: Board, steps: int | None, began: float) -> None:
        self.config, self.text, self.store, self.board, self.steps = config, text, store, board, steps
        self.began = began
        self.results = store.results(config.cells())
        self.problems: list[dict[str, Any]] = []
        self.estimates: dict[str, Estimate] = {}
        self.trials: dict[str, Estimate] = {}
        self.slower: list[float] = []  # measured over estimated, for each cell that ended
        for result in self.results:
            self._learn(result)
        done = {(r["encoding"], r["seed"]) for r in self.results}
        self.todo = [cell for cell in config.cells() if cell not in done]
        self.jobs: list[tuple[Any, ...]] = []
        self.workers: list[Worker] = []

    def time_first_steps(self) -> int:
        """Start the processes, time a few steps of each encoding, and return the steps that the budget allows.

        Raises:
            ValueError: The budget is too small for one step of each cell.
        """
        self.workers = [self._hire() for _ in range(min(WORKERS, len(self.todo)))]
        names = dict.fromkeys(name for name, _ in self.todo)
        self._work([("time", name) for name in names if name not in self.estimates])
        steps = self.steps = self.steps or self._affordable()
        self.todo.sort(key=lambda cell: (cell[1], -self.estimates[cell[0]].cell(steps)))
        self.jobs = [("cell", name, seed, steps, str(self.store.cell_path(name, seed))) for name, seed in self.todo]
        return steps

    def run(self) -> None:
        """Run every cell that is not finished, each seed's most expensive first."""
        self._work(self.jobs)

    def stop(self) -> None:
        """End all processes; what they had not finished is lost."""
        for worker in self.workers:
            worker.stop()
        self.workers = []

    def left(self) -> float | None:
        """Return the seconds until all is done, or None while nothing is known."""
        if self.steps is None or any(job[0] == "time" for job in self.jobs):
            return None
        running = [self._rest(worker) for worker in self.workers]
        return makespan([self._cost(job[1]) for job in self.jobs], running)

    def _affordable(self) -> int:
        """Return the greatest number of steps with which all cells fit into what is left of the budget."""
        budget_s = self.config.budget_s or 0.0
        left = budget_s * MARGIN - REPORT_S - (time.monotonic() - self.began)

        def needed(steps: int) -> float:
            return makespan([self.estimates[name].cell(steps) for name, _ in self.todo], [0.0] * len(self.workers))

        if needed(1) > left:
            raise ValueError(
                f"study: the budget of {budget_s:g}s is too small for one step of each of the "
                f"{len(self.todo)} cells: they need about {budget_s - left + needed(1):.0f}s. "
                "Give a larger --budget, fewer --encodings, or fewer --seeds."
            )
        low, high = 1, 2
        while needed(high) <= left:
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if needed(middle) <= left else (low, middle)
        return low

    def _work(self, jobs: list[tuple[Any, ...]]) -> None:
        """Give jobs to idle workers and listen until all are done."""
        self.jobs = jobs
        while self.jobs or any(worker.job for worker in self.workers):
            for worker in list(self.workers):
                if worker.job is None and self.jobs:
                    job = self.jobs.pop(0)
                    try:
                        worker.send(*job)
                    except OSError:  # it died while it had nothing to do
                        self.jobs.insert(0, job)
                        worker.finish()
                        self._replace(worker)
            pipes = {worker.connection: worker for worker in self.workers}
            for pipe in wait(list(pipes), timeout=0.5):
                self._listen(pipes[pipe])  # type: ignore[index]
            self.board.draw(self.results, self._running(), self.left())

    def _listen(self, worker: Worker) -> None:
        """Act on a worker's next message, or on its death."""
        try:
            kind, *what = worker.connection.recv()
        except (EOFError, ConnectionResetError):
            self._replace(worker)
            return
        if kind == "progress":
            worker.steps_done = what[0]
            return
        job = worker.finish()
        if kind == "timed":
            self.trials[what[0]] = self.estimates[what[0]] = Estimate(what[1], what[2])
        elif kind == "done":
            self.results.append(what[0])
            self._learn(what[0])
            self.board.finished(what[0], self.left() or 0.0)
        elif kind == "failed":
            self._fail(job, what[0])

    def _replace(self, worker: Worker) -> None:
        """Name the cell of a worker that died (out of memory, or killed) and go on with a new one."""
        worker.process.join()
        job, code = worker.finish(), worker.process.exitcode
        if job[:1] == ("start",):
            raise RuntimeError(f"study: a worker process could not start (exit code {code}).")
        if job:
            self._fail(job, f"its process died (exit code {code})")
        self.workers[self.workers.index(worker)] = self._hire()
        worker.connection.close()

    def _fail(self, job: tuple[Any, ...], message: str) -> None:
        """Note what failed; an encoding that fails in its first steps is given up with all its seeds."""
        name = job[1]
        failed = [cell for cell in self.todo if cell[0] == name] if job[0] == "time" else [(name, job[2])]
        self.todo = [cell for cell in self.todo if cell not in failed]
        self.problems += [{"encoding": name, "seed": seed, "message": message} for name, seed in failed]
        self.board.say(f"{name} failed: {message}")

    def _learn(self, result: dict[str, Any]) -> None:
        measured = Estimate(result["train_seconds"] / result["steps"], result["test_seconds"])
        trial = self.trials.get(result["encoding"])
        if trial and self.steps:
            self.slower.append(measured.cell(self.steps) / trial.cell(self.steps))
        self.estimates[result["encoding"]] = measured

    def _rest(self, worker: Worker) -> float:
        """Return the seconds that a worker's cell will still take."""
        if worker.job is None or worker.job[0] != "cell" or self.steps is None:
            return 0.0
        return self._cost(worker.job[1]) * (1 - worker.steps_done / (self.steps + 1))

    def _cost(self, name: str) -> float:
        """Return the seconds of a cell, as measured, or as tried and corrected by how the others turned out."""
        estimate = self.estimates[name]
        corrected = statistics.median(self.slower) if self.slower and estimate is self.trials.get(name) else 1.0
        return estimate.cell(self.steps or 0) * corrected

    def _running(self) -> Iterable[str]:
        for worker in self.workers:
            if worker.job and worker.job[0] == "cell":
                yield f"{worker.job[1]} s{worker.job[2]} {worker.steps_done}/{self.steps}"
            elif worker.job:
                yield " ".join(worker.job)

    def _hire(self) -> Worker:
        return Worker(self.config, self.text.data, self.text.undertrained_above)


def makespan(jobs: list[float], busy: list[float]) -> float:
    """Return when the last of some jobs ends, if each goes to whoever is free first.

    >>> makespan([3.0, 2.0, 2.0], [0.0, 0.0])
    4.0
    """
    free = list(busy) or [0.0]
    heapq.heapify(free)
    for job in jobs:
        heapq.heapreplace(free, free[0] + job)
    return max(free)
