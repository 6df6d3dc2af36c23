"""Caches of their own: steps of two sequences by turns, and a cache that is gone back to."""

import copy
from typing import Any

import numpy as np
from torch import Tensor

from posenc.verify.engine.records import Array
from posenc.verify.families.cache_runs import TOKENS, Bench, distance, step

DRAFTS = 3
PREFILLS = (2, 5)


def by_turns(b: Bench) -> Array:
    """Return the error of each call: two prefills, then one token of each sequence by turns.

    Raises:
        SubjectError: A call raised.
    """
    texts, wanted, first = (b.x, b.x.roll(1, 0)), (b.full, b.full.roll(1, 0)), (5, 8)
    caches: list[Any] = [None, None]
    errors = []
    for i in range(2):
        y, caches[i] = step(b.subject, texts[i][:, : first[i]], None, 0)
        errors.append(distance(y, wanted[i][:, : first[i]]))
    for n in range(TOKENS - max(first)):
        for i in range(2):
            at = first[i] + n
            y, caches[i] = step(b.subject, texts[i][:, at : at + 1], caches[i], at)
            errors.append(distance(y, wanted[i][:, at : at + 1]))
    return np.array(errors)


def rolled_back(b: Bench) -> Array:
    """Return the error of steps from a copy of an older cache, after other steps, as speculative decoding takes them.

    Raises:
        SubjectError: A call raised.
    """
    errors = []
    for begin in PREFILLS:
        _, cache = step(b.subject, b.x[:, :begin], None, 0)
        kept = copy.deepcopy(cache)  # a call may write into its cache
        for at in range(begin, begin + DRAFTS):
            _, cache = step(b.subject, b.x.roll(1, 0)[:, at : at + 1], cache, at)
        for at in range(begin, begin + DRAFTS):
            y, kept = step(b.subject, b.x[:, at : at + 1], kept, at)
            errors.append(distance(y, b.full[:, at : at + 1]))
    return np.array(errors)


def unjudged(b: Bench, *, copied: bool) -> str | None:
    """Return why a cache cannot be kept apart, or copied; None where it can.

    A cache without tensors (a number, under which the model keeps the rest) is not the model's whole memory.
    """
    _, cache = step(b.subject, b.x[:, :5], None, 0)
    if not holds_tensors(cache):
        return "the cache holds no tensors"
    if copied:
        try:
            copy.deepcopy(cache)
        except Exception as error:  # user code decides what can be copied
            return f"the cache cannot be copied: {type(error).__name__}: {str(error)[:80]}"
    return None


def holds_tensors(cache: Any, depth: int = 6) -> bool:
    """Return whether there are tensors in a cache of any kind."""
    if isinstance(cache, Tensor) or hasattr(cache, "__array__"):
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
    return any(holds_tensors(part, depth - 1) for part in inner)
