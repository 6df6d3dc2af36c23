"""A process of a user's code with limits: what it prints is kept, and nothing that it starts is left running."""

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, cast

from posenc.verify.child.answers import finding
from posenc.verify.report import Cause

MARK = "POSENC_VERIFY_CHILD"  # in the environment of the process and of all that it starts
_MAX_PRINTED = 1 << 14
# ends the group when our end of the pipe closes, also where we are killed
_GUARD = "import os, sys; sys.stdin.read(); os.killpg(int(sys.argv[1]), 9)"


class Running:
    """A process in a group of its own, which is ended when its time is up.

    Args:
        command: The program and its arguments.
        seconds: How long it may run.
        environment: Variables that it gets besides ours.

    Attributes:
        late: Whether its time was up.

    Raises:
        OSError: It cannot be started.
        ValueError: Likewise.
    """

    def __init__(self, command: Sequence[str], seconds: float, **environment: str) -> None:
        self.mark, self.kept, self.lost, self.late = secrets.token_hex(16), b"", 0, False
        self.process = self._start(command, os.environ | environment | {MARK: self.mark})
        self.stdin, self.stdout = cast(IO[bytes], self.process.stdin), cast(IO[bytes], self.process.stdout)
        self.guard = self._start([sys.executable, "-S", "-c", _GUARD, str(self.process.pid)])
        self.closing = threading.Event()
        self.limit_time(seconds)
        self.reader, self.watch = (threading.Thread(target=f, daemon=True) for f in (self._keep, self._watch))
        self.reader.start()
        self.watch.start()

    @staticmethod
    def _start(command: Sequence[str], environment: dict[str, str] | None = None) -> "subprocess.Popen[bytes]":
        pipe = subprocess.PIPE
        return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=environment, start_new_session=True)

    def limit_time(self, seconds: float) -> None:
        """Give it so much time from now on."""
        self.seconds, self.until = seconds, time.monotonic() + seconds

    def limit_memory(self, limit: int, *, more: bool) -> None:
        """Limit what it may map, or how much more than now; a system without such limits goes without."""
        with contextlib.suppress(ImportError, AttributeError, OSError, ValueError):
            import resource

            pid, kind = self.process.pid, resource.RLIMIT_AS
            if more:
                limit += int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
            _, hard = resource.prlimit(pid, kind)
            limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
            resource.prlimit(pid, kind, (limit, limit))
            resource.prlimit(pid, resource.RLIMIT_CORE, (0, 0))

    def send(self, line: bytes) -> None:
        """Write to its input, unless it has gone: its answer will be missing then."""
        with contextlib.suppress(OSError):
            self.stdin.write(line)
            self.stdin.flush()

    def read(self, most: int) -> bytes:
        """Return the next line of its output, at most so long; nothing if there is no more."""
        return self.stdout.readline(most)

    def silence(self, doing: str, **case: Any) -> Cause:
        """Return why it says no more while it was doing something."""
        self.watch.join()
        if self.late:
            message = f"{doing} had not ended after {self.seconds:g} seconds, and was stopped"
            return finding("subject.hangs", message, self.seconds, **case)
        if (code := self.process.wait()) >= 0:
            message = f"{doing} ended the process with exit code {code}, so that nothing could be measured"
            return finding("subject.exits", message, code, **case)
        name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
        why = ", as a system does when memory runs out" if name == "SIGKILL" else ""
        return finding("subject.crashes", f"{doing} ended the process by {name}{why}", -code, **case)

    def printed(self) -> str:
        """Return the beginning of what it wrote to stderr."""
        self.reader.join(1.0)
        more = f"\n({self.lost} bytes more)" if self.lost else ""
        return self.kept.decode("utf-8", "replace") + more

    def end(self) -> None:
        """End it and all that it started."""
        self.closing.set()
        self.watch.join()
        self.guard.kill()
        self.guard.communicate()
        self.process.wait()
        for pipe in (self.stdin, self.stdout):
            with contextlib.suppress(OSError):
                pipe.close()

    def _keep(self) -> None:
        """Keep the beginning of what it prints, and throw the rest away so that it never blocks."""
        with contextlib.suppress(OSError), cast(IO[bytes], self.process.stderr) as pipe:
            while part := os.read(pipe.fileno(), 1 << 16):
                kept = part[: _MAX_PRINTED - len(self.kept)]
                self.kept += kept
                self.lost += len(part) - len(kept)

    def _watch(self) -> None:
        """Wait for its end or the limit, and end all that is left, so that no pipe stays open."""
        while not self.closing.is_set() and not self._has_ended():
            self.late = time.monotonic() > self.until
            if self.late:
                break
            self.closing.wait(0.05)
        if hasattr(os, "killpg"):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)
        else:
            self.process.kill()
        _end_strays(f"{MARK}={self.mark}".encode())

    def _has_ended(self) -> bool:
        """Return whether it has ended, and leave it unburied, so that its number still means its group."""
        if not hasattr(os, "waitid"):
            return self.process.poll() is not None
        return os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None


def parse(line: bytes) -> dict[str, Any] | None:
    """Return a line as a JSON object; None where it is none, as what a program prints."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _end_strays(mark: bytes) -> None:
    """End processes that left the group; only Linux tells which they are."""
    for _ in range(4):  # they may start others meanwhile
        strays = []
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    strays.append(int(entry.name))
        for stray in strays:
            with contextlib.suppress(OSError):
                os.kill(stray, signal.SIGKILL)
        if not strays:
            return
        time.sleep(0.02)
