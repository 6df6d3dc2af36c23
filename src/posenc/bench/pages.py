"""What new memory costs: a clone beside a copy into memory that is there, and the page faults that explain it.

A process that did other things before may have room left, so that `Child` measures in one that did not.
"""

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

_SETTLING = 12  # clones until an allocator that keeps blocks has found a place for each
_TURNS = 7


class Cost(NamedTuple):
    """What a clone of a tensor costs beside a copy of it."""

    mib: int
    copy_s: float
    clone_s: float
    faults: int | None  # of one clone; None where the system does not tell

    @property
    def ratio(self) -> float:
        """How many copies a clone takes."""
        return self.clone_s / self.copy_s


def measure(mib: int = 64) -> Cost:
    """Measure in this process, whose state depends on what it did before.

    >>> measure(1).mib
    1
    """
    import torch

    x = torch.ones(mib * 2**18)
    out = x.clone()
    for _ in range(_SETTLING):
        x.clone()
    copies, clones, counts = [], [], []
    for _ in range(_TURNS):
        copies.append(_clock(lambda: out.copy_(x)))
        before = faults()
        clones.append(_clock(x.clone))
        counts.append(faults() - before)
    count = int(statistics.median(counts)) if faults() >= 0 else None
    return Cost(mib, statistics.median(copies), statistics.median(clones), count)


def faults() -> int:
    """Return the page faults of this process so far, or -1 where the system does not tell."""
    try:
        import resource
    except ImportError:  # not on Windows
        return -1
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


class Child:
    """A fresh process that measures; it loads torch while its parent does other things.

    >>> with Child() as child:
    ...     child.ask()["mib"]
    64
    """

    def __init__(self) -> None:
        root = str(Path(__file__).parents[2])
        code = f"import sys; sys.path.insert(0, {root!r}); from posenc.bench.pages import answer; answer()"
        command, pipe = [sys.executable, "-c", code], subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True)

    def __enter__(self) -> "Child":
        """Return itself; the process began when it was made."""
        return self

    def __exit__(self, *error: object) -> None:
        """End the process if it is still there."""
        self._process.kill()
        self._process.communicate()

    def ask(self, timeout_s: float = 30.0) -> dict[str, Any]:
        """Return what was measured: {"mib", "copy_s", "clone_s", "ratio", "faults"}, or {"problem": why not}."""
        try:
            said, _ = self._process.communicate("go\n", timeout=timeout_s)
            found: dict[str, Any] = json.loads(said)
        except subprocess.TimeoutExpired:
            return {"problem": f"no answer within {timeout_s:g} seconds"}
        except ValueError:  # nothing was said
            return {"problem": f"the process that was to measure ended with code {self._process.returncode}"}
        return found


def answer() -> None:
    """Load torch, wait for a line, measure, and write JSON."""
    from posenc.attention.room import available

    sys.stdin.readline()
    room = available()
    # A block of up to 32 MiB says little: glibc keeps it, once one of that size was freed.
    mib = next((size for size in (64, 40) if room is None or 8 * size * 2**20 < room), None)
    if mib is None:
        found: dict[str, Any] = {"problem": "too little memory is free"}
    else:
        cost = measure(mib)
        found = cost._asdict() | {"ratio": cost.ratio}
    sys.stdout.write(json.dumps(found))


def _clock(run: Callable[[], object]) -> float:
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin
