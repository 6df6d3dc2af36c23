"""Known faults of scaled frequencies, each a prediction: what a rotation would turn by, were it made so."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from posenc import frequencies
from posenc.definitions import frequencies as defined
from posenc.verify.rotary.expected import Expected
from posenc.verify.rotary.matrix import Array


@dataclass(frozen=True)
class Guess:
    """A fault and the frequencies that it would give."""

    code: str
    says: str
    inv_freq: Array


def of_scaling(asked: Expected, seq_len: int) -> Iterator[Guess]:
    """Yield frequencies as faults of the scaling that is asked for would make them."""
    plain, right = asked.plain(), asked.inv_freq(seq_len)
    if asked.scaling == "default":
        for factor in (2.0, 4.0, 8.0, 0.5, 0.25):
            says = f"positions are divided by {factor:g}, which nobody asked for"
            yield Guess("rope.config.scaling_unasked", says, plain / factor)
        return
    factor = (asked.rotary.factor if asked.rotary is not None else None) or 1.0
    trained = (asked.rotary.original_max_len if asked.rotary is not None else None) or 1
    told = {} if asked.rotary is None else dict(asked.rotary.parameters)
    if asked.scaling == "proportional":
        yield from _of_proportional(asked, told)
    says = f"the scaling {asked.scaling!r} is not applied: these are the plain frequencies of base {asked.base:,.10g}"
    yield Guess("rope.config.scaling_ignored", says, plain)
    if asked.max_positions and seq_len > asked.max_positions and asked.scaling == "linear":
        lengths = {"seq_len": seq_len, "original_max_len": asked.max_positions}
        grown = asked.plain(frequencies.dynamic_base(asked.base, width=asked.rotary_dim, factor=factor, **lengths))
        says = (
            f"beyond {asked.max_positions:,} positions the base grows as dynamic scaling has it, which is not asked for"
        )
        yield Guess("rope.dynamic.not_gated_by_type", says, grown / factor)
        yield Guess("rope.dynamic.not_gated_by_type", says, grown)
    kinds = {
        "yarn": lambda: _of_yarn(asked, factor, float(trained), told),
        "llama3": lambda: _of_llama3(asked, factor, float(trained), told, seq_len),
        "dynamic": lambda: _of_dynamic(asked, factor, trained, seq_len),
        "longrope": lambda: _of_longrope(asked, told, seq_len, trained),
        "linear": lambda: iter(()),
    }
    yield from kinds.get(asked.scaling, lambda: iter(()))()
    if asked.scaling != "linear":
        code = f"rope.{asked.scaling}.as_linear"
        yield Guess(
            code, f"all frequencies are divided by the factor {factor:g}, as linear scaling does", plain / factor
        )
    stretched = frequencies.ntk_base(asked.base, width=asked.rotary_dim, factor=factor) if factor > 1 else asked.base
    code = "rope.dynamic.static" if asked.scaling == "dynamic" else f"rope.{asked.scaling}.as_ntk"
    yield Guess(
        code,
        f"the base is stretched by factor^(d/(d-2)) at every length (static NTK, factor {factor:g})",
        asked.plain(stretched),
    )
    code = f"rope.{asked.scaling}.factor_inverted"
    yield Guess(code, f"frequencies are multiplied by the factor {factor:g} instead of divided", plain * factor)
    yield Guess(f"rope.{asked.scaling}.factor_twice", f"the factor {factor:g} is applied twice", right / factor)


def _of_proportional(asked: Expected, told: dict[str, Any]) -> Iterator[Guess]:
    n, share = asked.rotary_dim // 2, float(told.get("share", 1.0))
    yield Guess("rope.proportional.full_rotation", "all pairs turn; only a share of them is to", asked.plain())
    turning = max(1, int(share * n))
    compressed = np.where(np.arange(n) < turning, asked.base ** (-np.arange(n) / turning), 0.0)
    says = "exponents count over the pairs that turn; they should count over all"
    yield Guess("rope.proportional.compressed_width", says, compressed)


def _of_yarn(asked: Expected, factor: float, trained: float, told: dict[str, Any]) -> Iterator[Guess]:
    width, base = asked.rotary_dim, asked.base
    ramp = {"width": width, "base": base, "factor": factor, "original_max_len": trained}
    ramp |= {key: told[key] for key in ("beta_fast", "beta_slow", "truncate") if key in told}

    def yarn(**changed: Any) -> Array:
        try:
            return defined.yarn(**(ramp | changed))
        except (ValueError, ZeroDivisionError, OverflowError):
            return np.full(width // 2, np.nan)

    rounds = bool(ramp.get("truncate", True))
    how = (
        "not rounded to whole pairs, and should be"
        if rounds
        else "rounded to whole pairs, and should not be (truncate: false)"
    )
    yield Guess("rope.yarn.range_rounded", f"the ends of the ramp are {how}", yarn(truncate=not rounds))
    fast, slow = ramp.get("beta_fast", 32.0), ramp.get("beta_slow", 1.0)
    yield Guess(
        "rope.yarn.betas_swapped", "beta_fast and beta_slow stand for each other", yarn(beta_fast=slow, beta_slow=fast)
    )
    yield Guess(
        "rope.yarn.betas_not_read",
        "beta_fast = 32 and beta_slow = 1 whatever is asked for",
        yarn(beta_fast=32.0, beta_slow=1.0),
    )
    for length in dict.fromkeys((asked.max_positions, trained * factor, 2048.0, 4096.0, 8192.0, 32768.0, 131072.0)):
        if length and length != trained:
            says = f"the ramp is laid for a trained length of {length:,.0f}; it should be {trained:,.0f}"
            yield Guess("rope.yarn.original_length_wrong", says, yarn(original_max_len=float(length)))
    plain = asked.plain()
    by_turns = defined.by_parts(plain, factor=factor, original_max_len=int(trained), low_turns=slow, high_turns=fast)
    yield Guess(
        "rope.yarn.ramp_in_turns",
        "the ramp is linear in turns, as in the paper's text, not in the pair's number",
        by_turns,
    )
    low, high = defined.yarn_bounds(
        width=width, base=base, original_max_len=int(trained), beta_fast=fast, beta_slow=slow, truncate=rounds
    )
    t = np.clip((np.arange(width // 2) - low) / max(high - low, 0.001), 0, 1)
    powered = (factor * base) ** (-2.0 * np.arange(width // 2) / width)
    yield Guess(
        "rope.yarn.factor_in_power",
        "slow pairs turn by (factor * base)^(-2i/d) instead of base^(-2i/d) / factor",
        powered * t + plain * (1 - t),
    )
    yield Guess(
        "rope.yarn.ramp_inverted",
        "fast pairs are divided by the factor and slow ones kept",
        plain / factor * (1 - t) + plain * t,
    )
    of_lanes = np.clip((2 * np.arange(width // 2) - low) / max(high - low, 0.001), 0, 1)
    yield Guess(
        "rope.yarn.ramp_by_dimension",
        "the ramp counts lanes where it should count pairs",
        plain / factor * of_lanes + plain * (1 - of_lanes),
    )
    harmonic = 1 / (t * factor / plain + (1 - t) / plain)
    yield Guess(
        "rope.yarn.ramp_in_wavelength", "wavelengths are blended along the ramp instead of frequencies", harmonic
    )


def _of_llama3(asked: Expected, factor: float, trained: float, told: dict[str, Any], seq_len: int) -> Iterator[Guess]:
    plain, low, high = asked.plain(), float(told["low_freq_factor"]), float(told["high_freq_factor"])
    wavelength = 2 * np.pi / plain

    def bands(factor: float = factor, trained: float = trained) -> Array:
        return defined.llama3(
            plain, factor=factor, low_freq_factor=low, high_freq_factor=high, original_max_len=int(trained)
        )

    kept, divided = trained / high, trained / low
    t = np.clip((divided - wavelength) / (divided - kept), 0, 1)
    says = "between the bands the ramp is linear in the wavelength; it should be linear in the frequency"
    yield Guess("rope.llama3.ramp_in_wavelength", says, (1 - t) * plain / factor + t * plain)
    yield Guess(
        "rope.llama3.ramp_in_wavelength",
        f"{says}, and wavelengths are blended",
        1 / (t / plain + (1 - t) * factor / plain),
    )
    turns = trained / wavelength
    middle = (turns >= low) & (turns <= high)
    yield Guess(
        "rope.llama3.ramp_missing",
        "between the bands pairs are kept; they should be blended",
        np.where(turns < low, plain / factor, plain),
    )
    yield Guess(
        "rope.llama3.ramp_missing",
        "between the bands pairs are divided; they should be blended",
        np.where(turns <= high, plain / factor, plain),
    )
    smooth = np.clip((turns - low) / (high - low), 0, 1)
    yield Guess(
        "rope.llama3.ramp_inverted",
        "between the bands the ramp runs the wrong way",
        np.where(middle, smooth * plain / factor + (1 - smooth) * plain, bands()),
    )
    divided_twice = np.where(middle, (1 - smooth) * plain / factor**2 + smooth * plain / factor, bands())
    yield Guess("rope.llama3.factor_twice", "between the bands what is blended was divided before", divided_twice)
    for other in (8.0, 32.0, 16.0, 4.0):
        if other != factor:
            yield Guess(
                "rope.llama3.factor_hardcoded",
                f"the factor is {other:g} whatever is asked for; it should be {factor:g}",
                bands(factor=other),
            )
    yield Guess(
        "rope.llama3.bands_swapped",
        "low_freq_factor and high_freq_factor stand for each other",
        np.where(turns > low, plain, plain / factor),
    )
    for length in dict.fromkeys((asked.max_positions, 8192, 131072, trained * factor)):
        if length and length != trained:
            says = f"the bands are laid for a trained length of {length:,.0f}; it should be {trained:,.0f}"
            yield Guess("rope.llama3.original_length_wrong", says, bands(trained=float(length)))
    for n in dict.fromkeys((seq_len, asked.max_positions or seq_len)):
        if factor > 1 and n > trained:
            lengths = {"seq_len": int(n), "original_max_len": int(trained)}
            grown = frequencies.dynamic_base(asked.base, width=asked.rotary_dim, factor=factor, **lengths)
            yield Guess(
                "rope.llama3.as_dynamic", "the base grows with the text, as in dynamic scaling", asked.plain(grown)
            )
    if factor > 1:
        yield Guess(
            "rope.llama3.as_dynamic",
            "the base is stretched as NTK scaling does",
            asked.plain(frequencies.ntk_base(asked.base, width=asked.rotary_dim, factor=factor)),
        )


def _of_dynamic(asked: Expected, factor: float, trained: int, seq_len: int) -> Iterator[Guess]:
    d = asked.rotary_dim
    for other in (1.0, 2.0, 4.0, 8.0):
        if other != factor and seq_len > trained:
            base = frequencies.dynamic_base(
                asked.base, width=d, factor=other, seq_len=seq_len, original_max_len=trained
            )
            yield Guess(
                "rope.dynamic.factor_not_read",
                f"the factor is {other:g} whatever is asked for; it should be {factor:g}",
                asked.plain(base),
            )
    full = frequencies.dynamic_base(
        asked.base, width=d, factor=factor, seq_len=int(trained * factor), original_max_len=trained
    )
    yield Guess(
        "rope.dynamic.static",
        "the base is that of the longest text at every length; it should grow with the text",
        asked.plain(full),
    )
    for scale, says in ((factor, "multiplied"), (1 / factor, "divided")):
        yield Guess(
            "rope.dynamic.positions_scaled",
            f"positions are {says} by the factor {factor:g}; the base alone should grow",
            asked.plain() * scale,
        )
    if seq_len > trained:
        ratio = seq_len / trained
        yield Guess(
            "rope.dynamic.formula",
            "the base grows by (n / L)^(d/(d-2)), without the factor",
            asked.plain(asked.base * ratio ** (d / (d - 2))),
        )
        yield Guess(
            "rope.dynamic.formula",
            "the base grows by (factor n / L)^(d/(d-2))",
            asked.plain(asked.base * (factor * ratio) ** (d / (d - 2))),
        )
        yield Guess(
            "rope.dynamic.formula",
            "the base grows without the exponent d/(d-2)",
            asked.plain(asked.base * (factor * ratio - (factor - 1))),
        )


def _of_longrope(asked: Expected, told: dict[str, Any], seq_len: int, trained: int) -> Iterator[Guess]:
    plain = asked.plain()
    for key, code in (("long_factor", "rope.longrope.always_long"), ("short_factor", "rope.longrope.always_short")):
        factors = np.asarray(told.get(key, ()), dtype=float)
        if len(factors) != len(plain):
            continue
        name = key.split("_")[0]
        at = (
            "exactly at the trained length, where the short list still holds"
            if seq_len == trained
            else f"at {seq_len:,} positions"
        )
        found = "rope.longrope.boundary" if seq_len == trained else code
        yield Guess(found, f"the {name} list of factors is used {at}", plain / factors)
        yield Guess(
            "rope.longrope.factors_multiplied",
            f"frequencies are multiplied by the {name} list instead of divided",
            plain * factors,
        )
