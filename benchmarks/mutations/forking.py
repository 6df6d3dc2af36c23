"""Jobs in forked children: each has the imported package for itself, and may spoil it."""

import os
import pickle
import select
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any


def forked(jobs: Sequence[Any], work: Callable[[Any], Any], n: int, wall: float) -> Iterator[tuple[Any, Any]]:
    """Yield (job, result) for each job, run in a forked child; the result is None where the child died."""
    waiting, running, seconds, last = list(reversed(jobs)), {}, 0.0, time.monotonic()
    while waiting or running:
        seconds, last = seconds + min(time.monotonic() - last, 5.0), time.monotonic()  # a machine may be suspended
        while waiting and len(running) < n:
            job = waiting.pop()
            read, write = os.pipe()
            pid = os.fork()
            if pid == 0:
                os.close(read)
                _child(work, job, write)
            os.close(write)
            running[read] = [job, pid, b"", seconds + wall]
        ready, _, _ = select.select(list(running), [], [], 1.0)
        for read in list(running):
            entry = running[read]
            if read in ready:
                piece = os.read(read, 2**16)
                entry[2] += piece
                if piece:
                    continue
            elif seconds < entry[3]:
                continue
            else:
                os.kill(entry[1], signal.SIGKILL)
            os.close(read)
            os.waitpid(entry[1], 0)
            del running[read]
            yield entry[0], _read(entry[2])


def _child(work: Callable[[Any], Any], job: Any, write: int) -> None:
    """Run one job, send what it returns, and end without any of the parent's farewells."""
    try:
        null = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(null, stream)
        for piece in work(job):
            data = pickle.dumps(piece)
            os.write(write, len(data).to_bytes(4, "little") + data)
    finally:
        os._exit(0)


def _read(data: bytes) -> list[Any]:
    found = []
    while len(data) >= 4 and len(data) >= 4 + int.from_bytes(data[:4], "little"):
        n = int.from_bytes(data[:4], "little")
        found.append(pickle.loads(data[4 : 4 + n]))
        data = data[4 + n :]
    return found
