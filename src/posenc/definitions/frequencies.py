"""Definitions of the scalings that fit rotary frequencies to lengths beyond the trained one.

Pair k of width rotated lanes, k = 0.. width/2 - 1, rotates by position * inv_freq[k], unscaled base**(-2k/width):
inv_freq (n_pairs,) in radians per position, fastest first; lengths and wavelengths, 2 pi / inv_freq, in positions.
factor, without unit, is how many times longer the sequences become (the papers' s); original_max_len the trained
length L. Where a paper also multiplies the scores, that is a separate function: `mscale`, `longrope_gain`.

Where a paper and programs disagree under one name, VERSIONS has each by name@version. Those give (inv_freq, gain,
score_factor): gain multiplies cosines and sines of queries and keys alike, score_factor every score.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def linear(inv_freq: Array, *, factor: float) -> Array:
    """Every pair rotates slower by the factor: the same as dividing the positions by it.

    Paper: Chen et al. 2023, "Position Interpolation", arXiv 2306.15595: f(x, m L / L'), factor = L' / L.
    """
    return inv_freq / factor


def ntk_base(base: float, *, width: int, factor: float) -> float:
    """The base with which the slowest pair rotates slower by exactly the factor, while pair 0 stays unchanged.

    Source: bloc97 2023, "NTK-aware scaled RoPE" (a post); in print in Peng et al. 2023, YaRN, arXiv 2309.00071,
    section 3.1: base * factor**(width / (width - 2)). width > 2. The "alpha" of some code is the factor here.
    """
    return float(base * factor ** (width / (width - 2)))


def dynamic_base(base: float, *, width: int, factor: float, seq_len: int, original_max_len: int) -> float:
    """The base of `ntk_base` for a factor that grows with the sequence, 1 up to the trained length.

    Source: emozilla 2023, "Dynamically scaled RoPE" (a post), as in Hugging Face ("dynamic"): the factor is
    factor * n / L - (factor - 1), n = max(seq_len, L): 1 at n = L, then growing by factor per L positions.
    Departure: YaRN, section 3.3, has n / L instead, which is this with factor = 1. width > 2.
    """
    n = max(seq_len, original_max_len)
    grown = factor * n / original_max_len - (factor - 1)
    return float(base * grown ** (width / (width - 2)))


def by_parts(
    inv_freq: Array, *, factor: float, original_max_len: int, low_turns: float = 1.0, high_turns: float = 32.0
) -> Array:
    """Pairs that rotate often in the trained length stay, those that rotate seldom are interpolated, with a ramp.

    Paper: Peng et al. 2023, "YaRN", arXiv 2309.00071, section 3.2 (NTK-by-parts): with r = L / wavelength rotations
    and gamma(r) = 0 for r < alpha, 1 for r > beta, else (r - alpha) / (beta - alpha):
    (1 - gamma) * inv_freq / factor + gamma * inv_freq.
    low_turns, high_turns are the paper's alpha = 1, beta = 32 (for Llama). The authors' code uses `yarn` instead.
    """
    out = np.zeros(len(inv_freq))
    for k, theta in enumerate(inv_freq):
        turns = original_max_len * theta / (2 * math.pi)
        gamma = min(max((turns - low_turns) / (high_turns - low_turns), 0.0), 1.0)
        out[k] = (1 - gamma) * theta / factor + gamma * theta
    return out


def yarn_bounds(
    *,
    width: int,
    base: float,
    original_max_len: int,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
    truncate: bool = True,
) -> tuple[float, float]:
    """The pairs, as fractional indices (low, high), that rotate beta_fast and beta_slow times in the trained length.

    Not specified in the paper, from the code of YaRN's authors and Hugging Face: base**(-2k/width) * L = 2 pi beta
    solved for k: width * ln(L / (2 pi beta)) / (2 ln base); truncate: low rounded down and high up to whole pairs (the
    authors always do); after that, low at least 0 and high at most width - 1. That is the code's bound, though the
    last pair is width/2 - 1. low has no upper and high no lower bound (with L < 2 pi beta_slow it may be negative).
    """
    low = width * math.log(original_max_len / (2 * math.pi * beta_fast)) / (2 * math.log(base))
    high = width * math.log(original_max_len / (2 * math.pi * beta_slow)) / (2 * math.log(base))
    if truncate:
        low, high = float(math.floor(low)), float(math.ceil(high))
    return max(low, 0.0), min(high, float(width - 1))


def yarn(
    *,
    width: int,
    base: float,
    factor: float,
    original_max_len: int,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
    truncate: bool = True,
) -> Array:
    """`by_parts` with a ramp that is linear in the index of the pair, not in its number of rotations.

    Paper: Peng et al. 2023, "YaRN", arXiv 2309.00071; the ramp differs from its section 3.2 and follows the
    authors' code, Hugging Face and DeepSeek: with t = (k - low) / (high - low) between 0 and 1, bounds of
    `yarn_bounds`, theta / factor * t + theta * (1 - t). Where low == high, high is 0.001 more. The paper's second
    part, the temperature of the scores, is `mscale`.
    """
    low, high = yarn_bounds(
        width=width,
        base=base,
        original_max_len=original_max_len,
        beta_fast=beta_fast,
        beta_slow=beta_slow,
        truncate=truncate,
    )
    if low == high:
        high += 0.001
    out = np.zeros(width // 2)
    for k in range(width // 2):
        theta = base ** (-2 * k / width)
        t = min(max((k - low) / (high - low), 0.0), 1.0)
        out[k] = theta / factor * t + theta * (1 - t)
    return out


def mscale(factor: float, weight: float = 1.0) -> float:
    """The factor on cosines and sines of queries and keys under YaRN; the scores get its square.

    Paper: Peng et al. 2023, "YaRN", arXiv 2309.00071: sqrt(1/t) = 0.1 ln(factor) + 1. From the authors' code: 1
    for factor <= 1. weight is DeepSeek's (mscale, mscale_all_dim), 1 in the paper; if a model has both, Hugging Face
    uses the quotient of this function at the two weights.
    """
    return 0.1 * weight * math.log(factor) + 1 if factor > 1 else 1.0


def llama3(
    inv_freq: Array, *, factor: float, low_freq_factor: float, high_freq_factor: float, original_max_len: int
) -> Array:
    """Wavelengths below L / high_freq_factor stay, those above L / low_freq_factor are multiplied by the factor.

    Source: Meta's code of Llama 3.1 (apply_scaling; no formula in Dubey et al. 2024, arXiv 2407.21783); between the
    two, smooth = (L / wavelength - low) / (high - low): (1 - smooth) * inv_freq / factor + smooth * inv_freq.
    Llama 3.1: factor 8, low 1, high 4, L 8192. The same map as `by_parts` with low and high as its bounds. The
    comparisons here are of L / wavelength with low and high, so a pair that does not rotate (0) needs no division.
    """
    out = np.zeros(len(inv_freq))
    for k, theta in enumerate(inv_freq):
        turns = original_max_len / (2 * math.pi) * theta  # L / wavelength
        if turns > high_freq_factor:
            out[k] = theta
        elif turns < low_freq_factor:
            out[k] = theta / factor
        else:
            smooth = (turns - low_freq_factor) / (high_freq_factor - low_freq_factor)
            out[k] = (1 - smooth) * theta / factor + smooth * theta
    return out


def longrope(inv_freq: Array, factors: Array) -> Array:
    """Every pair rotates slower by its own factor, found by search.

    Paper: Ding et al. 2024, "LongRoPE", arXiv 2402.13753 (the lambda of each dimension, here factors);
    Phi-3 keeps two lists, one for sequences up to L and one for longer ones. factors (n_pairs,), without unit.
    Departure: the paper leaves the first tokens uninterpolated, which is not part of this.
    """
    return np.array([theta / f for theta, f in zip(inv_freq, factors, strict=True)])


def longrope_gain(factor: float, original_max_len: int) -> float:
    """The factor on cosines and sines under LongRoPE; the scores get its square.

    Source: the code of LongRoPE's authors ("su") and of Phi-3, Hugging Face: sqrt(1 + ln factor / ln L), and 1 for
    factor <= 1. factor is the ratio of the lengths, L' / L, not one of `longrope`'s factors.
    """
    return math.sqrt(1 + math.log(factor) / math.log(original_max_len)) if factor > 1 else 1.0


def proportional(*, head_dim: int, base: float, share: float) -> Array:
    """Only the fastest pairs rotate, at the frequencies that they have in `rope`; the others carry no position.

    Paper: Barbero et al. 2024, "Round and Round We Go!", arXiv 2410.06205 (p-RoPE; share is its p: 0 is `nope`, 1
    `rope`); Gemma. floor(share * head_dim / 2) pairs rotate by base**(-2k/head_dim), the rest by 0: (head_dim/2,).
    Unlike rotary_dim of `rope`, head_dim stays in the exponent. Hugging Face divides by a factor too: `linear`.
    """
    n_turning = math.floor(share * head_dim / 2)
    return np.array([base ** (-2 * k / head_dim) if k < n_turning else 0.0 for k in range(head_dim // 2)])


def resonance(inv_freq: Array) -> Array:
    """Each wavelength rounded to whole positions, so that pairs meet the same angles again in every period.

    Paper: Wang et al. 2024, "Resonance RoPE", arXiv 2403.00071: 2 pi / round(2 pi / inv_freq), after any other
    scaling. Not specified in the paper: a pair that does not rotate (0) stays so. Wavelengths must be above a half.
    """
    return np.array([2 * math.pi / round(2 * math.pi / theta) if theta else 0.0 for theta in inv_freq])


def critical_dim(*, width: int, base: float, original_max_len: int) -> int:
    """The number of lanes in pairs that complete a period within the trained length.

    Paper: Liu et al. 2023, "Scaling Laws of RoPE-based Extrapolation", arXiv 2310.05209 (critical dimension):
    2 * ceil(width/2 * log_base(L / (2 pi))), which counts the pairs with wavelength < L, from k = 0. The formula
    has no bounds: below 2 pi positions it is <= 0, and above 2 pi * base it exceeds width.
    """
    return 2 * math.ceil(width / 2 * math.log(original_max_len / (2 * math.pi)) / math.log(base))


def first_negative(inv_freq: Array, *, end: int = 10_000_000) -> int | None:
    """The first whole distance m < end at which the sum over the pairs of cos(m * inv_freq) is negative, or None.

    Paper: Men et al. 2024, "Base of RoPE Bounds Context Length", arXiv 2405.14591: up to there a key like the
    query is expected to score above a random one, and beyond it not always; its bound on the length for a base.
    """
    for m in range(end):
        if np.cos(m * inv_freq).sum() < 0:
            return m
    return None
