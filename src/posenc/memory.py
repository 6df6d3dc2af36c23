"""Memory: how much is left, and what the process keeps.

What large tensors cost on Linux is mostly the pages that they are given anew. glibc hands a freed block of more than
32 MiB back to the system, and the next tensor of that size gets pages that the system has to find and to zero, one
fault for each 4 KiB. A clone of 64 MiB then takes several times as long as a copy of it into memory that is there.
"""

import contextlib
import ctypes
import platform
import sys
from pathlib import Path

# What the environment of a new process takes for the same effect as `reuse_pages()`. The threshold for mapped blocks
# would read better, but releases of glibc before 2.35 refuse one above 32 MiB.
TUNABLES = f"glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold={2**36}"
_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # malloc.h
_KEEP, _STOCK = {_MMAP_MAX: 0, _TRIM_THRESHOLD: -1}, {_MMAP_MAX: 65536, _TRIM_THRESHOLD: 128 * 1024}
_CGROUPS = (("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"))
_OTHERS = ("mallctl", "mi_version", "tc_version")  # symbols of jemalloc, mimalloc and tcmalloc


def reuse_pages(keep: bool = True) -> bool:
    """Let this process keep the memory of freed tensors for the next ones; an opt-in, for Linux with glibc.

    Large blocks then come from the heap, and its end is not given back. What a tensor costs beside a copy into given
    memory falls to about one, once some ten tensors of its size have come and gone. `posenc doctor` measures it.

    The side effect: the process stays as large as it ever was, and larger, since blocks leave holes that no later block
    fits (clones of 64 MiB, one at a time, kept 400 to 500 MiB). It holds for all of the process, numpy's arrays
    included, but not for large tensors made in other threads than the first. Other processes get it from the
    environment instead: GLIBC_TUNABLES with the value of `posenc.memory.TUNABLES`.

    Args:
        keep: False undoes it: glibc's stock limits, and what is free now goes back to the system. Limits that the
            environment set are not restored, and glibc no longer moves its threshold with the sizes that it sees.

    Returns:
        Whether it took effect: False, and nothing changed, where malloc is not glibc's (macOS, Windows, musl, jemalloc,
        mimalloc, tcmalloc).

    >>> import posenc
    >>> posenc.reuse_pages()  # doctest: +SKIP
    True
    """
    if not is_glibc():
        return False
    libc = ctypes.CDLL(None)
    taken = all(libc.mallopt(option, value) for option, value in (_KEEP if keep else _STOCK).items())
    if not keep:
        libc.malloc_trim(0)
    return taken


def is_glibc() -> bool:
    """Tell whether glibc's malloc serves this process, which is the one that `reuse_pages` can set."""
    if sys.platform != "linux" or platform.libc_ver()[0] != "glibc":
        return False
    symbols = ctypes.CDLL(None)
    return hasattr(symbols, "mallopt") and not any(hasattr(symbols, name) for name in _OTHERS)


def available(device: str = "cpu") -> int | None:
    """Return the bytes that can still be used before this machine, container or GPU runs out; None if unknown."""
    if device == "cuda":
        import torch  # which the command line starts without

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
