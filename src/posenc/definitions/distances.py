"""Definitions of methods that use another distance in `rope`, pair by pair: whole scores (n_heads, m, n).

The score of a query and a key is (R(distance') q) . k / sqrt(head_dim), where R is the rotation of `rope` and the
method computes distance' from distance = q_pos - k_pos. NAME_distance gives distance' itself, (m, n), by a literal
double loop. Unlike in `bias`, a result IS the score, including the product q.k. All methods are for causal models
trained on short texts, and keep every distance' within the trained range. The papers do not cover a key AHEAD of its
query: distance' is then minus that of the same two tokens looking back.

q (n_heads, m, head_dim), k (n_kv_heads, n, head_dim): where k has fewer heads, each serves a run of query heads.
q_pos (m,), k_pos (n,), whole, >= 0; the options count positions; base and pairing as in `rope`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from posenc.definitions.rotary import rope

Array = NDArray[np.float64]
Positions = NDArray[Any]
Pairing = Literal["half", "interleaved"]


def _distances(q_pos: Positions, k_pos: Positions, back: Callable[[int, int], float]) -> Array:
    """Return distance' (m, n): back(i, j) where key j is not ahead of query i, else -back(j, i)."""
    out = np.zeros((len(q_pos), len(k_pos)))
    for row, i in enumerate(q_pos.tolist()):
        for column, j in enumerate(k_pos.tolist()):
            out[row, column] = back(i, j) if j <= i else -back(j, i)
    return out


def _scores(q: Array, k: Array, distance: Array, head_dim: int, base: float, pairing: Pairing) -> Array:
    """Return the scaled products of keys and of queries rotated by the distance."""
    out = np.zeros((len(q), *distance.shape))
    for h, i, j in np.ndindex(out.shape):
        rotation, _ = rope(float(distance[i, j]), head_dim=head_dim, base=base, pairing=pairing)
        out[h, i, j] = (rotation @ q[h, i]) @ k[h * len(k) // len(q), j] / math.sqrt(head_dim)
    return out


def rerope_distance(q_pos: Positions, k_pos: Positions, window: int) -> Array:
    """Return min(distance, window)."""

    def back(i: int, j: int) -> int:
        return min(i - j, window)

    return _distances(q_pos, k_pos, back)


def rerope(
    q: Array,
    k: Array,
    q_pos: Positions,
    k_pos: Positions,
    *,
    head_dim: int,
    window: int,
    base: float = 10000.0,
    pairing: Pairing = "half",
) -> Array:
    """Distances up to the window stay unchanged, and all larger ones become the window.

    Source: Su 2023, "Rectified Rotary Position Embeddings" (ReRoPE), kexue.fm/archives/9708 and the code
    bojone/rerope; there is no paper. That code also multiplies q by max(1, log(position + 1) / log(trained length)),
    a temperature, which is not part of this.
    """
    return _scores(q, k, rerope_distance(q_pos, k_pos, window), head_dim, base, pairing)


def leaky_rerope_distance(q_pos: Positions, k_pos: Positions, window: int, factor: float) -> Array:
    """Return the distance below the window, and window + (distance - window) / factor from there."""

    def back(i: int, j: int) -> float:
        return i - j if i - j < window else window + (i - j - window) / factor

    return _distances(q_pos, k_pos, back)


def leaky_rerope(
    q: Array,
    k: Array,
    q_pos: Positions,
    k_pos: Positions,
    *,
    head_dim: int,
    window: int,
    factor: float,
    base: float = 10000.0,
    pairing: Pairing = "half",
) -> Array:
    """Distances up to the window stay unchanged; beyond it they grow factor times as slowly.

    Source: as `rerope` (Leaky ReRoPE); with factor 1 it is `rope`, with an infinite one `rerope`.
    """
    return _scores(q, k, leaky_rerope_distance(q_pos, k_pos, window, factor), head_dim, base, pairing)


def self_extend_distance(q_pos: Positions, k_pos: Positions, window: int, group: int) -> Array:
    """Return the distance below the window; beyond it that between groups, shifted to agree at the window."""

    def back(i: int, j: int) -> int:
        return i - j if i - j < window else i // group - j // group + window - window // group

    return _distances(q_pos, k_pos, back)


def self_extend(
    q: Array,
    k: Array,
    q_pos: Positions,
    k_pos: Positions,
    *,
    head_dim: int,
    window: int,
    group: int,
    base: float = 10000.0,
    pairing: Pairing = "half",
) -> Array:
    """Exact distances to near keys, and distances between groups of positions to all others.

    Paper: Jin et al. 2024, "LLM Maybe LongLM: Self-Extend LLM Context Window Without Tuning", arXiv 2401.01325,
    Algorithm 1: below the window (w_n) the distance, beyond it floor(i/G) - floor(j/G) + w_n - floor(w_n/G). If G
    divides the window, the two agree at the window. The authors' code uses w_n/G unrounded over a whole text, and
    rounded for a single query; this definition rounds, as in the paper.
    """
    return _scores(q, k, self_extend_distance(q_pos, k_pos, window, group), head_dim, base, pairing)


def dual_chunk_distance(q_pos: Positions, k_pos: Positions, chunk: int, local: int) -> Array:
    """Return the distance inside a stretch of chunk - local; across stretches, a query's index minus the key's own.

    Keys count from 0 in each stretch. For the previous stretch, the query's index continues from its own place in its
    stretch, up to chunk; for all earlier ones it is chunk.
    """
    stretch = chunk - local

    def back(i: int, j: int) -> int:
        between = i // stretch - j // stretch
        if between == 0:
            return i - j
        query = min(i % stretch + stretch, chunk) if between == 1 else chunk
        return query - j % stretch

    return _distances(q_pos, k_pos, back)


def dual_chunk(
    q: Array,
    k: Array,
    q_pos: Positions,
    k_pos: Positions,
    *,
    head_dim: int,
    chunk: int,
    local: int,
    base: float = 10000.0,
    pairing: Pairing = "half",
) -> Array:
    """Positions restart in each stretch of text; queries are shifted to look back across its start.

    Paper: An et al. 2024, "Training-Free Long-Context Scaling of Large Language Models" (dual chunk attention), arXiv
    2402.17463, section 3: chunk - local is its chunk size s, and all distances up to `local` stay exact, across borders
    too. Departure, shared with the public code: the largest index of a query is chunk; in the paper it is c - 1,
    c the trained length, so our chunk is its c - 1. Where local >= s that code stops at 2 s - 1 for the earlier
    stretches; here it is chunk.
    """
    return _scores(q, k, dual_chunk_distance(q_pos, k_pos, chunk, local), head_dim, base, pairing)
