"""The turn on a CPU in one pass over memory, compiled by numba (the extra `fast`).

q and k are turned in one call, in place or out of place, with or without the norm before it. Threads are those that
torch's own operations use, so that neither waits for the other.
"""

import ctypes
import hashlib
import platform
import struct
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
from posenc.kernels.job import Job, Pairing, Side
from posenc.kernels.vectors import BYTES, WIDTH, Kind

WIDEST = 1024  # lanes of a head that a norm may have: their memory lies on the stack
UNIT = 2**20  # bytes that a thread takes on at once
GRAIN = 2**15  # numbers that are worth a thread, as torch has it
_NAMES = {t: str(t).removeprefix("torch.") for t in (torch.bfloat16, torch.float16, torch.float32, torch.float64)}
# What a call is told, as int64: first what holds for all, then as many numbers for each job.
COUNTER, UNITS, JOBS, GROUPS, SEQ, BLOCK, BLOCKS, PAIRS, LANES, BEGIN, FIRST_JOB = range(11)
X, OUT, COS, SIN, WEIGHT, EPS, HEADS, SHARING = range(8)
X_STRIDES, OUT_STRIDES, TABLE_STRIDES = 8, 11, 14  # each by batch, head and token, in bytes
EACH = 17


_turn_rows: Any  # in the copies of `_work` that are compiled: what turns some heads of some tokens


def _work(told):  # type: ignore[no-untyped-def]
    """Take units of work until there are none."""
    n_jobs, groups, blocks, block = told[JOBS], told[GROUPS], told[BLOCKS], told[BLOCK]
    while True:
        unit = vectors.take(told[COUNTER])
        if unit >= told[UNITS]:
            return
        begin, group, batch = unit % blocks * block, unit // blocks % groups, unit // blocks // groups
        end = min(told[SEQ], begin + block)
        for job in range(n_jobs):
            at = FIRST_JOB + job * EACH
            heads = told[at + HEADS]
            first, last = 0, heads
            if groups > 1:  # a unit is one head of all that the jobs have
                first, last = max(group, 0), min(group + 1, heads)
                group -= heads
            if first < last:
                _turn_rows(told, at, batch, first, last, begin, end)


@cache
def compiled(stored: str, table: str, pairing: str) -> Any:
    """Return the C function void(int64 *) that turns numbers of one kind by tables of another; kept on disk."""
    wide = "float64" if "float64" in (stored, table) else "float32"
    rows = _rows(stored, table, wide, half=pairing == "half")
    # kept under its name, and made anew with this file: the name says of which kind it is, and by which vectors
    digest = hashlib.sha256(Path(vectors.__file__).read_bytes()).hexdigest()[:12]
    work = FunctionType(_work.__code__, globals() | {"_turn_rows": rows})
    work.__qualname__ = f"turn_{stored}_{table}_{pairing}_{digest}"
    signature = types.void(types.CPointer(types.int64))
    try:
        return numba.cfunc(signature, cache=True, error_model="numpy")(work)
    except RuntimeError:  # there is no directory to keep it in
        return numba.cfunc(signature, error_model="numpy")(work)


def _named(function: FunctionType, *kind: str, **options: bool) -> Any:
    """Compile a function under a name of its own: code from the disk is joined by names."""
    function.__qualname__ = "_".join((function.__name__, *kind))
    return numba.njit(**options)(function)


def _rows(stored: str, table: str, wide: str, half: bool) -> Any:
    """Return what turns some heads of some tokens."""
    turn, move = _turn(stored, stored, table, wide, half), _move(stored, stored, wide)
    turn_normal, move_normal = _turn(wide, stored, table, wide, half), _move(wide, stored, wide)
    normalise, room = _normalise(stored, wide), vectors.room(wide, WIDEST)
    size, wide_size = BYTES[stored], BYTES[wide]

    def rows(told, at, batch, first, last, begin, end):  # type: ignore[no-untyped-def]
        # read once: the compiler cannot know that what is written below is not what it was told
        n_pairs, n_lanes, low, weight = told[PAIRS], told[LANES], told[BEGIN], told[at + WEIGHT]
        high, eps, sharing = low + 2 * n_pairs, vectors.as_float64(told[at + EPS]), told[at + SHARING]
        x_head, x_token = told[at + X_STRIDES + 1], told[at + X_STRIDES + 2]
        out_head, out_token = told[at + OUT_STRIDES + 1], told[at + OUT_STRIDES + 2]
        table_head, table_token = told[at + TABLE_STRIDES + 1], told[at + TABLE_STRIDES + 2]
        x0 = told[at + X] + batch * told[at + X_STRIDES]
        out0 = told[at + OUT] + batch * told[at + OUT_STRIDES]
        cos0 = told[at + COS] + batch * told[at + TABLE_STRIDES]
        to_sin = told[at + SIN] - told[at + COS]
        rest = n_lanes > 2 * n_pairs and x0 != out0
        for token in range(begin, end):
            for head in range(first, last):
                x, out = x0 + head * x_head + token * x_token, out0 + head * out_head + token * out_token
                cos = cos0 + token * table_token
                if table_head != 0:  # a division takes as long as the turn
                    cos += head // sharing * table_head
                if weight == 0:
                    turn(x + low * size, out + low * size, cos, cos + to_sin, n_pairs)
                    if rest:
                        move(x, out, low)
                        move(x + high * size, out + high * size, n_lanes - high)
                else:
                    normal = room()
                    normalise(x, weight, normal, n_lanes, eps)
                    turn_normal(normal + low * wide_size, out + low * size, cos, cos + to_sin, n_pairs)
                    move_normal(normal, out, low)
                    move_normal(normal + high * wide_size, out + high * size, n_lanes - high)

    return _named(rows, stored, table, "half" if half else "interleaved")


def _turn(source: str, target: str, table: str, wide: str, half: bool) -> Any:
    """Return what turns a row of pairs."""
    many, one = (
        vectors.turn(Kind(source, wide, width), Kind(target, wide, width), table, half) for width in (WIDTH, 1)
    )
    size, out_size, table_size = BYTES[source], BYTES[target], BYTES[table]
    lanes = 1 if half else 2

    def turn(x, out, cos, sin, n):  # type: ignore[no-untyped-def]
        whole, x_gap, out_gap = n - n % WIDTH, n * size, n * out_size
        for i in range(0, whole, WIDTH):
            here, there = x + i * lanes * size, out + i * lanes * out_size
            many(here, there, cos + i * table_size, sin + i * table_size, x_gap, out_gap)
        for i in range(whole, n):
            here, there = x + i * lanes * size, out + i * lanes * out_size
            one(here, there, cos + i * table_size, sin + i * table_size, x_gap, out_gap)

    return _named(turn, source, target, table, "half" if half else "interleaved", forceinline=True)


def _move(source: str, target: str, wide: str) -> Any:
    """Return what copies lanes that do not turn."""
    many, one = (vectors.move(Kind(source, wide, width), Kind(target, wide, width)) for width in (WIDTH, 1))
    size, out_size = BYTES[source], BYTES[target]

    def move(x, out, n):  # type: ignore[no-untyped-def]
        whole = n - n % WIDTH
        for i in range(0, whole, WIDTH):
            many(x + i * size, out + i * out_size)
        for i in range(whole, n):
            one(x + i * size, out + i * out_size)

    return _named(move, source, target, wide, forceinline=True)


def _normalise(stored: str, wide: str) -> Any:
    """Return what writes x / sqrt(mean(x²) + eps) · weight, in the wide precision."""
    square, square_one = (vectors.square(Kind(stored, wide, width)) for width in (WIDTH, 1))
    scale, scale_one = (vectors.scale(Kind(stored, wide, width)) for width in (WIDTH, 1))
    size, wide_size = BYTES[stored], BYTES[wide]

    def normalise(x, weight, out, n, eps):  # type: ignore[no-untyped-def]
        whole, total = n - n % WIDTH, 0.0
        for i in range(0, whole, WIDTH):
            total += square(x + i * size)
        for i in range(whole, n):
            total += square_one(x + i * size)
        factor = 1.0 / (total / n + eps) ** 0.5
        for i in range(0, whole, WIDTH):
            scale(x + i * size, weight + i * wide_size, out + i * wide_size, factor)
        for i in range(whole, n):
            scale_one(x + i * size, weight + i * wide_size, out + i * wide_size, factor)

    return _named(normalise, stored, wide, forceinline=True)


def refuses(jobs: Sequence[Job]) -> str | None:
    """Return why these tensors cannot be turned here, or None."""
    x, table = jobs[0].x, jobs[0].cos
    if x.device.type != "cpu":
        return f"turns on the CPU alone; got tensors on {x.device}."
    if x.dtype not in _NAMES or (x.dtype.itemsize == 2 and table.dtype == torch.float64):
        return f"has no arithmetic for {x.dtype} by tables of {table.dtype}."
    if x.dtype == torch.float16 and not _has_float16():
        return "needs a processor that converts float16."
    if jobs[0].weight is not None and x.shape[-1] > WIDEST:
        return f"normalises heads of at most {WIDEST} lanes; got {x.shape[-1]}."
    return None


def run(jobs: Sequence[Job], pairing: Pairing, side: Side) -> None:
    """Write each job's turn; see `job.Job`."""
    if len(jobs) == 1 or _alike(*jobs):
        _run(jobs, pairing, side)
        return
    for job in jobs:  # keys of a cache, of which there are more than queries
        _run([job], pairing, side)


def _alike(q: Job, k: Job) -> bool:
    """Whether two jobs have the same tokens and kinds of numbers."""
    a, b = q.x.shape, k.x.shape
    return (
        a[0] == b[0]
        and a[2:] == b[2:]
        and q.cos.shape[3] == k.cos.shape[3]
        and q.x.dtype == k.x.dtype
        and q.cos.dtype == k.cos.dtype
    )


def _run(jobs: Sequence[Job], pairing: Pairing, side: Side) -> None:
    x, n_pairs = jobs[0].x, jobs[0].cos.shape[-1]
    batch, _, seq, head_dim = x.shape
    elements = sum(job.x.numel() for job in jobs)
    if not elements:
        return
    strides = x.stride()
    heads = sum(job.x.shape[1] for job in jobs)
    groups = 1 if strides[1] < strides[2] or seq == 1 else heads
    block = max(1, min(seq, UNIT // (head_dim * x.element_size() * (heads if groups == 1 else 1))))
    blocks = -(-seq // block)
    counter = ctypes.c_int64(0)
    first = 0 if side == "first" else head_dim - 2 * n_pairs
    head = (ctypes.addressof(counter), batch * groups * blocks, len(jobs), groups, seq, block, blocks)
    told = [*head, n_pairs, head_dim, first]
    for job in jobs:
        told += _tell(job)
    call = compiled(_NAMES[x.dtype], _NAMES[jobs[0].cos.dtype], pairing)
    threads.run(call, (ctypes.c_int64 * len(told))(*told), min(elements // GRAIN, batch * groups * blocks))


def _tell(job: Job) -> tuple[int, ...]:
    x, out, cos = job.x, job.out, job.cos
    size, table_size = x.element_size(), cos.element_size()
    xs, outs, tables = x.stride(), out.stride(), cos.stride()
    heads, table_heads, rows = x.shape[1], cos.shape[1], cos.shape[0]
    return (
        x.data_ptr(),
        out.data_ptr(),
        cos.data_ptr(),
        job.sin.data_ptr(),
        0 if job.weight is None else job.weight.data_ptr(),
        0 if job.weight is None else struct.unpack("q", struct.pack("d", job.eps))[0],
        heads,
        heads // table_heads or 1,
        xs[0] * size,
        xs[1] * size,
        xs[2] * size,
        outs[0] * size,
        outs[1] * size,
        outs[2] * size,
        tables[0] * table_size if rows > 1 else 0,
        tables[1] * table_size if table_heads > 1 else 0,
        tables[2] * table_size,
    )


def _has_float16() -> bool:
    features = get_host_cpu_features()
    return features.get("f16c", False) or platform.machine().lower() in ("aarch64", "arm64")
