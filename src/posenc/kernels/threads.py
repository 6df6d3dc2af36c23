"""Compiled functions on torch's own threads: no second pool, which would fight the first one for the cores."""

import ctypes
import os
import threading
from functools import cache
from pathlib import Path
from typing import Any

import torch

_forked = False


def run(call: Any, told: "ctypes.Array[ctypes.c_int64]", most: int) -> None:
    """Let threads call a numba function of one pointer, at most as many as torch may use; they share the work.

    Args:
        call: A function compiled by numba.cfunc.
        told: What its pointer points to.
        most: How many threads the work is worth.
    """
    n = min(torch.get_num_threads(), most)
    if n <= 1:
        _function(call.address)(told)
    elif (parallel := _parallel()) is not None and not _forked:
        parallel(call.address, told, n, 0)
    else:
        function = _function(call.address)
        others = [threading.Thread(target=function, args=(told,)) for _ in range(n - 1)]
        for thread in others:
            thread.start()
        function(told)
        for thread in others:
            thread.join()


@cache
def _function(address: int) -> Any:
    return ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address)  # which lets other Python threads run meanwhile


@cache
def _parallel() -> Any | None:
    """Return GOMP_parallel(function, data, n_threads, flags) of the OpenMP that torch has loaded, or None."""
    for path in sorted((Path(torch.__file__).parent / "lib").glob("libgomp*")):
        try:
            found = ctypes.CDLL(str(path)).GOMP_parallel
        except (OSError, AttributeError):
            continue
        found.argtypes, found.restype = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint], None
        return found
    return None


def _after_fork() -> None:
    global _forked
    _forked = True  # the threads of OpenMP are not there any more, and it would wait for them for ever


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
