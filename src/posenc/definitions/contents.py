"""Definitions of biases that depend on the content, a continuation of `scores`: (n_heads, m, n).

As there, each result is added to q.k / sqrt(head_dim), and distance = q_pos - k_pos.
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
