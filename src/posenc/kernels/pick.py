"""Which backend turns queries and keys: the fastest that does not refuse, or the one that was named."""

import importlib
import importlib.util
from collections.abc import Sequence
from functools import cache
from typing import Any

from posenc.kernels.job import Job

HOMES = {"numba": "cpu", "triton": "triton", "blocked": "blocked"}
NAMES = ("auto", *HOMES, "formula")
HAS_TRITON = importlib.util.find_spec("triton") is not None
_SMALL = 2**16  # numbers in all, below which the formula's few calls cost less than blocks


def pick(jobs: Sequence[Job], backend: str = "auto") -> Any | None:
    """Return the module that turns these jobs; None is the plain formula.

    Raises:
        ValueError: No backend has that name, or the one that was named refuses; the sentence says why.
    """
    if backend == "formula":
        return None
    if backend == "auto":
        return _fastest(jobs)
    check_name(backend)
    refusal = _loaded(backend) if isinstance(_loaded(backend), str) else _loaded(backend).refuses(jobs)
    if refusal is not None:
        raise ValueError(
            f"rotate: backend {backend!r} cannot be used here: {refusal.rstrip('.')}. Leave the choice to 'auto'."
        )
    return _loaded(backend)


def check_name(backend: str) -> None:
    """Raise unless a backend has that name.

    Raises:
        ValueError: None has.
    """
    if backend not in NAMES:
        raise ValueError(f"rotate: backend must be one of {', '.join(NAMES)}; got {backend!r}.")


def _fastest(jobs: Sequence[Job]) -> Any | None:
    kind = jobs[0].x.device.type
    if kind == "cpu":
        if not isinstance(jit := _loaded("numba"), str) and jit.refuses(jobs) is None:
            return jit
        blocked = _loaded("blocked")
        return blocked if _numbers(jobs) >= _SMALL and blocked.refuses(jobs) is None else None
    if kind == "cuda" and not isinstance(gpu := _loaded("triton"), str) and gpu.refuses(jobs) is None:
        return gpu
    return None


def _numbers(jobs: Sequence[Job]) -> int:
    return sum(job.x.numel() for job in jobs)


@cache
def _loaded(name: str) -> Any:
    """Return a backend's module, or why it cannot be loaded."""
    try:
        return importlib.import_module(f"posenc.kernels.{HOMES[name]}")
    except Exception as error:  # a broken installation raises anything; there are other ways to turn
        missing = (getattr(error, "name", None) or "").partition(".")[0]
        if name == "numba" and missing in ("numba", "llvmlite"):
            return "numba is not installed; pip install 'posenc[fast]' brings it"
        return f"it does not load ({' '.join(str(error).split())})"
