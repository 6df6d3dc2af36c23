"""Scalings: from trained frequencies to frequencies for longer texts.

Pure functions of numbers; arrays are float64, (n_pairs,), one entry per pair, the fastest first. `width` is the number
of rotated dimensions, `factor` the target / the trained length, `original_max_len` the trained length in positions.
"""

import math
from collections.abc import Sequence

import numpy as np

from posenc.frequencies.basic import Array, geometric

_NEAR, _FAR = 1024, 64  # distances per block: 65,536


def linear(inv_freq: Array, *, factor: float) -> Array:
    """Divide all frequencies: positions are interpolated (Chen 2023, 2306.15595).

    >>> linear(np.array([1.0, 0.5]), factor=2.0)
    array([0.5 , 0.25])
    """
    return inv_freq / factor


def ntk_base(base: float, *, width: int, factor: float) -> float:
    """Return the base that divides the slowest pair's frequency by `factor` and keeps the fastest.

    NTK-aware scaling (bloc97 2023); some servers call the factor "alpha".

    >>> round(ntk_base(1e4, width=128, factor=8.0), 2)
    82684.62
    """
    return float(base * factor ** (width / max(width - 2, 1)))  # width 2 is one pair, which no base changes


def dynamic_base(base: float, *, width: int, factor: float, seq_len: int, original_max_len: int) -> float:
    """Return the NTK-aware base for the current length, the original base up to the trained length (emozilla 2023).

    >>> dynamic_base(1e4, width=128, factor=2.0, seq_len=100, original_max_len=4096)
    10000.0
    """
    longer = max(seq_len, original_max_len) / original_max_len
    return ntk_base(base, width=width, factor=factor * longer - (factor - 1))


def larger_base(base: float, *, original_max_len: int, target_len: int) -> float:
    """Return the base with which as many pairs complete a period in the target length as with `base` in training.

    The smallest base with which slower pairs reach no new angles; Liu 2023 (2310.05209) calls it critical.

    Raises:
        ValueError: The trained length is below 7, a period of the fastest pair, or the base exceeds float64.

    >>> round(larger_base(1e4, original_max_len=4096, target_len=16384))
    71738
    """
    if original_max_len < 7:
        raise ValueError(
            f"larger_base: original_max_len must be at least 7, a period of the fastest pair; got {original_max_len}."
        )
    power = math.log(target_len / math.tau) / math.log(original_max_len / math.tau)
    if power * math.log10(base) > 300:
        raise ValueError(
            f"larger_base: the base that extends {original_max_len} positions to {target_len} exceeds float64. "
            "Use a method that divides frequencies."
        )
    return float(base**power)


def by_parts(
    inv_freq: Array, *, factor: float, original_max_len: int | float, low_turns: float = 1.0, high_turns: float = 32.0
) -> Array:
    """Divide pairs that complete few periods within the trained length, and keep those that complete many.

    The ramp between them is linear in the number of periods. Source: Peng 2023 (YaRN, 2309.00071), section 3.2.

    >>> by_parts(np.array([1.0, 1e-6]), factor=4.0, original_max_len=4096).tolist()
    [1.0, 2.5e-07]
    """
    periods = inv_freq * (original_max_len / (2 * math.pi))
    width = max(high_turns - low_turns, 1e-9)  # an empty or reversed ramp is a step
    return _blend(inv_freq, factor, ((periods - low_turns) / width).clip(0, 1))


def yarn_bounds(
    *,
    width: int,
    base: float,
    original_max_len: int | float,
    beta_fast: float,
    beta_slow: float,
    truncate: bool,
) -> tuple[float, float]:
    """Return the ends of YaRN's ramp: the pairs that complete beta_fast and beta_slow periods.

    `truncate` widens the ramp to whole pairs, as the authors' code does.

    >>> llama_2 = {"width": 128, "base": 1e4, "original_max_len": 4096}
    >>> [round(b, 3) for b in yarn_bounds(**llama_2, beta_fast=32.0, beta_slow=1.0, truncate=False)]
    [20.944, 45.027]
    """

    def pair(periods: float) -> float:
        periods = max(periods, 1e-290)  # a smaller number would make the quotient infinite
        return width * math.log(original_max_len / (periods * 2 * math.pi)) / (2 * math.log(base))

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
    """Divide slow pairs and keep fast ones, with a ramp that is linear in the pair's index.

    The form in the authors' code, Hugging Face and DeepSeek; in the paper's text the ramp is linear in periods
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
    high += 0.001 if low == high else 0.0  # an empty ramp is a step
    ramp = (np.arange(width // 2) - low) / (high - low)
    return _blend(plain, factor, 1 - ramp.clip(0, 1))


def mscale(factor: float, weight: float = 1.0) -> float:
    """Return YaRN's factor on q and k: 0.1 weight ln(factor) + 1, and 1 for a factor up to 1.

    >>> round(mscale(40.0), 6)
    1.368888
    """
    return 0.1 * weight * math.log(max(factor, 1.0)) + 1.0


def llama3(
    inv_freq: Array, *, factor: float, low_freq_factor: float, high_freq_factor: float, original_max_len: int | float
) -> Array:
    """Divide pairs of fewer than low_freq_factor periods in the trained length, blend those up to high_freq_factor.

    The scaling of Llama 3.1 (Meta's code, 2024): `by_parts` with other numbers of periods.
    """
    return by_parts(
        inv_freq,
        factor=factor,
        original_max_len=original_max_len,
        low_turns=low_freq_factor,
        high_turns=high_freq_factor,
    )


def longrope(inv_freq: Array, factors: Sequence[float]) -> Array:
    """Divide each pair by its own number, found by a search (Ding 2024, 2402.13753)."""
    return inv_freq / np.array(factors, dtype=np.float64)


def longrope_gain(factor: float, original_max_len: int | float) -> float:
    """Return LongRoPE's factor on q and k: sqrt(1 + ln factor / ln L), and 1 for a factor up to 1.

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
    """Round wavelengths to whole positions, so that angles repeat exactly (Wang 2024, 2403.00071)."""
    with np.errstate(divide="ignore"):  # frequencies of 0 remain 0
        rounded: Array = 2 * math.pi / (2 * math.pi / inv_freq).round()
    return rounded


def critical_dim(*, width: int, base: float, original_max_len: int | float) -> int:
    """Return how many dimensions are in pairs that complete a period in the trained length (Liu 2023, 2310.05209).

    >>> critical_dim(width=128, base=1e4, original_max_len=4096)
    92
    """
    return min(2 * math.ceil(width / 2 * math.log(original_max_len / (2 * math.pi), base)), width)


def first_negative(inv_freq: Array, *, end: int = 1_000_000) -> int | None:
    """Return the first integer distance up to `end` at which the sum of the pairs' cosines is negative, or None.

    There, equal content no longer attracts on average. Men 2024 (2405.14591) derives a bound on the length from it,
    which shipped models exceed.

    >>> first_negative(geometric(64, base=1e4, width=128))
    1707
    """
    n_rotating = int((inv_freq != 0).sum())
    if 2 * n_rotating <= len(inv_freq):  # each pair that does not rotate adds 1, and no pair subtracts more
        return None
    near = np.arange(_NEAR)[:, None] * inv_freq
    for start in range(0, end + 1, _NEAR * _FAR):  # by the addition theorem, sums of cosines are matrix products
        far = np.arange(start, start + _NEAR * _FAR, _NEAR)[:, None] * inv_freq
        below = (np.cos(far) @ np.cos(near).T - np.sin(far) @ np.sin(near).T).flatten()[: end + 1 - start] < 0
        if below.any():
            return start + int(below.argmax())
    return None


def _blend(inv_freq: Array, factor: float, kept: Array) -> Array:
    """Return frequencies with weight `kept`, blended with the divided ones."""
    blended: Array = inv_freq * kept + inv_freq / factor * (1 - kept)
    return blended
