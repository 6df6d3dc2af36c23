"""A model with a cache, run in one pass and in parts, and where the two differ."""

import contextlib
import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from posenc.verify import guard

TOKENS = 12
BATCH = 3
PARTS = "parts of several tokens beside a cache"
# one pass stands beside these: a prefill and steps, steps from the first token on, equal parts, uneven parts
PATTERNS: dict[str, tuple[int, ...]] = {
    "prefill 5": (5, *[1] * 7),
    "prefill 8": (8, *[1] * 4),
    "steps": (1,) * 12,
    "equal": (4, 4, 4),
    "uneven": (5, 3, 4),
    "one first": (1, 5, 6),
}
SMALL = ((1, 1), (2, 1), (1, 2), (1, 1, 1), (2, 2), (3, 1), (2, 1, 1), (4, 1), (2, 3), (5, 1), (5, 1, 1), (4, 4))
WIDTHS = (64, 32, 16, 128, 8, 48, 24, 96, 12, 256, 4, 20, 40, 80, 512)


@dataclass
class Trial:
    """One pattern's result.

    Args:
        y: The rows (batch, tokens, width), as float64.
        errors: The largest error of each call, as a part of the largest number of one pass.
    """

    chunks: tuple[int, ...]
    y: Tensor
    errors: list[float]


@dataclass
class Bench:
    """The subject, what goes in, and what one pass makes of it.

    Args:
        subject: What is called; `spare` is a copy of it before any call, where one can be had.
        x: Tokens (batch, tokens, width).
        full: One pass, as float64.
        tolerance: Of the largest number of one pass.
        trials: What is judged, by the name of its pattern; `aside` are those of several tokens that are told apart.
        refused: What was not judged, and why.
        shown: The run that shows a fault which no pattern shows; `case` is the least of its kind.
        detail: What was found beside the name of the fault, as the end of a sentence.
        farthest: The last position that was looked at.
        family: Of its encoding, once that was asked for.
    """

    subject: Any
    spare: Any
    x: Tensor
    full: Tensor
    tolerance: float
    trials: dict[str, Trial] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    aside: dict[str, Trial] = field(default_factory=dict)
    shown: Trial | None = None
    case: dict[str, Any] = field(default_factory=dict)
    detail: str = ""
    farthest: int = TOKENS - 1
    family: str = ""

    def run(self, x: Tensor, chunks: Sequence[int], subject: Any = None) -> Tensor:
        """Run tokens in parts against a growing cache; return all rows as float64."""
        return run(self.subject if subject is None else subject, x, chunks)

    def one_pass(self, x: Tensor) -> Tensor:
        """Run tokens in one pass."""
        return run(self.subject, x, (x.shape[1],))

    def same(self, a: Tensor, b: Tensor) -> bool:
        """Whether two results agree to rounding."""
        return self.distance(a, b) <= self.tolerance

    def distance(self, a: Tensor, b: Tensor) -> float:
        """Return the largest difference as a part of the largest number."""
        if a.numel() == 0:
            return 0.0
        return float((a - b).abs().max() / b.abs().max().clamp(min=1e-30))

    def try_pattern(self, name: str, chunks: tuple[int, ...]) -> None:
        """Run one pattern; a refusal of several tokens beside a cache is noted, not judged."""
        try:
            y = self.run(self.x, chunks)
        except guard.SubjectError as error:
            if error.cause.code != "subject.raises" or all(n == 1 for n in chunks[1:]):
                raise
            self.refused[PARTS] = error.cause.message
            return
        self.trials[name] = Trial(chunks, y, self.by_call(y, self.full, chunks))

    def by_call(self, y: Tensor, wanted: Tensor, chunks: Sequence[int]) -> list[float]:
        """Return the largest error of each call."""
        size = wanted.abs().max().clamp(min=1e-30)
        parts = zip(y.split(list(chunks), 1), wanted.split(list(chunks), 1), strict=True)
        return [float((a - b).abs().max() / size) for a, b in parts]

    def wrong(self, name: str) -> list[bool] | None:
        """Return which calls of a pattern are wrong; None if it was refused."""
        trial = self.trials.get(name)
        return None if trial is None else [e > self.tolerance for e in trial.errors]


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
    """Find the width that the subject takes, and tokens whose order it sees best."""
    spare = None
    with contextlib.suppress(Exception):
        spare = copy.deepcopy(subject)
    width, dtype = _fit(subject, spec)
    plain = torch.randn(BATCH, TOKENS, width, generator=torch.Generator().manual_seed(6)).to(dtype)
    best, effect = plain, -1.0
    for size in (1.0, 3.0, 10.0, 30.0):
        x = plain * size
        order = [1, 0, *range(2, TOKENS)]
        here, there = run(subject, x, (TOKENS,)), run(subject, x[:, order], (TOKENS,))
        if not bool(here.isfinite().all()):
            break
        seen = float((here[:, 2:] - there[:, 2:]).abs().max() / here.abs().max().clamp(min=1e-30))
        if seen > 1.5 * effect:
            best, effect = x, seen
        if effect > 0.05:  # larger ones leave all weight to one key, where nothing else is seen
            break
    full = run(subject, best, (TOKENS,))
    half = dtype in (torch.bfloat16, torch.float16) or "16" in str(spec.get("activation_dtype", ""))
    return Bench(subject, spare, best, full, 4e-2 if half else 1e-4)


def _fit(subject: Any, spec: Mapping[str, Any]) -> tuple[int, torch.dtype]:
    """Return the width and the dtype with which a call runs."""
    heads, head_dim = spec.get("heads"), spec.get("head_dim")
    told = [spec.get("dim"), heads * head_dim if heads and head_dim else None, head_dim]
    dtypes = [torch.float32, torch.float64]
    inside: list[int] = []
    if isinstance(subject, nn.Module):
        floats = [p for p in subject.parameters() if p.is_floating_point()]
        inside = sorted({n for p in floats for n in p.shape}, reverse=True)
        dtypes = list(dict.fromkeys([*(p.dtype for p in floats[:1]), *dtypes]))
    widths = list(dict.fromkeys(n for n in (*told, *inside, *WIDTHS) if isinstance(n, int) and n > 1))
    problem: guard.SubjectError | None = None
    for width in widths if told[0] is None else [told[0]]:
        for dtype in dtypes:
            x = torch.randn(2, 3, width, generator=torch.Generator().manual_seed(7)).to(dtype)
            try:
                run(subject, x, (3,))
            except guard.SubjectError as error:
                problem = problem or error
                continue
            return width, dtype
    assert problem is not None
    raise problem


def dependence(b: Bench, chunks: Sequence[int]) -> Tensor:
    """Return (tokens, tokens): which row (first) changes with which token (second)."""
    x = (0.3 * b.x[:1] / b.x.std()).expand(TOKENS + 1, -1, -1).clone()  # small, so that no key has all the weight
    other = torch.randn(TOKENS, x.shape[-1], generator=torch.Generator().manual_seed(8)).to(x.dtype)
    x[range(TOKENS), range(TOKENS)] = other
    try:
        y = b.run(x, chunks)
    except guard.SubjectError as error:
        if error.cause.code != "subject.raises":
            raise
        y = torch.cat([b.run(rows, chunks) for rows in x.split(BATCH)])  # a cache may have room for so many
    change = (y[:TOKENS] - y[TOKENS:]).abs().amax(-1) / y.abs().max().clamp(min=1e-30)
    return change.T


def smallest(b: Bench, trials: Mapping[str, Trial], parts: Sequence[Sequence[int]] = SMALL) -> dict[str, Any]:
    """Return the smallest parts that differ from one pass, with one row in the batch."""
    for chunks in parts:
        x = b.x[:1, : sum(chunks)]
        try:
            errors = b.by_call(b.run(x, chunks), b.one_pass(x), chunks)
        except guard.SubjectError:
            continue
        if max(errors) > b.tolerance:
            return first_wrong(chunks, errors, b.tolerance, 1)
    for trial in trials.values():
        if max(trial.errors) > b.tolerance:
            return first_wrong(trial.chunks, trial.errors, b.tolerance, BATCH)
    return {}


def first_wrong(chunks: Sequence[int], errors: Sequence[float], tolerance: float, batch: int) -> dict[str, Any]:
    """Return parts and which call of theirs is wrong first, as a report has it."""
    at = next(i for i, e in enumerate(errors) if e > tolerance)
    return {"batch": batch, "chunks": list(chunks), "call": at, "error": round(errors[at], 6)}
