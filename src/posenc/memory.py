"""The memory that is available, and the memory that the process keeps.

On Linux the cost of large tensors is mostly that of new pages. glibc returns a freed block of more than 32 MiB to the
system, and the next tensor of that size needs new pages, which the system has to find and zero with one page fault for
each 4 KiB. So a clone of 64 MiB takes several times as long as a copy into existing memory.
"""

import contextlib
import ctypes
import platform
import sys
from pathlib import Path

# The value of GLIBC_TUNABLES with the same effect as `reuse_pages()` in a new process. The threshold for mapped blocks
# would be clearer, but glibc before 2.35 refuses one above 32 MiB.
TUNABLES = f"glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold={2**36}"
_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # malloc.h
_KEEP, _STOCK = {_MMAP_MAX: 0, _TRIM_THRESHOLD: -1}, {_MMAP_MAX: 65536, _TRIM_THRESHOLD: 128 * 1024}
_CGROUPS = (("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"))
_OTHERS = ("mallctl", "mi_version", "tc_version")  # symbols of jemalloc, mimalloc and tcmalloc


def reuse_pages(keep: bool = True) -> bool:
    """Keep the memory of freed tensors in this process for later tensors; for Linux with glibc.

    Large blocks then come from the heap, which does not shrink. After about ten tensors of one size, a new tensor costs
    about as much as a copy into existing memory. `posenc doctor` measures it.

    As a side effect the process never gets smaller, and may grow beyond its peak because of holes that no later block
    fits (clones of 64 MiB, one at a time, kept 400 to 500 MiB). It affects the whole process, including numpy's arrays,
    but not large tensors that other threads than the first allocate. For other processes, set GLIBC_TUNABLES in the
    environment to `posenc.memory.TUNABLES`.

    Args:
        keep: False restores glibc's default limits and returns free memory to the system. Limits from the environment
            are not restored, and glibc no longer adapts its threshold.

    Returns:
        Whether it took effect. It returns False and changes nothing if malloc is not glibc's (macOS, Windows, musl,
        jemalloc, mimalloc, tcmalloc).

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
    """Whether this process uses glibc's malloc, which `reuse_pages` can configure."""
    if sys.platform != "linux" or platform.libc_ver()[0] != "glibc":
        return False
    symbols = ctypes.CDLL(None)
    return hasattr(symbols, "mallopt") and not any(hasattr(symbols, name) for name in _OTHERS)


def available(device: str = "cpu") -> int | None:
    """Return the free bytes of this machine, container or GPU; None if unknown."""
    if device == "cuda":
        import torch  # imported here, since the command line starts without it

        kept = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()  # torch's cache
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
