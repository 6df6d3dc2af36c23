"""The turn on a GPU: one launch of a Triton kernel for queries and keys, with little work on the host.

Moving memory is all that the kernel costs, so block sizes follow from widths and need no tuning run: a thread moves 16
bytes of each lane of a pair, and a program turns as many heads with one reading of the tables as leave enough programs
for a large GPU. What a launch needs is worked out once for each kind of call, and the compiled kernel is then called
past Triton's own look-up: at decoding the host is most of a turn's cost. Nothing here waits for the device or
allocates, so a CUDA graph can record it; as with any kernel, call it once before, since the first call compiles.
"""

import functools
import importlib
import importlib.util
import os
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from posenc.kernels.job import Job, Pairing, Side

_THREADS, _VECTOR = 128, 16  # of a program; bytes that one instruction of a thread loads
_MOST_STEPS = 8  # of a program over heads: the tables are then an eighth of its reads, and come from the cache
_ENOUGH = 2048  # programs: fewer leave a large GPU idle, so they turn fewer heads each
_FLOATS = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
_TABLES = (torch.float32, torch.float64)
_NO_JOB = (None,) * 5


def refuses(jobs: Sequence[Job]) -> str | None:
    """Return why this backend cannot run these jobs, in a sentence, or None."""
    for job in jobs:
        if not job.x.is_cuda and not interprets():
            return f"triton runs on GPUs alone, and in its interpreter (TRITON_INTERPRET=1); got {job.x.device} tensors"
        if not _installed():
            return "triton is not installed; torch for CUDA brings it on Linux, and so does pip install triton"
        if job.x.dtype not in _FLOATS or job.out.dtype != job.x.dtype:
            return f"triton turns bfloat16, float16, float32 and float64; got {job.x.dtype} into {job.out.dtype}"
        if job.cos.dtype not in _TABLES or job.sin.dtype != job.cos.dtype:
            return f"triton needs tables of float32 or float64; got {job.cos.dtype}, {job.sin.dtype}"
        if any(t is not None and t.shape[-1] > 1 and t.stride(-1) != 1 for t in job[:5]):
            return "triton needs lanes side by side in memory (a last stride of 1)"
    return None


def plan(jobs: Sequence[Job], pairing: Pairing, side: Side, back: bool = False) -> Callable[[Sequence[Job]], None]:
    """Return what writes the turns of jobs that differ from these in their addresses alone; see `job.Job`.

    Queries and keys of one shape, but for heads and tokens, share a launch. The products and sums are formed in the
    tables' precision, or in float64 where `x` is, and rounded once.
    """
    left = [i for i, job in enumerate(jobs) if job.x.numel()]
    launches = []
    while left:
        which = tuple(left[:2]) if len(left) > 1 and _agree(jobs[left[0]], jobs[left[1]]) else (left[0],)
        launches.append(_lay_out(jobs, which, pairing, side, back))
        left = left[len(which) :]
    if len(launches) == 1:
        return launches[0]

    def run(jobs: Sequence[Job]) -> None:
        for launch in launches:
            launch(jobs)

    return run


def interprets() -> bool:
    """Return whether Triton runs kernels in Python, on any device: so it does where TRITON_INTERPRET was set first."""
    if not os.environ.get("TRITON_INTERPRET") or not _installed():
        return False
    return type(_code().turn).__name__ == "InterpretedFunction"


@functools.cache
def _installed() -> bool:
    return importlib.util.find_spec("triton") is not None


@functools.cache
def _code() -> Any:
    return importlib.import_module("posenc.kernels.triton_code")  # imports triton: a second that others do not pay


class _Launch:
    """One launch for one job or two, worked out but for the addresses."""

    def __init__(
        self, which: tuple[int, ...], device: int, programs: int, numbers: tuple[Any, ...], warps: int
    ) -> None:
        self.which, self.device, self.numbers, self.warps = which, device, numbers, warps
        self.grid = (programs, 1, 1)
        self.compiled: Callable[..., None] | None = None

    def __call__(self, jobs: Sequence[Job]) -> None:
        """Launch, on the current stream of the tensors' device."""
        if self.device >= 0 and self.device != torch.cuda.current_device():
            with torch.cuda.device(self.device):
                return self(jobs)
        first = jobs[self.which[0]][:5]
        second = jobs[self.which[1]][:5] if len(self.which) == 2 else _NO_JOB
        # Triton compiles for addresses that 16 divides, and anew for others: with these it is asked which kernel fits
        together = 0
        for tensor in (*first, *second):
            if tensor is not None:
                together |= tensor.data_ptr()
        if self.compiled is not None and together % 16 == 0:
            return self.compiled(*first, *second, *self.numbers)
        launch = _code().turn[self.grid]
        kernel = launch(*first, *second, *self.numbers, num_warps=self.warps, enable_fp_fusion=True)
        if kernel is not None and together % 16 == 0:
            self.compiled = kernel[self.grid]
        return None


def _agree(one: Job, other: Job) -> bool:
    same = one.x.dtype == other.x.dtype and one.x.device == other.x.device and one.cos.dtype == other.cos.dtype
    shapes = ((job.x.shape[0], job.x.shape[3], job.cos.shape[3]) for job in (one, other))
    return same and len(set(shapes)) == 1


def _lay_out(jobs: Sequence[Job], which: tuple[int, ...], pairing: Pairing, side: Side, back: bool) -> _Launch:
    """Choose the tile, rows of lanes that a program holds at once, and how many heads it goes over."""
    chosen = [jobs[i] for i in which]
    x, n_pairs = chosen[0].x, chosen[0].cos.shape[3]
    rest = x.shape[3] - 2 * n_pairs
    lanes, rests = _power(n_pairs), _power(max(rest, 1))
    vector = _VECTOR // x.element_size()
    tile = max(1, _THREADS * vector // max(lanes, rests // 2))
    groups = [job.x.shape[1] // job.cos.shape[1] for job in chosen]
    rows = min(tile, _power(max(job.x.shape[2] for job in chosen)))
    heads = min(tile // rows, _power(max(groups)))
    row_blocks = -(-max(job.x.shape[2] for job in chosen) // rows)
    steps = min(_MOST_STEPS, _power(-(-max(groups) // heads)))
    while True:
        parts = [job.cos.shape[1] * -(-group // (heads * steps)) for job, group in zip(chosen, groups, strict=True)]
        programs = x.shape[0] * row_blocks * sum(parts)
        if programs >= _ENOUGH or steps == 1:
            break
        steps //= 2
    first, second = _sizes(chosen[0]), _sizes(chosen[1]) if len(chosen) == 2 else (0,) * 14
    # lanes that do not turn stay, where x is out: of two tensors of one address it is not known for the next call
    told = [t for job in chosen for t in (job.out is job.x and job.weight is None, job.eps)]
    told += [False, 0.0] * (2 - len(chosen))
    shape = (rows, heads, lanes, rests, n_pairs, rest, pairing == "interleaved", side == "last", back)
    numbers = (*first, *second, parts[0], sum(parts), row_blocks, steps, *told, *shape)
    warps = max(1, min(_THREADS // 32, rows * heads * lanes // (32 * vector)))
    return _Launch(which, x.get_device(), programs, numbers, warps)


def _sizes(job: Job) -> tuple[int, ...]:
    """Return heads that share a table, tokens, and the strides of x, out, cos and sin; 0 for what has no extent.

    A stride of 0 repeats tables for batch rows, and it spares Triton a kernel of its own for strides that say nothing.
    """
    strides = (_stride(t, axis) for t in (job.x, job.out, job.cos, job.sin) for axis in range(3))
    return (job.x.shape[1] // job.cos.shape[1], job.x.shape[2], *strides)


def _stride(x: Tensor, axis: int) -> int:
    return 0 if x.shape[axis] == 1 else x.stride(axis)


def _power(n: int) -> int:
    """Return the least power of two that is not below `n`."""
    return 1 << (n - 1).bit_length()
