"""Ask biases and score_mods: their numbers as (heads, q_len, k_len), however they are written."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from posenc.verify import guard
from posenc.verify.engine import Case, Seen
from posenc.verify.engine.records import FLOAT32, Array
from posenc.verify.guard import SubjectError
from posenc.verify.report import Cause

Places = NDArray[np.bool_]
Size = tuple[int, int, int]  # heads, queries, keys: the queries are the last of the keys' positions
ADDED = {"score": ((1.0, 0), (-2.5, 0)), "batch": ((0.0, 1),)}  # scores and rows of the batch, by kind of case
ONE_BY_ONE = 20_000  # places that are asked one at a time where code cannot be mapped over them


@lru_cache(maxsize=64)
def distance(size: Size) -> Array:
    """Return query minus key, (q_len, k_len)."""
    _, q_len, k_len = size
    return np.arange(k_len - q_len, k_len)[:, None] - np.arange(float(k_len))


@dataclass
class Asker:
    """Asks one subject, and keeps its answers: one that was given to another call before shows a memory.

    Args:
        score_mod: It is a score_mod, not `bias(heads, q_len, k_len)`.
        heads: The number of heads that is said; then an object may ignore the argument.
        code: The fault's name.
    """

    score_mod: bool
    heads: int | None
    code: str
    answers: dict[Size, Tensor] = field(default_factory=dict)

    def words(self, size: Size) -> str:
        """Return the call in words."""
        if self.score_mod:
            return f"score_mod(score, b, h, q, k) for {size[0]} heads and {size[2]} keys"
        return "bias({}, {}, {})".format(*size)

    def ask(self, subject: Any, size: Size) -> tuple[Array, float]:
        """Return the bias and the rounding of its numbers.

        Raises:
            SubjectError: It cannot be used.
        """
        found = self.scores(subject, size) if self.score_mod else self._bias(subject, size)
        what = self.words(size)
        if found.is_complex():
            message = f"{what} returns complex numbers ({found.dtype}), and scores are real"
            raise SubjectError(Cause("subject.shape", message, 1.0, {"call": what}, "Return real numbers."))
        if (found == torch.inf).any():
            message = f"{what} returns +inf, with which a softmax is NaN"
            raise SubjectError(Cause("subject.not_finite", message, 1.0, {"call": what}, "Hide keys by -inf."))
        eps = torch.finfo(found.dtype).eps if found.is_floating_point() else 0.0
        return found.double().numpy(), max(eps, FLOAT32)

    def _bias(self, subject: Any, size: Size) -> Tensor:
        what = self.words(size)
        raw = invoke(subject, *size, what=what)
        if not isinstance(raw, Tensor):
            guard.shaped(raw, size, what)
        raw = raw.detach().cpu().clone()
        found: Tensor = raw
        while found.ndim > 3 and found.shape[0] == 1:
            found = found[0]
        try:
            found = found.expand(size)
        except RuntimeError:
            if self.stale(size, raw):
                raise SubjectError(Cause(self.code, "", 1.0, {"call": what})) from None
            guard.shaped(raw, size, what)  # which raises
        self.answers.setdefault(size, raw)
        return found

    def stale(self, size: Size, raw: Tensor | None = None) -> bool:
        """Return whether another call had the very same answer before, where it differs by head and query."""
        raw = self.answers.get(size) if raw is None else raw
        for old, kept in self.answers.items():
            same = old == size or (self.heads is not None and old[1:] == size[1:])
            rows = raw is not None and raw.ndim > 2 and min(raw.shape[-3:-1]) > 1
            if rows and raw is not None and not same and raw.shape == kept.shape and torch.equal(raw, kept):
                return True
        return False

    def scores(self, subject: Any, size: Size, score: float = 0.0, batch: int = 0) -> Tensor:
        """Return what a score_mod makes of one score in all places."""
        n, q_len, k_len = size
        places = (torch.arange(n), torch.arange(k_len - q_len, k_len), torch.arange(k_len))
        at = torch.tensor(score), torch.tensor(batch)
        what = f"score_mod({score:g}, {batch}, h, q, k) with h < {n}, q and k < {k_len}"

        def over_all(s: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Any:
            mapped: Callable[..., Any] = subject
            for axes in ((None, None, None, None, 0), (None, None, None, 0, None), (None, None, 0, None, None)):
                mapped = torch.vmap(mapped, in_dims=axes)
            return mapped(s, b, h, q, k)

        def one_by_one(s: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Any:
            each = [torch.as_tensor(subject(s, b, i, j, t)) for i in h for j in q for t in k]
            return torch.stack(each).reshape(size)

        try:
            found = guard.call(over_all, *at, *places, what=what)
        except SubjectError as error:
            if error.cause.code != "subject.raises" or n * q_len * k_len > ONE_BY_ONE:
                raise
            # plain Python such as `if kv_idx > q_idx` is right too, a number at a time
            found = guard.call(one_by_one, *at, *places, what=what)
        return guard.shaped(found, size, what).detach()

    def added(self, subject: Any, case: Case) -> Seen:
        """Return what becomes of scores besides the bias: of two other ones, or in the second row of the batch."""
        size = case.args[:3]
        zero = self.ask(subject, size)[0]
        found = np.stack([self.scores(subject, size, s, b).double().numpy() for s, b in ADDED[case.kind]])
        kept = (zero > -1e30) & np.isfinite(found).all(0)
        with np.errstate(invalid="ignore"):
            rest = np.where(kept, found - zero, added(case))
        return Seen(case, rest, note=1e-4 * (1 + float(np.abs(zero[kept]).max(initial=0.0))))


def added(case: Case, gain: float = 1.0) -> Array:
    """Return what a score_mod should make of scores besides the bias, times a gain."""
    each = np.array([score * gain for score, _ in ADDED[case.kind]])
    return np.broadcast_to(each[:, None, None, None], (len(each), *case.args[:3]))


def invoke(subject: Callable[..., Any], *args: Any, what: str) -> Any:
    """Call a subject, by keywords where it takes nothing else.

    Raises:
        SubjectError: As `guard.call`.
    """
    try:
        taken = list(inspect.signature(subject).parameters.values())
    except (TypeError, ValueError):
        taken = []
    free = [p for p in taken if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    named = [p.name for p in taken if p.kind is p.KEYWORD_ONLY]
    starred = any(p.kind is p.VAR_POSITIONAL for p in taken)
    if not starred and len(free) < len(args) <= len(free) + len(named):
        rest = dict(zip(named, args[len(free) :], strict=False))
        return guard.call(subject, *args[: len(free)], what=what, **rest)
    return guard.call(subject, *args, what=what)
