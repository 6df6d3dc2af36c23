"""Engines that run a study's jobs: processes on this machine, Ray's workers, or workers started elsewhere."""

import multiprocessing
import os
import signal
import sys
from pathlib import Path
from typing import Protocol

import torch

from posenc.study.queue import MOST_DEATHS, NO_ROOM, Queue
from posenc.study.worker import serve

A_GPU = 4  # workers per GPU: a study's models leave most of a GPU idle
MOST = 8  # default limit of workers on CPUs: each needs about 600 MiB


class Engine(Protocol):
    """Runs the jobs of a directory's queue."""

    workers: int

    def start(self, path: Path) -> None:
        """Start running the jobs of this directory."""

    def poll(self) -> None:
        """Check on the workers; called a few times each second.

        Raises:
            RuntimeError: The engine cannot continue.
        """

    def stop(self) -> None:
        """Stop at once; unfinished jobs return to the queue."""


class Local:
    """Processes on this machine, each with one thread; with GPUs, several per GPU.

    Args:
        workers: How many; by default one per core up to 8, or four per GPU.
    """

    def __init__(self, workers: int | None = None) -> None:
        gpus = torch.cuda.device_count()
        self.workers = workers or (A_GPU * gpus if gpus else min(MOST, os.cpu_count() or 1))
        self._devices = [f"cuda:{i % gpus}" if gpus else "cpu" for i in range(self.workers)]
        self._processes: list[multiprocessing.process.BaseProcess] = []
        self._futile = 0  # processes in a row that died without a job

    def start(self, path: Path) -> None:
        """Start the processes."""
        self._path, self._queue = path, Queue(path)
        self._processes = [self._spawn(device) for device in self._devices]

    def poll(self) -> None:
        """Replace processes that died, and return their jobs to the queue."""
        for i, process in enumerate(self._processes):
            if process.exitcode == NO_ROOM[0]:
                raise RuntimeError("no space is left for results. Free some, and repeat the command.")
            if not process.is_alive():
                process.join()
                self._futile += 1
                if self._futile > MOST_DEATHS * self.workers:
                    raise RuntimeError(f"workers exit before they take a cell (exit code {process.exitcode}).")
                self._processes[i] = self._spawn(self._devices[i])
        try:
            if self._queue.reclaim():
                self._futile = 0
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

    def _spawn(self, device: str) -> multiprocessing.process.BaseProcess:
        context = multiprocessing.get_context("spawn")
        process = context.Process(target=serve, args=(self._path, device, list(sys.path)), daemon=True)
        previous = signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
        try:
            process.start()
        finally:
            signal.signal(signal.SIGINT, previous)
        return process
