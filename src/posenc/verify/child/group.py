"""A process of a user's code with all that it starts: what it prints is kept, and nothing of it is left running."""

import contextlib
import os
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import IO

MARK = "POSENC_VERIFY_CHILD"  # in the environment of the child and of all that it starts
_MAX_PRINTED = 1 << 14


class Printed(threading.Thread):
    """Keeps the beginning of what the user's code prints, and throws the rest away so that it never blocks."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        super().__init__(daemon=True)
        self.pipe, self.kept, self.lost = opened(process.stderr), b"", 0
        self.start()

    def run(self) -> None:
        """Read until the pipe ends."""
        with contextlib.suppress(OSError), self.pipe:
            while part := os.read(self.pipe.fileno(), 1 << 16):
                kept = part[: _MAX_PRINTED - len(self.kept)]
                self.kept += kept
                self.lost += len(part) - len(kept)

    def text(self) -> str:
        """Return what was kept."""
        more = f"\n({self.lost} bytes more)" if self.lost else ""
        return self.kept.decode("utf-8", "replace") + more


def opened(pipe: IO[bytes] | None) -> IO[bytes]:
    """Return a pipe of a process that was started with all three."""
    if pipe is None:
        raise RuntimeError("verify: the child has no pipe.")
    return pipe


def has_ended(process: "subprocess.Popen[bytes]") -> bool:
    """Tell whether it has ended, and leave it unburied, so that its number still means its group."""
    if not hasattr(os, "waitid"):
        return process.poll() is not None
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None


def end(process: "subprocess.Popen[bytes]", mark: str) -> int:
    """End the child's whole group and what left it, and return the child's exit code as it was before."""
    if hasattr(os, "killpg"):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()
    code = process.wait()
    _end_strays(f"{MARK}={mark}".encode())
    if process.stdin:
        with contextlib.suppress(OSError):
            process.stdin.close()
    return code


def _end_strays(mark: bytes) -> None:
    """End processes that the child started and that left its group; only Linux tells which they are."""
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
