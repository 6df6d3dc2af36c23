"""Caches of their own: steps of two sequences by turns, and a cache that is gone back to."""

import copy
from typing import Any

import torch
from torch import Tensor

from posenc.verify import guard
from posenc.verify.decoding.runs import BATCH, TOKENS, Bench, Trial, step

_SMALL = ((1, 1), (2, 1), (1, 2), (3, 1), (2, 4))
_DRAFTS = 3


def by_turns(b: Bench) -> bool:
    """Whether steps of two sequences with a cache each spoil one another; what shows it is kept on the bench."""
    if not _holds_tensors(step(b.subject, b.x[:, :5], None, 0)[1]):  # a model that says it keeps one sequence
        b.refused["two sequences by turns"] = "the cache holds no tensors"
        return False
    texts, wanted = (b.x, b.x.roll(1, 0)), (b.full, b.full.roll(1, 0))
    try:
        errors = _turns(b, texts, wanted, (5, 8), TOKENS - 8)
    except guard.SubjectError as error:
        b.refused["two sequences by turns"] = error.cause.message
        return False
    if max(errors) <= b.tolerance:
        return False
    b.shown = Trial((5, 8), b.full, errors)
    for m, n in _SMALL:
        one, other = b.x[:1, : m + 1], b.x[1:2, : n + 1]
        worst = max(_turns(b, (one, other), (b.one_pass(one), b.one_pass(other)), (m, n), 1))
        if worst > b.tolerance:
            b.case = {"batch": 1, "prefills": [m, n], "then": "a token of each", "error": round(worst, 6)}
            return True
    b.case = {
        "batch": BATCH,
        "prefills": [5, 8],
        "then": f"{TOKENS - 8} tokens by turns",
        "error": round(max(errors), 6),
    }
    return True


def _turns(
    b: Bench, texts: tuple[Tensor, Tensor], wanted: tuple[Tensor, Tensor], first: tuple[int, int], steps: int
) -> list[float]:
    """Return the error of each call: two prefills, then one token of each by turns."""
    caches: list[Any] = [None, None]
    errors = []
    for i in range(2):
        y, caches[i] = step(b.subject, texts[i][:, : first[i]], None, 0)
        errors.append(b.distance(y, wanted[i][:, : first[i]]))
    for n in range(steps):
        for i in range(2):
            at = first[i] + n
            y, caches[i] = step(b.subject, texts[i][:, at : at + 1], caches[i], at)
            errors.append(b.distance(y, wanted[i][:, at : at + 1]))
    return errors


def used_again(b: Bench) -> bool:
    """Whether a cache goes on wrongly after steps that were rolled back, as speculative decoding does.

    A call may write into its cache, so that a copy from before the steps is used. What has no copy, or holds no
    tensors (a number, under which the model keeps the rest), is not judged.
    """
    what = "a cache that is gone back to"
    for begin in (2, 5):
        _, cache = step(b.subject, b.x[:, :begin], None, 0)
        if not _holds_tensors(cache):
            b.refused[what] = "the cache holds no tensors"
            return False
        try:
            kept = copy.deepcopy(cache)
        except Exception as error:
            b.refused[what] = f"the cache cannot be copied: {type(error).__name__}: {str(error)[:80]}"
            return False
        errors = [0.0]
        try:
            for at in range(begin, begin + _DRAFTS):
                _, cache = step(b.subject, b.x.roll(1, 0)[:, at : at + 1], cache, at)
            for at in range(begin, begin + _DRAFTS):
                y, kept = step(b.subject, b.x[:, at : at + 1], kept, at)
                errors.append(b.distance(y, b.full[:, at : at + 1]))
        except guard.SubjectError as error:
            b.refused[what] = error.cause.message
            return False
        if max(errors) > b.tolerance:
            b.shown = Trial((begin,), b.full, errors)
            b.case = {"batch": BATCH, "prefill": begin, "dropped": _DRAFTS, "error": round(max(errors), 6)}
            return True
    return False


def _holds_tensors(cache: Any, depth: int = 6) -> bool:
    """Whether there are tensors in a cache of any kind."""
    if isinstance(cache, torch.Tensor) or hasattr(cache, "__array__"):
        return True
    if depth == 0 or isinstance(cache, str | bytes | type):
        return False
    if isinstance(cache, dict):
        inner = list(cache.values())
    elif isinstance(cache, list | tuple | set | frozenset):
        inner = list(cache)
    else:
        names = [*getattr(cache, "__dict__", {}), *getattr(type(cache), "__slots__", ())]
        inner = [getattr(cache, name, None) for name in names]
    return any(_holds_tensors(part, depth - 1) for part in inner)
