"""Memory: what a call adds to the peak of a fresh process, kernels' scratch included.

Counting tensors would miss what kernels allocate inside, and a process that ran anything before keeps freed pages
that hide a new peak. So each candidate runs in a child forked from a process that only imported torch; there the
system's own mark of the highest resident memory is reset, and read after the call (Linux tells it).
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
_GOODBYE_S = 5.0  # for a child that has answered to end by itself, so that what it opened is closed
_PRELOADED = ["torch", "posenc.bench.report"]
_M_MMAP_THRESHOLD = -3  # of malloc.h
_LARGE = 2**15  # bytes, from which on memory is a mapping of its own, which glibc else decides as it goes


class NotMeasured(NamedTuple):
    """Why there is no peak."""

    why: str
    fatal: bool = False  # the call took its process down, or never ended: it is not to be run here either


def peak(make: Make, *, warm: Make | None = None, timeout_s: float = 600.0) -> int | NotMeasured:
    """Run a call once in a fresh process; return what its peak is beyond its inputs, in bytes, or why there is none.

    Args:
        make: Builds the inputs and returns the call, whose result counts.
        warm: Builds a small call to be run before, so that loaded code and started threads are not counted;
            None runs the call itself before, for code that is compiled for one size (and hides what it keeps).
        timeout_s: Seconds after which the child is stopped.
    """
    if not Path("/proc/self/clear_refs").exists() or "forkserver" not in multiprocessing.get_all_start_methods():
        return NotMeasured("this system keeps no mark of the highest memory that can be reset (Linux does)")
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
        child.kill()  # if it is still there: it is too late, or nobody waits any more
        child.join()
        here.close()
    return found


def peak_on_gpu(run: Work) -> int:
    """Return the same of a call on the GPU by torch's own allocator, through which all of it goes."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def _answer(pipe: Connection, threads: int, make: Make, warm: Make | None) -> None:
    """Measure in the child, and send the numbers or the sentence."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is the parent's to handle: it ends this process
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")  # if memory runs out, this process is to go
    torch.set_num_threads(threads)
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
        try:
            found: int | NotMeasured = _measure(make, warm)
        except Exception as error:  # whatever a candidate raises is the answer
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
    _held = run()  # of what is freed at once the mark may miss some pages
    grown = resident.grown(since)
    if since is None or grown is None:
        return NotMeasured("this system does not let a process reset the mark of its highest memory")
    files = _file_bytes() - files  # code that the call was the first to touch is nobody's scratch
    return max(0, int(grown * MIB) - files)


def _give_back() -> None:
    """Let what is freed go back to the system at once, so that the mark is of what is held at a time.

    Else glibc lays a tensor in any hole that what was there before has left. `resident.start` empties these, and one
    size that is taken and freed again and again, each time in another hole, would count as often.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # glibc's
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGE)


def _file_bytes() -> int:
    """Return the resident bytes that belong to files: mapped libraries."""
    return int(Path("/proc/self/statm").read_text().split()[2]) * os.sysconf("SC_PAGE_SIZE")
