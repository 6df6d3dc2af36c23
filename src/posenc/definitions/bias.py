"""Definitions of the encodings that act on the scores: (q_pos (m,), k_pos (n,)) -> (n_heads, m, n).

`shaw` and `transformer_xl` also depend on the content and take q and k before the positions.

Each result is added to q.k / sqrt(head_dim) before the softmax (`nope` is that product itself), except
where the docstring describes another rule of the paper. distance = q_pos - k_pos; >= 0 looks back.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Positions = NDArray[Any]


def nope(q: Array, k: Array) -> Array:
    """No position encoding at all: the plain scaled product.

    Papers: Haviv et al. 2022, arXiv 2203.16634, and Kazemnejad et al. 2023, arXiv 2305.19466 ("NoPE"); the
    product is Vaswani et al. 2017, arXiv 1706.03762, equation 1, before its softmax.
    q (n_heads, m, head_dim), k (n_heads, n, head_dim); result (n_heads, m, n). A causal model then learns order only
    from its mask, which is not part of this.
    """
    return np.array([q_h @ k_h.T / math.sqrt(q.shape[-1]) for q_h, k_h in zip(q, k, strict=True)])


def _bfloat16(x: float) -> float:
    """Round x to eight leading binary digits, ties to even: the nearest bfloat16."""
    step = 2.0 ** max(math.frexp(x)[1] - 8, -133)  # 2**-133 is the least bfloat16 above 0
    return round(x / step) * step


def _alibi_slopes(n: int, slopes: str, bias_max: float) -> list[float]:
    """The slopes of n heads by one of the two rules in `alibi`."""
    low = 2 ** (n.bit_length() - 1)
    exponents = {
        "geometric": [bias_max * (h + 1) / n for h in range(n)],
        "authors": [bias_max * (h + 1) / low for h in range(low)]
        + [bias_max * (2 * h + 1) / (2 * low) for h in range(n - low)],
    }[slopes]
    return [2.0**-exponent for exponent in exponents]


def alibi(
    q_pos: Positions,
    k_pos: Positions,
    *,
    n_heads: int,
    slopes: Literal["authors", "geometric", "learned"] | Sequence[float] = "authors",
    bias_max: float = 8.0,
    sides: Literal["symmetric", "one-sided", "key"] = "symmetric",
    heads: int | tuple[int, ...] | None = None,
    precision: Literal["falcon-bfloat16"] | None = None,
    scale: float = 1.0,
    log_slope: Array | None = None,
) -> Array:
    """A penalty that grows in proportion to the distance, with a separate slope for each head.

    Paper: Press et al. 2021, "Train Short, Test Long", arXiv 2108.12409, section 3: -m_h * distance, with m_h
    the geometric sequence that starts at 2**(-8/n_heads) and has that ratio.

    q_pos (m,), k_pos (n,), fractions allowed; slopes per position. The paper is causal; for keys ahead there
    are two conventions, |distance| ("symmetric") and no penalty ("one-sided"). slopes "geometric" is the
    paper's text, any n_heads. "authors" is their code, the same for powers of two; otherwise the slopes of
    the next lower power of two, low, followed by the 1st, 3rd, 5th.. slope of 2*low heads. bias_max replaces the 8 in
    all exponents (MPT's alibi_bias_max). Not divided by sqrt(head_dim), as the paper notes.

    Not from the paper: heads, the heads that have a slope (a number n: heads 0 to n - 1); the others have 0. The slopes
    are those for that number of heads, assigned in the order of `heads`. slopes as numbers: one for each of these
    heads; "learned": exp(log_slope), one natural logarithm each. sides "key", +m_h * k_pos (BLOOM): the causal
    penalty plus m_h * q_pos, which the softmax over the row removes. precision "falcon-bfloat16", with sides "key":
    slope, position and then their product are rounded to bfloat16, as in Falcon's code in transformers (which divides
    the result and q.k by sqrt(head_dim): scale multiplies the result).
    """
    if precision and sides != "key":
        raise ValueError(f"alibi: precision {precision!r} is that of a bias by keys; got sides {sides!r}")
    rounded = _bfloat16 if precision else float
    sloped = tuple(range(n_heads if heads is None else heads)) if not isinstance(heads, tuple) else heads
    if slopes == "learned":
        each = [math.exp(one) for one in (() if log_slope is None else log_slope)]
    else:
        each = _alibi_slopes(len(sloped), slopes, bias_max) if isinstance(slopes, str) else list(slopes)
    out = np.zeros((n_heads, len(q_pos), len(k_pos)))
    for h, slope in zip(sloped, each, strict=True):
        for i, j in np.ndindex(out.shape[1:]):
            distance = float(q_pos[i] - k_pos[j])
            out[h, i, j] = {
                "symmetric": -slope * abs(distance),
                "one-sided": -slope * max(distance, 0),
                "key": rounded(rounded(slope) * rounded(float(k_pos[j]))),
            }[sides]
    return out * scale


@cache
def _t5_bucket(distance: Fraction, n_buckets: int, max_distance: int, bidirectional: bool) -> int:
    """The bucket of one distance: how many buckets 1, 2.. of its direction have begun, see `t5`."""
    side = n_buckets // 2 if bidirectional else n_buckets
    exact = side // 2
    reach = abs(distance) if bidirectional else max(distance, Fraction(0))
    bucket = 0
    for b in range(1, side):
        if b <= exact:
            bucket += reach >= b
        else:  # reach/exact >= (max_distance/exact)**((b-exact)/(side-exact)), each to the power side-exact
            ratio = Fraction(max_distance, exact)
            bucket += (reach / exact) ** (side - exact) >= ratio ** (b - exact)
    return bucket + side if bidirectional and distance < 0 else bucket


def t5(
    q_pos: Positions,
    k_pos: Positions,
    *,
    n_heads: int,
    weight: Array,
    n_buckets: int = 32,
    max_distance: int = 128,
    bidirectional: bool = False,
) -> Array:
    """One trained number per head and bucket of distances, with buckets of growing width.

    Paper: Raffel et al. 2019, "T5", arXiv 1910.10683, section 2.1: 32 buckets, logarithmic in size up to
    an offset of 128, beyond which all distances share the last. The paper gives no formula; this is the one of
    the public code (Mesh TensorFlow, Hugging Face). With side = n_buckets (causal; keys ahead fall into
    bucket 0) or n_buckets//2 (bidirectional; keys AHEAD, distance < 0, use the upper half), and
    exact = side//2: bucket b <= exact begins at |distance| = b, and each later one, up to side - 1, at
    exact * (max_distance/exact)**((b - exact)/(side - exact)).

    q_pos (m,), k_pos (n,), whole in the code (a fraction falls into the bucket below); weight
    (n_buckets, n_heads); max_distance > exact. The edges are compared exactly, in fractions; the public code
    truncates a floating logarithm, which can put a distance that IS an edge one bucket too low.
    T5 adds the bias to the product q.k WITHOUT division by sqrt(head_dim), which its initialisation absorbs.
    """
    out = np.zeros((n_heads, len(q_pos), len(k_pos)))
    for i, p_q in enumerate(q_pos.tolist()):
        for j, p_k in enumerate(k_pos.tolist()):
            distance = Fraction(p_q) - Fraction(p_k)
            bucket = _t5_bucket(distance, n_buckets, max_distance, bidirectional)
            out[:, i, j] = weight[bucket]
    return out


def kerple(q_pos: Positions, k_pos: Positions, *, n_heads: int, log_r1: Array, log_r2: Array) -> Array:
    """A trained penalty that grows with the logarithm of the distance.

    Paper: Chi et al. 2022, "KERPLE", arXiv 2205.09921, section 4, the logarithmic variant:
    -r1 * log(1 + r2 * |distance|), natural logarithm, r1, r2 > 0 trained per head.
    q_pos (m,), k_pos (n,), fractions allowed; log_r1, log_r2 (n_heads,); r2 per position.
    r = exp(log_r) is our way to keep them positive; the paper does not specify one (its code clamps).
    """
    out = np.zeros((n_heads, len(q_pos), len(k_pos)))
    for h, i, j in np.ndindex(out.shape):
        r1, r2 = math.exp(log_r1[h]), math.exp(log_r2[h])
        out[h, i, j] = -r1 * math.log1p(r2 * abs(float(q_pos[i] - k_pos[j])))
    return out


def kerple_power(q_pos: Positions, k_pos: Positions, *, n_heads: int, log_r1: Array, logit_r2: Array) -> Array:
    """A trained penalty that grows with a trained power of the distance.

    Paper: Chi et al. 2022, "KERPLE", arXiv 2205.09921, section 4, the power variant: -r1 * |distance|**r2, with
    r1 > 0 and 0 < r2 <= 2 trained per head; r2 = 1 is `alibi`, r2 = 2 the largest power that gives a kernel.
    q_pos (m,), k_pos (n,), fractions allowed; log_r1, logit_r2 (n_heads,); r1 per position**r2.
    r1 = exp(log_r1), r2 = 2 / (1 + exp(-logit_r2)) are our way to keep to these ranges (2 itself is then not
    reachable); the paper does not specify one (its code clamps both at 0.01 from below).
    """
    out = np.zeros((n_heads, len(q_pos), len(k_pos)))
    for h, i, j in np.ndindex(out.shape):
        r1, r2 = math.exp(log_r1[h]), 2 / (1 + math.exp(-logit_r2[h]))
        out[h, i, j] = -r1 * abs(float(q_pos[i] - k_pos[j])) ** r2
    return out


def sandwich(q_pos: Positions, k_pos: Positions, *, n_heads: int, width: int = 128, base: float = 10000.0) -> Array:
    """The inner product of the two positions' sinusoids, as a bias: it falls roughly like a logarithm.

    Paper: Chi et al. 2022, "Dissecting Transformer Length Extrapolation via the Lens of Receptive Field
    Analysis", arXiv 2212.10356 (Sandwich): the sum over k = 0.. width/2 - 1 of cos(distance *
    base**(-2k/width)), divided in head h = 1.. n_heads by 8 h / n_heads, the exponents of ALiBi's slopes.

    q_pos (m,), k_pos (n,), fractions allowed; the arguments of the cosines in radians; width (the paper's d bar)
    even and free, not a width of the model. Even in the distance; the paper is causal. The sum as printed in
    the paper counts from 1 to width/2. Its code and attention-gym count from 0, which gives the inner product of
    the sinusoids of `sinusoidal`; so does this definition.
    """
    out = np.zeros((n_heads, len(q_pos), len(k_pos)))
    for h, i, j in np.ndindex(out.shape):
        distance = q_pos[i] - k_pos[j]
        waves = [math.cos(distance * base ** (-2 * k / width)) for k in range(width // 2)]
        out[h, i, j] = math.fsum(waves) * n_heads / (8 * (h + 1))
    return out


def relative_bias(q_pos: Positions, k_pos: Positions, *, n_heads: int, max_distance: int, weight: Array) -> Array:
    """One trained number per head and distance; all distances beyond max_distance share the outermost.

    Papers: the clipping is Shaw et al. 2018, arXiv 1803.02155, section 3.2; the number in place of Shaw's
    vector is Raffel et al. 2019, arXiv 1910.10683, section 2.1 (there with buckets, see `t5`).
    q_pos (m,), k_pos (n,), whole; weight (n_heads, 2*max_distance + 1), column distance + max_distance: the
    key furthest ahead in column 0. Departure: Shaw counts k_pos - q_pos, which reverses the columns.
    """
    out = np.zeros((n_heads, len(q_pos), len(k_pos)))
    for i, p_q in enumerate(q_pos):
        for j, p_k in enumerate(k_pos):
            distance = int(min(max(p_q - p_k, -max_distance), max_distance))
            out[:, i, j] = weight[:, distance + max_distance]
    return out


def shaw(
    q: Array,
    k: Array,
    q_pos: Positions,
    k_pos: Positions,
    *,
    head_dim: int,
    max_distance: int = 16,
    max_ahead: int | None = None,
    weight: Array,
) -> Array:
    """The query's product with one trained vector per distance; far distances share the outermost.

    Paper: Shaw et al. 2018, "Self-Attention with Relative Position Representations", arXiv 1803.02155, equation 4
    (section 3.1) and the clipping of section 3.2, for keys: q_i . a / sqrt(head_dim) added to the score.

    q (n_heads, m, head_dim), k (n_heads, n, head_dim), which is not used; q_pos (m,), k_pos (n,), whole; weight
    (max_distance + max_ahead + 1, head_dim), shared by all heads as in the paper: row
    clip(distance, -max_ahead, max_distance) + max_ahead, so the key furthest ahead has row 0.
    Departures: Shaw counts k_pos - q_pos, which reverses the rows, and clips both sides alike (max_ahead None);
    unequal sides are wav2vec2-bert's. The paper's second set of vectors, added to the values, is not part of this.
    """
    ahead = max_distance if max_ahead is None else max_ahead
    out = np.zeros((len(q), len(q_pos), len(k_pos)))
    for h, i, j in np.ndindex(out.shape):
        row = min(max(int(q_pos[i] - k_pos[j]), -ahead), max_distance) + ahead
        out[h, i, j] = q[h, i] @ weight[row] / math.sqrt(head_dim)
    return out


def transformer_xl(
    q: Array,
    k: Array,
    q_pos: Positions,
    k_pos: Positions,
    *,
    d_model: int,
    n_heads: int,
    head_dim: int,
    base: float = 10000.0,
    order: str = "concatenated",
    u: Array,
    v: Array,
    weight: Array,
) -> Array:
    """Terms (b), (c) and (d) of Transformer-XL's score; (a) is q.k itself.

    Paper: Dai et al. 2019, "Transformer-XL", arXiv 1901.02860, section 3.3, the equation of A^rel:
    (b) q_i . (W_h r), (c) u_h . k_j, (d) v_h . (W_h r), with W_h = W_{k,R} of head h and r = R_{i-j}.

    q (n_heads, m, head_dim), k (n_heads, n, head_dim): projected, not scaled; q_pos (m,), k_pos (n,),
    fractions allowed; u, v (n_heads, head_dim); weight (n_heads, head_dim, d_model); d_model even.
    Not in the equation, from the authors' code: r = [all sines, all cosines] of distance * omega_k,
    omega_k = base**(-2k/d_model) radians per position, and the division of all four terms by
    sqrt(head_dim). Keys ahead (the paper is causal) enter with their negative distance. Conformers (ESPnet) have the
    order "alternating": r = [sine, cosine, sine, ..].
    """
    omega = np.array([base ** (-2 * c / d_model) for c in range(d_model // 2)])
    out = np.zeros((n_heads, len(q_pos), len(k_pos)))
    for h, i, j in np.ndindex(out.shape):
        distance = q_pos[i] - k_pos[j]
        r = np.concatenate([np.sin(distance * omega), np.cos(distance * omega)])
        if order == "alternating":
            r = r.reshape(2, -1).T.ravel()
        out[h, i, j] = (u[h] @ k[h, j] + (q[h, i] + v[h]) @ (weight[h] @ r)) / math.sqrt(head_dim)
    return out
