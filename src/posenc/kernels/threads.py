"""Compiled functions on torch's own threads: no second pool, which would fight the first one for the cores."""

import ctypes
import os
import struct
import threading
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch

# What a function is told first, as int64: a ticket that counts up and how many threads there are, or the addresses of
# OpenMP's functions for the two. What follows is its own.
TICKET, WORKERS, NUMBER, COUNT, OWN = range(5)
_forked = False


def starter(call: Any, size: int, most: int) -> Callable[[Sequence[int]], None]:
    """Return what lets threads call a numba function of one pointer, each for its share of the work.

    It is given what the pointer is to point to behind its head: whole numbers, `size` of them.

    Args:
        call: A function compiled by numba.cfunc, for as long as the process lives.
        size: How many numbers are its own.
        most: How many threads the work is worth; torch may use fewer.
    """
    pack = struct.Struct(f"{OWN + size}q").pack
    address, openmp = call.address, _openmp()
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address)  # which lets other Python threads run meanwhile

    def start(own: Sequence[int]) -> None:
        n = min(torch.get_num_threads(), most)
        if n <= 1:
            function(pack(0, 1, 0, 0, *own))
        elif openmp is not None and not _forked:
            parallel, number, count = openmp
            parallel(address, pack(0, n, number, count, *own), n, 0)
        else:
            _share(function, ctypes.create_string_buffer(pack(0, n, 0, 0, *own)), n)

    return start


def _share(function: Any, told: Any, n: int) -> None:
    """Let n threads of Python call a function; its ticket tells each which it is."""
    others = [threading.Thread(target=function, args=(told,)) for _ in range(n - 1)]
    for thread in others:
        thread.start()
    function(told)
    for thread in others:
        thread.join()


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
