"""Jobs in a directory that any number of processes share, on any machines: a rename takes one, and no server is needed.

queue/ORDER~DEATHS~NAME is a job that waits, claims/ORDER~DEATHS~NAME~WORKER one that a worker is on, and
failed/NAME.json one that raised, or whose worker died too often. workers/WORKER.json is a worker's heartbeat. A rename
succeeds for one process alone, so no job is taken twice; a job whose worker is gone is renamed back.
"""

import errno
import json
import os
import secrets
import shutil
import socket
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BEAT_S = 2.0  # between two heartbeats
STALE_S = 60.0  # without a new heartbeat, by the clock of whoever looks: clocks of machines differ and jump
MOST_DEATHS = 3  # of workers on one job
FOLDERS = ("queue", "claims", "failed", "workers")
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


@dataclass(frozen=True)
class Claim:
    """A job that this worker is on."""

    file: Path
    name: str
    deaths: int
    job: dict[str, Any]


class Queue:
    """The jobs of a directory, as one worker sees them.

    Args:
        path: The directory.
        worker: The worker's name; a new one if left out.
    """

    def __init__(self, path: Path, worker: str | None = None) -> None:
        self.path = path
        self.worker = worker or f"{socket.gethostname().replace('~', '-')}-{os.getpid()}-{secrets.token_hex(3)}"
        for folder in FOLDERS:
            (path / folder).mkdir(exist_ok=True)
        self._seen: dict[str, tuple[str, float]] = {}  # each worker's last heartbeat and when it was first seen here

    def put(self, order: int, name: str, job: Mapping[str, Any]) -> None:
        """Add a job; jobs of a lower order are taken first."""
        write(self.path / "queue" / f"{order:06d}~0~{name}", json.dumps(job).encode())

    def claim(self) -> Claim | None:
        """Take the first job that nothing else has taken, or return None."""
        for entry in sorted(os.listdir(self.path / "queue")):
            parts = entry.split("~")
            if len(parts) == 3 and parts[1].isdigit():
                with suppress(FileNotFoundError):
                    return self._take(self.path / "queue" / entry, entry)
        return None

    def _take(self, source: Path, entry: str) -> Claim:
        _, deaths, name = entry.split("~")
        mine = self.path / "claims" / f"{entry}~{self.worker}"
        os.rename(source, mine)
        return Claim(mine, name, int(deaths), json.loads(mine.read_text()))

    def done(self, claim: Claim) -> None:
        """Forget a job whose result is written."""
        with suppress(FileNotFoundError):  # another took it for dead, and will find the result
            claim.file.unlink()

    def give_back(self, claim: Claim) -> None:
        """Let another worker have the job."""
        with suppress(FileNotFoundError):
            os.rename(claim.file, self.path / "queue" / claim.file.name.rpartition("~")[0])

    def fail(self, claim: Claim, message: str) -> None:
        """Record why a job cannot be done."""
        write(self.path / "failed" / f"{claim.name}.json", json.dumps(claim.job | {"message": message}).encode())
        self.done(claim)

    def clear(self) -> None:
        """Remove what waits and what failed; jobs that a worker is on stay."""
        for file in (*self.path.glob("queue/*"), *self.path.glob("failed/*.json")):
            file.unlink(missing_ok=True)

    def claimed(self) -> dict[str, str]:
        """Return the worker of every job that one is on, by the job's name."""
        entries = (entry.split("~") for entry in os.listdir(self.path / "claims"))
        return {parts[2]: parts[3] for parts in entries if len(parts) == 4}

    def reclaim(self) -> None:
        """Give jobs back whose workers are gone; of too many deaths a job fails. Forget those workers."""
        for entry in os.listdir(self.path / "claims"):
            order, deaths, name, worker = (*entry.split("~"), "", "", "", "")[:4]
            if not worker or not deaths.isdigit() or worker == self.worker or self._lives(worker):
                continue
            shutil.rmtree(self.path / "cells" / f".{name}~{worker}", ignore_errors=True)
            with suppress(FileNotFoundError):
                entry = f"{order}~{int(deaths) + 1}~{name}"
                if int(deaths) + 1 < MOST_DEATHS:
                    os.rename(self.path / "claims" / f"{order}~{deaths}~{name}~{worker}", self.path / "queue" / entry)
                else:
                    claim = self._take(self.path / "claims" / f"{order}~{deaths}~{name}~{worker}", entry)
                    self.fail(claim, f"{MOST_DEATHS} processes died of it, or were killed (out of memory?)")

        for file in self.path.glob("workers/*.json"):
            if file.stem != self.worker and not self._lives(file.stem):
                file.unlink(missing_ok=True)

    def _lives(self, worker: str) -> bool:
        """Whether a worker's heartbeat changed lately, or, on this machine, whether its process is there."""
        now = time.monotonic()
        beat = (read_json(self.path / "workers" / f"{worker}.json") or {}) if worker else {}
        if beat.get("machine") == machine() and beat.get("process") not in (None, process(beat.get("pid"))):
            return False
        said = json.dumps(beat)
        if self._seen.get(worker, ("", 0.0))[0] != said:
            self._seen[worker] = said, now
        return now - self._seen[worker][1] < STALE_S

    def workers(self) -> list[dict[str, Any]]:
        """Return the last heartbeat of every worker that lives."""
        files = {p.stem: p for p in self.path.glob("workers/*.json")}
        return [found for name, p in files.items() if (found := read_json(p)) and self._lives(name)]


class Heartbeat:
    """Writes what a worker is doing, every few seconds and from a thread of its own.

    Args:
        queue: The worker's.
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
        with suppress(OSError):  # a full disk ends the worker where it writes a result, not here
            write(self.file, json.dumps(self._fixed | self.doing | {"beat": self._count}).encode())

    def say(self, **doing: Any) -> None:
        """Set what the next heartbeat says: the job's name, its step, ..."""
        self.doing = doing

    def stop(self) -> None:
        """End, and take the heartbeat away."""
        self._end.set()
        self._thread.join()
        with suppress(OSError):
            self.file.unlink()


def write(file: Path, data: bytes, sync: bool = False) -> None:
    """Write a file so that it is there whole or not at all."""
    temporary = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as opened:
            opened.write(data)
            opened.flush()
            if sync:
                os.fsync(opened.fileno())
        os.replace(temporary, file)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def read_json(file: Path) -> dict[str, Any] | None:
    """Return the object in a file, or None where there is none: it is absent, half written or of another kind."""
    try:
        found = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def machine() -> str:
    """Return what tells this machine, since it was started, from others; processes of others cannot be seen."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip() + _namespace()
    return socket.gethostname()


def _namespace() -> str:
    with suppress(OSError):
        return os.readlink("/proc/self/ns/pid")
    return ""


def process(pid: Any) -> str:
    """Return what tells a process from a later one of the same number: when it began; "gone" if there is none."""
    try:
        after = Path(f"/proc/{int(pid)}/stat").read_text().rpartition(")")[2].split()
        return "gone" if after[0] == "Z" else after[19]
    except (OSError, TypeError, ValueError, IndexError):
        return "gone" if Path("/proc/self/stat").exists() else ""
