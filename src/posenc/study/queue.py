"""Jobs in a directory that any number of processes share, on any machines: a rename takes one, and no server is needed.

queue/ORDER~DEATHS~NAME is a job that waits, claims/ORDER~DEATHS~NAME~WORKER one that a worker is on, and
failed/NAME.json one that raised, or whose worker died too often. workers/WORKER.json is a worker's heartbeat. A rename
succeeds for one process alone, so no job is taken twice; a job whose worker is gone is renamed back.
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
import traceback
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posenc.replacing import replaced

BEAT_S = 2.0  # between two heartbeats
STALE_S = 60.0  # without a new heartbeat, by the clock of whoever looks: clocks of machines differ and jump
MOST_DEATHS = 3  # of workers on one job
FOLDERS = ("queue", "claims", "failed", "workers")
# an entry's name: other files in these folders, temporary ones too, are left alone
_WAITING = re.compile(r"(\d+)~(\d+)~([^.~][^~]*)", re.ASCII)
_CLAIMED = re.compile(_WAITING.pattern + r"~([^~]+)", re.ASCII)
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
        self._clock, self._looked = 0.0, time.monotonic()
        self._listed: list[re.Match[str]] = []

    def put(self, order: int, name: str, job: Mapping[str, Any]) -> None:
        """Add a job; jobs of a lower order are taken first."""
        write(self.path / "queue" / f"{order:06d}~0~{name}", json.dumps(job).encode())

    def claim(self) -> Claim | None:
        """Take the first job that nothing else has taken, or return None."""
        for again in (False, True):
            if again:  # one listing serves many claims: of thousands it takes long
                self._listed = sorted(_entries(self.path / "queue", _WAITING), key=lambda found: found[0], reverse=True)
            while self._listed:
                found = self._listed.pop()
                mine = self.path / "claims" / f"{found[0]}~{self.worker}"
                with suppress(FileNotFoundError):
                    os.rename(self.path / "queue" / found[0], mine)
                    claim = _read_claim(mine, found)
                    if claim.job:
                        return claim
                    self.fail(claim, f"the job {claim.name} in queue cannot be read; give the study's command again")
        return None

    def waits(self) -> bool:
        """Whether a job waits for a worker."""
        return any(_entries(self.path / "queue", _WAITING))

    def done(self, claim: Claim) -> None:
        """Forget a job whose result is written, and that it failed, if another worker thought so."""
        claim.file.unlink(missing_ok=True)  # missing: another took this worker for dead, and will find the result
        (self.path / "failed" / f"{claim.name}.json").unlink(missing_ok=True)

    def give_back(self, claim: Claim) -> None:
        """Let another worker have the job."""
        with suppress(FileNotFoundError):
            os.rename(claim.file, self.path / "queue" / claim.file.name.rpartition("~")[0])

    def fail(self, claim: Claim, message: str) -> None:
        """Record why a job cannot be done, unless another worker has it by now."""
        if claim.file.exists():
            write(self.path / "failed" / f"{claim.name}.json", json.dumps(claim.job | {"message": message}).encode())
            claim.file.unlink(missing_ok=True)

    def clear(self, *, failed: bool = False) -> None:
        """Remove what waits, and on demand what failed; jobs that a worker is on stay."""
        for file in (*self.path.glob("queue/*"), *(self.path.glob("failed/*") if failed else ())):
            with suppress(OSError):  # a folder that is not ours
                file.unlink()

    def claimed(self) -> dict[str, str]:
        """Return the worker of every job that one is on, by the job's name."""
        return {found[3]: found[4] for found in _entries(self.path / "claims", _CLAIMED)}

    def reclaim(self) -> int:
        """Give jobs back whose workers are gone, and return how many; of too many deaths a job fails.

        Those workers are forgotten, with what they had not finished writing.
        """
        dead, count = set(), 0
        for found in _entries(self.path / "claims", _CLAIMED):
            order, name, worker = found.group(1, 3, 4)
            if worker == self.worker or self._lives(worker):
                continue
            dead.add(worker)
            count += 1
            claim = _read_claim(self.path / "claims" / found[0], found)
            # where a result is there, its worker died after it: who takes the job next sees to that
            if claim.deaths + 1 >= MOST_DEATHS and not read_json(self.path / "cells" / name / "result.json"):
                self.fail(claim, f"{MOST_DEATHS} processes died of it, or were killed (out of memory?)")
            else:
                with suppress(FileNotFoundError):
                    os.rename(claim.file, self.path / "queue" / f"{order}~{claim.deaths + 1}~{name}")
        patterns = ("workers/*.json", "workers/.*.json.*.tmp")  # whole heartbeats, and those cut off
        files = [(f.name.lstrip(".").rpartition(".json")[0], f) for p in patterns for f in self.path.glob(p)]
        dead |= {name for name, _ in files if name != self.worker and not self._lives(name)}
        for left in self.path.glob("cells/.*~*") if dead else ():
            if left.name.rpartition("~")[2] in dead:
                shutil.rmtree(left, ignore_errors=True)
        for name, file in files:
            if name in dead:  # last: what their names lead to is gone
                file.unlink(missing_ok=True)
        return count

    def _lives(self, worker: str) -> bool:
        """Whether a worker's heartbeat changed lately, or, on this machine, whether its process is there."""
        # this clock stands while nothing looks: whoever was stopped itself must not take the others for dead
        now, looked = time.monotonic(), self._looked
        self._clock, self._looked = self._clock + min(now - looked, BEAT_S), now
        beat = (read_json(self.path / "workers" / f"{worker}.json") or {}) if worker else {}
        if beat.get("machine") == machine() and beat.get("process") not in (None, process(beat.get("pid"))):
            return False
        said = json.dumps(beat)
        if self._seen.get(worker, ("", 0.0))[0] != said:
            self._seen[worker] = said, self._clock
        return self._clock - self._seen[worker][1] < STALE_S

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
        with suppress(OSError, MemoryError):  # these end a job or its worker elsewhere, and not the heart
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


def _entries(folder: Path, pattern: re.Pattern[str]) -> Iterator[re.Match[str]]:
    return filter(None, map(pattern.fullmatch, os.listdir(folder)))


def _read_claim(file: Path, found: re.Match[str]) -> Claim:
    return Claim(file, found[3], int(found[2]), read_json(file) or {})


def write(file: Path, data: bytes, sync: bool = False) -> None:
    """Write a file so that it is there whole or not at all."""
    with replaced(file) as aside, aside.open("wb") as opened:
        opened.write(data)
        opened.flush()
        if sync:
            os.fsync(opened.fileno())


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


def describe(error: BaseException) -> str:
    """Return what an exception says, and where it was raised."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} (in {Path(where.filename).name}:{where.lineno})"
