"""Scalings: from frequencies that were trained to frequencies for longer texts.

Pure functions of numbers; arrays are float64, (n_pairs,), one entry a pair of lanes, the fastest first. `width` is the
number of lanes that turn, `factor` how many times longer the texts get, `original_max_len` the trained length in
positions.
"""

import math
from collections.abc import Sequence

import numpy as np

from posenc.frequencies.basic import Array, geometric

_NEAR, _FAR = 1024, 64  # distances whose sums are formed at once: 65,536


def linear(inv_freq: Array, *, factor: float) -> Array:
    """Divide all frequencies: positions are interpolated (Chen 2023, 2306.15595).

    >>> linear(np.array([1.0, 0.5]), factor=2.0)
    array([0.5 , 0.25])
    """
    return inv_freq / factor


def ntk_base(base: float, *, width: int, factor: float) -> float:
    """Return the base with which the slowest pair is divided by `factor` and the fastest stays.

    NTK-aware scaling (bloc97 2023); with an "alpha" in place of the factor, the form of some servers.

    >>> round(ntk_base(1e4, width=128, factor=8.0), 2)
    82684.62
    """
    return float(base * factor ** (width / max(width - 2, 1)))  # two lanes are one pair, which no base changes


def dynamic_base(base: float, *, width: int, factor: float, seq_len: int, original_max_len: int) -> float:
    """Return the NTK-aware base for the current length; the plain one up to the trained length (emozilla 2023).

    >>> dynamic_base(1e4, width=128, factor=2.0, seq_len=100, original_max_len=4096)
    10000.0
    """
    longer = max(seq_len, original_max_len) / original_max_len
    return ntk_base(base, width=width, factor=factor * longer - (factor - 1))


def larger_base(base: float, *, original_max_len: int, target_len: int) -> float:
    """Return the base with which as many pairs make a full turn within the target as with `base` within training.

    It is the smallest with which slower pairs see no new angles; Liu 2023 (2310.05209) calls it critical.

    Raises:
        ValueError: The trained length is below 7, more than the fastest pair's turn, or the base is beyond float64.

    >>> round(larger_base(1e4, original_max_len=4096, target_len=16384))
    71738
    """
    if original_max_len < 7:
        raise ValueError(
            f"larger_base: original_max_len must be at least 7, a turn of the fastest pair; got {original_max_len}."
        )
    power = math.log(target_len / math.tau) / math.log(original_max_len / math.tau)
    if power * math.log10(base) > 300:
        raise ValueError(
            f"larger_base: no float64 holds the base that makes {original_max_len} positions {target_len}; "
            "take a method that divides frequencies."
        )
    return float(base**power)


def by_parts(
    inv_freq: Array, *, factor: float, original_max_len: int | float, low_turns: float = 1.0, high_turns: float = 32.0
) -> Array:
    """Divide the pairs that turn little within the trained length, and keep those that turn often.

    The ramp between is linear in the number of turns. Source: Peng 2023 (YaRN, 2309.00071), section 3.2.

    >>> by_parts(np.array([1.0, 1e-6]), factor=4.0, original_max_len=4096).tolist()
    [1.0, 2.5e-07]
    """
    turns = inv_freq * (original_max_len / (2 * math.pi))
    width = max(high_turns - low_turns, 1e-9)  # a ramp without width or the wrong way round is a step
    return _blend(inv_freq, factor, ((turns - low_turns) / width).clip(0, 1))


def yarn_bounds(
    *,
    width: int,
    base: float,
    original_max_len: int | float,
    beta_fast: float,
    beta_slow: float,
    truncate: bool,
) -> tuple[float, float]:
    """Return the pairs between which YaRN's ramp runs: where a pair makes beta_fast and beta_slow turns.

    `truncate` widens them to whole pairs, as the authors' code does.

    >>> llama_2 = {"width": 128, "base": 1e4, "original_max_len": 4096}
    >>> [round(b, 3) for b in yarn_bounds(**llama_2, beta_fast=32.0, beta_slow=1.0, truncate=False)]
    [20.944, 45.027]
    """

    def pair(turns: float) -> float:
        return width * math.log(original_max_len / (turns * 2 * math.pi)) / (2 * math.log(base))

    low, high = pair(beta_fast), pair(beta_slow)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    return max(float(low), 0.0), min(float(high), width - 1.0)


def yarn(
    *,
    width: int,
    base: float,
    factor: float,
    original_max_len: int | float,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
    truncate: bool = True,
) -> Array:
    """Divide slow pairs and keep fast ones, with a ramp that is linear in the pair's number.

    The form of the authors' code, of Hugging Face and of DeepSeek; the text of the paper has the ramp in turns
    (`by_parts`). Source: Peng 2023, 2309.00071.
    """
    plain = geometric(width // 2, base=base, width=width)
    low, high = yarn_bounds(
        width=width,
        base=base,
        original_max_len=original_max_len,
        beta_fast=beta_fast,
        beta_slow=beta_slow,
        truncate=truncate,
    )
    high += 0.001 if low == high else 0.0  # a ramp of no width is a step
    ramp = (np.arange(width // 2) - low) / (high - low)
    return _blend(plain, factor, 1 - ramp.clip(0, 1))


def mscale(factor: float, weight: float = 1.0) -> float:
    """Return what YaRN multiplies q and k by: 0.1 weight ln(factor) + 1, and 1 for a factor up to 1.

    >>> round(mscale(40.0), 6)
    1.368888
    """
    return 0.1 * weight * math.log(max(factor, 1.0)) + 1.0


def llama3(
    inv_freq: Array, *, factor: float, low_freq_factor: float, high_freq_factor: float, original_max_len: int | float
) -> Array:
    """Divide pairs that turn less than low_freq_factor times within the trained length, blend up to high_freq_factor.

    The scaling of Llama 3.1 (Meta's code, 2024): `by_parts` with other numbers of turns.
    """
    return by_parts(
        inv_freq,
        factor=factor,
        original_max_len=original_max_len,
        low_turns=low_freq_factor,
        high_turns=high_freq_factor,
    )


def longrope(inv_freq: Array, factors: Sequence[float]) -> Array:
    """Divide each pair by a number of its own, which a search has found (Ding 2024, 2402.13753)."""
    return inv_freq / np.array(factors, dtype=np.float64)


def longrope_gain(factor: float, original_max_len: int | float) -> float:
    """Return what LongRoPE multiplies q and k by: sqrt(1 + ln factor / ln L), and 1 for a factor up to 1.

    >>> longrope_gain(4096.0, 4096) ** 2
    2.0000000000000004
    """
    return math.sqrt(1 + math.log(max(factor, 1.0)) / math.log(original_max_len))


def proportional(*, head_dim: int, base: float, share: float) -> Array:
    """Return RoPE's frequencies with all but the fastest `share` of them zero (p-RoPE; Barbero 2024, 2410.06205).

    >>> proportional(head_dim=8, base=1e4, share=0.5).tolist()
    [1.0, 0.1, 0.0, 0.0]
    """
    plain = geometric(head_dim // 2, base=base, width=head_dim)
    plain[int(share * head_dim // 2) :] = 0
    return plain


def resonance(inv_freq: Array) -> Array:
    """Round wavelengths to whole positions, so that turns repeat exactly (Wang 2024, 2403.00071)."""
    with np.errstate(divide="ignore"):  # pairs that do not turn stay as they are
        turned: Array = 2 * math.pi / (2 * math.pi / inv_freq).round()
    return turned


def critical_dim(*, width: int, base: float, original_max_len: int | float) -> int:
    """Return how many lanes belong to pairs that make a full turn within the trained length (Liu 2023, 2310.05209).

    >>> critical_dim(width=128, base=1e4, original_max_len=4096)
    92
    """
    return min(2 * math.ceil(width / 2 * math.log(original_max_len / (2 * math.pi), base)), width)


def first_negative(inv_freq: Array, *, end: int = 1_000_000) -> int | None:
    """Return the first whole distance up to `end` at which the sum of the pairs' cosines is negative, or None.

    From there on, equal content no longer attracts on average. A bound of Men 2024 (2405.14591) that shipped models
    do not keep.

    >>> first_negative(geometric(64, base=1e4, width=128))
    1707
    """
    turning = int((inv_freq != 0).sum())
    if 2 * turning <= len(inv_freq):  # each pair that does not turn adds 1, and none takes away more
        return None
    near = np.arange(_NEAR)[:, None] * inv_freq
    for start in range(0, end + 1, _NEAR * _FAR):  # by the addition theorem, sums of cosines are products of matrices
        far = np.arange(start, start + _NEAR * _FAR, _NEAR)[:, None] * inv_freq
        below = (np.cos(far) @ np.cos(near).T - np.sin(far) @ np.sin(near).T).flatten()[: end + 1 - start] < 0
        if below.any():
            return start + int(below.argmax())
    return None


def _blend(inv_freq: Array, factor: float, kept: Array) -> Array:
    """Return frequencies of which a part is kept and the rest divided."""
    blended: Array = inv_freq * kept + inv_freq / factor * (1 - kept)
    return blended
