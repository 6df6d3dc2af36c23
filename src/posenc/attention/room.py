"""How much memory can still be had, asked before much of it is taken."""

import contextlib
from pathlib import Path

import torch

MUCH = 2**30  # bytes, from which on asking costs little beside taking
_CGROUPS = (("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"))


def lacks(needed: int, device: torch.device) -> str | None:
    """Say that there is too little memory for what a backend estimates, or None."""
    if needed < MUCH:
        return None
    free = available(device.type)
    if free is None or needed <= free:
        return None
    return f"it would take about {needed / MUCH:.1f} GiB, and {free / MUCH:.1f} GiB are left on this {device.type}."


def available(device: str = "cpu") -> int | None:
    """Return the bytes that can still be used before this machine, container or GPU runs out; None if unknown."""
    if device == "cuda":
        kept = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()  # torch holds it for what comes
        return int(torch.cuda.mem_get_info()[0]) + kept
    if device != "cpu":
        return None
    found = []
    with contextlib.suppress(OSError, StopIteration, ValueError, KeyError):
        lines = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
        known = {words[0]: 1024 * int(words[1]) for words in lines}
        found.append(known["MemAvailable:"] + known.get("SwapFree:", 0))
    for limit, used in _CGROUPS:
        with contextlib.suppress(OSError, ValueError):  # "max": no limit
            root = Path("/sys/fs/cgroup")
            found.append(int((root / limit).read_text()) - int((root / used).read_text()))
    return max(0, min(found)) if found else None
