"""Wrong frequencies, scaled or not, as a faulty rotation would use them."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from posenc import frequencies
from posenc.definitions import frequencies as defined
from posenc.verify.engine.read import BASES
from posenc.verify.engine.records import Array, Model
from posenc.verify.families.rotation_asked import LENGTH, Asked, ByLength

Speeds = Iterator[tuple[str, Array | ByLength | None, Mapping[str, Any]]]  # codes without "rope.", frequencies, words
LENGTHS = (2048, 4096, 8192, 32768, 131072)  # usual trained lengths
BY = {  # wrong quantities that may choose frequencies instead of the length of the text
    "by_offset": ("first", "the first position of a call"),
    "by_tokens": ("tokens", "the number of tokens of a call"),
    "length_from_head_axis": ("heads", "the number of heads"),
    "list_by_token": ("token", "the position of each token"),
}


def faults(asked: Asked) -> Iterator[tuple[str, Model, Mapping[str, Any]]]:
    """Yield codes without "rope.", changes of the formula, and values for the rules."""
    of = {"yarn": _yarn, "llama3": _llama3, "dynamic": _dynamic, "longrope": _longrope, "ntk_alpha": _alpha}
    for code, freq, values in (*of.get(asked.scaling, _few)(asked), *_others(asked), *_units(asked)):
        if freq is not None:
            yield code, {"freq": freq}, {"factor": asked.factor, "asked": asked.factor, **values}
    for code, (by, how) in BY.items() if asked.trained else ():
        yield f"{asked.scaling}.{code}", {"by": by}, {"how": how}


def _others(asked: Asked) -> Speeds:
    """Yield other bases, widths and exponents, and other uses of the factor."""
    width = asked.rotary_dim
    quotient = asked.source.get("hidden_size", asked.head_dim) / asked.source.get("num_attention_heads", 1)
    if quotient != asked.head_dim:
        values = {"quotient": quotient, "asked": asked.head_dim}
        yield "config.head_dim_not_read", asked.plain(width=width * quotient / asked.head_dim), values
    yield from _bases(asked, BASES[:3])
    for code, exponents, how in _exponents(asked):
        for freq in (asked.base**-exponents, _by_length(asked, partial(_of_exponents, asked, exponents))):
            yield f"frequency.{code}", freq, {"how": how}
    yield from _bases(asked, BASES[3:])
    how = "in reverse order: the slowest pair comes first"
    yield "frequency.exponents", asked.inv_freq(asked.original)[::-1], {"how": how}
    if asked.scaling != "default":
        yield "scaling.as_linear", asked.plain() / asked.factor, {}
        yield "dynamic.static" if asked.scaling == "dynamic" else "scaling.as_ntk", _stretched(asked), {}
        yield "scaling.factor_inverted", asked.plain() * asked.factor, {}
        yield "scaling.factor_twice", partial(_over, asked, asked.factor), {}
        yield "scaling.factor_twice", asked.changed(factor=asked.factor**2), {}


def _bases(asked: Asked, bases: Iterable[float]) -> Speeds:
    for used in bases:
        for freq in (asked.plain(used), asked.changed(rope_theta=used)):
            yield "config.theta_not_read", freq, {"used": used, "asked": asked.base}


def _exponents(asked: Asked) -> Iterator[tuple[str, Array, str]]:
    """Yield a code without "rope.frequency.", the exponents e of base^-e, and how they are wrong."""
    n, width, i = asked.n_pairs, asked.rotary_dim, np.arange(asked.n_pairs)
    right, hidden = 2.0 * i / width, asked.source.get("hidden_size") or asked.head_dim
    yield "inverted", -right, "2i/d: frequencies rise from pair to pair"
    yield "whole_exponents", 0 * right, "rounded down to whole numbers, so that all pairs rotate alike"
    yield "exponents", right / 2, "half as large as they should be: i/d instead of 2i/d"
    yield "exponents", right * 2, "twice as large as they should be"
    for first in (1.0, -1.0, 0.5, -0.5):
        yield "exponents", right + 2 * first / width, f"counted from {first:g} instead of 0"
    yield "last_is_base", i / max(n - 1, 1), "spread so that the last pair reaches the base"
    yield "exponents", 2.0 * i / (width + 2), f"counted over {width + 2} dimensions instead of {width}"
    if hidden not in (width, asked.head_dim):
        yield "exponents", 2.0 * i / hidden, f"counted over hidden_size = {hidden} dimensions instead of {width}"
    yield "exponents", 2.0 * (i // 2) / width, "2 (i // 2) / d: two neighbouring pairs rotate alike"
    yield "exponents", 4.0 * (i // 2) / width, "2 (i // 2) / (d/2): two neighbouring pairs rotate alike"
    for times, how in (
        (1 / math.log(2), "multiplied by log2(base) inside exp(), which needs the natural logarithm"),
        (1 / math.log(10), "multiplied by log10(base) inside exp(), which needs the natural logarithm"),
        (math.log(2), "multiplied by the natural logarithm of the base as a power of 2, which needs log2(base)"),
    ):
        yield "exponents", right * times, how


def _of_exponents(asked: Asked, exponents: Array, seq_len: int) -> Array:
    """Return scaled frequencies if those before scaling are base^-exponents."""
    right, plain = asked.inv_freq(seq_len), asked.base**-exponents
    if asked.scaling == "llama3":
        return defined.llama3(plain, original_max_len=asked.original, **_bands(asked))
    if asked.scaling in ("dynamic", "ntk_alpha") and len(right) > 1:
        return np.asarray(right[1] ** (exponents * asked.rotary_dim / 2))  # of the stretched base
    return np.asarray(right / asked.plain() * plain)


def _bands(asked: Asked) -> dict[str, float]:
    names = ("low_freq_factor", "high_freq_factor")
    return {"factor": asked.factor, **{name: float(asked.parameters[name]) for name in names}}


def _by_length(asked: Asked, freq: ByLength) -> Array | ByLength:
    """Return a function of the length only if the length matters."""
    return freq if asked.trained is not None else freq(1)


def _units(asked: Asked) -> Speeds:
    """Yield angles in other units."""
    for times, how in (
        (2 * math.pi, "multiplied by 2 pi"),
        (math.pi, "multiplied by pi"),
        (1 / (2 * math.pi), "divided by 2 pi"),
        (math.pi / 180, "taken for degrees: multiplied by pi / 180"),
        (180 / math.pi, "computed in degrees: multiplied by 180 / pi"),
    ):
        yield "frequency.unit", _by_length(asked, partial(_over, asked, 1 / times)), {"how": how}


def _over(asked: Asked, factor: float, seq_len: int) -> Array:
    return np.asarray(asked.inv_freq(seq_len) / factor)


def _stretched(asked: Asked) -> Array:
    """Return the frequencies of static NTK scaling."""
    return asked.plain(frequencies.ntk_base(asked.base, width=asked.rotary_dim, factor=max(asked.factor, 1.0)))


def _grown(asked: Asked, factor: float, trained: int, seq_len: int) -> Array:
    """Return the frequencies of a base that grows with the text beyond a trained length."""
    lengths = {"seq_len": seq_len, "original_max_len": trained}
    return asked.plain(frequencies.dynamic_base(asked.base, width=asked.rotary_dim, factor=factor, **lengths))


def _few(asked: Asked) -> Speeds:
    """Yield faults without scaling, or with a simple one."""
    if asked.scaling == "default":
        for factor in (2.0, 4.0, 8.0, 0.25):
            how = f"divided by {factor:g}" if factor > 1 else f"multiplied by {1 / factor:g}"
            yield "config.scaling_unasked", asked.plain() / factor, {"how": how}
    elif asked.scaling == "linear" and asked.max_positions:
        for over in (asked.factor, 1.0):
            freq = partial(_beyond, asked, asked.max_positions, over)
            yield "dynamic.not_gated_by_type", freq, {"length": asked.max_positions}
    elif asked.scaling == "proportional":
        yield from _proportional(asked)


def _proportional(asked: Asked) -> Speeds:
    """Yield p-RoPE with other exponents, on other pairs, or on the first dimensions only."""
    n, plain, i = asked.n_pairs, asked.plain() / asked.factor, np.arange(asked.n_pairs)
    rotating = max(1, int(float(asked.parameters.get("share", 1.0)) * n))
    narrow = np.asarray(asked.base ** (-i / rotating) / asked.factor)
    yield "proportional.compressed_width", np.where(i < rotating, narrow, 0.0), {}
    for code, freq in (("narrow", plain), ("narrow_exponents", narrow)):
        yield f"proportional.{code}", freq[:rotating], {"width": 2 * rotating, "whole": asked.rotary_dim}
    for shown, how in (
        (i >= n - rotating, f"the slowest {rotating} pairs rotate instead of the fastest"),
        (i < min(2 * rotating, n), f"{min(2 * rotating, n)} pairs rotate instead of {rotating}"),
        (i < rotating // 2, f"{rotating // 2} pairs rotate instead of {rotating}"),
        (i <= rotating, f"{rotating + 1} pairs rotate instead of {rotating}"),
        (i < rotating - 1, f"{rotating - 1} pairs rotate instead of {rotating}"),
    ):
        yield "proportional.wrong_pairs", np.where(shown, plain, 0.0), {"how": how}


def _alpha(asked: Asked) -> Speeds:
    """Yield HunYuan's fixed stretch of the base by alpha with another exponent."""
    alpha, power = asked.factor, asked.rotary_dim / (asked.rotary_dim - 2)
    whole = asked.head_dim / (asked.head_dim - 2)
    for exponent, how in (
        (whole, f"with the exponent d/(d-2) of d = {asked.head_dim} instead of {asked.rotary_dim}"),
        (1.0, "without the exponent d/(d-2)"),
        (1 / power, "with the exponent (d-2)/d instead of d/(d-2)"),
        (2 * power, "twice"),
    ):
        yield "scaling.alpha", asked.plain(asked.base * alpha**exponent), {"how": how}


def _beyond(asked: Asked, length: int, over: float, seq_len: int) -> Array:
    return _grown(asked, asked.factor, length, seq_len) / over if seq_len > length else asked.inv_freq(seq_len)


def _other_lengths(asked: Asked, *usual: int) -> Speeds:
    """Yield the scaling computed for another trained length: those of the configuration, or usual ones."""
    for length in usual or (asked.max_positions, asked.original * asked.factor):
        if length and length != asked.original:
            values = {"used": int(length), "asked": asked.original}
            freq = asked.changed(**{LENGTH: int(length)})
            if asked.scaling == "dynamic":
                freq = partial(_grown, asked, asked.factor, int(length))
            yield f"{asked.scaling}.original_length_wrong", freq, values


def _yarn(asked: Asked) -> Speeds:
    """Yield YaRN with other ends of its ramp, for another length, and with other blends."""
    more, plain, factor, i = asked.parameters, asked.plain(), asked.factor, np.arange(asked.n_pairs)
    fast, slow = float(more.get("beta_fast", 32.0)), float(more.get("beta_slow", 1.0))
    rounds = bool(more.get("truncate", True))
    how = "not rounded to whole pairs, but should be" if rounds else "rounded to whole pairs, but should not be"
    yield "yarn.range_rounded", asked.changed(truncate=not rounds), {"how": how}
    yield "yarn.betas_not_read", asked.changed(beta_fast=32.0, beta_slow=1.0), {}
    yield from _other_lengths(asked)
    by_turns = defined.by_parts(plain, factor=factor, original_max_len=asked.original, low_turns=slow, high_turns=fast)
    yield "yarn.ramp_in_turns", by_turns, {}
    swapped, t = _ramp(asked, *_ends(asked, slow, fast)), _ramp(asked, *_ends(asked, fast, slow))
    yield "yarn.factor_in_power", asked.plain(factor * asked.base) * t + plain * (1 - t), {}
    yield "yarn.betas_swapped", _blended(asked, swapped), {}
    yield "yarn.ramp_inverted", _blended(asked, 1 - t), {}
    yield "yarn.ramp_inverted", _blended(asked, _ramp(asked, *_ends(asked, fast, slow)[::-1])), {}
    low, high = _ends(asked, slow, fast)
    yield "yarn.betas_swapped", _blended(asked, _ramp(asked, low, max(high, low + 0.001))), {}
    yield "yarn.ramp_in_wavelength", plain / (1 - t + t * factor), {}
    for edge, where in zip(_ends(asked, fast, slow), ("fast", "slow"), strict=True):
        for divided in (i >= edge, i > edge):
            yield "yarn.ramp_missing", _blended(asked, divided), {"where": where}
    for code, ends, values in _other_ends(asked, fast, slow):
        yield f"yarn.{code}", _blended(asked, _ramp(asked, *ends)), values
    yield from _other_lengths(asked, *LENGTHS)
    doubled = _ramp(asked, *(end / 2 for end in _ends(asked, fast, slow)))
    yield (
        "yarn.range_in_dimensions",
        _blended(asked, doubled),
        {"how": "compared with dimensions 2i instead of pairs i"},
    )


def _ends(asked: Asked, *betas: float, of: tuple[Any, Any] = (math.floor, math.ceil), **other: float) -> list[float]:
    """Return the ends of YaRN's ramp for rotations within the trained length, rounded as the configuration says."""
    laid = {"width": asked.rotary_dim, "base": asked.base, "length": asked.original, "times": 1.0, **other}
    over = 2 * math.log(laid["base"])
    found = [laid["times"] * laid["width"] * math.log(laid["length"] / (2 * math.pi * t)) / over for t in betas]
    if asked.parameters.get("truncate", True):
        found = [float(how(end)) for how, end in zip(of, found, strict=True)]
    return [max(found[0], 0.0), min(found[1], asked.rotary_dim - 1.0)]


def _ramp(asked: Asked, low: float, high: float) -> Array:
    """Return the share of each pair that is divided."""
    return np.clip((np.arange(asked.n_pairs) - low) / (high - low or 0.001), 0, 1)


def _blended(asked: Asked, divided: Any) -> Array:
    """Return YaRN's frequencies for the share of each pair that is divided by the factor."""
    return np.asarray(asked.plain() / asked.factor * divided + asked.plain() * (1.0 - divided))


def _other_ends(asked: Asked, fast: float, slow: float) -> Iterator[tuple[str, Sequence[float], Mapping[str, Any]]]:
    """Yield a code without "rope.yarn.", wrong ends of YaRN's ramp, and values for the rule."""
    ends, width, base = partial(_ends, asked, fast, slow), asked.rotary_dim, asked.base
    if asked.parameters.get("truncate", True):
        for of, how in (
            ((math.floor, math.floor), "both rounded down; the slow one should be rounded up"),
            ((math.ceil, math.ceil), "both rounded up; the fast one should be rounded down"),
            ((round, round), "both rounded to the nearest pair; they should be rounded down and up"),
            ((math.ceil, math.floor), "rounded up and down; they should be rounded down and up"),
        ):
            yield "range_rounded", ends(of=of), {"how": how}
    yield "range_in_dimensions", ends(times=2.0), {"how": "counted in dimensions instead of pairs: twice as large"}
    yield "range_in_dimensions", ends(times=0.5), {"how": "computed for half the dimensions: half as large"}
    low, high = ends()
    yield "range_clamped", (low, min(high, asked.n_pairs - 1.0)), {"last": asked.n_pairs - 1, "asked": width - 1}
    yield "two_pi_missing", ends(length=2 * math.pi * asked.original), {}
    for used in (10_000.0, 500_000.0, 1_000_000.0):
        yield "ramp_of_other_base", ends(base=used), {"used": used, "asked": base}
    for used in {asked.head_dim, asked.source.get("hidden_size", width)} - {width}:
        yield "range_in_dimensions", ends(width=used), {"how": f"computed for {used:,} dimensions instead of {width}"}


def _llama3(asked: Asked) -> Speeds:
    """Yield Llama 3's scaling with another ramp or other parameters, and other rules in its place."""
    low, high = _bands(asked)["low_freq_factor"], _bands(asked)["high_freq_factor"]
    plain, factor, length = asked.plain(), asked.factor, asked.original
    rotations = length * plain / (2 * np.pi)
    blend = (rotations - low) / (high - low)
    even, middle = np.clip(blend, 0, 1), (rotations >= low) & (rotations <= high)
    in_length = np.clip((1 / low - 1 / rotations) / (1 / low - 1 / high), 0, 1)
    for code, t, how in (  # the kept share of the unscaled frequency
        ("ramp_in_wavelength", in_length, ""),
        ("ramp_missing", rotations >= low, "kept"),
        ("ramp_missing", rotations > high, "divided"),
        ("ramp_inverted", 1 - even, "fast pairs are divided by the factor and slow ones kept"),
        ("ramp_inverted", np.where(middle, 1 - even, even), "pairs between the bands are blended the wrong way round"),
        ("ramp_unclamped", np.minimum(blend, 1), "slow pairs, which should be divided by the factor"),
        ("ramp_unclamped", np.maximum(blend, 0), "fast pairs, which should be kept"),
        ("ramp_unclamped", blend, "fast pairs and slow ones"),
        ("bands", np.where(rotations < low, 1, even), "slow pairs are kept; they should be divided by the factor"),
        ("bands", np.where(rotations > high, 0, even), "fast pairs are divided by the factor; they should be kept"),
        ("bands", np.where(middle, even, rotations < low), "fast pairs are divided by the factor and slow ones kept"),
        ("two_pi_missing", np.clip((length * plain - low) / (high - low), 0, 1), ""),
    ):
        yield f"llama3.{code}", t * plain + (1.0 - t) * plain / factor, {"how": how}
    yield "llama3.ramp_in_wavelength", 1 / (in_length / plain + (1 - in_length) * factor / plain), {}
    for few, many in (
        (1.0, 4.0),
        *((low, used) for used in (2.0, 4.0, 8.0)),
        *((used, high) for used in (1.0, 2.0, 0.5)),
    ):
        bands = asked.changed(low_freq_factor=few, high_freq_factor=many)
        yield "llama3.bands_not_read", bands, {"low": few, "high": many}
    yield "llama3.factor_twice", asked.inv_freq(1) / np.where(middle, factor, 1.0), {}
    for used in (8.0, 32.0, 16.0, 4.0):
        yield "llama3.factor_hardcoded", asked.changed(factor=used), {"used": used}
    yield from (*_other_lengths(asked), *_other_lengths(asked, *LENGTHS))
    for freq in (partial(_grown, asked, factor, length), _grown(asked, factor, length, 4096), _stretched(asked)):
        yield "llama3.as_dynamic", freq, {}


def _dynamic(asked: Asked) -> Speeds:
    """Yield bases that grow in another way with the text."""
    factor, trained, power = asked.factor, asked.original, asked.rotary_dim / (asked.rotary_dim - 2)
    for used in (1.0, 2.0, 4.0, 8.0):
        yield "dynamic.factor_not_read", partial(_grown, asked, used, trained), {"used": used}
    yield "dynamic.static", _grown(asked, factor, trained, int(trained * factor)), {}
    yield from (*_other_lengths(asked), *_other_lengths(asked, *LENGTHS))
    for over, how in ((1 / factor, "multiplied"), (factor, "divided")):
        yield "dynamic.positions_scaled", asked.plain() / over, {"how": how}
        yield "dynamic.positions_scaled", partial(_over, asked, over), {"how": how}
    for times, less, exponent, how in (
        (1.0, 0.0, power, "by (n / L)^(d/(d-2)), without the factor"),
        (factor, 0.0, power, "by (factor n / L)^(d/(d-2))"),
        (factor, 1.0, power, "by (factor n / L - 1)^(d/(d-2)), where factor - 1 should be subtracted"),
        (factor, factor - 1, 1.0, "without the exponent d/(d-2)"),
    ):
        yield "dynamic.formula", partial(_by_form, asked, times, less, exponent), {"how": how}
    yield "dynamic.formula", partial(_qwen, asked), {"how": "in steps, as in Qwen: by 2^ceil(log2(n / L) + 1) - 1"}
    for more, how in ((-1, "one token too short: the last position, without the 1"), (1, "one token too long")):
        yield "dynamic.length_off_by_one", partial(_later, asked, more), {"how": how}


def _qwen(asked: Asked, seq_len: int) -> Array:
    alpha = 2.0 ** math.ceil(math.log2(max(seq_len / asked.original, 1.0)) + 1) - 1 if seq_len > asked.original else 1.0
    return asked.plain(frequencies.ntk_base(asked.base, width=asked.rotary_dim, factor=alpha))


def _later(asked: Asked, more: int, seq_len: int) -> Array:
    return asked.inv_freq(max(seq_len + more, 1))


def _by_form(asked: Asked, times: float, less: float, exponent: float, seq_len: int) -> Array:
    ratio = seq_len / asked.original
    return asked.plain(asked.base * (times * ratio - less) ** exponent if ratio > 1 else None)


def _chosen(short: Array, long: Array, trained: int, seq_len: int) -> Array:
    return long if seq_len > trained else short


def _longrope(asked: Asked) -> Speeds:
    """Yield LongRoPE with the wrong list, or with a list that is chosen wrongly."""
    trained = asked.original
    short, long = asked.inv_freq(trained), asked.inv_freq(trained + 1)
    yield "longrope.always_long", long, {}
    yield "longrope.always_short", short, {}
    for end, how in ((trained - 1, "one token too early"), (trained + 1, "one token too late")):
        yield "longrope.boundary", partial(_chosen, short, long, end), {"how": how}
    squared = asked.plain() ** 2
    yield "longrope.factors_inverted", partial(_chosen, squared / short, squared / long, trained), {}
    yield "longrope.lists_swapped", partial(_chosen, long, short, trained), {}
