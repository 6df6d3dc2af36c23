"""Memory: the increase of a fresh process's peak by a call, including kernels' scratch memory.

Counting tensors would miss memory that kernels allocate inside, and a process with a history keeps freed pages that
hide a new peak. So each candidate runs in a child forked from a process that has only imported torch. There the
system's peak of resident memory is reset before the call and read after it (on Linux).
"""

import contextlib
import ctypes
import gc
import multiprocessing
import os
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

import torch

from posenc.bench.measure import Work, first_line
from posenc.study import memory as resident

MIB = 2**20
Make = Callable[[], Work]  # builds the inputs and returns the call; picklable, since a child runs it
_GOODBYE_S = 5.0  # for a child to exit by itself after its answer, so that it closes its files
_PRELOADED = ["torch", "posenc.bench.report"]
_M_MMAP_THRESHOLD = -3  # of malloc.h
_LARGE = 2**15  # allocations from this size on get their own mapping; glibc would adapt this size


class NotMeasured(NamedTuple):
    """Why there is no peak."""

    why: str
    fatal: bool = False  # the call crashed its process, or never ended: do not run it in this process


def peak(make: Make, *, warm: Make | None = None, timeout_s: float = 600.0) -> int | NotMeasured:
    """Run a call once in a fresh process; return its peak beyond its inputs, in bytes, or why there is none.

    Args:
        make: Builds the inputs and returns the call; its result counts.
        warm: Builds a small call that runs first, so that loaded code and started threads do not count; None runs the
            call itself first, for code that is compiled for one size (which hides memory that it keeps).
        timeout_s: Seconds after which the child is stopped.
    """
    if not Path("/proc/self/clear_refs").exists() or "forkserver" not in multiprocessing.get_all_start_methods():
        return NotMeasured("this system has no peak of resident memory that can be reset (Linux does)")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    here, there = context.Pipe(duplex=False)
    child = context.Process(target=_answer, args=(there, torch.get_num_threads(), make, warm), daemon=True)
    child.start()
    there.close()
    try:
        if not here.poll(timeout_s):
            return NotMeasured(f"no answer within {timeout_s:g} seconds", fatal=True)
        found: int | NotMeasured = here.recv()
        child.join(_GOODBYE_S)
    except EOFError:
        child.join()
        said = f"its process ended with code {child.exitcode}; there may be too little memory"  # -9: it was killed
        return NotMeasured(said, fatal=True)
    finally:
        child.kill()  # if it still runs after the limit, or the caller was interrupted
        child.join()
        here.close()
    return found


def peak_on_gpu(run: Work) -> int:
    """Return the same for a call on the GPU, from torch's own allocator, which all of its memory goes through."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def _answer(pipe: Connection, threads: int, make: Make, warm: Make | None) -> None:
    """Measure in the child, and send the numbers or the explanation."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles interrupts and ends this process
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")  # if memory runs out, the system should kill this process
    torch.set_num_threads(threads)
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
        try:
            found: int | NotMeasured = _measure(make, warm)
        except Exception as error:  # any error of a candidate is the answer
            found = NotMeasured(first_line(error))
    pipe.send(found)


def _measure(make: Make, warm: Make | None) -> int | NotMeasured:
    _give_back()
    if warm is not None:
        warm()()
    run = make()
    if warm is None:
        run()
    gc.collect()
    since, files = resident.start(), _file_bytes()
    _held = run()  # the peak may miss pages that are freed at once
    grown = resident.grown(since)
    if since is None or grown is None:
        return NotMeasured("this system does not let a process reset its peak of resident memory")
    files = _file_bytes() - files  # code that the call loads first is not scratch memory
    return max(0, int(grown * MIB) - files)


def _give_back() -> None:
    """Return freed memory to the system at once, so that the peak covers only memory that is held at the same time.

    Otherwise glibc places a tensor in any hole that earlier tensors have left. `resident.start` empties these holes,
    and a size that is allocated and freed repeatedly, each time in another hole, would count several times.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # glibc's
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGE)


def _file_bytes() -> int:
    """Return the resident bytes of files: mapped libraries."""
    return int(Path("/proc/self/statm").read_text().split()[2]) * os.sysconf("SC_PAGE_SIZE")
