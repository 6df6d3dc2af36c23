"""More definitions of encodings that act on the scores, a continuation of `bias`: (n_heads, m, n).

Distances through a network or a table of any graph, products of learned vectors, and gates that read the content.
Those of images are in `images`, those that replace the distance inside `rope` in `distances`.
As in `bias`, each result is added to q.k / sqrt(head_dim) unless its docstring names another scale, and
distance = q_pos - k_pos; `cope` and `dape` get the scores themselves and return new ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Positions = NDArray[Any]


def fire(
    q_pos: Positions,
    k_pos: Positions,
    *,
    n_heads: int,
    width: int = 32,
    init_c: float = 0.1,
    init_threshold: float = 512.0,
    eps: float = 1e-6,
    log_c: Array | None = None,
    threshold_scale: Array | None = None,
    w1: Array,
    b1: Array,
    w2: Array,
    b2: Array,
) -> Array:
    """A small trained network of the distance, measured as a fraction of the query's position.

    Paper: Li et al. 2023, "Functional Interpolation for Relative Positions Improves Long Context Transformers"
    (FIRE), arXiv 2310.04418, section 3: f(psi(distance) / psi(max(L, q_pos))), psi(x) = log(c x + 1), with one
    hidden layer of ReLU: f(t) = w2 relu(w1 t + b1) + b2. c > 0 and the threshold L > 0 are trained.

    q_pos (m,), k_pos (n,), fractions allowed, the first token of the text at 0; w1, b1 (width,), w2 (n_heads, width),
    b2 (n_heads,); c per position, a scalar; L = init_threshold times a trained scalar; if these are not given, their
    initial values. From the code printed in the paper: eps on the denominator, |L| for L, and the trained factor on a
    given L. Ours: c = exp(log_c) to keep it positive.
    Departures: the paper is causal; here keys ahead count by |distance| and q_pos by |q_pos|. The bias depends on more
    than the distance: beyond L the same distance means less, the farther from the start.
    """
    c = init_c if log_c is None else np.exp(np.asarray(log_c).item())
    floor = init_threshold * abs(1.0 if threshold_scale is None else np.asarray(threshold_scale).item())
    out = np.zeros((n_heads, len(q_pos), len(k_pos)))
    for h, i, j in np.ndindex(out.shape):
        reach, whole = abs(float(q_pos[i] - k_pos[j])), max(abs(float(q_pos[i])), floor)
        t = math.log(c * reach + 1) / (math.log(c * whole + 1) + eps)
        out[h, i, j] = b2[h] + sum(w2[h, u] * max(w1[u] * t + b1[u], 0.0) for u in range(width))
    return out


@cache
def _deberta_bucket(distance: int, n_buckets: int, max_distance: int) -> int:
    """The signed bucket of one distance, see `deberta`: exact up to mid, beyond it of growing width."""
    mid, reach = n_buckets // 2, abs(distance)
    if reach <= mid:
        return distance
    ratio, steps = Fraction(max_distance - 1, mid), 0
    while ratio**steps < Fraction(reach, mid) ** (mid - 1):  # steps = the ceiling of (mid-1) log(..) / log(ratio)
        steps += 1
    return int(math.copysign(mid + steps, distance))


def deberta(
    q: Array,
    k: Array,
    q_pos: Positions,
    k_pos: Positions,
    *,
    n_heads: int,
    head_dim: int,
    n_buckets: int = 256,
    max_distance: int = 512,
    terms: Sequence[str] = ("c2p", "p2c"),
    key_table: Array | None = None,
    query_table: Array | None = None,
) -> Array:
    """The query's product with a key vector of the distance, plus the key's with a query vector of the distance.

    Paper: He et al. 2020, "DeBERTa: Decoding-enhanced BERT with Disentangled Attention", arXiv 2006.03654, equation 4:
    q_i . Kr[row] ("c2p", content to position) + k_j . Qr[row] ("p2c"). All terms, q.k itself included, are divided by
    sqrt(head_dim * (1 + the number of terms)): sqrt(3 d) with both, so THIS is added to q.k at that scale.

    q (n_heads, m, head_dim), k (n_heads, n, head_dim); q_pos (m,), k_pos (n,), whole; key_table (Kr) and query_table
    (Qr) (n_heads, 2 n_buckets, head_dim), already projected: the products of DeBERTa's relative embeddings with its
    key and query projections; only the table of a term in `terms` is required. max_distance > n_buckets//2 + 1.
    row = bucket + n_buckets, cut to 0.. 2 n_buckets - 1, so the farthest key back has the last row.
    From the public code of DeBERTa-v2 (the paper has no buckets): with mid = n_buckets//2, bucket = distance up to
    |distance| = mid, then sign(distance) * (mid + ceil((mid-1) log(|distance|/mid) / log((max_distance-1)/mid))); the
    ceiling is taken exactly here, in fractions (the code rounds a float32 logarithm up, which can put a distance that
    IS an edge one bucket too high). Departure, shared with the code and all checkpoints: the paper writes the row
    of k_pos - q_pos for p2c; the code uses that of q_pos - k_pos in both.
    """
    out = np.zeros((n_heads, len(q_pos), len(k_pos)))
    for h, i, j in np.ndindex(out.shape):
        bucket = _deberta_bucket(int(q_pos[i]) - int(k_pos[j]), n_buckets, max_distance)
        row = min(max(bucket + n_buckets, 0), 2 * n_buckets - 1)
        for term in terms:
            content, table = {"c2p": (q[h, i], key_table), "p2c": (k[h, j], query_table)}[term]
            out[h, i, j] += content @ np.asarray(table)[h, row]
    return out / math.sqrt(head_dim * (1 + len(terms)))


def tupe(
    q_pos: Positions,
    k_pos: Positions,
    *,
    n_heads: int,
    head_dim: int,
    max_len: int,
    untie_cls: bool = True,
    q_table: Array,
    k_table: Array,
    cls_to: Array | None = None,
    to_cls: Array | None = None,
) -> Array:
    """The product of two learned position vectors, with separate projections, and [CLS] treated separately.

    Paper: Ke et al. 2020, "Rethinking Positional Encoding in Language Pre-training" (TUPE-A), arXiv 2006.15595,
    section 3.1: (p_i U_Q) . (p_j U_K) / sqrt(2 head_dim), added to q.k at the same scale. Section 3.2, the reset: if
    the query is [CLS], at position 0, the term is theta_1, also for [CLS] itself; if only the key is, theta_2.

    q_pos (m,), k_pos (n,), whole, 0.. max_len - 1 (or it raises); q_table, k_table (n_heads, max_len, head_dim): p U_Q
    and p U_K, already projected; theta_1 = cls_to, theta_2 = to_cls (n_heads,), not scaled. untie_cls False leaves the
    product at position 0 too. The relative bias that TUPE-R adds is `t5`'s and not part of this.
    """
    out = np.zeros((n_heads, len(q_pos), len(k_pos)))
    for p in (*q_pos, *k_pos):
        if not 0 <= p < max_len:
            raise IndexError(f"position {p} is outside 0..{max_len - 1}")
    for h, i, j in np.ndindex(out.shape):
        if untie_cls and q_pos[i] == 0:
            out[h, i, j] = np.asarray(cls_to)[h]
        elif untie_cls and k_pos[j] == 0:
            out[h, i, j] = np.asarray(to_cls)[h]
        else:
            product = q_table[h, int(q_pos[i])] @ k_table[h, int(k_pos[j])]
            out[h, i, j] = product / math.sqrt(2 * head_dim)
    return out


def graphormer(
    q_pos: Positions, k_pos: Positions, *, n_heads: int, max_distance: int, distances: NDArray[Any], weight: Array
) -> Array:
    """One trained number per head and length of the shortest path between two nodes of a graph.

    Paper: Ying et al. 2021, "Do Transformers Really Perform Bad for Graph Representation?" (Graphormer), arXiv
    2106.05234, section 3.1.2, equation 6: b[phi(v_i, v_j)] added, phi the shortest path from the query's node to the
    key's, and a separate value if there is none.

    q_pos (m,), k_pos (n,): numbers of nodes, 0.. (or it raises); distances (nodes, nodes), whole, in edges, from row
    to column, -1 where there is no path; weight (n_heads, max_distance + 2): column = the distance, max_distance for
    all beyond it, and the last column for no path. Centrality and edge encodings are not part of this.
    With several graphs, distances (graphs, nodes, nodes), the numbers are (graph, node), and nodes of different graphs
    have no path (our convention).
    """
    out = np.zeros((n_heads, len(q_pos), len(k_pos)))
    sizes = np.shape(distances)[:-1]
    for p in (*q_pos, *k_pos):
        if any(not 0 <= number < size for number, size in zip(np.atleast_1d(p), sizes, strict=True)):
            raise IndexError(f"node {p} is outside {', '.join(f'0..{size - 1}' for size in sizes)}")
    for i, source in enumerate(q_pos):
        for j, goal in enumerate(k_pos):
            (*graph, start), (*other, end) = (np.atleast_1d(p).astype(int) for p in (source, goal))
            steps = int(np.asarray(distances)[(*graph, start, end)]) if graph == other else -1
            out[:, i, j] = weight[:, max_distance + 1 if steps < 0 else min(steps, max_distance)]
    return out


def fox(x: Array, *, n_heads: int, d_model: int, weight: Array, b: Array) -> Array:
    """The sum of the logarithms of the forget gates between key and query: a penalty that depends on the content.

    Paper: Lin et al. 2025, "Forgetting Transformer: Softmax Attention with a Forget Gate" (FoX), arXiv 2503.02130,
    section 3: d_ij = the sum over t = j + 1.. i of log f_t, f_t = sigmoid(w . x_t + b), w and b trained per head.

    x (m, d_model): the tokens of ONE sequence in temporal order, both queries and keys; weight (n_heads, d_model),
    b (n_heads,); result (n_heads, m, m), no unit. Never above 0 where j <= i. The paper is causal; keys ahead, j > i,
    get minus the sum over t = i + 1.. j here, so that d_ij = F_i - F_j everywhere, F the running sum of log f.
    """
    out = np.zeros((n_heads, len(x), len(x)))
    log_f = np.array([[-np.logaddexp(0, -(weight[h] @ token + b[h])) for token in x] for h in range(n_heads)])
    for h, i, j in np.ndindex(out.shape):
        first, last = min(i, j) + 1, max(i, j)
        total = math.fsum(log_f[h, t] for t in range(first, last + 1))
        out[h, i, j] = total if j <= i else -total
    return out


def cope(
    scores: Array, q: Array, k: Array, allowed: NDArray[np.bool_], *, head_dim: int, max_count: int, weight: Array
) -> Array:
    """Positions counted by gates: the number of keys between key and query that matter to the query.

    Paper: Golovneva et al. 2024, "Contextual Position Encoding" (CoPE), arXiv 2405.18719, section 4 and the listing
    in its appendix: p_ij = the sum of g_it over t = j.. i, at most max_count - 1; added to the score is
    q_i . e[p_ij], interpolated linearly between whole p. A key's own gate counts, so p_ii = g_ii and not 0.

    scores (n_heads, m, n), with all other terms; q (n_heads, m, head_dim); k (n_heads, n, head_dim), which is not
    used again; allowed (m, n): True where the query may see the key; weight (head_dim, max_count): column p
    is e[p], shared by all heads. Result (n_heads, m, n): the new scores; where not allowed, meaningless.
    The gates are the sigmoid of the given, SCALED scores, as in the listing and x-transformers (the equations write
    q.k with no scale anywhere); q . e is not scaled in either. The sum runs over the ALLOWED keys t >= j in the
    order of the columns, to the last one and not to i, which is the same under a causal mask.
    """
    out = np.array(scores)
    for h, i, j in np.ndindex(out.shape):
        gates = [math.exp(-np.logaddexp(0, -scores[h, i, t])) for t in range(j, out.shape[2]) if allowed[i, t]]
        p = min(math.fsum(gates), max_count - 1)
        below, above = math.floor(p), math.ceil(p)
        share = p - below
        at_p = (1 - share) * (q[h, i] @ weight[:, below]) + share * (q[h, i] @ weight[:, above])
        out[h, i, j] = scores[h, i, j] + at_p
    return out


def dape(
    scores: Array,
    bias: Array,
    allowed: NDArray[np.bool_],
    *,
    n_heads: int,
    width: int,
    w1: Array,
    b1: Array,
    w2: Array,
    b2: Array,
) -> Array:
    """A bias adapted to the score: a small trained network over all heads, separately for each pair.

    Paper: Zheng et al. 2024, "DAPE: Data-Adaptive Positional Encoding for Length Extrapolation", arXiv 2405.14722,
    section 3: A + B + f([A; B]), f two layers with LeakyReLU between: w2 leaky(w1 [A; B] + b1) + b2.

    scores A (n_heads, m, n): q.k / sqrt(head_dim), without B; bias B (n_heads, m, n) or (n_heads, 1, 1): of any
    encoding; w1 (width, 2 n_heads), its first n_heads columns for A; b1 (width,), w2 (n_heads, width), b2 (n_heads,).
    allowed (m, n) is not used: f acts on each pair separately. The slope below 0 is 0.01, torch's default.
    """
    out = np.array(scores)
    b_all = np.broadcast_to(bias, out.shape)
    for i, j in np.ndindex(out.shape[1:]):
        both = np.concatenate([scores[:, i, j], b_all[:, i, j]])
        z = [w1[u] @ both + b1[u] for u in range(width)]
        hidden = [max(x, 0.01 * x) for x in z]
        out[:, i, j] = scores[:, i, j] + b_all[:, i, j] + w2 @ hidden + b2
    return out
