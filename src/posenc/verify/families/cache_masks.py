"""Which keys a token sees: one pass next to a cache, and what known faults show of them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from posenc.verify.engine.records import Array
from posenc.verify.families.cache_runs import TOKENS, Bench
from posenc.verify.families.cache_watch import watch
from posenc.verify.guard import SubjectError


def visible(b: Bench, chunks: Sequence[int]) -> tuple[Array, Array]:
    """Return who sees whom in parts and in one pass: (layers, tokens, tokens), 1 where seen; empty if it is not seen.

    Of a text that is longer than the bench's the last call's rows count.
    """
    n = sum(chunks)
    x = b.x[:1] if n == TOKENS else b.text(n)
    nothing = np.zeros((0, n, n))
    try:
        calls, whole = watch(b.subject, x, chunks), watch(b.subject, x, (n,))[0]
    except SubjectError:
        return nothing, nothing
    at = [i for i, look in enumerate(whole) if look.scores.shape[1] == n <= look.scores.shape[2]]
    if {len(looks) for looks in calls} != {len(whole)} or not at:
        return nothing, nothing
    parts = np.stack([_of_layer([looks[i].without(whole[i].extra()) for looks in calls], chunks) for i in at])
    full = np.stack([_of_layer([whole[i].scores], (n,)) for i in at])
    if n > TOKENS:
        parts[:, : -chunks[-1]] = full[:, : -chunks[-1]]
    return parts, full


def _of_layer(scores: Sequence[Tensor], chunks: Sequence[int]) -> Array:
    """Return one layer's table; the keys that are left are the last ones."""
    table = np.zeros((sum(chunks), sum(chunks)))
    begin = 0
    for each, new in zip(scores, chunks, strict=True):
        total = begin + new
        rows = each.isfinite().any(0).numpy()[:, :total]
        table[begin:total, total - rows.shape[1] : total] = rows
        begin = total
    return table


def spoilt(sees: tuple[str, int], whole: Array, chunks: Sequence[int]) -> Array:
    """Return who sees whom under a fault, in each layer.

    Args:
        sees: "past unseen", "top left", "short", "long" or "unmasked", and how many cached keys a token sees, which
            counts for "short" and "long".
        whole: What one pass shows.
        chunks: Tokens of each call.
    """
    fault, kept = sees
    n = sum(chunks)
    row, column = np.arange(n)[:, None], np.arange(n)
    begin = np.repeat(np.cumsum([0, *chunks[:-1]]), chunks)[:, None]
    end = np.repeat(np.cumsum(chunks), chunks)[:, None]
    causal, left = column <= row, column >= begin - kept
    rules: dict[str, Any] = {
        "past unseen": whole * (column >= begin),
        "top left": np.broadcast_to(column <= row - begin, whole.shape),
        "short": whole * left,
        "long": np.broadcast_to(causal & left, whole.shape),
        "unmasked": np.maximum(whole, (column < end) & whole[:, [-1]].any() & (column >= begin)),
    }
    found: Array = np.where(begin > 0, rules[fault], whole)
    return found


def kept_keys(table: Array, chunks: Sequence[int]) -> int:
    """Return how many cached keys the last call's first token sees at most."""
    begin = sum(chunks[:-1])
    return int(table[:, begin, :begin].sum(-1).max(initial=0))
