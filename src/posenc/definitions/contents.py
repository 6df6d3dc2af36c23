"""Definitions of terms and rotations that depend on the content, a continuation of `scores`: (n_heads, m, n).

As there, each result is added to q.k / sqrt(head_dim) unless its docstring states otherwise, and
distance = q_pos - k_pos.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from posenc.definitions.bias import _alibi_slopes

Array = NDArray[np.float64]
Positions = NDArray[Any]


def inkling(
    x: Array,
    pos: Positions,
    *,
    n_heads: int,
    d_model: int,
    d_rel: int = 16,
    extent: int = 1024,
    temperature: float = 0.0,
    original_max_len: int = 128000,
    weight: Array,
    profiles: Array,
) -> Array:
    """Trained curves over the distance, mixed by each query; 0 for keys ahead and from `extent` on.

    No paper; Hugging Face, inkling, InklingRelativeLogits and InklingAttention (r_proj, rel_logits_proj): with
    r = W_h x_i, the sum over c of r_c * profiles[c, distance] where 0 <= distance < extent, otherwise 0. All is
    multiplied by tau_i = 1 + temperature * ln(max((q_pos + 1) / original_max_len, 1)), log_scaling_alpha and
    log_scaling_n_floor there, which also multiplies the queries: that part is `query_temperature`'s law "inkling".

    x (m, d_model): the tokens of one text, both queries and keys, at whole positions pos (m,); weight
    (n_heads * d_rel, d_model), as in r_proj: the rows of a head in a block; profiles (d_rel, extent), shared by
    the heads; result (n_heads, m, m). Inkling 2 first clips the length of r, which is not part of this. The models'
    1 / head_dim (Inkling 1) is their scale of q.k and does not apply to this term.
    """
    out = np.zeros((n_heads, len(pos), len(pos)))
    for h, i, j in np.ndindex(out.shape):
        distance = int(pos[i]) - int(pos[j])
        if 0 <= distance < extent:
            mix = weight[h * d_rel : (h + 1) * d_rel] @ x[i]
            tau = 1 + temperature * math.log(max((float(pos[i]) + 1) / original_max_len, 1.0))
            out[h, i, j] = tau * (mix @ profiles[:, distance])
    return out


def grape_a(
    q: Array,
    k: Array,
    q_pos: Positions,
    k_pos: Positions,
    *,
    n_heads: int,
    head_dim: int,
    gates: Literal["query", "key", "both"] = "both",
    omega: Array,
    u: Array | None = None,
    v: Array | None = None,
) -> Array:
    """A penalty in proportion to the distance, at a rate that query and key set: unipotent GRAPE of rank one.

    Paper: Zhang et al. 2025, "Group Representational Position Encoding" (GRAPE), arXiv 2512.07805, section 4, and the
    authors' code (llama-mha-grape-a-querykeygated, -keygated, -querygated):
    -max(distance, 0) * softplus(omega_h) * m_h * (softplus(v_h . q_i / sqrt(d)) + softplus(u_h . k_j / sqrt(d))),
    with "query" or "key" only that summand, u and v at length 1, m_h the slopes of `alibi` ("authors").

    q (n_heads, m, head_dim), k (n_heads, n, head_dim): as attention has them, before any rotation; q_pos (m,), k_pos
    (n,), fractions allowed; omega (n_heads,), u, v (n_heads, head_dim). A vector shorter than 1e-6 is divided by that.
    The paper is causal; keys ahead get 0, as in the code before its mask.
    """
    out = np.zeros((n_heads, len(q_pos), len(k_pos)))
    slopes = _alibi_slopes(n_heads, "authors", 8.0)
    for h, i, j in np.ndindex(out.shape):
        rate = 0.0
        if v is not None and gates != "key":
            rate += float(
                np.logaddexp(0, v[h] @ q[h, i] / max(float(np.linalg.norm(v[h])), 1e-6) / math.sqrt(head_dim))
            )
        if u is not None and gates != "query":
            rate += float(
                np.logaddexp(0, u[h] @ k[h, j] / max(float(np.linalg.norm(u[h])), 1e-6) / math.sqrt(head_dim))
            )
        out[h, i, j] = -max(float(q_pos[i] - k_pos[j]), 0.0) * np.logaddexp(0, omega[h]) * slopes[h] * rate
    return out


def grape_ap(
    scores: Array,
    x: Array,
    pos: Positions,
    allowed: NDArray[np.bool_],
    *,
    d_model: int,
    n_heads: int,
    p_dim: int = 8,
    weight: Array,
) -> Array:
    """Scores less what each token from key to query costs: a toll that the query and that token set.

    Paper: Zhang et al. 2025, "Group Representational Position Encoding" (GRAPE), arXiv 2512.07805, section 5
    (path-integral additive): b(t, j) = the sum over l = j + 1.. t of psi(t, l) = alpha g(p_t . R_l p_l / P) <= 0. From
    the authors' code (llama-mha-grape-ap-v1): g = log sigmoid, alpha_h the slopes of `alibi`, p_u = W_h x_u as it is
    for the query and at mean square 1 (2^-23 added) for the token, all pairs of lanes c and c + P/2 at 1 radian per
    position.

    scores (n_heads, m, n), with all else that is added: of x (n, d_model), the tokens at pos (n,), as keys, and of the
    last m of them as queries; allowed (m, n): True where the query may see the key; weight (n_heads * p_dim, d_model):
    the rows of a head in a block; d_model idle. Result (n_heads, m, n): the new scores; where not allowed, meaningless.
    The sum runs over the ALLOWED tokens at positions above the key's, which is the same under a causal mask.
    Departure: the code rotates CLOCKWISE, here counter-clockwise as elsewhere.
    """
    out, slopes = np.array(scores), _alibi_slopes(n_heads, "authors", 8.0)
    p = (x @ weight.T).reshape(len(x), n_heads, p_dim)
    for h, i, j in np.ndindex(out.shape):
        query, tolls = p[len(x) - out.shape[1] + i, h], []
        for t in range(len(x)):
            if allowed[i, t] and pos[t] > pos[j]:
                a, b = np.split(p[t, h] / math.sqrt(p[t, h] @ p[t, h] / p_dim + 2.0**-23), 2)
                c, s = math.cos(pos[t]), math.sin(pos[t])
                product = query @ np.concatenate([a * c - b * s, b * c + a * s]) / p_dim
                tolls.append(slopes[h] * np.logaddexp(0, -product))
        out[h, i, j] = scores[h, i, j] - math.fsum(tolls)
    return out


def selective_rope(
    x: Array,
    pos: Positions,
    *,
    d_model: int,
    n_kv_heads: int,
    head_dim: int,
    rank: int = 32,
    base: float = 500000.0,
    w_in: Array,
    w_out: Array,
    conv: Array,
) -> tuple[Array, Array]:
    """Matrices that rotate queries and keys, no terms: each pair by a sum over the tokens so far, of what they decide.

    Paper: Movahedi et al. 2025, "Selective Rotary Position Embedding", arXiv 2511.17388; the numbers from the authors'
    code (timurcarstensen/selective-rope, modules/rotary.py) as all of its configurations have them. Each head's
    share of x_t at length 1 (1e-6 under the root), then W_out W_in of that, then for each channel a causal convolution
    over four tokens; pair k of head h of token i rotates by omega_k times the sum of that over t <= i,
    omega_k = base**(-2k/head_dim) radians per unit. Pair k is lanes k and k + head_dim/2, COUNTER-CLOCKWISE.

    x (m, d_model): the tokens in the order of time, both queries and keys, at pos (m,); w_in (rank, d_model), w_out
    (n_kv_heads * head_dim/2, rank): the channels of a head in a block; conv (channels, 4): its LAST column is for the
    token itself, as torch has it; d_model and rank idle. Results (m, n_kv_heads, head_dim, head_dim), one for q and the
    same for k. Ours: the convolution ends where pos does not rise from one token to the next, where a text begins.
    """
    rotation = np.zeros((len(x), n_kv_heads, head_dim, head_dim))
    shares = [np.split(token, n_kv_heads) for token in x]
    read = [w_out @ w_in @ np.concatenate([u / math.sqrt(u @ u + 1e-6) for u in share]) for share in shares]
    total = np.zeros(len(w_out))
    for i in range(len(x)):
        for back in range(min(i, 3) + 1):
            if np.all(np.diff(pos[i - back : i + 1]) > 0):  # of one text
                total = total + conv[:, 3 - back] * read[i - back]
        for h, k in np.ndindex(n_kv_heads, head_dim // 2):
            a, b = k, k + head_dim // 2
            angle = base ** (-2 * k / head_dim) * total[h * head_dim // 2 + k]
            rotation[i, h, a, a], rotation[i, h, a, b] = math.cos(angle), -math.sin(angle)
            rotation[i, h, b, a], rotation[i, h, b, b] = math.sin(angle), math.cos(angle)
    return rotation, rotation.copy()
