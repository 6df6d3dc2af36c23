"""The cost of new memory: a clone compared with a copy into existing memory, and the page faults that explain it."""

import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from posenc.bench.measure import FAULTS, clock, count

_SETTLING = 12  # clones until an allocator that keeps blocks has one for each
_ROUNDS = 7
_CODE = "import sys, json; sys.path.insert(0, {!r}); from posenc.bench import pages; print(json.dumps(pages.measure()))"


def ask(timeout_s: float = 30.0) -> dict[str, Any]:
    """Return the result of `measure` in a fresh process, or {"problem": why there is none}.

    A process with a history may have free memory that needs no new pages.
    """
    command = [sys.executable, "-c", _CODE.format(str(Path(__file__).parents[2]))]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s)
        found: dict[str, Any] = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        return {"problem": f"no answer within {timeout_s:g} seconds"}
    except ValueError:  # nothing was printed
        return {"problem": f"the measuring process ended with code {done.returncode}"}
    return found


def measure(mib: int | None = None) -> dict[str, Any]:
    """Measure in this process: {"mib", "copy_s", "clone_s", "ratio", "faults"}, or {"problem": why not}.

    >>> measure(1)["mib"]
    1
    """
    import torch

    from posenc.memory import available

    room = available()
    if mib is None:  # a block of up to 32 MiB shows little: glibc keeps it after one of that size was freed
        mib = next((size for size in (64, 40) if room is None or 8 * size * 2**20 < room), None)
    if mib is None:
        return {"problem": "too little memory is free"}
    x = torch.ones(mib * 2**18)
    out = x.clone()
    for _ in range(_SETTLING):
        x.clone()
    copies, clones, counts = [], [], []
    for _ in range(_ROUNDS):
        copies.append(clock(lambda: out.copy_(x)))
        before = count(FAULTS)
        clones.append(clock(x.clone))
        counts.append(count(FAULTS) - before)
    copy_s, clone_s = statistics.median(copies), statistics.median(clones)
    faults = int(statistics.median(counts)) if before >= 0 else None
    return {"mib": mib, "copy_s": copy_s, "clone_s": clone_s, "faults": faults, "ratio": clone_s / copy_s}
