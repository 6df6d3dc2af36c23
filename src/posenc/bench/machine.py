"""Facts of the machine and the process that measured numbers depend on."""

import ctypes
import os
import platform
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

_TUNABLES: tuple[str, ...] = (
    "GLIBC_TUNABLES",
    "LD_PRELOAD",
    "MALLOC_ARENA_MAX",
    "MALLOC_CONF",
    "MALLOC_MMAP_THRESHOLD_",
)
_TUNABLES += ("MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_", "THP_MEM_ALLOC_ENABLE", "PYTORCH_CUDA_ALLOC_CONF")


def examine(peers: Iterable[str] = ("transformers", "x_transformers")) -> dict[str, Any]:
    """Return what a reader of measured numbers needs to know of where they were measured, peers' versions included."""
    return {
        "cpu": _name_cpu(),
        "vectors": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.release()}",
        "allocator": _describe_allocator(),
        "versions": {name: _version(name) for name in peers},
    }


def sentence(facts: dict[str, Any]) -> str:
    """Return the facts as one line for people."""
    threads = f"{facts['threads']} thread{'s' if facts['threads'] > 1 else ''}"
    return (
        f"{facts['cpu']} ({facts['vectors']}), {threads}; "
        f"Python {facts['python']}, torch {facts['torch']}, {facts['platform']}; "
        f"allocator: {facts['allocator']}; GPU: {facts['gpu'] or 'none, not measured'}"
    )


def _name_cpu() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if "model name" in line), platform.machine())


def _describe_allocator() -> str:
    """Say which allocator hands out memory, and what was set: fresh pages cost more than the arithmetic on them."""
    tuned = [f"{name}={os.environ[name]}" for name in _TUNABLES if name in os.environ]
    state = ", ".join(tuned) or "stock, as the process left it"
    libc = " ".join(platform.libc_ver()).strip()
    if sys.platform == "linux" and _has_symbol("mallctl"):
        libc = "jemalloc"
    huge = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    chosen = huge.read_text().partition("[")[2].partition("]")[0] if huge.exists() else ""
    return f"{libc or 'the system'}, {state}" + (f", huge pages: {chosen}" if chosen else "")


def _has_symbol(name: str) -> bool:
    return hasattr(ctypes.CDLL(None), name)


def _version(package: str) -> str | None:
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
