"""Run a model with a cache: in a single pass, in chunks, a second time, and far into a text."""

import copy
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from posenc.verify import guard
from posenc.verify.engine import CannotTellError
from posenc.verify.engine.observe import fresh
from posenc.verify.engine.records import FLOAT32, Array
from posenc.verify.guard import NotAnsweredError, SubjectError

TOKENS = 12
BATCH = 3
WIDTHS = (64, 32, 16, 128, 8, 48, 24, 96, 12, 256, 4, 20, 40, 80, 512)
# a single pass is compared with a prefill and steps, steps from the first token on, equal chunks, uneven chunks
STEPS = ((5, *[1] * 7), (8, *[1] * 4), (1,) * 12)
PARTS = ((4, 4, 4), (5, 3, 4), (1, 5, 6))
EXCHANGED = [1, 0, *range(2, TOKENS)]  # two earlier tokens
HALF = 4e-2  # the tolerance in half precision
SLOW = 0.1  # CPU seconds of a pass, after which no longer one is tried


class Bench:
    """A subject, tokens whose order affects its outputs clearly, and the outputs of a single pass over them."""

    def __init__(self, subject: Any, spec: Mapping[str, Any]) -> None:
        self.subject = fresh(subject).eval() if isinstance(subject, nn.Module) else subject
        width, dtype = _fit(subject, spec)
        half = dtype in (torch.bfloat16, torch.float16) or "16" in str(spec.get("activation_dtype", ""))
        self.tolerance = HALF if half else 1e-4
        self.farthest, self.slow = TOKENS - 1, False  # the last right position; whether longer passes are too slow
        self.x = torch.randn(BATCH, TOKENS, width, generator=torch.Generator().manual_seed(6)).to(dtype)
        effects: dict[float, float] = {}
        for size in (1.0, 3.0, 10.0, 30.0):
            effects[size] = self.moved(self.x * size)
            if effects[size] > 0.05:  # larger ones give all weight to one key, which hides the rest
                break
        self.x = self.x * max(effects, key=lambda size: effects[size])
        self.full = self.run(self.x)
        if self.one_pass("repeat") > self.tolerance and distance(self._seeded(), self._seeded()) <= self.tolerance:
            raise CannotTellError("the model draws random numbers (dropout?), so passes cannot be compared")

    def _seeded(self) -> Tensor:
        torch.manual_seed(3)
        return self.run(self.x)

    def run(self, x: Tensor, chunks: Sequence[int] = ()) -> Tensor:
        """Run tokens in chunks with a growing cache, or in a single pass; return all rows as float64."""
        return run(self.subject, x, chunks or (x.shape[1],))

    def moved(self, x: Tensor, chunks: Sequence[int] = ()) -> float:
        """Return how much later outputs change when two earlier tokens are exchanged."""
        return distance(self.run(x[:, EXCHANGED], chunks)[:, 2:], self.run(x, chunks)[:, 2:])

    def text(self, n: int) -> Tensor:
        """Return other tokens of the same size: (1, n, width)."""
        x = torch.randn(1, n, self.x.shape[-1], generator=torch.Generator().manual_seed(9)).to(self.x.dtype)
        return x * (self.x.abs().mean() / x.abs().mean())

    def one_pass(self, what: str) -> float:
        """Return the error of a pass "repeat", "ahead", "batch" or "length"; 1 if "order" has no effect."""
        x = self.x
        if what == "order":
            return float(self.moved(x) <= self.tolerance)
        if what == "again":
            return distance(self.run(x, STEPS[0]), self.run(x, STEPS[0]))
        if what == "ahead":
            x = x * min(1.0, 0.3 / float(x.double().std()))  # small, so that no key gets all the weight
            others = {n: torch.cat((x[:, :n], x.roll(1, 0)[:, n:]), 1) for n in (1, 6)}
            return max(distance(self.run(other)[:, :n], self.run(x)[:, :n]) for n, other in others.items())
        rows, tokens = slice(1, 2) if what == "batch" else slice(None), slice(5 if what == "length" else TOKENS)
        return distance(self.run(x[rows, tokens]), self.full[rows, tokens])

    def errors(self, x: Tensor, chunks: Sequence[int], wanted: Tensor) -> Array:
        """Return the largest error of each call, relative to the largest number of a single pass."""
        parts = zip(self.run(x, chunks).split(list(chunks), 1), wanted.split(list(chunks), 1), strict=True)
        size = wanted.abs().max().clamp(min=1e-30)
        return np.array([float((a - b).abs().max() / size) for a, b in parts])

    def kept_apart(self) -> Array:
        """Return the errors of steps after those of another sequence, and with a copy of the cache."""
        begin, other, parts = STEPS[0][0], self.x.roll(1, 0), dict[int, Any]()
        kept = step(self.subject, self.x[:, :begin], None)[1]
        try:
            copied = copy.deepcopy(kept, parts)  # a call may write to its cache
        except Exception as error:  # user code decides what can be copied
            raise NotAnsweredError(f"the cache cannot be copied: {str(error)[:80]}") from error
        if not any(isinstance(part, Tensor) or hasattr(part, "__array__") for part in parts.values()):
            raise NotAnsweredError("the cache holds no tensors")
        for part in other[:, begin:].split(1, 1)[:3]:
            copied = step(self.subject, part, copied)[1]
        self.run(other, STEPS[0])
        rows = []
        for part in self.x[:, begin:].split(1, 1):
            y, kept = step(self.subject, part, kept)
            rows.append(y)
        return np.array([distance(torch.cat(rows, 1), self.full[:, begin:])])

    def rows_share(self) -> bool:
        """Return whether steps of each row of a batch are right if the row runs alone."""
        rows = zip(self.x.split(1), self.full.split(1), strict=True)
        return all(float(self.errors(x, STEPS[0], full).max()) <= self.tolerance for x, full in rows)

    def same_zeros(self) -> bool:
        """Return whether steps over tokens of zeros, to which only positions are added, are right."""
        x = torch.zeros_like(self.x)
        full = self.run(x)
        return bool(full.any()) and float(self.errors(x, STEPS[0], full).max()) <= self.tolerance

    def rounded(self) -> str:
        """Return the half precision to which a tensor of the cache is rounded, if tokens are not."""
        parts = dict[int, Any]()
        try:
            copy.deepcopy(step(self.subject, self.x, None)[1], parts)
        except Exception:  # user code decides what can be copied
            return ""
        floats = [
            t for t in parts.values() if isinstance(t, Tensor) and t.is_floating_point() and (t != t.round()).any()
        ]
        for half in (torch.bfloat16, torch.float16):
            if self.x.dtype != half and any((t == t.to(half).to(t.dtype)).all() for t in floats if t.ndim > 2):
                return str(half).removeprefix("torch.")
        return ""

    def largest(self, chunks: Sequence[int]) -> tuple[int, float, float]:
        """Return the position, the number and the right number of the output that differs most from a single pass."""
        wanted = self.full[:, : sum(chunks)]
        y = self.run(self.x[:, : sum(chunks)], chunks)
        at = np.unravel_index(int((y - wanted).abs().argmax()), y.shape)
        return int(at[1]), float(y[at]), float(wanted[at])

    def far(self, n: int) -> Array:
        """Return the errors of steps after a long prefill."""
        x = self.text(n + 3)
        began = time.process_time()
        wanted = self.run(x)
        self.slow = time.process_time() - began > SLOW
        rounding = 1.0 + 4 * n * FLOAT32 / self.tolerance  # of angles in float32
        errors = self.errors(x, (n, 1, 1, 1), wanted) / rounding
        if errors.max() <= self.tolerance:
            self.farthest = n + 2
        return errors


def distance(a: Tensor, b: Tensor) -> float:
    """Return the largest difference, relative to the largest number of the second."""
    return float((a - b).abs().max() / b.abs().max().clamp(min=1e-30)) if a.numel() else 0.0


def step(subject: Any, part: Tensor, cache: Any) -> tuple[Tensor, Any]:
    """Call model(x, cache) once; return its rows as float64, and the cache."""
    shape = tuple(part.shape)
    what, found = f"model(x of {shape}, {'None' if cache is None else 'cache'})", [cache]

    def call(t: Tensor) -> Any:
        """Keep the cache from the guard, since a call may write to it and it may hold any object."""
        result = subject(t, found[0])
        if not isinstance(result, tuple | list) or len(result) < 2:
            return None
        found[0] = result[1]
        return result[0]

    y = guard.call(call, part, what=what)
    width = y.shape[-1] if isinstance(y, Tensor) and y.ndim == 3 else shape[2]
    return guard.shaped(y, (*shape[:2], width), what + "[0]").detach().double(), found[0]


def run(subject: Any, x: Tensor, chunks: Sequence[int]) -> Tensor:
    """Call model(x, cache) chunk by chunk, as `step` does; return all rows."""
    cache, rows = None, []
    for part in x.split(list(chunks), 1):
        y, cache = step(subject, part, cache)
        rows.append(y)
    return torch.cat(rows, 1)


def _fit(subject: Any, spec: Mapping[str, Any]) -> tuple[int, torch.dtype]:
    """Return the width and the dtype with which a call works."""
    heads, head_dim = spec.get("heads"), spec.get("head_dim")
    named = [n for n in (head_dim and heads and heads * head_dim, head_dim) if n]
    floats = [p for p in subject.parameters() if p.is_floating_point()] if isinstance(subject, nn.Module) else []
    inside = sorted({n for p in floats for n in p.shape if n > 1}, reverse=True)
    problems: list[SubjectError] = []
    for width in [spec["dim"]] if spec.get("dim") else dict.fromkeys((*named, *inside, *WIDTHS)):
        for dtype in dict.fromkeys((*(p.dtype for p in floats[:1]), torch.float32, torch.float64)):
            try:
                run(subject, torch.randn(2, 3, width, generator=torch.Generator().manual_seed(7)).to(dtype), (3,))
                return width, dtype
            except SubjectError as error:
                problems.append(error)
    raise problems[0]
