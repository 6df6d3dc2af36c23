"""Definitions of biases that the content makes or paces, a continuation of `scores`: (n_heads, m, n).

As there, each result is added to q.k / sqrt(head_dim), and distance = q_pos - k_pos.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
    """Trained curves over the distance, which each query mixes for itself: nothing ahead, nothing from extent on.

    No paper; Hugging Face, inkling, InklingRelativeLogits and InklingAttention (r_proj, rel_logits_proj): with
    r = W_h x_i, the sum over c of r_c * profiles[c, distance] where 0 <= distance < extent, otherwise 0. All is
    multiplied by tau_i = 1 + temperature * ln(max((q_pos + 1) / original_max_len, 1)), log_scaling_alpha and
    log_scaling_n_floor there, which also multiplies the queries: that part is `query_temperature`'s law "inkling".

    x (m, d_model): the tokens of one text, both queries and keys, at whole positions pos (m,); weight
    (n_heads * d_rel, d_model), as r_proj has it: the rows of a head in a block; profiles (d_rel, extent), shared by
    the heads; result (n_heads, m, m). Inkling 2 clips the length of r before, which is not part of this; the models'
    1 / head_dim (Inkling 1) is their scale of q.k and not of this term.
    """
    out = np.zeros((n_heads, len(pos), len(pos)))
    for h, i, j in np.ndindex(out.shape):
        distance = int(pos[i]) - int(pos[j])
        if 0 <= distance < extent:
            mix = weight[h * d_rel : (h + 1) * d_rel] @ x[i]
            tau = 1 + temperature * math.log(max((float(pos[i]) + 1) / original_max_len, 1.0))
            out[h, i, j] = tau * (mix @ profiles[:, distance])
    return out
