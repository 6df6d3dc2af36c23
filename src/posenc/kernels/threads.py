"""Compiled functions on torch's own threads: no second pool, which would fight the first one for the cores."""

import ctypes
import os
import threading
from functools import cache
from pathlib import Path
from typing import Any

import torch

# What a function is told first, as int64: a ticket that counts up and how many threads there are, or the addresses of
# OpenMP's functions for the two. What follows is its own.
TICKET, WORKERS, NUMBER, COUNT, OWN = range(5)
HEAD = (0, 1, 0, 0)
_forked = False


def run(call: Any, told: "ctypes.Array[ctypes.c_int64]", most: int) -> None:
    """Let threads call a numba function of one pointer, at most as many as torch may use; each does its share.

    Args:
        call: A function compiled by numba.cfunc.
        told: What its pointer points to; begins with HEAD.
        most: How many threads the work is worth.
    """
    n = min(torch.get_num_threads(), most)
    if n <= 1:
        _function(call.address)(told)
    elif (openmp := _openmp()) is not None and not _forked:
        parallel, told[NUMBER], told[COUNT] = openmp
        parallel(call.address, told, n, 0)
    else:
        function, told[WORKERS] = _function(call.address), n
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
def _openmp() -> tuple[Any, int, int] | None:
    """Return GOMP_parallel of the OpenMP that torch has loaded, and where its functions for who works are, or None."""
    for path in sorted((Path(torch.__file__).parent / "lib").glob("libgomp*")):
        try:
            library = ctypes.CDLL(str(path))
            parallel, number, count = library.GOMP_parallel, library.omp_get_thread_num, library.omp_get_num_threads
        except (OSError, AttributeError):
            continue
        parallel.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
        parallel.restype = None
        places = (ctypes.cast(function, ctypes.c_void_p).value or 0 for function in (number, count))
        return parallel, *places  # type: ignore[return-value]
    return None


def _after_fork() -> None:
    global _forked
    _forked = True  # the threads of OpenMP are not there any more, and it would wait for them for ever


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
