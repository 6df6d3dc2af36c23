"""Workers for tests: processes that a server with everything loaded forks, with other constants, and with an end."""

import contextlib
import json
import multiprocessing
import os
import signal
import sys

import torch

from posenc.study import cell, queue, worker

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["study.hands", "posenc.nn", "posenc.study.command"])
FILE_EVENTS = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir")  # os.replace is a rename too


def hire(target, *arguments, **options):
    """Start a process that runs a function of an importable module."""
    process = _CONTEXT.Process(target=target, args=arguments, kwargs=options, daemon=True)
    process.start()
    return process


def patch(constants):
    """Set constants: {"queue.STALE_S": 1.0}."""
    for name, value in constants.items():
        module, _, name = name.partition(".")
        setattr(
            {"cell": cell, "nn": torch.nn.utils, "optim": torch.optim, "queue": queue, "worker": worker}[module],
            name,
            value,
        )


def die_at(n, path):
    """End this process with SIGKILL just before it touches the directory for the n-th time."""
    count = 0

    def look(event, arguments):
        nonlocal count
        if event in FILE_EVENTS and str(arguments[0]).startswith(f"{path}/"):
            count += 1
            if count == n:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(look)


def work(path, constants=None, log=None, dtype=torch.float32):
    """Work on a study as `posenc study worker` does; return whether there was room."""
    torch.set_num_threads(1)
    torch.set_default_dtype(dtype)
    patch(constants or {})
    with open(log or os.devnull, "a") as opened, contextlib.redirect_stderr(opened):
        done = worker.work(path, say=lambda line: print(line, file=opened, flush=True))
    sys.exit(0 if done else 1)


def join(path, rank, world_size, port, **how):
    """Work on a study as one of the processes of torchrun, whose store is at a port."""
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    os.environ |= dict(zip(names, map(str, (rank, rank, world_size, "127.0.0.1", port)), strict=True))
    os.environ |= {"TORCHELASTIC_RUN_ID": "test", "TORCHELASTIC_USE_AGENT_STORE": "True", "GLOO_SOCKET_IFNAME": "lo"}
    work(path, **how)


def unclipped(parameters, most):
    """Leave gradients their size."""


class Plain(torch.optim.SGD):
    """A step along the gradient, which shows its size too: Adam's step does not."""

    def __init__(self, parameters, lr, **_):
        super().__init__(parameters, lr)


class Fake:
    """A bench whose cells take no time; the encoding "failing" raises."""

    def __init__(self, *_):
        pass

    def do(self, job, report):
        report({"step": 1})
        if job["encoding"] == "failing":
            raise RuntimeError("out of positions")
        if job["steps"] == 0:
            return {"timing.json": json.dumps({"step_s": 0.1, "tests_s": 0.1}).encode()}
        measured = {"train_seconds": 1.0, "test_seconds": 1.0, "exact_by_length": {}, "undertrained": False}
        return {"result.json": json.dumps(job | measured).encode()}


def fake(path, n=0):
    """Work with cells that take no time, and die at the n-th touch of a file."""
    worker.Bench = Fake
    patch({"worker.LOOK_S": 0.0, "worker.RECLAIM_S": 0.0})
    die_at(n, path)
    sys.exit(0 if worker.work(path) else 1)


def reclaim(path, n=0):
    """Look for workers that are gone, and die at the n-th touch of a file."""
    patch({"queue.STALE_S": 0.0})
    die_at(n, path)
    queue.Queue(path).reclaim()
