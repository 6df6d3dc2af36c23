"""Steps far into a text, and from which position on they are wrong."""

import time
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from posenc.verify import guard
from posenc.verify.decoding import families, masks, reading
from posenc.verify.decoding.places import beyond
from posenc.verify.decoding.runs import Bench, Trial, first_wrong

LENGTHS = (64, 300, 1030)  # beyond 256, where bfloat16 has no odd numbers, and 512 and 1024, where tables end
_SLOW = 0.1  # seconds of processors for a pass, after which none is tried that is longer
_EPS = torch.finfo(torch.float32).eps


def fault(b: Bench, spec: Mapping[str, Any]) -> str | None:
    """Decode after longer prefills, where one pass takes that many; return what is wrong first."""
    for n in LENGTHS if b.tolerance < 1e-3 else LENGTHS[:1]:  # angles of half precision are coarse by themselves
        x = _text(b, n + 3)
        began = time.process_time()
        try:
            wanted = b.one_pass(x)
        except guard.SubjectError as error:
            b.refused[f"positions beyond {b.farthest}"] = error.cause.message
            return None
        slow = time.process_time() - began > _SLOW
        chunks = (n, 1, 1, 1)
        try:
            errors = b.by_call(b.run(x, chunks), wanted, chunks)
        except guard.SubjectError as error:
            if error.cause.code != "subject.raises" or n == LENGTHS[0]:
                raise
            b.refused[f"positions beyond {b.farthest}"] = error.cause.message  # a cache may have its end
            return None
        allowed = _allowed(b, n)
        if max(errors) > allowed:
            b.shown = Trial(chunks, wanted, errors)
            b.case = first_wrong(chunks, errors, allowed, 1)
            return _named(b, x, families.of(b, spec), spec) or "mismatch"
        b.farthest = n + 2
        if slow:
            return None
    return None


def _text(b: Bench, n: int) -> Tensor:
    x = torch.randn(1, n, b.x.shape[-1], generator=torch.Generator().manual_seed(9)).to(b.x.dtype)
    return x * (b.x.abs().mean() / x.abs().mean())


def _allowed(b: Bench, n: int) -> float:
    """Return the tolerance: beyond the first length it grows with the angles, which are rounded in float32."""
    return b.tolerance + (4 * n * _EPS if n > LENGTHS[0] else 0.0)


def _named(b: Bench, x: Tensor, family: str, spec: Mapping[str, Any]) -> str | None:
    """Find the first position at which a step is wrong, and the fault that predicts the scores around it."""
    first = _first(b, x)
    if first is not None:
        b.detail = f": steps are right up to position {first - 1} and wrong from {first} on"
        b.case = {"batch": 1, "chunks": [first, 1], "call": 1, "error": round(_error(b, x, first), 6)}
        seen = reading.read(b, family, spec, whole=False, far=((first, 1, 1, 1),))
        rules = tuple(beyond(first))
        told = masks.counted(b, x, first) or (
            None if seen is None or seen.right() else reading.name(seen, rules, alone=first > 99)  # which take time
        )
        if told is not None:
            return told
    if x.shape[1] > LENGTHS[0] + 3:
        return None
    seen = reading.read(b, family, spec, whole=False, far=reading.FAR)
    return None if seen is None or seen.right() else reading.name(seen)


def _error(b: Bench, x: Tensor, n: int) -> float:
    """Return the error of one step behind n tokens."""
    x = x[:, : n + 1]
    return b.by_call(b.run(x, (n, 1)), b.one_pass(x), (n, 1))[1]


def _first(b: Bench, x: Tensor) -> int | None:
    """Return the least length behind which a step is wrong; None if single steps are right behind all lengths."""
    end = x.shape[1]
    wrong = next((n for n in range(end - 3, end) if _error(b, x, n) > _allowed(b, n)), None)
    right = b.farthest
    while wrong is not None and wrong - right > 1:
        middle = (wrong + right) // 2
        if _error(b, x, middle) > _allowed(b, middle):
            wrong = middle
        else:
            right = middle
    return wrong
