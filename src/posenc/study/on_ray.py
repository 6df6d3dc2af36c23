"""A study's jobs on a Ray cluster, whose workers need no access to the study's directory.

If the cluster's head dies, Ray ends its driver's process without an exception. So the driver is a child process: it
takes jobs from the directory as one worker, runs them on Ray, and writes the files that they return.
"""

import os
import signal
import sys
from contextlib import suppress
from importlib.util import find_spec
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from posenc.raised import describe
from posenc.study.config import Config
from posenc.study.engines import A_GPU, Local
from posenc.study.queue import MOST_DEATHS, Claim, Heartbeat, Queue
from posenc.study.text import Text
from posenc.study.worker import Bench, Directory

CONNECT_S = 60.0  # Ray itself would try for minutes
SHUTDOWN_S = 10.0
LOOK_S = 0.2  # between two checks of the cluster

_bench: Bench | None = None  # in a Ray worker process, which serves only one driver


class OnRay:
    """Workers of a Ray cluster: one per core or, if the cluster has GPUs, four per GPU.

    Args:
        address: The address of a cluster that includes this machine: auto, or host:port; by default a cluster is
            started here.
        workers: The maximum at a time.

    Raises:
        ValueError: Ray is not installed, or does not connect.
    """

    def __init__(self, address: str | None = None, workers: int | None = None) -> None:
        if find_spec("ray") is None:
            raise ValueError("study: --engine ray needs Ray, which is not installed: pip install 'posenc[ray]'")
        if workers == 0:
            raise ValueError(
                "study: --workers 0 leaves the cells to posenc study worker, so Ray would have none. Leave out one."
            )
        self.workers = 0
        self._queue: Queue | None = None
        self._cluster = f"the Ray cluster at {address}" if address else "Ray on this machine"
        context = get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._driver = context.Process(target=_drive, args=(theirs, address, workers, list(sys.path)), daemon=True)
        self._driver.start()
        theirs.close()
        try:
            if not self._pipe.poll(CONNECT_S):
                raise RuntimeError(f"{self._cluster} does not answer; check --address")
            self._receive()
        except BaseException as error:
            self.stop()
            if isinstance(error, RuntimeError):
                raise ValueError(f"study: {error}") from None
            raise

    def start(self, path: Path) -> None:
        """Send the driver the directory of the jobs."""
        self._queue = Queue(path)
        with suppress(OSError):  # the driver has ended, which poll reports
            self._pipe.send(path)

    def poll(self) -> None:
        """Update the number of workers, and return jobs of dead workers to the queue.

        Raises:
            RuntimeError: The cluster is gone, or results cannot be written.
        """
        while self._pipe.poll():
            self._receive()
        if self._queue:
            self._queue.reclaim()

    def stop(self) -> None:
        """End the driver and its processes; unfinished jobs return to the queue."""
        self._pipe.close()
        self._driver.join(SHUTDOWN_S)
        self._driver.kill()
        self._driver.join()
        if self._queue:
            self._queue.reclaim()

    def _receive(self) -> None:
        """Read the driver's message: the number of workers, or why it ended."""
        try:
            message = self._pipe.recv()
        except (EOFError, OSError):  # Ray has ended the process
            message = "is gone"
        if isinstance(message, str):
            raise RuntimeError(f"{self._cluster} {message}; repeat the command, or use --engine local")
        self.workers = message


def _drive(pipe: Connection, address: str | None, workers: int | None, search: list[str]) -> None:
    """Run as the driver until the other end of the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    sys.path[:] = search
    # only in this process: no usage report to Ray's authors, and a limit on retries after running out of memory
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_task_oom_retries": str(MOST_DEATHS - 1)}
    import ray

    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):  # Ray and its processes print hundreds of lines when one of them dies
        os.dup2(nowhere, stream)
    try:
        here = {"num_cpus": Local(workers).workers, "include_dashboard": False}
        ray.init(address or "local", log_to_driver=False, logging_level="ERROR", **({} if address else here))
        _work(ray, pipe, workers)
    except EOFError:  # the parent died
        pass
    except Exception as error:
        pipe.send(f"failed: {describe(error)}")
    finally:
        ray.shutdown()


def _work(ray: Any, pipe: Connection, workers: int | None) -> None:
    """Run the jobs of the directory that the pipe sends, as many at a time as the cluster has room for."""
    on_gpu = ray.cluster_resources().get("GPU", 0) > 0
    pipe.send(_slots(ray, workers, on_gpu))
    directory = Directory(pipe.recv())
    queue = Queue(directory.path)
    share = {"num_cpus": 1, "num_gpus": 1 / A_GPU if on_gpu else 0}
    task = ray.remote(**share, max_retries=MOST_DEATHS - 1)(_do)
    study = ray.put((directory.config, directory.text, "cuda" if on_gpu else "cpu", sys.path))
    running: dict[Any, Claim] = {}
    heart = Heartbeat(queue)
    try:
        while not pipe.poll(LOOK_S) and (slots := _slots(ray, workers, on_gpu)):
            pipe.send(slots)
            while len(running) < slots and (claim := queue.claim()):
                if directory.is_done(claim.name):
                    queue.done(claim)
                else:
                    running[task.remote(study, claim.job)] = claim
            ready, _ = ray.wait([*running], num_returns=len(running), timeout=0) if running else ([], [])
            for done in ready:
                _finish(ray, queue, directory, running[done], done)
                del running[done]
    finally:
        heart.stop()
        for claim in running.values():
            queue.give_back(claim)


def _slots(ray: Any, most: int | None, on_gpu: bool) -> int:
    """Return how many jobs the cluster can run at a time, 0 if this machine's node is gone."""
    nodes = {node["NodeID"]: node["Resources"] for node in ray.nodes() if node["Alive"]}
    if ray.get_runtime_context().get_node_id() not in nodes:
        return 0
    cores = sum(int(min(n.get("CPU", 0), A_GPU * n.get("GPU", 0) if on_gpu else 1e9)) for n in nodes.values())
    return max(
        1, min(cores, most or cores)
    )  # one job waits even without room, since an autoscaling cluster grows only on demand


def _finish(ray: Any, queue: Queue, directory: Directory, claim: Claim, done: Any) -> None:
    """Write the result of a job."""
    try:
        outcome = ray.get(done)
    except ray.exceptions.RayError as error:
        first = str(getattr(error, "cause", None) or error).strip().partition("\n")[0]
        outcome = f"Ray gave up, after {MOST_DEATHS} tries if its process died: {type(error).__name__}: {first}"
    if isinstance(outcome, str):
        queue.fail(claim, outcome)
    else:
        directory.add(claim.name, queue.worker, outcome)
        queue.done(claim)


def _do(study: tuple[Config, Text | None, str, list[str]], job: dict[str, Any]) -> dict[str, bytes] | str:
    """Return the files of a job, or its exception's message; runs in a Ray worker process."""
    global _bench
    config, text, device, search = study
    sys.path += [folder for folder in search if folder not in sys.path]  # so that a user's class can be imported here
    torch.set_num_threads(1)
    _bench = _bench or Bench(config, text, device)
    try:
        return _bench.do(job, lambda seen: None)
    except Exception as error:  # a user's class may raise anything
        return describe(error)
