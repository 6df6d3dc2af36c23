"""Definitions of methods that exist in several versions under one name: each has a name and a version."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from posenc.definitions.bias import Positions, alibi
from posenc.definitions.frequencies import Array, by_parts, yarn
from posenc.definitions.frequencies import mscale as _m  # the functions below have an argument called mscale


def yarn_paper(
    width: int,
    base: float,
    factor: float,
    original_max_len: int,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
) -> tuple[Array, float, float]:
    """YaRN as printed in its paper: a ramp in rotations, and 0.1 ln(factor) + 1.

    Paper: Peng et al. 2023, "YaRN", arXiv 2309.00071, definition 3: section 3.2 (`by_parts`; beta_slow, beta_fast are
    its alpha, beta) with equations 21 and 22. It has no truncation, mscale or given attention factor. It differs from
    the other versions in the ramp, which they make linear in the index of the pair (`yarn`), and in the gain below
    factor 1, which the paper does not discuss: its formula continues there, and theirs is 1.
    """
    plain = np.array([base ** (-2 * k / width) for k in range(width // 2)])
    inv_freq = by_parts(
        plain, factor=factor, original_max_len=original_max_len, low_turns=beta_slow, high_turns=beta_fast
    )
    return inv_freq, 0.1 * math.log(factor) + 1, 1.0


def yarn_deepseek_v2(
    width: int,
    base: float,
    factor: float,
    original_max_len: int,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
    mscale: float | None = None,
    mscale_all_dim: float | None = None,
) -> tuple[Array, float, float]:
    """YaRN as in the code that came with DeepSeek-V2 (modeling_deepseek.py); None means that the key is missing.

    Source: its DeepseekV2YarnRotaryEmbedding, yarn_get_mscale and DeepseekV2Attention. The ramp is that of `yarn`,
    always truncated. gain = m(mscale) / m(mscale_all_dim), m the function `mscale`, a missing mscale read as 1 and a
    missing mscale_all_dim as 0, m(0) = 1. score_factor = m(mscale_all_dim)**2: it also applies to lanes that do not
    rotate; a score of lanes that rotate carries m(mscale)**2. It reads neither attention_factor nor truncate.
    """
    inv_freq = yarn(
        width=width,
        base=base,
        factor=factor,
        original_max_len=original_max_len,
        beta_fast=beta_fast,
        beta_slow=beta_slow,
    )
    everywhere = _m(factor, 0.0 if mscale_all_dim is None else mscale_all_dim)
    return inv_freq, _m(factor, 1.0 if mscale is None else mscale) / everywhere, everywhere**2


def yarn_transformers_5(
    width: int,
    base: float,
    factor: float,
    original_max_len: int,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
    truncate: bool = True,
    mscale: float | None = None,
    mscale_all_dim: float | None = None,
    attention_factor: float | None = None,
) -> tuple[Array, float, float]:
    """YaRN as in Hugging Face transformers 5 (version read: 5.23); None means that the key is missing.

    Source: _compute_yarn_parameters, and for the score yarn_apply_mscale of deepseek_v2 and deepseek_v3. It differs
    from `yarn@deepseek-v2`: the ramp may be left untruncated (read only from the outer dict: per layer type it stays
    truncated). A given attention_factor is the gain. Otherwise the quotient needs both mscale and mscale_all_dim, not
    0; one without the other is IGNORED for the gain, which is then m(1). A beta of 0 counts as missing. The
    score_factor is the same, m(mscale_all_dim)**2 whatever the gain, so mscale_all_dim without mscale sharpens twice.
    Only attention of DeepSeek's kind applies it; in a Llama it is 1 whatever its file contains.
    """
    inv_freq = yarn(
        width=width,
        base=base,
        factor=factor,
        original_max_len=original_max_len,
        beta_fast=beta_fast or 32.0,
        beta_slow=beta_slow or 1.0,
        truncate=truncate,
    )
    gain = _m(factor)
    if mscale and mscale_all_dim:
        gain = _m(factor, mscale) / _m(factor, mscale_all_dim)
    score_factor = _m(factor, mscale_all_dim) ** 2 if mscale_all_dim else 1.0
    return inv_freq, gain if attention_factor is None else attention_factor, score_factor


# of frequencies: (inv_freq, gain, score_factor)
VERSIONS: dict[str, Callable[..., tuple[Array, float, float]]] = {
    "yarn@paper": yarn_paper,
    "yarn@deepseek-v2": yarn_deepseek_v2,
    "yarn@transformers-5": yarn_transformers_5,
}


def alibi_authors(q_pos: Positions, k_pos: Positions, *, n_heads: int, bias_max: float = 8.0) -> Array:
    """ALiBi with the slopes of its authors' code, and |distance| for keys ahead.

    Source: attention_with_linear_biases, get_slopes. It differs from `alibi@geometric` unless n_heads is a power
    of two.
    """
    return alibi(q_pos, k_pos, n_heads=n_heads, bias_max=bias_max)


def alibi_geometric(q_pos: Positions, k_pos: Positions, *, n_heads: int, bias_max: float = 8.0) -> Array:
    """ALiBi as printed in its paper: one geometric series of slopes for any number of heads.

    Paper: Press et al. 2021, arXiv 2108.12409, section 3.
    """
    return alibi(q_pos, k_pos, n_heads=n_heads, bias_max=bias_max, slopes="geometric")


def alibi_one_sided(q_pos: Positions, k_pos: Positions, *, n_heads: int, bias_max: float = 8.0) -> Array:
    """ALiBi by the authors' slopes, without a penalty for keys ahead; behind a causal mask it is `alibi@authors`."""
    return alibi(q_pos, k_pos, n_heads=n_heads, bias_max=bias_max, sides="one-sided")


def alibi_falcon(q_pos: Positions, k_pos: Positions, *, n_heads: int) -> Array:
    """ALiBi as in Falcon's code in Hugging Face transformers, with which its weights were trained.

    Source: modeling_falcon.py, build_alibi_tensor (version read: 5.23), whatever the dtype of the result: slope,
    position of the KEY, and their product are each rounded to bfloat16. Beyond a few keys these are not multiples of
    the slope, and beyond 256 keys share a position, so no score equals that of `alibi@authors`. It also differs from
    that by slope * q_pos in each row, which the softmax removes. Falcon divides the sum of q.k and this by
    sqrt(head_dim); this definition does not.
    """
    return alibi(q_pos, k_pos, n_heads=n_heads, sides="key", precision="falcon-bfloat16")


# of biases: (q_pos, k_pos) -> (n_heads, m, n)
BIASES: dict[str, Callable[..., Array]] = {
    "alibi@authors": alibi_authors,
    "alibi@geometric": alibi_geometric,
    "alibi@one-sided": alibi_one_sided,
    "alibi@falcon": alibi_falcon,
}
