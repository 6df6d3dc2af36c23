"""The rotation on a GPU: one launch of a Triton kernel for queries and keys.

The kernel is bound by memory bandwidth, so block sizes follow from widths without tuning. A thread moves 16 bytes of
each half of the pairs. A program reads the tables once and rotates as many heads as leave enough programs for a large
GPU. Nothing here waits for the device or allocates, so a CUDA graph can record it. Call it once before recording, since
the first call compiles.
"""

import functools
import importlib
import importlib.util
import os
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from posenc.kernels.eager import Pairing, Side
from posenc.kernels.jobs import Job

_THREADS, _VECTOR = 128, 16  # of a program; bytes that one instruction of a thread loads
_MOST_STEPS = 8  # of a program over heads: the tables are then an eighth of its reads, and come from the cache
_ENOUGH = 2048  # programs: fewer leave a large GPU idle, so they rotate fewer heads each
_FLOATS = (torch.bfloat16, torch.float16, torch.float32, torch.float64)


def refuses(jobs: Sequence[Job]) -> str | None:
    """Return why this backend cannot run these jobs, in a sentence, or None."""
    x = jobs[0].x
    if not x.is_cuda and not interprets():
        return f"it runs only on GPUs, or in Triton's interpreter (TRITON_INTERPRET=1); got tensors on {x.device}"
    if not _installed():
        return "triton is not installed; torch for CUDA includes it on Linux, or run pip install triton"
    if x.dtype not in _FLOATS:
        return f"it supports bfloat16, float16, float32 and float64; got {x.dtype}"
    return None


def interprets() -> bool:
    """Return whether Triton interprets kernels in Python, on any device: TRITON_INTERPRET was set before its import."""
    if not os.environ.get("TRITON_INTERPRET") or not _installed():
        return False
    return type(_code().rotate).__name__ == "InterpretedFunction"


@functools.cache
def _installed() -> bool:
    return importlib.util.find_spec("triton") is not None


@functools.cache
def _code() -> Any:
    return importlib.import_module("posenc.kernels.triton_code")  # importing triton takes a second


def run(jobs: Sequence[Job], pairing: Pairing, side: Side) -> None:
    """Write the rotations, on the current stream of the tensors' device.

    Queries and keys share a launch if their shapes differ only in heads and tokens. Products and sums are formed in the
    tables' precision and rounded once.
    """
    jobs = [job for job in jobs if job.x.numel()]
    alike = len({(job.x.dtype, job.cos.dtype, job.x.shape[0], job.x.shape[3], job.cos.shape[3]) for job in jobs}) == 1
    for together in [jobs] if alike else [[job] for job in jobs]:
        programs, numbers, warps = lay_out(together, pairing, side)
        tensors = (*together[0], *(together[1] if len(together) == 2 else (None,) * 4))
        x = together[0].x
        with torch.cuda.device(x.device) if x.is_cuda else nullcontext():
            _code().rotate[(programs, 1, 1)](*tensors, *numbers, num_warps=warps, enable_fp_fusion=True)


def lay_out(jobs: Sequence[Job], pairing: Pairing, side: Side) -> tuple[int, tuple[Any, ...], int]:
    """Return the number of programs, their arguments other than tensors, and the warps of each.

    A tile is the rows that a program holds at once. A program goes over several heads.
    """
    x, n_pairs = jobs[0].x, jobs[0].cos.shape[3]
    rest = x.shape[3] - 2 * n_pairs
    lanes, rests = _power(n_pairs), _power(max(rest, 1))
    vector = _VECTOR // x.element_size()
    tile = max(1, _THREADS * vector // max(lanes, rests // 2))
    groups = [job.x.shape[1] // job.cos.shape[1] for job in jobs]
    seq = max(job.x.shape[2] for job in jobs)
    rows = min(tile, _power(seq))
    heads = min(tile // rows, _power(max(groups)))
    row_blocks = -(-seq // rows)
    steps = min(_MOST_STEPS, _power(-(-max(groups) // heads)))
    while True:
        parts = [job.cos.shape[1] * -(-group // (heads * steps)) for job, group in zip(jobs, groups, strict=True)]
        programs = x.shape[0] * row_blocks * sum(parts)
        if programs >= _ENOUGH or steps == 1:
            break
        steps //= 2
    sizes = [n for job in jobs for n in _sizes(job)] + [0] * 11 * (2 - len(jobs))
    keeps = [job.x.data_ptr() == job.out.data_ptr() for job in jobs] + [False] * (2 - len(jobs))
    tiles = (rows, heads, lanes, rests, n_pairs, rest, pairing == "interleaved", side == "last")
    warps = max(1, min(_THREADS // 32, rows * heads * lanes // (32 * vector)))
    return programs, (*sizes, parts[0], sum(parts), row_blocks, steps, *keeps, *tiles), warps


def _sizes(job: Job) -> tuple[int, ...]:
    """Return the heads that share a table, the tokens, and the strides of x, out and tables; 0 along a size of 1.

    A stride of 0 repeats tables for batch rows, and saves Triton from compiling a kernel for each irrelevant stride.
    """
    strides = (_stride(t, axis) for t in (job.x, job.out, job.cos) for axis in range(3))
    return (job.x.shape[1] // job.cos.shape[1], job.x.shape[2], *strides)


def _stride(x: Tensor, axis: int) -> int:
    return 0 if x.shape[axis] == 1 else x.stride(axis)


def _power(n: int) -> int:
    """Return the smallest power of two that is at least `n`."""
    return 1 << (n - 1).bit_length()
