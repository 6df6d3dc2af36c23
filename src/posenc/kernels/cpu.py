"""The rotation on a CPU in one pass over memory, compiled by numba (the extra `fast`).

q and k are rotated in one call, in place or out of place, on the threads of torch's own operations.
"""

import hashlib
import platform
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import Any

import numba
import torch
from llvmlite.binding import get_host_cpu_features
from numba import types

from posenc.kernels import threads, vectors
from posenc.kernels.eager import Pairing, Side
from posenc.kernels.jobs import Job, rotated_part
from posenc.kernels.vectors import BYTES, WIDTH

UNIT = 2**20  # bytes of one unit of work
GRAIN = 2**15  # the fewest numbers for each thread, as in torch
_NAMES = {t: str(t).removeprefix("torch.") for t in (torch.bfloat16, torch.float16, torch.float32, torch.float64)}
# The layout of a call's int64 arguments: the number of units taken so far, the numbers that all jobs share, then EACH
# numbers for each job. Strides are in bytes.
TAKEN, UNITS, JOBS, BATCH, ITEMS, GROUPS, SEQ, BLOCK, BLOCKS, PAIRS, LANES, BEGIN, FIRST_JOB = range(13)
X, OUT, COS, SIN, HEADS, SHARING, X_STRIDES, OUT_STRIDES, TABLE_STRIDES, EACH = 0, 1, 2, 3, 4, 5, 6, 9, 12, 15

_rotate_rows: Any  # in compiled copies of `_work`: the function that rotates some heads of some tokens


def refuses(jobs: Sequence[Job]) -> str | None:
    """Return why these tensors cannot be rotated here, or None."""
    x, tables = jobs[0].x, {job.cos.dtype for job in jobs}
    if x.device.type != "cpu":
        return f"it runs only on a CPU; got tensors on {x.device}"
    if x.dtype not in _NAMES or (x.dtype.itemsize == 2 and torch.float64 in tables):
        return f"it does not support {x.dtype} with tables of {' and '.join(sorted(map(str, tables)))}"
    if x.dtype == torch.float16 and not _has_float16():
        return "it needs a processor that converts float16"
    return None


def _has_float16() -> bool:
    return get_host_cpu_features().get("f16c", False) or platform.machine().lower() in ("aarch64", "arm64")


def run(jobs: Sequence[Job], pairing: Pairing, side: Side) -> None:
    """Write the rotations."""
    jobs = [job for job in jobs if job.x.numel()]
    alike = len({(job.x.shape[0], job.x.shape[2], job.cos.shape[3], job.cos.dtype) for job in jobs}) == 1
    for together in [jobs] if alike else [[job] for job in jobs]:  # a cache has more keys than queries
        _run_alike(together, pairing, side)


def _run_alike(jobs: Sequence[Job], pairing: Pairing, side: Side) -> None:
    """Rotate jobs of the same tokens."""
    x = jobs[0].x
    batch, _, seq, head_dim = x.shape
    elements, heads = sum(job.x.numel() for job in jobs), sum(job.x.shape[1] for job in jobs)
    apart = x.stride(1) > x.stride(2) and seq > 1  # then a unit is one head of one job, whose rows are contiguous
    groups = heads if apart else 1
    unit = min(UNIT, elements * x.element_size() // (4 * torch.get_num_threads())) // (head_dim * x.element_size())
    rows = unit // (1 if apart else heads)  # tokens of all its heads
    block = max(1, min(seq, rows))
    blocks, items = -(-seq // block), max(1, rows // seq)
    units = -(-batch // items) * groups * blocks
    begin = rotated_part(jobs[0], side).start
    numbers = [0, units, len(jobs), batch, items, groups, seq, block, blocks, jobs[0].cos.shape[3], head_dim, begin]
    for job in jobs:
        numbers += _facts(job)
    call = compiled(_NAMES[x.dtype], _NAMES[jobs[0].cos.dtype], pairing)
    threads.share(call, numbers, min(elements // GRAIN, units))


def _facts(job: Job) -> list[int]:
    heads, (rows, table_heads) = job.x.shape[1], job.cos.shape[:2]
    steps = [stride * t.element_size() for t in job[:3] for stride in t.stride()[:3]]
    if rows == 1:
        steps[6] = 0
    if table_heads == 1:
        steps[7] = 0
    return [*(t.data_ptr() for t in job), heads, heads // table_heads, *steps]


@cache
def compiled(stored: str, wide: str, pairing: str) -> Any:
    """Return the C function void(int64 *) that rotates numbers of dtype `stored` by tables of dtype `wide`.

    numba keeps it on disk by its qualified name, which therefore has the dtypes, the pairing and a digest of `vectors`.
    """
    digest = hashlib.sha256(Path(vectors.__file__).read_bytes()).hexdigest()[:12]
    work = FunctionType(_work.__code__, globals() | {"_rotate_rows": _rows(stored, wide, pairing)})
    work.__qualname__ = f"rotate_{stored}_{wide}_{pairing}_{digest}"
    signature = types.void(types.CPointer(types.int64))
    try:
        return numba.cfunc(signature, cache=True, error_model="numpy")(work)
    except (RuntimeError, OSError):  # no directory to keep it in, or the disk is full
        return numba.cfunc(signature, error_model="numpy")(work)


def _work(given):  # type: ignore[no-untyped-def]
    """Take units until none is left."""
    n_jobs, groups, blocks, block = given[JOBS], given[GROUPS], given[BLOCKS], given[BLOCK]
    unit = vectors.take(given)
    while unit < given[UNITS]:
        begin, skipped, item = unit % blocks * block, unit // blocks % groups, unit // blocks // groups
        end, item = min(given[SEQ], begin + block), item * given[ITEMS]
        for job in range(n_jobs):
            heads = given[FIRST_JOB + job * EACH + HEADS]
            first, last = 0, heads
            if groups > 1:
                first, last = max(skipped, 0), min(skipped + 1, heads)
                skipped -= heads
            if first < last:
                for batch in range(item, min(given[BATCH], item + given[ITEMS])):
                    _rotate_rows(given, job, batch, first, last, begin, end)
        unit = vectors.take(given)


def _named(function: Any, *kind: str, **options: bool) -> Any:
    """Compile a function under a unique name, since cached code is linked by name."""
    function.__qualname__ = "_".join((function.__name__, *kind))
    return numba.njit(**options)(function)


def _rows(stored: str, wide: str, pairing: str) -> Any:
    """Return the function that rotates some heads of some tokens."""
    rotate, move, size = _rotate(stored, wide, pairing), _move(stored), BYTES[stored]

    def rows(given, job, batch, first, last, begin, end):  # type: ignore[no-untyped-def]
        # read the arguments once: the compiler cannot rule out that the writes below change them
        at = FIRST_JOB + job * EACH
        n_pairs, n_lanes, low = given[PAIRS], given[LANES], given[BEGIN]
        high, sharing = low + 2 * n_pairs, given[at + SHARING]
        x_head, x_token = given[at + X_STRIDES + 1], given[at + X_STRIDES + 2]
        out_head, out_token = given[at + OUT_STRIDES + 1], given[at + OUT_STRIDES + 2]
        table_head, table_token = given[at + TABLE_STRIDES + 1], given[at + TABLE_STRIDES + 2]
        x0 = given[at + X] + batch * given[at + X_STRIDES]
        out0 = given[at + OUT] + batch * given[at + OUT_STRIDES]
        cos0 = given[at + COS] + batch * given[at + TABLE_STRIDES]
        to_sin = given[at + SIN] - given[at + COS]
        rest = n_lanes > 2 * n_pairs and x0 != out0
        for token in range(begin, end):
            for head in range(first, last):
                x, out = x0 + head * x_head + token * x_token, out0 + head * out_head + token * out_token
                cos = cos0 + token * table_token
                if table_head != 0:  # a division takes as long as the rotation
                    cos += head // sharing * table_head
                rotate(x + low * size, out + low * size, cos, cos + to_sin, n_pairs)
                if rest:
                    move(x, out, low)
                    move(x + high * size, out + high * size, n_lanes - high)

    return _named(rows, stored, wide, pairing)


def _rotate(stored: str, wide: str, pairing: str) -> Any:
    """Return the function that rotates a row of pairs."""
    many, one = (vectors.rotate(vectors.Kind(stored, wide, width), pairing == "half") for width in (WIDTH, 1))
    size, table_size, lanes = BYTES[stored], BYTES[wide], 1 if pairing == "half" else 2

    def rotate(x, out, cos, sin, n):  # type: ignore[no-untyped-def]
        whole, gap = n - n % WIDTH, n * size
        for i in range(0, whole, WIDTH):
            place = i * lanes * size
            many(x + place, out + place, cos + i * table_size, sin + i * table_size, gap)
        for i in range(whole, n):
            place = i * lanes * size
            one(x + place, out + place, cos + i * table_size, sin + i * table_size, gap)

    return _named(rotate, stored, wide, pairing, forceinline=True)


def _move(stored: str) -> Any:
    """Return the function that copies head dimensions that do not rotate."""
    many, one = vectors.move(stored, WIDTH), vectors.move(stored, 1)
    size = BYTES[stored]

    def move(x, out, n):  # type: ignore[no-untyped-def]
        whole = n - n % WIDTH
        for i in range(0, whole, WIDTH):
            many(x + i * size, out + i * size)
        for i in range(whole, n):
            one(x + i * size, out + i * size)

    return _named(move, stored, forceinline=True)
