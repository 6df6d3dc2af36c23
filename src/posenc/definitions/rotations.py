"""Definitions of the rotations that are learned, mixed, scaled or general: `rope` with another rotation.

As in `rotary`, position p -> (R_q, R_k), and the score of query q at p_i and key k at p_j, both columns, is
(R_q(p_i) q) . (R_k(p_j) k) / sqrt(head_dim), where attention does the division. p is a float, or (n_axes,) with
several axes. Matrices are (head_dim, head_dim), or (n_kv_heads, head_dim, head_dim) if every key head has its own;
the queries of a group then use the matrices of their key head. `pope` is not a matrix and gives scores.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from posenc.definitions.frequencies import dynamic_base
from posenc.definitions.rotary import rope

Array = NDArray[np.float64]


def stretched_rope(
    p: float,
    *,
    head_dim: int,
    base: float = 10000.0,
    rotary_dim: int | None = None,
    rotary_side: Literal["first", "last"] = "first",
    pairing: Literal["half", "interleaved"] = "half",
    inv_freq: Array | None = None,
    stretch: Array,
) -> tuple[Array, Array]:
    """The rotation of `rope` with a learned factor exp(stretch_k) on the frequency of each pair.

    Paper: Zhang et al. 2025, "Group Representational Position Encoding" (GRAPE), arXiv 2512.07805: GRAPE-M on the
    coordinate planes, where only the spectrum is learned. The authors' code (llama-mha-grape-m-nonctx.py) learns
    log_freq, which starts at ln theta_k and is here ln theta_k + stretch_k: (rotary_dim/2,), initially 0.
    Mistral Large 4 calls the same LeRoPE (Hugging Face, mistral_large4, MistralLarge4TextRotaryEmbedding: alpha), on
    frequencies of YaRN: inv_freq instead of base, (rotary_dim/2,), radians per position.

    Departures: that code rotates CLOCKWISE, which is this with the two lanes of each pair exchanged. It rotates the
    whole head in halves, and it can give every head its own spectrum (by default all share one, as here).
    """
    width = head_dim if rotary_dim is None else rotary_dim
    start = base ** (-2 * np.arange(width // 2) / width) if inv_freq is None else inv_freq
    theta = start * np.exp(stretch)
    return rope(p, head_dim=head_dim, rotary_dim=rotary_dim, rotary_side=rotary_side, pairing=pairing, inv_freq=theta)


def mixed_rope(
    p: Array,
    *,
    n_kv_heads: int,
    head_dim: int,
    n_axes: int = 2,
    pairing: Literal["half", "interleaved"] = "half",
    base: float = 10.0,
    inv_freq: Array,
) -> tuple[Array, Array]:
    """The rotation of `rope` in which every pair reads all axes, at learned frequencies of its head.

    Paper: Heo et al. 2024, "Rotary Position Embedding for Vision Transformer", arXiv 2403.13298, section 3.2 (mixed
    learnable frequency): pair k of head h rotates by the sum over the axes of p[a] * inv_freq[h, a, k].

    p (n_axes,) in positions; inv_freq (n_kv_heads, n_axes, head_dim/2) in radians per position, of either sign;
    base and n_axes are unused: base belongs to the initialisation, where the authors' code, with two axes, gives pair k
    of each half of the pairs 10**(-4k/head_dim) times (cos, sin) of a random angle of the head, plus a right angle in
    the second half. Departures: the code's axis 0 is the column; it pairs "interleaved" and gives each layer its own.
    """
    rotation = np.zeros((n_kv_heads, head_dim, head_dim))
    for h in range(n_kv_heads):
        rotation[h] = rope(1.0, head_dim=head_dim, pairing=pairing, inv_freq=np.atleast_1d(p) @ inv_freq[h])[0]
    return rotation, rotation.copy()


def retnet(
    p: float,
    *,
    n_kv_heads: int,
    head_dim: int,
    base: float = 10000.0,
    pairing: Literal["half", "interleaved"] = "interleaved",
    centre: float = 0.0,
) -> tuple[Array, Array]:
    """The rotation of `rope`, and a decay by one factor per head for each position of distance.

    Paper: Sun et al. 2023, "Retentive Network", arXiv 2307.08621, equations 5 and 8: a score carries
    gamma_h**distance, gamma_h = 1 - 2**(-5 - h), h = 0..: queries times gamma_h**(p - centre), keys times its
    inverse. Ahead, at distances < 0, it GROWS without bound: causal use only (the paper has 0 there).

    p and centre in positions; gamma per position; centre, which cancels in every score, keeps the powers small.
    Departures of the authors' code (TorchScale), not followed here: its angles are base**(-k/(head_dim/2 - 1)), so
    the last is 1/base itself, and it divides each row of the decay by the root of its sum. Also omitted: the paper's
    own runs (section 3.1) spread 1 - gamma from 1/32 to 1/512, have no softmax, and normalise every head.
    """
    rotation, _ = rope(p, head_dim=head_dim, base=base, pairing=pairing)
    power = (1 - 2.0 ** (-5 - np.arange(n_kv_heads))) ** (p - centre)
    return power[:, None, None] * rotation, rotation / power[:, None, None]


def fope(
    p: float,
    *,
    n_kv_heads: int,
    head_dim: int,
    base: float = 10000.0,
    original_max_len: int,
    pairing: Literal["half", "interleaved"] = "half",
    cos_mix: Array,
    sin_mix: Array,
) -> tuple[Array, Array]:
    """Learned sums of the cosines and sines of all pairs instead of each pair's own; slow pairs do not rotate.

    Paper: Hua et al. 2024, "Fourier Position Embedding", arXiv 2412.17739. The n pairs with theta_m >
    2 pi / original_max_len, which complete a period in training, are kept: C_k = sum over m of cos(p theta_m)
    cos_mix[h, m, k], S_k likewise of sines, and pair k: (a, b) -> (a C_k - b S_k, b C_k + a S_k). The others pass
    unchanged. Mixes (n_kv_heads, n, n), initially near the identity. The result is not a rotation, so a score depends
    on more than the distance. p in positions; theta_m = base**(-2m/head_dim).

    Departures of the authors' code (Fourier-Position-Embedding, olmo/model.py), not followed here: for slow pairs it
    sets the sine and the cosine to 1, (a, b) -> (a - b, b + a), which DOUBLES their part of the score (so did
    vLLM's fope.py until 2026, issue 55204); at most head_dim/4 pairs use the mix; it pairs only "half".
    """
    theta = base ** (-2 * np.arange(head_dim // 2) / head_dim)
    kept = theta[theta > 2 * math.pi / original_max_len]
    rotation = np.stack([np.eye(head_dim)] * n_kv_heads)
    for h in range(n_kv_heads):
        c, s = np.cos(p * kept) @ cos_mix[h], np.sin(p * kept) @ sin_mix[h]
        for k in range(len(kept)):
            x, y = {"half": (k, k + head_dim // 2), "interleaved": (2 * k, 2 * k + 1)}[pairing]
            rotation[h, x, x], rotation[h, x, y] = c[k], -s[k]
            rotation[h, y, x], rotation[h, y, y] = s[k], c[k]
    return rotation, rotation.copy()


def pope(
    q: Array,
    k: Array,
    q_pos: Array,
    k_pos: Array,
    *,
    head_dim: int,
    n_kv_heads: int,
    base: float = 10000.0,
    phase: Array,
) -> Array:
    """Scores (n_heads, q_len, k_len) in which content gives the lengths and only position the angles.

    Paper: Gopalakrishnan et al. 2025, "Decoupling the What and Where With Polar Coordinate Positional Embeddings"
    (PoPE), arXiv 2509.10534, equation 6, query t, key s: sum over the lanes c of softplus(q_c) softplus(k_c)
    cos((s - t) theta_c + delta_c). (s - t) is MINUS the distance: it is the cosine of distance * theta_c - delta_c,
    greatest where the distance is delta_c / theta_c, up to whole wavelengths. delta is the learned phase,
    bounded to [-2 pi, 0]. Every lane has its own frequency, theta_c = base**(-c/head_dim), c = 0.. (the paper prints
    the exponent without the minus, its bound with theta for delta).

    q (n_heads, q_len, head_dim), k (n_kv_heads, k_len, head_dim), phase (n_kv_heads, head_dim) in radians; q_pos,
    k_pos in positions. The division by sqrt(head_dim) is left to attention, as elsewhere. PyPI's PoPE-pytorch is the
    same (keys rotate by s theta_c + delta_c); there, as in the paper, every head has its own phase; here the queries
    of a group share the phase of their key head.
    """
    theta = base ** (-np.arange(head_dim) / head_dim)
    delta = np.clip(phase, -2 * math.pi, 0.0)
    scores = np.zeros((len(q), len(q_pos), len(k_pos)))
    for h in range(len(q)):
        group = h * n_kv_heads // len(q)
        for i, t in enumerate(q_pos):
            for j, s in enumerate(k_pos):
                length = np.logaddexp(0, q[h, i]) * np.logaddexp(0, k[group, j])  # ln(1 + exp(x)) = softplus(x)
                scores[h, i, j] = length @ np.cos((s - t) * theta + delta[group])
    return scores


def grape_m(
    p: float,
    *,
    n_kv_heads: int,
    head_dim: int,
    n_planes: int | None = None,
    base: float = 10000.0,
    planes: Array,
    log_freq: Array,
) -> tuple[Array, Array]:
    """A rotation in each of n_planes learned, mutually orthogonal planes, at learned frequencies.

    Paper: Zhang et al. 2025, "Group Representational Position Encoding" (GRAPE), arXiv 2512.07805 (multiplicative,
    commuting subspaces): exp(p * sum over m of omega_m L_m), omega = exp(log_freq) radians per position, L_m a
    skew matrix of rank 2. With orthonormal u, v and L = v u^T - u v^T, L rotates u towards v, and by Rodrigues
    exp(x L) = I + sin(x) L + (1 - cos(x)) L^2; the planes' parts add up. Components outside the planes stay unchanged.

    planes (n_kv_heads, head_dim, 2 n_planes), of full rank: its columns are made orthonormal in order (Gram-Schmidt,
    which keeps each one's sign); columns 2m, 2m+1 become u, v of plane m. log_freq (n_kv_heads, n_planes). With
    the identity and omega_k = base**(-2k/head_dim) it is `rope`, interleaved. base and n_planes are unused.
    Departures: the paper's L(a, b) = a b^T - b a^T rotates b towards a, so its own form of RoPE, like the authors'
    code, rotates CLOCKWISE; here a = v, b = u. The code has only the coordinate planes (`stretched_rope`).
    """
    rotation = np.stack([np.eye(head_dim)] * n_kv_heads)
    for h in range(n_kv_heads):
        frame = np.zeros((0, head_dim))
        for column in planes[h].T:
            rest = column - (frame @ column) @ frame
            frame = np.vstack([frame, rest / np.linalg.norm(rest)])
        u, v, angle = frame[::2], frame[1::2], p * np.exp(log_freq[h])[:, None]  # L^2 = -(u u^T + v v^T)
        rotation[h] += v.T @ (np.sin(angle) * u) - u.T @ (np.sin(angle) * v)
        rotation[h] -= u.T @ ((1 - np.cos(angle)) * u) + v.T @ ((1 - np.cos(angle)) * v)
    return rotation, rotation.copy()


def liere(
    p: Array, *, head_dim: int, n_axes: int = 2, block: int = 8, init_std: float = 0.02, skew: Array
) -> tuple[Array, Array]:
    """The exponential of a learned skew matrix that is linear in the position, in blocks along the diagonal.

    Paper: Ostmeier et al. 2024, "LieRE: Lie Rotational Positional Encodings", arXiv 2406.10322: R(p) = exp(sum
    over the axes of p[a] A[a]), A[a, b] = U - U^T for block b, U with skew[a, b] above the diagonal, row by row.
    Matrices of two axes need not commute: then a score depends on more than the distance, except among positions on
    one line through 0. With block = 2 each rotates lanes 2b, 2b+1, CLOCKWISE by the sum of p[a] skew[a, b, 0].

    p (n_axes,) in positions; skew (n_axes, head_dim/block, block (block - 1)/2) in radians per position; n_axes and
    init_std are unused. Departures of the authors' code (StanfordMIMI/LieRE, models/rope_vit.py): positions are
    fractions of the trained image's sides, entries start uniform in [0, 2 pi), and heads and layers may have their own.
    """
    rotation = np.zeros((head_dim, head_dim))
    for b in range(head_dim // block):
        upper = np.zeros((block, block))
        upper[np.triu_indices(block, 1)] = np.atleast_1d(p) @ skew[:, b]
        # 1j (U - U^T) is Hermitian: V diag(w) V^H; so exp(U - U^T) = V diag(exp(-1j w)) V^H, which is real
        w, vectors = np.linalg.eigh(1j * (upper - upper.T))
        lanes = slice(b * block, (b + 1) * block)
        rotation[lanes, lanes] = ((vectors * np.exp(-1j * w)) @ vectors.conj().T).real
    return rotation, rotation.copy()


def dynamic_ntk(
    p: float,
    *,
    head_dim: int,
    length: int,
    factor: float,
    original_max_len: int,
    base: float = 10000.0,
    rotary_dim: int | None = None,
    rotary_side: Literal["first", "last"] = "first",
    pairing: Literal["half", "interleaved"] = "half",
    attention_factor: float = 1.0,
) -> tuple[Array, Array]:
    """The rotation of `rope` with a base that grows with the length of the sequence.

    Source: emozilla 2023, "Dynamically scaled RoPE" (a post), as in Hugging Face ("dynamic"), `dynamic_base`:
    base * (factor * n / L - (factor - 1))**(d / (d - 2)), n = max(length, L), L = original_max_len, d = rotary_dim.

    length in positions, that of the whole sequence: a cached key must be rotated again when it grows. Hugging Face uses
    max_position_embeddings for L. attention_factor as in `rope`; neither source has one.
    """
    width = head_dim if rotary_dim is None else rotary_dim
    grown = dynamic_base(base, width=width, factor=factor, seq_len=length, original_max_len=original_max_len)
    return rope(
        p,
        head_dim=head_dim,
        base=grown,
        rotary_dim=rotary_dim,
        rotary_side=rotary_side,
        pairing=pairing,
        attention_factor=attention_factor,
    )


def longrope(
    p: float,
    *,
    head_dim: int,
    length: int,
    short_factors: Array,
    long_factors: Array,
    original_max_len: int,
    base: float = 10000.0,
    rotary_dim: int | None = None,
    rotary_side: Literal["first", "last"] = "first",
    pairing: Literal["half", "interleaved"] = "half",
    attention_factor: float = 1.0,
    long_attention_factor: float | None = None,
) -> tuple[Array, Array]:
    """The rotation of `rope`, each pair slower by its own factor, from one of two lists by the length.

    Paper: Ding et al. 2024, "LongRoPE", arXiv 2402.13753: theta_k / lambda_k, the lambdas found by search. Two lists
    (rotary_dim/2,) are Phi-3's, in Hugging Face "longrope": the long one applies if length > original_max_len.
    length in positions, that of the whole sequence: a cached key must be rotated again when it passes original_max_len.

    attention_factor as in `rope`; long_attention_factor replaces it with the long list (None: no change).
    Hugging Face derives one for both lengths, `longrope_gain`, and has one for each in phimoe (short_mscale,
    long_mscale). Departure: the paper leaves the first tokens uninterpolated, which is not part of this.
    """
    width = head_dim if rotary_dim is None else rotary_dim
    is_long = length > original_max_len
    factors = np.asarray(long_factors if is_long else short_factors, dtype=np.float64)
    gain = long_attention_factor if is_long and long_attention_factor is not None else attention_factor
    return rope(
        p,
        head_dim=head_dim,
        rotary_dim=rotary_dim,
        rotary_side=rotary_side,
        pairing=pairing,
        inv_freq=base ** (-2 * np.arange(width // 2) / width) / factors,
        attention_factor=gain,
    )
