"""Definitions of rotations of values and outputs: position p -> (R_v, R_o), (head_dim, head_dim).

The output of query i is R_o(p_i) (sum over j of a_ij R_v(p_j) v_j), v_j a column and a_ij the weights of attention.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from posenc.definitions.rotary import rope

Array = NDArray[np.float64]


def vo_rope(
    p: float,
    *,
    head_dim: int,
    base: float = 10000.0,
    rotary_dim: int | None = None,
    rotary_side: Literal["first", "last"] = "first",
    pairing: Literal["half", "interleaved"] = "half",
    inv_freq: Array | None = None,
) -> tuple[Array, Array]:
    """Values rotate as keys do in `rope`, and the output of a query rotates back by the query's position.

    Source: Su 2025, kexue.fm/archives/10862 (Transformer Upgrade Road 19, the second type of rotary position
    encoding): o_i = R_i^T sum_j a_ij R_j v_j = sum_j a_ij R_(j - i) v_j, so an output depends only on p_j - p_i.
    Queries and keys stay unchanged: this is VO-RoPE there; with `rope` on them it is QKVO-RoPE.

    p in positions, fractions and negatives allowed; options as in `rope`; head_dim is the width of the values.
    Not specified there, from DeepSeek-V4's code (Hugging Face, deepseek_v4, DeepseekV4Attention): a part of the lanes
    may rotate, there the last ones, "interleaved"; it is QKVO-RoPE with one tensor as keys and values.
    """
    rotation, _ = rope(
        p,
        head_dim=head_dim,
        base=base,
        rotary_dim=rotary_dim,
        rotary_side=rotary_side,
        pairing=pairing,
        inv_freq=inv_freq,
    )
    return rotation, rotation.T
