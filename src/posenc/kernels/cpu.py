"""The turn on a CPU in one pass over memory, compiled by numba (the extra `fast`).

q and k are turned in one call, in place or out of place, with or without the norm before it. Threads are those that
torch's own operations use, so that neither waits for the other.
"""

import ctypes
import hashlib
import platform
import struct
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import Any

import numba
import torch
from llvmlite.binding import get_host_cpu_features
from numba import types

from posenc.kernels import threads, vectors
from posenc.kernels.job import Job, Pairing, Side, turning
from posenc.kernels.vectors import BYTES, WIDTH, Kind

WIDEST = 1024  # lanes of a head that a norm may have: their memory lies on the stack
UNIT = 2**20  # bytes that a thread takes on at once
GRAIN = 2**15  # numbers that are worth a thread, as torch has it
_NAMES = {t: str(t).removeprefix("torch.") for t in (torch.bfloat16, torch.float16, torch.float32, torch.float64)}
# What a call is told, as int64: who works (see `threads`), where its plan is, and the addresses of each job.
PLAN, FIRST_ADDRESS = threads.OWN, threads.OWN + 1
X, OUT, COS, SIN, WEIGHT, ADDRESSES = range(6)
# What its plan says: first what holds for all, then as many numbers for each job, strides in bytes.
UNITS, JOBS, BATCH, ITEMS, GROUPS, SEQ, BLOCK, BLOCKS, PAIRS, LANES, BEGIN, FIRST_JOB = range(12)
HEADS, SHARING, EPS, X_STRIDES, OUT_STRIDES, TABLE_STRIDES, EACH = 0, 1, 2, 3, 6, 9, 12

_turn_rows: Any  # in the copies of `_work` that are compiled: what turns some heads of some tokens


def _work(told):  # type: ignore[no-untyped-def]
    """Do one thread's share of the units: always the same one, of which its core's cache may still hold some."""
    plan = vectors.numbers(told[PLAN])
    n_jobs, groups, blocks, block = plan[JOBS], plan[GROUPS], plan[BLOCKS], plan[BLOCK]
    if told[threads.COUNT] == 0:
        worker, workers = vectors.take(told), told[threads.WORKERS]
    else:
        worker, workers = vectors.call(told[threads.NUMBER]), vectors.call(told[threads.COUNT])
    for unit in range(plan[UNITS] * worker // workers, plan[UNITS] * (worker + 1) // workers):
        begin, skipped, item = unit % blocks * block, unit // blocks % groups, unit // blocks // groups
        end, item = min(plan[SEQ], begin + block), item * plan[ITEMS]
        for job in range(n_jobs):
            heads = plan[FIRST_JOB + job * EACH + HEADS]
            first, last = 0, heads
            if groups > 1:  # a unit is one head of all that the jobs have: long rows of memory
                first, last = max(skipped, 0), min(skipped + 1, heads)
                skipped -= heads
            if first < last:
                for batch in range(item, min(plan[BATCH], item + plan[ITEMS])):
                    _turn_rows(told, plan, job, batch, first, last, begin, end)


@cache
def compiled(stored: str, table: str, pairing: str, back: bool = False) -> Any:
    """Return the C function void(int64 *) that turns numbers of one kind by tables of another; kept on disk."""
    wide = "float64" if "float64" in (stored, table) else "float32"
    rows = _rows(stored, table, wide, half=pairing == "half", back=back)
    # kept under its name, and made anew with this file: the name says of which kind it is, and by which vectors
    digest = hashlib.sha256(Path(vectors.__file__).read_bytes()).hexdigest()[:12]
    work = FunctionType(_work.__code__, globals() | {"_turn_rows": rows})
    work.__qualname__ = f"turn_{stored}_{table}_{_way(pairing == 'half', back)}_{digest}"
    signature = types.void(types.CPointer(types.int64))
    try:
        return numba.cfunc(signature, cache=True, error_model="numpy")(work)
    except (RuntimeError, OSError):  # there is no directory to keep it in, or no room in it
        return numba.cfunc(signature, error_model="numpy")(work)


def _named(function: Any, *kind: str, **options: bool) -> Any:
    """Compile a function under a name of its own: code from the disk is joined by names."""
    function.__qualname__ = "_".join((function.__name__, *kind))
    return numba.njit(**options)(function)


def _way(half: bool, back: bool) -> str:
    return ("half" if half else "interleaved") + "_back" * back


def _rows(stored: str, table: str, wide: str, half: bool, back: bool) -> Any:
    """Return what turns some heads of some tokens."""
    turn, move = _turn(stored, stored, table, wide, half, back), _move(stored, stored, wide)
    turn_normal, move_normal = _turn(wide, stored, table, wide, half, back), _move(wide, stored, wide)
    normalise, room = _normalise(stored, wide), vectors.room(wide, WIDEST)
    size, wide_size = BYTES[stored], BYTES[wide]

    def rows(told, plan, job, batch, first, last, begin, end):  # type: ignore[no-untyped-def]
        # read once: the compiler cannot know that what is written below is not what it was told
        at, facts = FIRST_ADDRESS + job * ADDRESSES, FIRST_JOB + job * EACH
        n_pairs, n_lanes, low, weight = plan[PAIRS], plan[LANES], plan[BEGIN], told[at + WEIGHT]
        high, eps, sharing = low + 2 * n_pairs, vectors.as_float64(plan[facts + EPS]), plan[facts + SHARING]
        x_head, x_token = plan[facts + X_STRIDES + 1], plan[facts + X_STRIDES + 2]
        out_head, out_token = plan[facts + OUT_STRIDES + 1], plan[facts + OUT_STRIDES + 2]
        table_head, table_token = plan[facts + TABLE_STRIDES + 1], plan[facts + TABLE_STRIDES + 2]
        x0 = told[at + X] + batch * plan[facts + X_STRIDES]
        out0 = told[at + OUT] + batch * plan[facts + OUT_STRIDES]
        cos0 = told[at + COS] + batch * plan[facts + TABLE_STRIDES]
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

    return _named(rows, stored, table, _way(half, back))


def _turn(source: str, target: str, table: str, wide: str, half: bool, back: bool) -> Any:
    """Return what turns a row of pairs."""
    many, one = (
        vectors.turn(Kind(source, wide, width), Kind(target, wide, width), table, half, back) for width in (WIDTH, 1)
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

    return _named(turn, source, target, table, _way(half, back), forceinline=True)


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
    x, tables = jobs[0].x, {job.cos.dtype for job in jobs}
    if any(job.x.dtype != x.dtype for job in jobs):
        return "turns queries and keys of one dtype."
    if any(job.cos.stride() != job.sin.stride() for job in jobs):
        return "reads both tables alike; got cosines and sines of other strides."
    if x.device.type != "cpu":
        return f"turns on the CPU alone; got tensors on {x.device}."
    if x.dtype not in _NAMES or (x.dtype.itemsize == 2 and torch.float64 in tables):
        return f"has no arithmetic for {x.dtype} by tables of {' and '.join(sorted(map(str, tables)))}."
    if x.dtype == torch.float16 and not _has_float16():
        return "needs a processor that converts float16."
    if any(job.weight is not None for job in jobs) and x.shape[-1] > WIDEST:
        return f"normalises heads of at most {WIDEST} lanes; got {x.shape[-1]}."
    return None


def plan(jobs: Sequence[Job], pairing: Pairing, side: Side, back: bool = False) -> Callable[[Sequence[Job]], None]:
    """Return what writes the turns of jobs that differ from these in their addresses alone; see `job.Job`."""
    if len(jobs) == 1 or _alike(*jobs):
        return _plan(jobs, pairing, side, back)
    # keys of a cache, of which there are more than queries
    plans = [_plan([job], pairing, side, back) for job in jobs]

    def run(jobs: Sequence[Job]) -> None:
        for one, job in zip(plans, jobs, strict=True):
            one([job])

    return run


def _alike(q: Job, k: Job) -> bool:
    """Whether two jobs have the same tokens and kinds of numbers."""
    a, b = q.x.shape, k.x.shape
    kinds = [(job.cos.dtype, job.cos.shape[3]) for job in (q, k)]
    return a[0] == b[0] and a[2:] == b[2:] and kinds[0] == kinds[1]


class _Ready:
    """What turns jobs of one kind: given them, or the addresses alone of x, out, cos, sin and weight of each."""

    def __init__(self, call: Any, facts: Sequence[int], jobs: int, most: int) -> None:
        self.told = (ctypes.c_int64 * len(facts))(*facts)  # lives as long as this
        self.head = ctypes.addressof(self.told)
        self._start = threads.starter(call, 1 + jobs * ADDRESSES, most)

    def start(self, addresses: Sequence[int]) -> None:
        self._start((self.head, *addresses))

    def __call__(self, jobs: Sequence[Job]) -> None:
        own: list[int] = []
        for x, out, cos, sin, weight, _ in jobs:
            own += x.data_ptr(), out.data_ptr(), cos.data_ptr(), sin.data_ptr(), 0
            if weight is not None:
                own[-1] = weight.data_ptr()
        self.start(own)


def _plan(jobs: Sequence[Job], pairing: Pairing, side: Side, back: bool) -> Callable[[Sequence[Job]], None]:
    x, n_pairs = jobs[0].x, jobs[0].cos.shape[-1]
    batch, _, seq, head_dim = x.shape
    elements = sum(job.x.numel() for job in jobs)
    if not elements:
        return lambda jobs: None
    heads = sum(job.x.shape[1] for job in jobs)
    apart = x.stride(1) > x.stride(2) and seq > 1
    groups = heads if apart else 1
    unit = min(UNIT, elements * x.element_size() // (4 * torch.get_num_threads())) // (head_dim * x.element_size())
    rows = unit // (1 if apart else heads)  # tokens of all its heads
    block = max(1, min(seq, rows))
    blocks, items = -(-seq // block), max(1, rows // seq)
    units = -(-batch // items) * groups * blocks
    lanes = turning(head_dim, 2 * n_pairs, side)
    facts = [units, len(jobs), batch, items, groups, seq, block, blocks, n_pairs, head_dim, lanes.start]
    for job in jobs:
        facts += _facts(job)
    call = compiled(_NAMES[x.dtype], _NAMES[jobs[0].cos.dtype], pairing, back)
    return _Ready(call, facts, len(jobs), min(elements // GRAIN, units))


def _facts(job: Job) -> tuple[int, ...]:
    """Return a job's part of the plan."""
    x, cos = job.x, job.cos
    heads, (rows, table_heads) = x.shape[1], cos.shape[:2]
    steps = [stride * t.element_size() for t in (x, job.out, cos) for stride in t.stride()[:3]]
    if rows == 1:
        steps[6] = 0
    if table_heads == 1:
        steps[7] = 0
    return heads, heads // table_heads or 1, struct.unpack("q", struct.pack("d", job.eps))[0], *steps


def _has_float16() -> bool:
    features = get_host_cpu_features()
    return features.get("f16c", False) or platform.machine().lower() in ("aarch64", "arm64")
