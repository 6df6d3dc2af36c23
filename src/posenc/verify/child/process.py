"""Run user code in a process with limits: code that hangs, crashes, prints or exhausts memory becomes a finding.

The processes of a check exchange lines of JSON with a token that the user's code does not know. The child's stdout
and stderr belong to the user's code, and their text is kept separately. This guards against accidents and crude
tricks, not against an attacker: the code runs with the user's rights.
"""

import contextlib
import json
import math
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from posenc.verify.child.clock import Clock
from posenc.verify.child.target import Target
from posenc.verify.guard import CannotTellError
from posenc.verify.identity.identify import Identification
from posenc.verify.report import Cause, Report
from posenc.verify.sentences import finding

MARK = "POSENC_VERIFY_CHILD"  # in the environment of the process and of all its descendants
TIME_LIMIT = 120.0  # seconds of processor time from the start of the user's code
START_LIMIT = 120.0  # to import torch before that
MEMORY_LIMIT = 8 << 30  # bytes beyond torch's own when the user's code starts
_LONGEST_LINE = 16 << 20
_MAX_PRINTED = 1 << 14
# kills the process group when our end of the pipe closes, even if we are killed
_GUARD = "import os, sys; sys.stdin.read(); os.killpg(int(sys.argv[1]), 9)"
_BOOT = "import sys; sys.path += sys.argv[1:]; from posenc.verify.child.inside import serve; serve()"


class Running:
    """A process in its own group, with additional environment variables; it is ended when its time is up.

    Attributes:
        is_asked: Whether time counts: not while we compute.

    Raises:
        OSError: The process cannot be started.
        ValueError: The process cannot be started.
    """

    def __init__(self, command: Sequence[str], seconds: float, **environment: str) -> None:
        self.mark, self.kept, self.lost, self.is_asked = secrets.token_hex(16), b"", 0, True
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

    def limit_time(self, seconds: float, idle: float | None = None) -> None:
        """Limit its processor time from now on, and the time for which it only waits."""
        self.clock = Clock(self.process.pid, seconds, seconds if idle is None else min(idle, seconds))

    def limit_memory(self, limit: int) -> None:
        """Limit how much more memory it may map, if the system has such limits."""
        with contextlib.suppress(ImportError, AttributeError, OSError, ValueError):
            import resource

            pid, kind = self.process.pid, resource.RLIMIT_AS
            limit += int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
            _, hard = resource.prlimit(pid, kind)
            limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
            resource.prlimit(pid, kind, (limit, limit))
            resource.prlimit(pid, resource.RLIMIT_CORE, (0, 0))

    def send(self, line: bytes) -> None:
        """Write to its input, unless it has exited: then its answer will be missing."""
        with contextlib.suppress(OSError):
            self.stdin.write(line)
            self.stdin.flush()

    def silence(self, doing: str, **case: Any) -> Cause:
        """Return the reason for a missing answer during a step.

        Raises:
            CannotTellError: It was stopped while it waited.
        """
        self.watch.join()
        if self.clock.late == "works":
            message = f"{doing} did not finish within {self.clock.seconds:g} seconds of processor time, and was stopped"
            return finding("subject.hangs", message, self.clock.seconds, **case)
        if self.clock.late:
            raise CannotTellError(f"{doing} did not finish {self.clock.words()}; it was stopped")
        if (code := self.process.wait()) >= 0:
            message = f"{doing} exited the process with code {code}, so nothing could be measured"
            return finding("subject.exits", message, code, **case)
        name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
        why = ", which systems send when memory runs out" if name == "SIGKILL" else ""
        return finding("subject.crashes", f"{doing} crashed the process with {name}{why}", -code, **case)

    def printed(self) -> str:
        """Return the start of its output to stderr."""
        self.reader.join(1.0)
        more = f"\n({self.lost} bytes more)" if self.lost else ""
        return self.kept.decode("utf-8", "replace") + more

    def end(self) -> None:
        """End the process and all its descendants."""
        self.closing.set()
        self.watch.join()
        self.guard.kill()
        self.guard.communicate()
        self.process.wait()
        for pipe in (self.stdin, self.stdout):
            with contextlib.suppress(OSError):
                pipe.close()

    def _keep(self) -> None:
        """Keep the start of its output, and discard the rest so that it never blocks."""
        with contextlib.suppress(OSError), cast(IO[bytes], self.process.stderr) as pipe:
            while part := os.read(pipe.fileno(), 1 << 16):
                kept = part[: _MAX_PRINTED - len(self.kept)]
                self.kept += kept
                self.lost += len(part) - len(kept)

    def _watch(self) -> None:
        """Wait for its end or the limit, and end all that is left, so that no pipe stays open."""
        while not (self.closing.is_set() or self._has_ended() or self.clock.late):
            self.closing.wait(0.05)
            self.clock.tick(self.is_asked)
        if hasattr(os, "killpg"):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)
        else:
            self.process.kill()
        _end_strays(f"{MARK}={self.mark}".encode())

    def _has_ended(self) -> bool:
        """Return whether it has exited, without reaping it, so that its id still names its group."""
        if not hasattr(os, "waitid"):
            return self.process.poll() is not None
        return os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None


def _end_strays(mark: bytes) -> None:
    """End processes that left the group; only Linux can find them."""
    for _ in range(4):  # they may start others in the meantime
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


def parse(line: bytes) -> dict[str, Any] | None:
    """Return a line as a JSON object; None if it is none, such as a printed line."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


@dataclass(frozen=True)
class Outcome:
    """The result of a check or an identification, or why the request was refused."""

    report: Report | None
    refused: str = ""  # what was wrong with the request
    printed: str = ""  # the start of the user's output to stdout and stderr
    identified: Identification | None = None


def outcome_of(answer: Mapping[str, Any], task: str, printed: str = "") -> Outcome:
    """Return the outcome of a task from the answer of `inside.examine`."""
    if "refused" in answer:
        return Outcome(None, str(answer["refused"]), printed)
    fields = {key: value for key, value in answer[next(iter(answer))].items() if key != "schema"}
    if "identified" in answer:
        found = Identification(**fields | {"unknown": tuple(fields["unknown"])})
        return Outcome(None, printed=printed, identified=found)
    lists = {name: tuple(fields[name]) for name in ("definitions", "not_judged")}
    report = Report(**fields | lists | {"causes": tuple(_cause(**cause) for cause in fields["causes"])})
    if task == "check":
        return Outcome(report, printed=printed)
    why = tuple(f"{cause.message} ({cause.code})" for cause in report.causes) or (report.because,)
    return Outcome(None, printed=printed, identified=Identification(report.convention, unknown=why))


def _cause(evidence: float | None, consequences: list[str], **fields: Any) -> Cause:
    return Cause(evidence=math.nan if evidence is None else evidence, consequences=tuple(consequences), **fields)


def run(
    target: Target,
    *,
    convention: str | None = None,
    spec: Mapping[str, Any] | None = None,
    task: str = "check",
    time_limit: float = TIME_LIMIT,
) -> Outcome:
    """Run `inside.examine` in a child process, and end all that it started.

    The limit of processor time counts from the start of the user's code.
    """
    token, path = secrets.token_hex(16), None if target.path is None else str(target.path.resolve())
    request: dict[str, Any] = {"token": token, "target": [path, target.module, target.name], "task": task}
    request |= {"convention": convention, "spec": None if spec is None else dict(spec)}
    places = [str(Path(__file__).resolve().parents[3]), *(str(Path(entry or ".").resolve()) for entry in sys.path)]
    child = Running(
        [sys.executable, "-P", "-c", _BOOT, *places],
        START_LIMIT,
        CUDA_VISIBLE_DEVICES="",  # checks run on the CPU; GPU drivers map more memory than the limit allows
        MALLOC_ARENA_MAX="2",  # one arena for each thread would map much memory on machines with many cores
        OMP_NUM_THREADS=os.environ.get("OMP_NUM_THREADS", str(min(2, os.cpu_count() or 1))),
        PYTHONUNBUFFERED="1",  # shows output before a crash
    )
    try:
        doing, known = "", ""
        if child.stdout.readline(_LONGEST_LINE):  # torch is imported
            child.limit_memory(MEMORY_LIMIT)
            child.limit_time(time_limit)
            child.send(json.dumps(request).encode() + b"\n")
        while line := child.stdout.readline(_LONGEST_LINE):
            said = parse(line) or {}
            if said.pop("token", None) != token:  # not the child's answer
                continue
            if "doing" not in said:
                child.end()
                return outcome_of(said, task, child.printed())
            doing, known = said["doing"], said["convention"]
        try:
            report = Report("fail", known, (child.silence(doing, during=doing),))
        except CannotTellError as open_:
            because = f"{open_}. Look for locks, prompts and connections, or name a smaller part"
            report = Report("cannot_tell", known, because=because)
        if not doing:
            last = (child.printed().strip().splitlines() or ["it printed nothing"])[-1]
            because = f"the child process did not start, before any of the code ran: {last}"
            report = Report("cannot_tell", known, because=because)
    finally:
        child.end()
    return outcome_of({"report": report.to_dict()}, task, child.printed())
