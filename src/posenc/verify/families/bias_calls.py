"""Ask biases and score_mods: their numbers as (heads, q_len, k_len), however they are written."""

import inspect
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from posenc.verify import guard
from posenc.verify.engine import Case, Seen
from posenc.verify.engine.records import FLOAT32, Array
from posenc.verify.guard import SubjectError
from posenc.verify.report import Cause

Size = tuple[int, int, int]  # heads, queries, keys: the queries are the last of the keys' positions
ADDED = {"score": ((1.0, 0), (-2.5, 0)), "batch": ((0.0, 1),)}  # scores and rows of the batch, by kind of case
ONE_BY_ONE = 20_000  # places that are asked one at a time where code cannot be mapped over them
NUMBERS = (64, 40, 32, 24, 20, 16, 12, 10, 8, 7, 6, 5, 4, 3, 2, 1)


@lru_cache(maxsize=64)
def distance(size: Size) -> Array:
    """Return query minus key, (q_len, k_len)."""
    _, q_len, k_len = size
    return np.arange(k_len - q_len, k_len)[:, None] - np.arange(float(k_len))


def ask(subject: Any, size: Size, score_mod: bool) -> tuple[Array, float]:
    """Return the bias and the rounding of its numbers."""
    what = "bias({}, {}, {})".format(*size)
    found = _scores(subject, size) if score_mod else _bias(subject, size, what)
    if found.is_complex():
        raise SubjectError(Cause("subject.shape", f"{what} returns complex numbers", 1.0, {"call": what}))
    if (found == torch.inf).any():
        message = f"{what} returns +inf, with which a softmax is NaN"
        raise SubjectError(Cause("subject.not_finite", message, 1.0, {"call": what}, "Hide keys by -inf."))
    eps = torch.finfo(found.dtype).eps if found.is_floating_point() else 0.0
    return found.double().numpy().copy(), max(eps, FLOAT32)


def count(subject: Any, tokens: int, score_mod: bool) -> int:
    """Return the largest usual number of heads that a subject can be called for."""
    for n in NUMBERS:
        try:
            ask(subject, (n, tokens, tokens), score_mod)
            break
        except SubjectError:
            if n == 1:
                raise
    return n


def _bias(subject: Any, size: Size, what: str) -> Tensor:
    found = invoke(subject, *size, what=what)
    if not isinstance(found, Tensor):
        return guard.shaped(found, size, what)  # which raises
    found = found.detach().cpu()
    while found.ndim > 3 and found.shape[0] == 1:
        found = found[0]
    try:
        return found.expand(size)
    except RuntimeError:
        return guard.shaped(found, size, what)


def _scores(subject: Any, size: Size, score: float = 0.0, batch: int = 0) -> Tensor:
    """Return what a score_mod makes of one score in all places."""
    n, q_len, k_len = size
    places = (torch.arange(n), torch.arange(k_len - q_len, k_len), torch.arange(k_len))
    at = torch.tensor(score), torch.tensor(batch)
    what = f"score_mod({score:g}, {batch}, h, q, k) with h < {n}, q and k < {k_len}"

    def over_all(*args: Tensor) -> Any:
        mapped: Callable[..., Any] = subject
        for axes in ((None, None, None, None, 0), (None, None, None, 0, None), (None, None, 0, None, None)):
            mapped = torch.vmap(mapped, in_dims=axes)
        return mapped(*args)

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


def ask_added(subject: Any, case: Case) -> Seen:
    """Return what becomes of scores next to the bias: of two other ones, or in the second row of the batch."""
    zero = ask(subject, case.args, True)[0]
    found = np.stack([_scores(subject, case.args, s, b).double().numpy() for s, b in ADDED[case.kind]])
    kept = (zero > -1e30) & np.isfinite(found).all(0)
    with np.errstate(invalid="ignore"):
        rest = np.where(kept, found - zero, added(case, 1.0))
    return Seen(case, rest, note=1e-4 * (1 + float(np.abs(zero[kept]).max(initial=0.0))))


def added(case: Case, gain: float) -> Array:
    """Return what a score_mod should make of scores next to the bias, times a gain."""
    each = np.array([score * gain for score, _ in ADDED[case.kind]])
    return np.broadcast_to(each[:, None, None, None], (len(each), *case.args))


def invoke(subject: Callable[..., Any], *args: Any, what: str) -> Any:
    """Call a subject, by keywords where it takes nothing else."""
    try:
        taken = list(inspect.signature(subject).parameters.values())
    except (TypeError, ValueError):
        taken = []
    named = [p.name for p in taken if p.kind is p.KEYWORD_ONLY]
    free = sum(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in taken)
    if any(p.kind is p.VAR_POSITIONAL for p in taken) or free + len(named) < len(args):
        free = len(args)
    options = dict(zip(named, args[free:], strict=False))
    return guard.call(subject, *args[:free], what=what, **options)
