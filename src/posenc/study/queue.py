"""A job queue in a directory, shared by any number of processes on any machines, without a server.

queue/ORDER~DEATHS~NAME is a waiting job, claims/ORDER~DEATHS~NAME~WORKER one that a worker is running, and
failed/NAME.json one that raised, or whose worker died too often. workers/WORKER.json is a worker's heartbeat. A worker
takes a job by a rename, which succeeds for only one process; the job of a dead worker is renamed back.
"""

import errno
import json
import os
import re
import secrets
import shutil
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posenc.replacing import replaced

BEAT_S = 2.0  # between two heartbeats
STALE_S = 60.0  # without a new heartbeat, by the observer's clock, since clocks of machines differ and jump
MOST_DEATHS = 3  # workers that may die on one job
FOLDERS = ("queue", "claims", "failed", "workers")
# names of entries; other files in these folders, such as temporary ones, are ignored
_WAITING = re.compile(r"(\d+)~(\d+)~([^.~][^~]*)", re.ASCII)
_CLAIMED = re.compile(_WAITING.pattern + r"~([^~]+)", re.ASCII)
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


@dataclass(frozen=True)
class Claim:
    """A job that this worker has taken."""

    file: Path
    name: str
    deaths: int
    job: dict[str, Any]


class Queue:
    """The jobs of a directory, for one worker.

    Args:
        path: The directory.
        worker: The worker's name; by default a new one.
    """

    def __init__(self, path: Path, worker: str | None = None) -> None:
        self.path = path
        self.worker = worker or f"{socket.gethostname().replace('~', '-')}-{os.getpid()}-{secrets.token_hex(3)}"
        for folder in FOLDERS:
            (path / folder).mkdir(exist_ok=True)
        self._seen: dict[
            str, tuple[str, float]
        ] = {}  # each worker's last heartbeat, and when this process first read it
        self._clock, self._looked = 0.0, time.monotonic()
        self._listed: list[re.Match[str]] = []

    def put(self, order: int, name: str, job: Mapping[str, Any]) -> None:
        """Add a job; jobs of a lower order are taken first."""
        write(self.path / "queue" / f"{order:06d}~0~{name}", json.dumps(job).encode())

    def claim(self) -> Claim | None:
        """Take the first job that nothing else has taken, or return None."""
        for again in (False, True):
            if again:  # one listing serves many claims, since listing thousands of jobs is slow
                self._listed = sorted(_entries(self.path / "queue", _WAITING), key=lambda found: found[0], reverse=True)
            while self._listed:
                found = self._listed.pop()
                mine = self.path / "claims" / f"{found[0]}~{self.worker}"
                with suppress(FileNotFoundError):
                    os.rename(self.path / "queue" / found[0], mine)
                    claim = _read_claim(mine, found)
                    if claim.job:
                        return claim
                    self.fail(claim, f"the job {claim.name} in queue cannot be read; repeat the study's command")
        return None

    def waits(self) -> bool:
        """Return whether a job waits for a worker."""
        return any(_entries(self.path / "queue", _WAITING))

    def done(self, claim: Claim) -> None:
        """Remove a job whose result is written, and its failure, if another worker recorded one."""
        claim.file.unlink(missing_ok=True)  # missing if another worker took this one for dead; it will find the result
        (self.path / "failed" / f"{claim.name}.json").unlink(missing_ok=True)

    def give_back(self, claim: Claim) -> None:
        """Return the job to the queue."""
        with suppress(FileNotFoundError):
            os.rename(claim.file, self.path / "queue" / claim.file.name.rpartition("~")[0])

    def fail(self, claim: Claim, message: str) -> None:
        """Record why a job failed, unless another worker has taken it."""
        if claim.file.exists():
            write(self.path / "failed" / f"{claim.name}.json", json.dumps(claim.job | {"message": message}).encode())
            claim.file.unlink(missing_ok=True)

    def clear(self, *, failed: bool = False) -> None:
        """Remove waiting jobs and, if `failed`, failures; keep jobs that workers are running."""
        for file in (*self.path.glob("queue/*"), *(self.path.glob("failed/*") if failed else ())):
            with suppress(OSError):  # a foreign folder
                file.unlink()

    def claimed(self) -> dict[str, str]:
        """Return the worker of every running job, by the job's name."""
        return {found[3]: found[4] for found in _entries(self.path / "claims", _CLAIMED)}

    def reclaim(self) -> int:
        """Return the jobs of dead workers to the queue, and return how many; after too many deaths a job fails.

        Also removes the files of dead workers, and their unfinished results.
        """
        dead, count = set(), 0
        for found in _entries(self.path / "claims", _CLAIMED):
            order, name, worker = found.group(1, 3, 4)
            if worker == self.worker or self._lives(worker):
                continue
            dead.add(worker)
            count += 1
            claim = _read_claim(self.path / "claims" / found[0], found)
            # if there is a result, the worker died after writing it, and the next one finds it
            if claim.deaths + 1 >= MOST_DEATHS and not read_json(self.path / "cells" / name / "result.json"):
                self.fail(claim, f"{MOST_DEATHS} processes died or were killed while running it (out of memory?)")
            else:
                with suppress(FileNotFoundError):
                    os.rename(claim.file, self.path / "queue" / f"{order}~{claim.deaths + 1}~{name}")
        patterns = ("workers/*.json", "workers/.*.json.*.tmp")  # heartbeats, and temporary files of them
        files = [(f.name.lstrip(".").rpartition(".json")[0], f) for p in patterns for f in self.path.glob(p)]
        dead |= {name for name, _ in files if name != self.worker and not self._lives(name)}
        for left in self.path.glob("cells/.*~*") if dead else ():
            if left.name.rpartition("~")[2] in dead:
                shutil.rmtree(left, ignore_errors=True)
        for name, file in files:
            if name in dead:  # last, since the steps above read these names
                file.unlink(missing_ok=True)
        return count

    def _lives(self, worker: str) -> bool:
        """Return whether a worker's heartbeat changed recently or, on this machine, whether its process exists."""
        # this clock stops while this process does not check: after a pause it must not take all others for dead
        now, looked = time.monotonic(), self._looked
        self._clock, self._looked = self._clock + min(now - looked, BEAT_S), now
        beat = (read_json(self.path / "workers" / f"{worker}.json") or {}) if worker else {}
        if beat.get("machine") == machine() and beat.get("process") not in (None, process(beat.get("pid"))):
            return False
        state = json.dumps(beat)
        if self._seen.get(worker, ("", 0.0))[0] != state:
            self._seen[worker] = state, self._clock
        return self._clock - self._seen[worker][1] < STALE_S

    def workers(self) -> list[dict[str, Any]]:
        """Return the last heartbeat of every live worker."""
        files = {p.stem: p for p in self.path.glob("workers/*.json")}
        return [found for name, p in files.items() if (found := read_json(p)) and self._lives(name)]


class Heartbeat:
    """Writes a worker's state to a file every few seconds, from its own thread.

    Args:
        queue: The worker's queue.
    """

    def __init__(self, queue: Queue) -> None:
        self.file = queue.path / "workers" / f"{queue.worker}.json"
        self.doing: dict[str, Any] = {}
        self._fixed = {
            "worker": queue.worker,
            "machine": machine(),
            "pid": os.getpid(),
            "process": process(os.getpid()),
        }
        self._count, self._end = 0, threading.Event()
        self._write()
        self._thread = threading.Thread(target=self._beat, daemon=True)
        self._thread.start()

    def _beat(self) -> None:
        while not self._end.wait(BEAT_S):
            self._write()

    def _write(self) -> None:
        self._count += 1
        with suppress(OSError, MemoryError):  # these errors must end a job or its worker, but not the heartbeat
            write(self.file, json.dumps(self._fixed | self.doing | {"beat": self._count}).encode())

    def say(self, **doing: Any) -> None:
        """Set the contents of the next heartbeat: the job's name, its step, ..."""
        self.doing = doing

    def stop(self) -> None:
        """Stop, and remove the heartbeat."""
        self._end.set()
        self._thread.join()
        with suppress(OSError):
            self.file.unlink()


def _entries(folder: Path, pattern: re.Pattern[str]) -> Iterator[re.Match[str]]:
    return filter(None, map(pattern.fullmatch, os.listdir(folder)))


def _read_claim(file: Path, found: re.Match[str]) -> Claim:
    return Claim(file, found[3], int(found[2]), read_json(file) or {})


def write(file: Path, data: bytes, sync: bool = False) -> None:
    """Write a file atomically."""
    with replaced(file) as aside, aside.open("wb") as opened:
        opened.write(data)
        opened.flush()
        if sync:
            os.fsync(opened.fileno())


def read_json(file: Path) -> dict[str, Any] | None:
    """Return the object in a file, or None if it is absent, half written or of another type."""
    try:
        found = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def machine() -> str:
    """Return an identifier of this boot of this machine and of its process namespace."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip() + _namespace()
    return socket.gethostname()


def _namespace() -> str:
    with suppress(OSError):
        return os.readlink("/proc/self/ns/pid")
    return ""


def process(pid: Any) -> str:
    """Return a process's start time, which distinguishes it from a later one with the same id; "gone" if it is gone."""
    try:
        after = Path(f"/proc/{int(pid)}/stat").read_text().rpartition(")")[2].split()
        return "gone" if after[0] == "Z" else after[19]
    except (OSError, TypeError, ValueError, IndexError):
        return "gone" if Path("/proc/self/stat").exists() else ""
