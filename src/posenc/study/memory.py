"""Peak memory of a piece of work in this process, where the system reports it (Linux)."""

import ctypes
from pathlib import Path

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def start() -> float | None:
    """Return freed memory to the system, reset the peak, and return the memory in use in MiB, or None."""
    try:
        ctypes.CDLL(None).malloc_trim(0)  # memory that earlier work freed would hide new peaks
        _CLEAR.write_text("5")
        return _read("VmRSS")
    except (OSError, AttributeError):
        return None


def grown(since: float | None) -> float | None:
    """Return how many MiB the peak exceeds the result of `start`, or None."""
    return None if since is None else max(0.0, round(_read("VmHWM") - since, 1))


def _read(field: str) -> float:
    for line in _STATUS.read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) / 1024
    raise OSError(f"{_STATUS} has no {field}")
