"""The processes that train: each takes cells one after another and ends with its parent."""

import multiprocessing
import os
import signal
import sys
import threading
import traceback
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from posenc.study.config import Config


class Worker:
    """One process with one thread of arithmetic.

    Messages from it are tuples: ("ready",), ("timed", name, step_s, tests_s),
    ("progress", step, bits), ("done", result), ("failed", message).
    """

    def __init__(self, config: Config, text: bytes, undertrained_above: float) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(
            target=_serve, args=(theirs, config, text, undertrained_above, list(sys.path)), daemon=True
        )
        previous = signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to answer
        try:
            self.process.start()
        finally:
            signal.signal(signal.SIGINT, previous)
        theirs.close()
        self.job: tuple[Any, ...] | None = ("start",)
        self.steps_done = 0

    def send(self, *job: Any) -> None:
        """Give it something to do: ("time", name) or ("cell", name, seed, steps, directory)."""
        self.job, self.steps_done = job, 0
        self.connection.send(job)

    def finish(self) -> tuple[Any, ...]:
        """Return what it was doing, and note that it is idle."""
        job, self.job = self.job or (), None
        return job

    def stop(self) -> None:
        """End it now."""
        self.process.kill()
        self.process.join()
        self.connection.close()


def _serve(
    connection: "Connection[Any, Any]",
    config: Config,
    text: bytes,
    undertrained_above: float,
    path: list[str],
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    sys.path[:] = path  # a user's own class is importable here as it was there
    import torch

    from posenc.study import cell
    from posenc.study.store import write_cell
    from posenc.study.text import Text

    torch.set_num_threads(1)
    words = Text("", text, "")
    train, test = words.split(config)
    data = cell.Data(train, test, len(words.alphabet), undertrained_above)
    connection.send(("ready",))
    while True:
        job = connection.recv()
        try:
            if job[0] == "time":
                connection.send(("timed", job[1], *cell.time_it(config, data, job[1])))
            else:
                _, name, seed, steps, directory = job
                outcome = cell.run(
                    config,
                    data,
                    name,
                    seed,
                    steps,
                    lambda step, bits: connection.send(("progress", step, bits)),
                )
                write_cell(Path(directory), outcome)
                connection.send(("done", outcome.result))
        except Exception as error:  # a user's class may raise anything; the other cells go on
            where = traceback.extract_tb(error.__traceback__)[-1]
            name = f"{Path(where.filename).name}:{where.lineno}"
            connection.send(("failed", f"{type(error).__name__}: {error} (in {name})"))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
