"""The jobs of a study on a Ray cluster, whose workers need not see the study's directory.

Where the cluster's head is gone, Ray ends its driver's process without an exception. So the driver is a child: it takes
jobs from the directory as one worker, has Ray do them, and writes the files that come back.
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

from posenc.study.config import Config
from posenc.study.engines import A_GPU, Local
from posenc.study.queue import MOST_DEATHS, Claim, Heartbeat, Queue
from posenc.study.text import Text
from posenc.study.worker import Bench, Directory, describe

CONNECT_S = 60.0  # Ray itself goes on trying for minutes
SHUTDOWN_S = 10.0
LOOK_S = 0.2  # between two looks at the cluster

_bench: Bench | None = None  # of one of Ray's worker processes, which serves one driver


class OnRay:
    """Workers of a Ray cluster: one on each core, or four on each GPU where the cluster has GPUs.

    Args:
        address: Of a cluster of which this machine is a node: auto, or host:port; without it, one is started here.
        workers: The most at a time.

    Raises:
        ValueError: Ray is not installed, or does not connect.
    """

    def __init__(self, address: str | None = None, workers: int | None = None) -> None:
        if find_spec("ray") is None:
            raise ValueError("study: --engine ray needs Ray, which is not installed: pip install 'posenc[ray]'")
        if workers == 0:
            raise ValueError("study: --workers 0 leaves the cells to posenc study worker, and Ray has none to do.")
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
                raise RuntimeError(f"{self._cluster} does not answer; is the --address right?")
            self._hear()
        except BaseException as error:
            self.stop()
            if isinstance(error, RuntimeError):
                raise ValueError(f"study: {error}") from None
            raise

    def start(self, path: Path) -> None:
        """Have the driver take the jobs of a directory."""
        self._queue = Queue(path)
        with suppress(OSError):  # the driver has ended, of which poll speaks
            self._pipe.send(path)

    def poll(self) -> None:
        """Note how large the cluster is now, and let others have the jobs of workers that died.

        Raises:
            RuntimeError: The cluster is gone, or results cannot be written.
        """
        while self._pipe.poll():
            self._hear()
        if self._queue:
            self._queue.reclaim()

    def stop(self) -> None:
        """End the driver, and what it started; jobs that were not finished are given back."""
        self._pipe.close()
        self._driver.join(SHUTDOWN_S)
        self._driver.kill()
        self._driver.join()
        if self._queue:
            self._queue.reclaim()

    def _hear(self) -> None:
        """Read what the driver says: the number of workers, or why it ended."""
        try:
            said = self._pipe.recv()
        except (EOFError, OSError):  # no word of it: Ray has ended the process
            said = "is gone"
        if isinstance(said, str):
            raise RuntimeError(f"{self._cluster} {said}; give the same command again, or --engine local")
        self.workers = said


def _drive(pipe: Connection, address: str | None, workers: int | None, search: list[str]) -> None:
    """Be the driver, until the other end of the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to answer
    sys.path[:] = search
    # of this process alone: no message to Ray's authors, and a limit to retries where memory is short, too
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_task_oom_retries": str(MOST_DEATHS - 1)}
    import ray

    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):  # Ray and its processes write hundreds of lines when something dies
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
    """Do the jobs of the directory that the pipe names, as many at a time as the cluster has room for."""
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
    """Return how many jobs the cluster can do at a time, 0 where this machine's node of it is gone."""
    nodes = {node["NodeID"]: node["Resources"] for node in ray.nodes() if node["Alive"]}
    if ray.get_runtime_context().get_node_id() not in nodes:
        return 0
    cores = sum(int(min(n.get("CPU", 0), A_GPU * n.get("GPU", 0) if on_gpu else 1e9)) for n in nodes.values())
    return max(1, min(cores, most or cores))  # one waits even where there is no room: what grows by demand needs some


def _finish(ray: Any, queue: Queue, directory: Directory, claim: Claim, done: Any) -> None:
    """Write what came of a job."""
    try:
        outcome = ray.get(done)
    except ray.exceptions.RayError as error:
        first = str(getattr(error, "cause", None) or error).strip().partition("\n")[0]
        outcome = f"Ray gave it up, after {MOST_DEATHS} tries where its process died: {type(error).__name__}: {first}"
    if isinstance(outcome, str):
        queue.fail(claim, outcome)
    else:
        directory.add(claim.name, queue.worker, outcome)
        queue.done(claim)


def _do(study: tuple[Config, Text | None, str, list[str]], job: dict[str, Any]) -> dict[str, bytes] | str:
    """Return the files of a job, or what its exception says; in a process of Ray's."""
    global _bench
    config, text, device, search = study
    sys.path += [folder for folder in search if folder not in sys.path]  # a user's class is importable here, too
    torch.set_num_threads(1)
    _bench = _bench or Bench(config, text, device)
    try:
        return _bench.do(job, lambda seen: None)
    except Exception as error:  # a user's class may raise anything
        return describe(error)
