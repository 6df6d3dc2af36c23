"""Workers, the processes that run a study's cells, on this machine or others."""

import hashlib
import json
import multiprocessing
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import save

from posenc.raised import describe
from posenc.study import cell, sharded, subjects
from posenc.study.config import Cell, Config
from posenc.study.queue import NO_ROOM, Claim, Heartbeat, Queue, read_json, write
from posenc.study.text import Text

LOOK_S = 0.1  # between two checks of an empty queue
RECLAIM_S = 1.0  # between two checks for dead workers
Report = Callable[[dict[str, float]], None]


class Bench:
    """Runs jobs; reads their data once.

    Args:
        config: The study.
        text: Its text, or None if it has none.
        device: The device of the training.
    """

    def __init__(self, config: Config, text: Text | None, device: str | torch.device) -> None:
        self.config, self.text, self.device = config, text, torch.device(device)
        self._subjects: dict[str, subjects.Subject] = {}

    def do(self, job: dict[str, Any], report: Report) -> dict[str, bytes]:
        """Return the files of a job: those of a finished cell, or the times of its steps and tests."""
        this = Cell(*(job[part] for part in Cell._fields))
        subject = self._subjects.setdefault(this.task, subjects.find(self.config, this.task, self.text))
        if job["steps"] == 0:
            return {"timing.json": json.dumps(job | cell.time_it(self.config, subject, this, self.device)).encode()}
        outcome = cell.run(self.config, subject, this, job["steps"], report, self.device)
        lines = "".join(json.dumps(line) + "\n" for line in outcome.metrics)
        return {
            "metrics.jsonl": lines.encode(),
            "model.safetensors": save(sharded.weights(outcome.model)),
            "result.json": json.dumps(outcome.result, indent=1).encode(),
        }


class Directory:
    """A study's directory, for a worker.

    Args:
        path: The directory.

    Raises:
        ValueError: The directory holds no study.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        run = read_json(path / "run.json") or {}
        if not isinstance(run.get("config"), dict):
            raise ValueError(f"study: {path} holds no study. Make one with posenc study --out {path} --workers 0.")
        self.run = run

    @cached_property
    def config(self) -> Config:
        """The study's configuration."""
        return Config.from_dict(self.run["config"])

    @cached_property
    def text(self) -> Text | None:
        """The study's text, or None if it has none."""
        facts, file = self.run.get("text"), self.path / "text"
        if not facts:
            return None
        data = file.read_bytes() if file.exists() else b""
        if hashlib.sha256(data).hexdigest() != facts["sha256"]:
            raise ValueError(
                f"study: {file} is not the text of this study. Repeat its posenc study command to write it again."
            )
        return Text(facts["name"], data, "")

    def is_done(self, name: str) -> bool:
        """Return whether a job has a complete result that belongs to this cell."""
        found = read_json(self.path / "cells" / name / "result.json") or {}
        with suppress(KeyError, TypeError, AttributeError):
            return Cell(*(found[part] for part in Cell._fields)).name == name
        return False

    def add(self, name: str, worker: str, files: dict[str, bytes]) -> None:
        """Write a job's files, all by one rename; an existing result is kept."""
        if "timing.json" in files:
            write(self.path / "timings" / f"{name}.json", files["timing.json"])
            return
        aside, target = self.path / "cells" / f".{name}~{worker}", self.path / "cells" / name
        shutil.rmtree(aside, ignore_errors=True)
        try:
            aside.mkdir()
            for file, data in files.items():
                (aside / file).write_bytes(data)
            with suppress(OSError):
                aside.rename(target)
                return
            if aside.exists() and not self.is_done(name):  # an incomplete cell exists, such as from an interrupted copy
                shutil.rmtree(target, ignore_errors=True)
                aside.rename(target)
        except OSError:
            if not self.is_done(name):  # otherwise another worker took this one for dead and was first
                raise
        finally:
            shutil.rmtree(aside, ignore_errors=True)


def work(path: Path, device: str = "", *, stay: bool = False, say: Callable[[str], None] = lambda _: None) -> bool:
    """Run jobs from a study's directory until none is left, with one thread; return whether all could be written.

    Processes of torchrun run each job together, and the first of them takes it from the queue.

    Args:
        path: The directory.
        device: The device of the training; by default a GPU if there is one.
        stay: Wait for more jobs when none is left.
        say: Called with a line about every job.

    Raises:
        ValueError: The directory holds no study, or cannot be read or written any more.
    """
    torch.set_num_threads(1)
    directory = Directory(path)
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if not dist.is_torchelastic_launched():
        return _work(directory, Bench(directory.config, directory.text, device).do, stay=stay, say=say)
    here = sharded.device_of(device)
    together = sharded.Together(Bench(directory.config, directory.text, here).do, here)
    if together.rank:
        together.follow()
        return True
    try:
        return _work(directory, together.do, stay=stay, say=say)
    finally:
        together.end()


def _work(directory: Directory, do: sharded.Do, *, stay: bool, say: Callable[[str], None]) -> bool:
    path = directory.path
    queue = Queue(path)
    heart = Heartbeat(queue)
    looked = time.monotonic()
    try:
        while True:
            claim = queue.claim()
            if claim is not None:
                _do(claim, queue, directory, do, heart, say)
                continue
            if not stay and time.monotonic() - looked > RECLAIM_S:  # a parent process would do this itself
                queue.reclaim()
                looked = time.monotonic()
                if not queue.waits() and not queue.claimed():
                    return True
            time.sleep(LOOK_S)
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise ValueError(f"study: cannot continue in {path}: {error}. Repeat the command.") from error
        say(f"{path}: {error.strerror}; free some space, and repeat the command")
        return False
    finally:
        heart.stop()


def _do(
    claim: Claim, queue: Queue, directory: Directory, do: sharded.Do, heart: Heartbeat, say: Callable[[str], None]
) -> None:
    """Run one job, or record why it failed; any other exception ends the worker."""
    try:
        message = _try(claim, queue, directory, do, heart)
        if message:
            queue.fail(claim, message)
        else:
            queue.done(claim)
        say(f"{claim.name} failed: {message}" if message else f"{claim.name} done")
    except BaseException:
        queue.give_back(claim)
        raise
    finally:
        heart.say()


def _try(claim: Claim, queue: Queue, directory: Directory, do: sharded.Do, heart: Heartbeat) -> str:
    """Run one job, unless it is done; return why it failed, or an empty string.

    Raises:
        OSError: No space is left for its result.
    """
    try:
        if not directory.is_done(claim.name):
            heart.say(job=claim.name, step=0, steps=claim.job["steps"])
            files = do(claim.job, lambda s: heart.say(job=claim.name, step=s["step"], steps=claim.job["steps"]))
            directory.add(claim.name, queue.worker, files)
    except sharded.JobError as error:
        return str(error)
    except (Exception, SystemExit) as error:  # a user's class may raise anything; the other cells go on
        if isinstance(error, OSError) and error.errno in NO_ROOM:
            raise
        return describe(error)
    return ""


def serve(path: Path, device: str, search: list[str]) -> None:
    """Work as a child process until the parent ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    threading.Thread(target=_end_with_parent, daemon=True).start()
    sys.path[:] = search  # so that a user's class can be imported here
    if not work(path, device, stay=True):
        sys.exit(NO_ROOM[0])


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
