"""Run compiled functions on torch's own threads, since a second thread pool would compete for the cores."""

import ctypes
import os
import threading
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch

_forked = False


def share(call: Any, numbers: Sequence[int], most: int) -> None:
    """Call a function on several threads with the address of shared numbers; each call takes units until none is left.

    Args:
        call: A function void(int64 *) compiled by numba.cfunc.
        numbers: The shared numbers.
        most: The most threads worth using; torch may use fewer.
    """
    given = (ctypes.c_int64 * len(numbers))(*numbers)
    n = min(torch.get_num_threads(), most)
    parallel = None if n <= 1 or _forked else _openmp()
    if parallel is not None:
        parallel(call.address, ctypes.addressof(given), n, 0)
        return
    others = [threading.Thread(target=call.ctypes, args=(given,)) for _ in range(n - 1)]
    for thread in others:
        thread.start()
    call.ctypes(given)  # ctypes releases the GIL, so other threads run
    for thread in others:
        thread.join()


@cache
def _openmp() -> Any | None:
    """Return GOMP_parallel of the OpenMP that torch has loaded, or None."""
    for path in sorted((Path(torch.__file__).parent / "lib").glob("libgomp*")):
        try:
            parallel = ctypes.CDLL(str(path)).GOMP_parallel
        except (OSError, AttributeError):
            continue
        parallel.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
        parallel.restype = None
        return parallel
    return None


def _after_fork() -> None:
    global _forked
    _forked = True  # OpenMP's threads do not survive a fork, and it would wait for them forever


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
