"""Facts about the machine and the process that affect the measurements."""

import os
import platform
from pathlib import Path
from typing import Any

import torch

PEERS = ("numba", "transformers", "x_transformers", "rotary_embedding_torch", "timm")


def examine() -> dict[str, Any]:
    """Return the facts that a reader of the measurements needs, including peers' versions."""
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
        "versions": {name: _version(name) for name in PEERS},
    }


def sentence(facts: dict[str, Any]) -> str:
    """Return the facts as one line for people."""
    return (
        f"{facts['cpu']} ({facts['vectors']}), {facts['threads']} thread{'s' if facts['threads'] > 1 else ''}; "
        f"Python {facts['python']}, torch {facts['torch']}, {facts['platform']}; "
        f"allocator: {facts['allocator']}; GPU: {facts['gpu'] or 'none, not measured'}"
    )


def _name_cpu() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if "model name" in line), platform.machine())


def _describe_allocator() -> str:
    """Return the C library, and the settings of its malloc: fresh pages cost more than the arithmetic on them."""
    names = ("GLIBC_TUNABLES", "LD_PRELOAD", "MALLOC_")
    tuned = [f"{name}={value}" for name, value in sorted(os.environ.items()) if name.startswith(names)]
    return f"{' '.join(platform.libc_ver()).strip() or 'the system'}, {', '.join(tuned) or 'stock'}"


def _version(package: str) -> str | None:
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
