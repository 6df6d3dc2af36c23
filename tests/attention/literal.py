"""Attention as two loops, in numpy: what every argument of `attend` means, written a second time."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def seen(i: int, j: int, q_len: int, k_len: int, *, causal: bool, window: int | None, ids: Array | None) -> bool:
    """Whether query i sees key j; queries are the last q_len of the k_len tokens."""
    here = i + k_len - q_len
    if causal and j > here:
        return False
    if window is not None and abs(here - j) >= window:
        return False
    return ids is None or ids[here] == ids[j]


def attend(
    q: Array,
    k: Array,
    v: Array,
    *,
    scale: float,
    bias: Array | None = None,
    causal: bool = True,
    mask: Array | None = None,
    window: int | None = None,
    document_ids: Array | None = None,
) -> Array:
    """Attend one query at a time. A mask or bias is spread to (batch, heads, q_len, k_len) beforehand."""
    batch, n_heads, q_len, _ = q.shape
    k_len, group = k.shape[2], n_heads // k.shape[1]
    out = np.zeros((batch, n_heads, q_len, v.shape[-1]))
    for b, h, i in np.ndindex(batch, n_heads, q_len):
        ids = None if document_ids is None else document_ids[b]
        weights: dict[int, float] = {}
        for j in range(k_len):
            if not seen(i, j, q_len, k_len, causal=causal, window=window, ids=ids):
                continue
            score = scale * sum(float(x) * float(y) for x, y in zip(q[b, h, i], k[b, h // group, j], strict=True))
            if bias is not None:
                score += float(bias[b, h, i, j])
            if mask is not None and mask.dtype == bool and not mask[b, h, i, j]:
                continue
            if mask is not None and mask.dtype != bool:
                score += float(mask[b, h, i, j])
            if score != -math.inf:
                weights[j] = score
        top = max(weights.values(), default=0.0)
        total = sum(math.exp(score - top) for score in weights.values())
        for j, score in weights.items():
            out[b, h, i] += math.exp(score - top) / total * v[b, h // group, j]
    return out
