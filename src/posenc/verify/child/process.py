"""Checks in a process of their own: code that hangs, dies, prints or takes all memory becomes a finding.

What passes between the processes are lines of JSON with a token that the user's code is not told. The child's stdout
and stderr are the user's; what is printed there is kept apart. This guards against accidents and crude tricks, not
against an attacker: the code runs with the user's rights.
"""

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from posenc.verify.child.answers import Outcome, as_identified, identified_of, report_of
from posenc.verify.child.group import MARK, Printed, end, has_ended, opened
from posenc.verify.child.inside import Task
from posenc.verify.child.target import Target
from posenc.verify.report import Cause, Report

TIME_LIMIT = 120.0  # seconds from where the user's code starts
START_LIMIT = 120.0  # seconds to import torch before that
MEMORY_LIMIT = 8 << 30  # bytes above what torch has mapped when the user's code starts
_LONGEST_LINE = 16 << 20
_DOING = {
    "start": "starting",
    "import": "its import",
    "build": "build()",
    "trial": "a trial call to find its convention",
    "check": "the check",
    "identify": "the identification",
}
_BOOT = "import sys; sys.path.append(sys.argv.pop()); from posenc.verify.child.inside import serve; serve()"


def run(
    target: Target,
    *,
    convention: str | None = None,
    spec: Mapping[str, Any] | None = None,
    task: Task = "check",
    time_limit: float | None = None,
    memory_limit: int | None = None,
) -> Outcome:
    """Check or identify a target in a child process, and end all that it started.

    Args:
        target: Where the subject stands.
        convention: How it is called; None to find out.
        spec: What it should be; None for the target's own SPEC.
        task: "check", or "identify".
        time_limit: In seconds, from where the user's code starts; None for TIME_LIMIT.
        memory_limit: In bytes, beyond what the child needs to start; None for MEMORY_LIMIT.
    """
    seconds = TIME_LIMIT if time_limit is None else time_limit
    token = secrets.token_hex(16)
    asked = {"convention": convention, "spec": None if spec is None else dict(spec), "task": task, "token": token}
    request = _request(target) | asked | {"memory_limit": MEMORY_LIMIT if memory_limit is None else memory_limit}
    mark = secrets.token_hex(16)
    process = _start(mark)
    try:
        heard, printed = _Heard(process, token), Printed(process)
        _ask(process, request)
        in_time = _wait(process, heard, seconds)
    finally:
        code = end(process, mark)
    heard.join(1.0)  # a process that escaped may still hold the pipe
    printed.join(1.0)
    outcome = _outcome(heard, printed.text(), None if not in_time else code, seconds)
    return outcome if task == "check" else as_identified(outcome)


def _request(target: Target) -> dict[str, Any]:
    """Return where a target stands, as a child that starts elsewhere finds it."""
    return {
        "path": None if target.path is None else str(target.path.resolve()),
        "module": target.module,
        "name": target.name,
        "search": [str(Path(entry or ".").resolve()) for entry in sys.path],
    }


class _Heard(threading.Thread):
    """Listens to the child: what it is doing, and its answer."""

    def __init__(self, process: "subprocess.Popen[bytes]", token: str) -> None:
        super().__init__(daemon=True)
        self.pipe, self.token = opened(process.stdout), token
        self.phase, self.convention = "start", ""
        self.answer: Outcome | None = None
        self.ended = threading.Event()
        self.start()

    def run(self) -> None:
        with contextlib.suppress(OSError), self.pipe:
            while self.answer is None and (line := self.pipe.readline(_LONGEST_LINE)):
                self._take(line)
        self.ended.set()

    def _take(self, line: bytes) -> None:
        """Act on a line; what is none of the child's own is passed over."""
        try:
            said = json.loads(line)
            if not isinstance(said, dict) or said.get("token") != self.token:
                return
            if "report" in said:
                self.answer = Outcome(report_of(said["report"]))
            elif "identified" in said:
                self.answer = Outcome(None, identified=identified_of(said["identified"]))
            elif "refused" in said:
                self.answer = Outcome(None, str(said["refused"]))
            else:
                self.phase, self.convention = str(said["phase"]), str(said["convention"])
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return


def _start(mark: str) -> "subprocess.Popen[bytes]":
    """Start the child in a process group of its own, without the graphics cards: probes are tensors on the CPU."""
    cores = str(min(2, os.cpu_count() or 1))
    chosen = {
        MARK: mark,
        "CUDA_VISIBLE_DEVICES": "",  # their drivers map more memory than any limit allows
        "MALLOC_ARENA_MAX": "2",  # as an arena for each thread does on machines of many cores
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", cores),
        "PYTHONUNBUFFERED": "1",  # what was printed before a crash is told
    }
    root = str(Path(__file__).resolve().parents[3])
    return subprocess.Popen(
        [sys.executable, "-P", "-c", _BOOT, root],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | chosen,
        start_new_session=True,
    )


def _ask(process: "subprocess.Popen[bytes]", request: Mapping[str, Any]) -> None:
    """Send the request; the pipe stays open, for its end tells the child that we are gone."""
    pipe = opened(process.stdin)
    with contextlib.suppress(OSError):  # it may have died already
        pipe.write(json.dumps(request).encode() + b"\n")
        pipe.flush()


def _wait(process: "subprocess.Popen[bytes]", heard: _Heard, seconds: float) -> bool:
    """Wait for the answer or the process's end, and tell whether one came in time."""
    until, begun = time.monotonic() + START_LIMIT, False
    while time.monotonic() < until:
        heard.ended.wait(0.05)
        if heard.answer or has_ended(process):
            return True
        if not begun and heard.phase != "start":
            until, begun = time.monotonic() + seconds, True
        if heard.ended.is_set():  # it closed the pipe and lives on: only its end or the clock can tell
            time.sleep(0.05)
    return False


def _outcome(heard: _Heard, printed: str, code: int | None, seconds: float) -> Outcome:
    """Return the child's answer, or what its silence means; no code means that time was up."""
    if heard.answer:
        return replace(heard.answer, printed=printed)
    doing = _DOING.get(heard.phase, heard.phase)
    if heard.phase == "start":
        last = (printed.strip().splitlines() or ["nothing was said"])[-1]
        because = f"the child process did not start, though none of the code had run: {last}"
        return Outcome(Report("cannot_tell", heard.convention, because=because), printed=printed)
    case = {"during": doing}
    if code is None:
        message = f"{doing} had not ended after {seconds:g} seconds, and was stopped"
        cause = Cause("subject.hangs", message, seconds, case, "Make it end; checks use short sequences.")
    elif code < 0:
        name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
        why = ", as a system does when memory runs out" if -code == signal.SIGKILL else ""
        message = f"{doing} ended the process by {name}{why}"
        cause = Cause("subject.crashes", message, float(-code), case, "Run it with `python -X faulthandler`.")
    else:
        message = f"{doing} ended the process with exit code {code}, so that nothing could be measured"
        cause = Cause("subject.exits", message, float(code), case, "Raise an error instead of ending the process.")
    return Outcome(Report("fail", heard.convention, (cause,)), printed=printed)
