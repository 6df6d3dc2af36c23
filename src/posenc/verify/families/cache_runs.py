"""A model with a cache, run in one pass and in parts."""

import contextlib
import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from posenc.verify import guard
from posenc.verify.engine.records import Array
from posenc.verify.guard import SubjectError

TOKENS = 12
BATCH = 3
WIDTHS = (64, 32, 16, 128, 8, 48, 24, 96, 12, 256, 4, 20, 40, 80, 512)
SMALL = ((1, 1), (2, 1), (1, 2), (1, 1, 1), (2, 2), (3, 1), (2, 1, 1), (4, 1), (2, 3), (5, 1), (5, 1, 1), (4, 4))
EXCHANGED = [1, 0, *range(2, TOKENS)]  # two earlier tokens


@dataclass
class Bench:
    """The subject, its tokens, and the outputs of one pass over them.

    Args:
        subject: What is called; `spare` is a copy of it before any call, None where it cannot be copied.
        x: Tokens (batch, tokens, width).
        full: One pass, as float64.
        tolerance: Of the largest number of one pass.
    """

    subject: Any
    spare: Any
    x: Tensor
    full: Tensor
    tolerance: float

    def run(self, x: Tensor, chunks: Sequence[int]) -> Tensor:
        """Run tokens in parts against a growing cache; return all rows as float64."""
        return run(self.subject, x, chunks)

    def one_pass(self, x: Tensor) -> Tensor:
        """Run tokens in one pass."""
        return run(self.subject, x, (x.shape[1],))

    def same(self, a: Tensor, b: Tensor) -> bool:
        """Return whether two results agree to rounding."""
        return distance(a, b) <= self.tolerance

    def moved(self, x: Tensor) -> float:
        """Return how much later outputs change where two earlier tokens are exchanged."""
        return distance(self.one_pass(x[:, EXCHANGED])[:, 2:], self.one_pass(x)[:, 2:])

    def text(self, n: int) -> Tensor:
        """Return other tokens of the same size: (1, n, width)."""
        x = torch.randn(1, n, self.x.shape[-1], generator=torch.Generator().manual_seed(9)).to(self.x.dtype)
        return x * (self.x.abs().mean() / x.abs().mean())

    def errors(self, x: Tensor, chunks: Sequence[int], wanted: Tensor | None = None, other: Any = None) -> Array:
        """Return the largest error of each call, as a part of the largest number of one pass."""
        wanted = self.one_pass(x) if wanted is None else wanted
        got = run(self.subject if other is None else other, x, chunks)
        parts = zip(got.split(list(chunks), 1), wanted.split(list(chunks), 1), strict=True)
        size = wanted.abs().max().clamp(min=1e-30)
        return np.array([float((a - b).abs().max() / size) for a, b in parts])

    def smallest(self, parts: Sequence[Sequence[int]] = SMALL) -> dict[str, Any]:
        """Return the smallest parts of one sequence that differ from one pass."""
        for chunks in parts:
            with contextlib.suppress(SubjectError):
                errors = self.errors(self.x[:1, : sum(chunks)], chunks)
                if errors.max() > self.tolerance:
                    return first_wrong(chunks, errors, self.tolerance, 1)
        return {}


def distance(a: Tensor, b: Tensor) -> float:
    """Return the largest difference as a part of the largest number of the second."""
    return float((a - b).abs().max() / b.abs().max().clamp(min=1e-30)) if a.numel() else 0.0


def first_wrong(chunks: Sequence[int], errors: Array, tolerance: float, batch: int) -> dict[str, Any]:
    """Return parts and which call of theirs is wrong first, as a report has it."""
    at = int(np.argmax(errors > tolerance))
    return {"batch": batch, "chunks": list(chunks), "call": at, "error": round(float(errors[at]), 6)}


def step(subject: Any, part: Tensor, cache: Any, seen: int) -> tuple[Tensor, Any]:
    """Call model(x, cache) once; return its rows as float64, and the cache.

    Raises:
        SubjectError: The call raised, returned no pair, or rows of another count.
    """
    shape = tuple(part.shape)
    what = f"model(x of {shape}, {'None' if cache is None else f'cache of {seen} tokens'})"
    found: list[Any] = [cache]

    def call(t: Tensor) -> Any:
        """Keep the cache from the guard: it may be written into, and hold whatever where nothing is stored yet."""
        result = subject(t, found[0])
        if not isinstance(result, tuple | list) or len(result) < 2:
            return None
        found[0] = result[1]
        return result[0]

    y = guard.call(call, part, what=what)
    width = y.shape[-1] if isinstance(y, Tensor) and y.ndim == 3 else shape[2]
    return guard.shaped(y, (*shape[:2], width), what + "[0]").detach().double(), found[0]


def run(subject: Any, x: Tensor, chunks: Sequence[int]) -> Tensor:
    """Call model(x, cache) part by part; return all rows.

    Raises:
        SubjectError: As of one step.
    """
    cache, rows, seen = None, [], 0
    for part in x.split(list(chunks), 1):
        y, cache = step(subject, part, cache, seen)
        rows.append(y)
        seen += part.shape[1]
    return torch.cat(rows, 1)


def bench(subject: Any, spec: Mapping[str, Any]) -> Bench:
    """Find the width that the subject takes, and tokens whose order it sees best.

    Raises:
        SubjectError: No width runs; the first error is reported.
    """
    spare = None
    with contextlib.suppress(Exception):
        spare = copy.deepcopy(subject)
    width, dtype = _fit(subject, spec)
    half = dtype in (torch.bfloat16, torch.float16) or "16" in str(spec.get("activation_dtype", ""))
    plain = torch.randn(BATCH, TOKENS, width, generator=torch.Generator().manual_seed(6)).to(dtype)
    best, effect = plain, -1.0
    found = Bench(subject, spare, plain, plain, 4e-2 if half else 1e-4)
    for size in (1.0, 3.0, 10.0, 30.0):
        seen = found.moved(plain * size)
        if not seen < float("inf"):
            break
        if seen > 1.5 * effect:
            best, effect = plain * size, seen
        if effect > 0.05:  # larger ones leave all weight to one key, where nothing else is seen
            break
    found.x, found.full = best, found.one_pass(best)
    return found


def _fit(subject: Any, spec: Mapping[str, Any]) -> tuple[int, torch.dtype]:
    """Return the width and the dtype with which a call runs."""
    heads, head_dim = spec.get("heads"), spec.get("head_dim")
    named = [spec.get("dim"), heads * head_dim if heads and head_dim else None, head_dim]
    dtypes = [torch.float32, torch.float64]
    inside: list[int] = []
    if isinstance(subject, nn.Module):
        floats = [p for p in subject.parameters() if p.is_floating_point()]
        inside = sorted({n for p in floats for n in p.shape}, reverse=True)
        dtypes = list(dict.fromkeys([*(p.dtype for p in floats[:1]), *dtypes]))
    widths = list(dict.fromkeys(n for n in (*named, *inside, *WIDTHS) if isinstance(n, int) and n > 1))
    problem: SubjectError | None = None
    for width in widths if named[0] is None else [named[0]]:
        for dtype in dtypes:
            x = torch.randn(2, 3, width, generator=torch.Generator().manual_seed(7)).to(dtype)
            try:
                run(subject, x, (3,))
            except SubjectError as error:
                problem = problem or error
                continue
            return width, dtype
    assert problem is not None
    raise problem


def dependence(b: Bench) -> Array:
    """Return (tokens, tokens): how much each row of one pass changes with each token."""
    x = (0.3 * b.x[:1] / b.x.std()).expand(TOKENS + 1, -1, -1).clone()  # small, so that no key has all the weight
    other = torch.randn(TOKENS, x.shape[-1], generator=torch.Generator().manual_seed(8)).to(x.dtype)
    x[range(TOKENS), range(TOKENS)] = other
    try:
        y = b.one_pass(x)
    except SubjectError as error:
        if error.cause.code != "subject.raises":
            raise
        y = torch.cat([b.one_pass(rows) for rows in x.split(BATCH)])  # a cache may have room for so many
    change = (y[:TOKENS] - y[TOKENS:]).abs().amax(-1) / y.abs().max().clamp(min=1e-30)
    found: Array = change.T.numpy()
    return found
