"""Definitions of the encodings that rotate queries and keys: position p -> (R_q, R_k), (head_dim, head_dim).

The score of query q at p_i and key k at p_j, both columns, is (R_q(p_i) q) . (R_k(p_j) k) / sqrt(head_dim);
attention does the division, which is not part of the definitions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def rope(
    p: float,
    *,
    head_dim: int,
    base: float = 10000.0,
    rotary_dim: int | None = None,
    rotary_side: Literal["first", "last"] = "first",
    pairing: Literal["half", "interleaved"] = "half",
    inv_freq: Array | None = None,
    attention_factor: float = 1.0,
) -> tuple[Array, Array]:
    """Each pair of lanes rotates counter-clockwise by p * theta_k, in queries and keys alike.

    Paper: Su et al. 2021, "RoFormer", arXiv 2104.09864, equations 14 and 15 (the matrix R_{Theta,m}), with
    theta_k = base**(-2k/d), k = 0.. (the paper counts from 1); equation 16: the score depends only on p_j - p_i.

    p in positions, fractions and negatives allowed; theta_k in radians per position; rotary_dim even;
    inv_freq (rotary_dim/2,) replaces theta when given, and base is then unused.

    pairing "interleaved" (lanes 2k, 2k+1) is the paper's and GPT-J's; "half" (lanes k, k + rotary_dim/2)
    is GPT-NeoX's and that of Llama in Hugging Face: the same map up to a fixed permutation of the lanes.
    Not specified in the paper, from GPT-J and GPT-NeoX: only rotary_dim lanes rotate, the first or the last ones,
    and d above is the ROTATED width rotary_dim; the other lanes pass unchanged. None: all of head_dim.
    attention_factor, from YaRN (Peng et al. 2023, arXiv 2309.00071, section 3.4), scales the lanes that rotate.
    """
    width = head_dim if rotary_dim is None else rotary_dim
    start = {"first": 0, "last": head_dim - width}[rotary_side]
    rotation = np.eye(head_dim)
    for k in range(width // 2):
        x, y = {"half": (k, k + width // 2), "interleaved": (2 * k, 2 * k + 1)}[pairing]
        x, y = start + x, start + y
        theta = base ** (-2 * k / width) if inv_freq is None else inv_freq[k]
        rotation[x, x], rotation[x, y] = math.cos(p * theta), -math.sin(p * theta)
        rotation[y, x], rotation[y, y] = math.sin(p * theta), math.cos(p * theta)
        rotation[[x, y]] *= attention_factor
    return rotation, rotation.copy()


def rope_pp(
    p: float,
    *,
    n_heads: int,
    head_dim: int,
    base: float = 10000.0,
    pairing: Literal["half", "interleaved"] = "half",
    inv_freq: Array | None = None,
) -> tuple[Array, Array]:
    """`rope` in every other head, and in the others the imaginary part that the real product omits.

    Paper: Liu et al. 2025, "Beyond Real: Imaginary Extension of Rotary Position Embeddings for Long-Context LLMs"
    (RoPE++), arXiv 2512.07525: with complex pairs q, k the scores are Re and -Im of the sum over the pairs of
    conj(q) k exp(-i theta (p_q - p_k)); as real vectors, those of queries rotated by p * theta and by
    p * theta - pi/2. Keys rotate as in `rope`, and serve both.

    Result (n_heads, head_dim, head_dim) for queries, the even heads real and the odd ones imaginary, as in the
    authors' code (OpenMOSS/rope_pp), and (head_dim, head_dim) for keys; all lanes rotate; p, theta and inv_freq as in
    `rope`. The model passes each projected query twice, as heads 2h and 2h + 1.
    """
    keys = rope(p, head_dim=head_dim, base=base, pairing=pairing, inv_freq=inv_freq)[1]
    back = np.zeros((head_dim, head_dim))  # a quarter rotation clockwise: (x, y) becomes (y, -x)
    for k in range(head_dim // 2):
        x, y = {"half": (k, k + head_dim // 2), "interleaved": (2 * k, 2 * k + 1)}[pairing]
        back[x, y], back[y, x] = 1.0, -1.0
    return np.array([back @ keys if h % 2 else keys for h in range(n_heads)]), keys


def p_rope(
    p: float,
    *,
    head_dim: int,
    share: float = 0.75,
    base: float = 10000.0,
    pairing: Literal["half", "interleaved"] = "half",
) -> tuple[Array, Array]:
    """The rotation of `rope` in which only the fastest pairs rotate; the others pass unchanged.

    Paper: Barbero et al. 2024, "Round and Round We Go!", arXiv 2410.06205, section 6 (p-RoPE): the share of the pairs
    with the highest frequencies keeps theta_k = base**(-2k/head_dim), k = 0.. floor(share * head_dim / 2) - 1, and the
    lowest have 0. share 0 is `nope`, 1 `rope`. The paper does not specify how a fraction of a pair is rounded; rounding
    down is Hugging Face's ("proportional"; Gemma 4).

    p in positions, fractions and negatives allowed; pairing as in `rope`.
    """
    k = np.arange(head_dim // 2)
    theta = np.where(k < math.floor(share * head_dim / 2), base ** (-2 * k / head_dim), 0.0)
    return rope(p, head_dim=head_dim, pairing=pairing, inv_freq=theta)


def xpos(
    p: float,
    *,
    head_dim: int,
    base: float = 10000.0,
    pairing: Literal["half", "interleaved"] = "interleaved",
    scale_base: float = 512.0,
    gamma: float = 0.4,
    centre: float = 0.0,
) -> tuple[Array, Array]:
    """The rotation of `rope`, after which pair k of a query shrinks with p and that of a key grows with p.

    Paper: Sun et al. 2022, "A Length-Extrapolatable Transformer", arXiv 2212.10554, Algorithm 1:
    zeta_k = (k/(head_dim/2) + gamma) / (1 + gamma), k = 0.. head_dim/2 - 1, with gamma = 0.4, B = 512;
    queries times zeta_k**(p/B), keys times its inverse, so a score of pair k carries zeta_k**(distance/B), which
    decays for a distance >= 0 and GROWS without bound ahead: causal use only.

    p and centre in positions; head_dim even; zeta_k per B = scale_base positions, without unit.
    centre is not from the paper but from the authors' code (TorchScale uses the middle of the sequence): it shifts
    the origin of the powers, not of the angles, and leaves every score unchanged as long as both sides use the same
    one; it keeps the powers small. pairing "half" departs from the paper as in `rope`.
    """
    rotation, _ = rope(p, head_dim=head_dim, base=base, pairing=pairing)
    scale = np.zeros(head_dim)
    for k in range(head_dim // 2):
        zeta = (2 * k / head_dim + gamma) / (1 + gamma)
        x, y = {"half": (k, k + head_dim // 2), "interleaved": (2 * k, 2 * k + 1)}[pairing]
        scale[x] = scale[y] = zeta ** ((p - centre) / scale_base)
    return np.diag(scale) @ rotation, np.diag(1 / scale) @ rotation


def axial_rope(
    p: Array,
    *,
    head_dim: int,
    n_axes: int = 2,
    base: float = 10000.0,
    spectrum: Literal["shared", "dealt"] = "shared",
    widths: tuple[int, ...] | None = None,
    pairing: Literal["half", "interleaved"] = "half",
    inv_freq: Array | None = None,
) -> tuple[Array, Array]:
    """The rotation of `rope` with its pairs divided among the axes of the position.

    Paper: Heo et al. 2024, "Rotary Position Embedding for Vision Transformer", arXiv 2403.13298, section 3.2
    (axial frequency): each axis has an equal share of the head_dim/2 pairs, in which pair k rotates by
    p[axis] * theta_k, theta_k = base**(-2k/width), width = head_dim / n_axes, k = 0.. width/2 - 1.

    spectrum "shared" is that: every axis has the same theta. "dealt" is Pixtral's (Agrawal et al. 2024, arXiv
    2410.07073, RoPE-2D, and Hugging Face, pixtral, inv_freq): theta_m = base**(-2m/head_dim), m = 0..
    head_dim/2 - 1, is that of `rope` over ALL pairs, dealt out to the axes in rotation, so no two pairs have the
    same: pair k of axis a rotates by p[a] * theta_m, m = a + k * n_axes. The code has only two axes.

    widths gives axis a its own width in place of head_dim / n_axes: theta_k = base**(-2k/widths[a]), k = 0..
    widths[a]/2 - 1. CogVideoX (Yang et al. 2024, arXiv 2408.06072, 3D-RoPE): (d/4, 3d/8, 3d/8). Without a formula in a
    paper, from the authors' code: (16, 56, 56) in FLUX (Black Forest Labs, EmbedND, axes_dim), and
    (d - 4 (d // 6), 2 (d // 6), 2 (d // 6)) in Wan (Wan 2025, arXiv 2503.20314, rope_params), 44, 42 and 42 of 128.

    p (n_axes,) in positions, fractions and negatives allowed; theta in radians per position; widths even;
    inv_freq replaces theta when given, and base is then unused: (width/2,), for every axis, if shared; (head_dim/2,),
    before dealing, if dealt, and axis by axis with widths.
    Pairs are numbered j, the run of axis 0 first, as in the authors' code (the paper's formula deals pairs to the axes
    in rotation; the same up to a permutation). pairing as in `rope`, over all pairs: "half" lanes j, j + head_dim/2,
    "interleaved" lanes 2j, 2j+1. Departure: the paper's base is 100.
    """
    at = np.atleast_1d(p)
    rotation = np.eye(head_dim)
    j = 0
    for axis, width in enumerate(widths or [head_dim // n_axes] * n_axes):
        for k in range(width // 2):
            x, y = {"half": (j, j + head_dim // 2), "interleaved": (2 * j, 2 * j + 1)}[pairing]
            m, n_thetas = {"shared": (k, width // 2), "dealt": (axis + k * n_axes, head_dim // 2)}[spectrum]
            theta = base ** (-m / n_thetas) if inv_freq is None else inv_freq[m if widths is None else j]
            rotation[x, x], rotation[x, y] = math.cos(at[axis] * theta), -math.sin(at[axis] * theta)
            rotation[y, x], rotation[y, y] = math.sin(at[axis] * theta), math.cos(at[axis] * theta)
            j += 1
    return rotation, rotation.copy()


def mrope(
    p: Array,
    *,
    head_dim: int,
    sections: tuple[int, ...] = (16, 24, 24),
    layout: Literal["blocks", "interleaved", "time_last", "time_unrotated"] | Sequence[int | None] = "blocks",
    base: float = 10000.0,
    rotary_dim: int | None = None,
    rotary_side: Literal["first", "last"] = "first",
    pairing: Literal["half", "interleaved"] = "half",
    inv_freq: Array | None = None,
    attention_factor: float = 1.0,
) -> tuple[Array, Array]:
    """The rotation of `rope`, where each pair keeps its frequency and reads one axis (time, row, column).

    Paper: Wang et al. 2024, "Qwen2-VL", arXiv 2409.12191, section 2.1 (M-RoPE), in words only; what follows
    is from the code (Hugging Face, qwen2_vl and qwen3_vl, recomposition_frequencies): pair k rotates by
    p[axis(k)] * theta_k, theta_k = base**(-2k/rotary_dim), k = 0.. rotary_dim/2 - 1 over ALL pairs, so the axes have
    different frequencies and a position with equal coordinates rotates as in `rope`.

    layout "blocks" (Qwen2-VL): the first sections[0] pairs read axis 0, the next sections[1] axis 1, and so on.
    layout "interleaved" (Qwen3-VL): axis(k) = k mod n_axes where k < n_axes * sections[k mod n_axes], else 0:
    the axes alternate until their sections are used up, and axis 0 has the pairs left over. An axis has its
    sections[axis] pairs only if n_axes * (sections[axis] - 1) + axis < rotary_dim/2; otherwise it has fewer and
    axis 0 more, so (16, 24, 24) gives 22, 21, 21. sections[0] has no effect here.
    layout "time_last" (Hugging Face, ernie4_5_vl_moe, whose files write row, column, time): the axes but 0 alternate
    over the first sections[1] + .. pairs, and axis 0 has the slowest, the last sections[0].
    The same is VideoRoPE's (Wei et al. 2025, arXiv 2502.05173, low-frequency temporal allocation).
    layout "time_unrotated" (Li et al. 2025, HoPE, arXiv 2505.20444, hybrid frequency allocation): the same, but the
    pairs of axis 0 have theta 0.
    layout (a_0, a_1, ..): axis(k) = a_(k mod length), and None is theta 0: MM-RoPE (Yuan et al. 2025, Lumos-1, arXiv
    2507.08801) repeats (0, 0, 1, 2, 1, 2, 1, 2); sections then only number the axes.

    p (n_axes,) in positions, n_axes = len(sections), fractions and negatives allowed; theta_k in radians per
    position; sections add up to rotary_dim/2; inv_freq (rotary_dim/2,) replaces theta when given, and base is then
    unused. rotary_dim, rotary_side, pairing and attention_factor as in `rope`: GLM-4V is "interleaved", and it and
    Qwen3.5 rotate only a part of the lanes, the first. Departures: the code has three axes, or two (neomme);
    its defaults are base 1e6 (qwen2_vl), base 5e5 and sections (24, 20, 20) (qwen3_vl).
    """
    n_axes = len(sections)
    width = head_dim if rotary_dim is None else rotary_dim
    start = {"first": 0, "last": head_dim - width}[rotary_side]
    at = np.atleast_1d(p)
    rotation = np.eye(head_dim)
    for k in range(width // 2):
        axis = {
            "blocks": lambda k: sum(k >= sum(sections[: a + 1]) for a in range(n_axes)),
            "interleaved": lambda k: k % n_axes if k < n_axes * sections[k % n_axes] else 0,
            "time_last": lambda k: 1 + k % (n_axes - 1) if k < sum(sections[1:]) else 0,
            "time_unrotated": lambda k: 1 + k % (n_axes - 1) if k < sum(sections[1:]) else None,
            "": lambda k: layout[k % len(layout)],
        }[layout if isinstance(layout, str) else ""](k)
        x, y = {"half": (k, k + width // 2), "interleaved": (2 * k, 2 * k + 1)}[pairing]
        x, y = start + x, start + y
        theta = base ** (-2 * k / width) if inv_freq is None else inv_freq[k]
        angle = 0.0 if axis is None else at[axis] * theta
        rotation[x, x], rotation[x, y] = math.cos(angle), -math.sin(angle)
        rotation[y, x], rotation[y, y] = math.sin(angle), math.cos(angle)
        rotation[[x, y]] *= attention_factor
    return rotation, rotation.copy()


def mhrope(
    p: Array,
    *,
    head_dim: int,
    n_kv_heads: int,
    sections: tuple[int, ...] = (2, 3, 3),
    base: float = 10000.0,
    pairing: Literal["half", "interleaved"] = "half",
) -> tuple[Array, Array]:
    """The rotation of `rope` in every key head, each head by one axis of the position (time, row, column).

    Paper: Huang et al. 2025, "Revisiting Multimodal Positional Encoding in Vision-Language Models", arXiv 2510.23095
    (Multi-Head RoPE): heads and not pairs are divided, so every axis has all frequencies. The first sections[0]
    key heads rotate by p[0], the next sections[1] by p[1], and so on; the queries of a group rotate as their key head.
    From the authors' code: heads that no section counts do not rotate.

    p (n_axes,) in positions, n_axes = len(sections), fractions and negatives allowed; sections count heads and add up
    to at most n_kv_heads; pairing as in `rope`. Matrices (n_kv_heads, head_dim, head_dim).
    """
    rotation = np.stack([np.eye(head_dim)] * n_kv_heads)
    at = np.repeat(np.atleast_1d(p), sections)  # the coordinate of each head's axis
    for h in range(len(at)):
        rotation[h], _ = rope(at[h], head_dim=head_dim, base=base, pairing=pairing)
    return rotation, rotation.copy()


def query_temperature(
    p: float,
    *,
    head_dim: int,
    law: Literal["llama4", "ministral", "log_n", "beam", "inkling"] = "llama4",
    original_max_len: int = 8192,
    weight: float = 0.1,
) -> tuple[Array, Array]:
    """No rotation: queries grow by t(p), which keeps their softmax sharp among many keys; keys stay unchanged.

    t(p), with L = original_max_len:
    "llama4": 1 + weight * ln(1 + floor((p + 1) / L)). No paper; Hugging Face, llama4, Llama4TextAttention
    (attn_temperature_tuning, floor_scale = L, attn_scale = weight), which names Nakanishi 2025, arXiv 2501.19399.
    "ministral": 1 + weight * ln(1 + floor(p / L)). No paper; Hugging Face, ministral3 and mistral4,
    get_llama_4_attn_scale (original_max_position_embeddings = L, llama_4_scaling_beta = weight).
    "log_n": max(1, ln(p + 1) / ln L), weight unused: Su 2021 and 2023 (kexue.fm, entropy invariance of attention);
    without L and max also Chiang & Cholak 2022, arXiv 2202.12172 (scores times ln n).
    "beam": (1 + (p + 1) / L) ** weight. No paper; Hugging Face, beam, compute_attention_scaling (L 2048, weight 0.1),
    whose comment has p for p + 1 and calls it scalable softmax.
    "inkling": 1 + weight * ln(max((p + 1) / L, 1)). No paper; Hugging Face, inkling and inkling2
    (log_scaling_n_floor = L, log_scaling_alpha = weight), which multiplies their bias too: `inkling`.

    They differ: ministral counts the tokens before the query, the others those up to and including it, n = p + 1, so
    ministral's steps come one position later (p = L, 2L, .. against L - 1, 2L - 1, ..). log_n and inkling have no
    steps but grow smoothly from n = L, and beam from the first token. p >= 0 in positions (p = 0 the first token);
    L >= 1, for log_n L >= 2; t without unit.
    Departures: n is that of a causal query; Chiang & Cholak use the length of the whole input. In the code, llama4's
    and beam's laws apply only to layers without rotation, and llama4's p counts along the cache and ignores the
    positions passed in; ministral's follows the rotation on every layer; L is 16384 in ministral3.
    """
    t = {
        "llama4": lambda: 1 + weight * math.log(1 + math.floor((p + 1) / original_max_len)),
        "ministral": lambda: 1 + weight * math.log(1 + math.floor(p / original_max_len)),
        "log_n": lambda: max(1.0, math.log(p + 1) / math.log(original_max_len)),
        "beam": lambda: (1 + (p + 1) / original_max_len) ** weight,
        "inkling": lambda: 1 + weight * math.log(max((p + 1) / original_max_len, 1.0)),
    }[law]()
    return t * np.eye(head_dim), np.eye(head_dim)
