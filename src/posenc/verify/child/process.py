"""Checks in a process of their own: code that hangs, dies, prints or takes all memory becomes a finding.

What passes between the processes are lines of JSON with a token that the user's code does not know. The child's stdout
and stderr are the user's; what is printed there is kept apart. This guards against accidents and crude tricks, not
against an attacker: the code runs with the user's rights.
"""

import json
import os
import secrets
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from posenc.verify.child.answers import Outcome, Task, outcome_of
from posenc.verify.child.running import Running, parse
from posenc.verify.child.target import Target
from posenc.verify.report import Report

TIME_LIMIT = 120.0  # seconds from where the user's code starts
START_LIMIT = 120.0  # seconds to import torch before that
MEMORY_LIMIT = 8 << 30  # bytes above what torch has mapped when the user's code starts
_LONGEST_LINE = 16 << 20
_BOOT = "import sys; sys.path += sys.argv[1:]; from posenc.verify.child.inside import serve; serve()"


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
    token, path = secrets.token_hex(16), None if target.path is None else str(target.path.resolve())
    request: dict[str, Any] = {"token": token, "target": [path, target.module, target.name]}
    request |= {"convention": convention, "spec": None if spec is None else dict(spec), "task": task}
    child = _start()
    try:
        doing, known = "", ""
        if child.read(_LONGEST_LINE):  # torch is there
            child.limit_memory(MEMORY_LIMIT if memory_limit is None else memory_limit, more=True)
            child.limit_time(TIME_LIMIT if time_limit is None else time_limit)
            child.send(json.dumps(request).encode() + b"\n")
        while line := child.read(_LONGEST_LINE):
            said = parse(line) or {}
            if said.pop("token", None) != token:  # none of the child's own
                continue
            if "doing" not in said:
                child.end()
                return outcome_of(said, task, child.printed())
            doing, known = said["doing"], said["convention"]
        report = _silent(child, doing, known)
    finally:
        child.end()
    return outcome_of({"report": report.to_dict()}, task, child.printed())


def _start() -> Running:
    """Start the child without the graphics cards: probes are tensors on the CPU."""
    places = [str(Path(__file__).resolve().parents[3]), *(str(Path(entry or ".").resolve()) for entry in sys.path)]
    return Running(
        [sys.executable, "-P", "-c", _BOOT, *places],
        START_LIMIT,
        CUDA_VISIBLE_DEVICES="",  # their drivers map more memory than any limit allows
        MALLOC_ARENA_MAX="2",  # as an arena for each thread does on machines of many cores
        OMP_NUM_THREADS=os.environ.get("OMP_NUM_THREADS", str(min(2, os.cpu_count() or 1))),
        PYTHONUNBUFFERED="1",  # what was printed before a crash is shown
    )


def _silent(child: Running, doing: str, convention: str) -> Report:
    """Return what it means that the child says no more."""
    cause = child.silence(doing, during=doing)
    if doing:
        return Report("fail", convention, (cause,))
    last = (child.printed().strip().splitlines() or ["nothing was said"])[-1]
    because = f"the child process did not start, though none of the code had run: {last}"
    return Report("cannot_tell", convention, because=because)
