"""What does the jobs of a study: processes of this machine, Ray's workers, or workers that others start."""

import multiprocessing
import os
import signal
import sys
from pathlib import Path
from typing import Protocol

import torch

from posenc.study.queue import MOST_DEATHS, NO_ROOM, Queue
from posenc.study.worker import serve

A_GPU = 4  # workers a GPU: models of a study leave most of one idle
MOST = 8  # workers on CPUs unless asked for more: each holds about 600 MiB


class Engine(Protocol):
    """Does the jobs of a directory's queue."""

    workers: int

    def start(self, path: Path) -> None:
        """Begin with the jobs of this directory."""

    def poll(self) -> None:
        """Look after what works; called a few times each second.

        Raises:
            RuntimeError: Nothing can go on.
        """

    def stop(self) -> None:
        """End at once; what was not finished is to be done again."""


class Local:
    """Processes of this machine, each with one thread of arithmetic, and several on a GPU where there is one.

    Args:
        workers: How many; without it, one for each core up to 8, or four for each GPU.
    """

    def __init__(self, workers: int | None = None) -> None:
        gpus = torch.cuda.device_count()
        self.workers = workers or (A_GPU * gpus if gpus else min(MOST, os.cpu_count() or 1))
        self._devices = [f"cuda:{i % gpus}" if gpus else "cpu" for i in range(self.workers)]
        self._processes: list[multiprocessing.process.BaseProcess] = []
        self._in_vain = 0  # processes that died without a job, one after another

    def start(self, path: Path) -> None:
        """Start the processes."""
        self._path, self._queue = path, Queue(path)
        self._processes = [self._hire(device) for device in self._devices]

    def poll(self) -> None:
        """Replace processes that died, and let others have their jobs."""
        for i, process in enumerate(self._processes):
            if process.exitcode == NO_ROOM[0]:
                raise RuntimeError("no space is left for results; make some, and give the same command again.")
            if not process.is_alive():
                process.join()
                self._in_vain += 1
                if self._in_vain > MOST_DEATHS * self.workers:
                    raise RuntimeError(f"workers end before they take a cell (exit code {process.exitcode}).")
                self._processes[i] = self._hire(self._devices[i])
        try:
            if self._queue.reclaim():
                self._in_vain = 0
        except OSError as error:
            raise RuntimeError(f"cannot write to {self._path}: {error.strerror}.") from error

    def stop(self) -> None:
        """Kill the processes."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()
        if self._processes:
            self._queue.reclaim()
        self._processes = []

    def _hire(self, device: str) -> multiprocessing.process.BaseProcess:
        context = multiprocessing.get_context("spawn")
        process = context.Process(target=serve, args=(self._path, device, list(sys.path)), daemon=True)
        previous = signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to answer
        try:
            process.start()
        finally:
            signal.signal(signal.SIGINT, previous)
        return process
