"""Wrong frequencies, scaled or not, as a faulty rotation would use them."""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from posenc import frequencies
from posenc.definitions import frequencies as defined
from posenc.verify.engine.read import BASES
from posenc.verify.engine.records import Array, Model
from posenc.verify.families.rotation_asked import LENGTH, Asked, ByLength

Speeds = Iterator[tuple[str, Array | ByLength | None, Mapping[str, Any]]]  # codes without "rope.", frequencies, words
BY = {  # wrong quantities that may choose frequencies instead of the length of the text
    "by_offset": ("first", "the first position of a call"),
    "by_tokens": ("tokens", "the number of tokens of a call"),
    "length_from_head_axis": ("heads", "the number of heads"),
    "list_by_token": ("token", "the position of each token"),
}


def faults(asked: Asked) -> Iterator[tuple[str, Model, Mapping[str, Any]]]:
    """Yield codes without "rope.", changes of the formula, and values for the rules."""
    of = {"yarn": _yarn, "llama3": _llama3, "dynamic": _dynamic, "longrope": _longrope}
    for code, freq, values in (*of.get(asked.scaling, _few)(asked), *_others(asked)):
        if freq is not None:
            yield code, {"freq": freq}, {"factor": asked.factor, "asked": asked.factor, **values}
    for code, (by, how) in BY.items() if asked.trained else ():
        yield f"{asked.scaling}.{code}", {"by": by}, {"how": how}


def _others(asked: Asked) -> Speeds:
    """Yield other bases, widths and exponents, and other uses of the factor."""
    n, width, base, i = asked.n_pairs, asked.rotary_dim, asked.base, np.arange(asked.n_pairs)
    quotient = asked.source.get("hidden_size", asked.head_dim) / asked.source.get("num_attention_heads", 1)
    if quotient != asked.head_dim:
        values = {"quotient": quotient, "asked": asked.head_dim}
        yield "config.head_dim_not_read", asked.plain(width=width * quotient / asked.head_dim), values
    for used in BASES:
        for freq in (asked.plain(used), asked.changed(rope_theta=used)):
            yield "config.theta_not_read", freq, {"used": used, "asked": base}
    for code, other, how in (
        ("inverted", base ** (2.0 * i / width), "2i/d: frequencies rise from pair to pair"),
        ("whole_exponents", np.ones(n), "rounded down to whole numbers, so that all pairs rotate alike"),
        ("exponents", base ** (-1.0 * i / width), "half as large as they should be"),
        ("exponents", base ** (-4.0 * i / width), "twice as large as they should be"),
        ("exponents", base ** (-2.0 * (i + 1) / width), "counted from 1"),
        ("exponents", asked.inv_freq(asked.original)[::-1], "in reverse order: the slowest pair comes first"),
        ("last_is_base", base ** (-1.0 * i / max(n - 1, 1)), "spread so that the last pair reaches the base"),
    ):
        yield f"frequency.{code}", other, {"how": how}
    if asked.scaling != "default":
        yield "scaling.as_linear", asked.plain() / asked.factor, {}
        yield "dynamic.static" if asked.scaling == "dynamic" else "scaling.as_ntk", _stretched(asked), {}
        yield "scaling.factor_inverted", asked.plain() * asked.factor, {}
        yield "scaling.factor_twice", partial(_over, asked, asked.factor), {}


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
        for factor in (2.0, 4.0, 8.0, 0.5, 0.25):
            yield "config.scaling_unasked", asked.plain() / factor, {"factor": factor}
    elif asked.scaling == "linear" and asked.max_positions:
        for over in (asked.factor, 1.0):
            freq = partial(_beyond, asked, asked.max_positions, over)
            yield "dynamic.not_gated_by_type", freq, {"length": asked.max_positions}
    elif asked.scaling == "proportional":
        i, rotating = np.arange(asked.n_pairs), max(1, int(float(asked.parameters.get("share", 1.0)) * asked.n_pairs))
        yield "proportional.compressed_width", np.where(i < rotating, asked.base ** (-i / rotating), 0.0), {}


def _beyond(asked: Asked, length: int, over: float, seq_len: int) -> Array:
    return _grown(asked, asked.factor, length, seq_len) / over if seq_len > length else asked.inv_freq(seq_len)


def _other_lengths(asked: Asked) -> Speeds:
    """Yield the scaling computed for another trained length."""
    for length in (asked.max_positions, asked.original * asked.factor, 2048, 4096, 8192, 32768, 131072):
        if length and length != asked.original:
            values = {"used": int(length), "asked": asked.original}
            yield f"{asked.scaling}.original_length_wrong", asked.changed(**{LENGTH: int(length)}), values


def _yarn(asked: Asked) -> Speeds:
    """Yield YaRN with other ends of its ramp, for another length, and with other blends."""
    more, plain, factor, i = asked.parameters, asked.plain(), asked.factor, np.arange(asked.n_pairs)
    fast, slow = float(more.get("beta_fast", 32.0)), float(more.get("beta_slow", 1.0))
    rounds, length = bool(more.get("truncate", True)), asked.original
    how = "not rounded to whole pairs, but should be" if rounds else "rounded to whole pairs, but should not be"
    yield "yarn.range_rounded", asked.changed(truncate=not rounds), {"how": how}
    yield "yarn.betas_not_read", asked.changed(beta_fast=32.0, beta_slow=1.0), {}
    yield from _other_lengths(asked)
    by_turns = defined.by_parts(plain, factor=factor, original_max_len=length, low_turns=slow, high_turns=fast)
    yield "yarn.ramp_in_turns", by_turns, {}
    laid: dict[str, Any] = {"width": asked.rotary_dim, "base": asked.base, "original_max_len": length}
    shares = []
    for ends in ((fast, slow), (slow, fast)):
        low, high = defined.yarn_bounds(**laid, beta_fast=ends[0], beta_slow=ends[1], truncate=rounds)
        shares.append(np.clip((i - low) / (high - low or 0.001), 0, 1))
    t, swapped = shares
    yield "yarn.factor_in_power", asked.plain(factor * asked.base) * t + plain * (1 - t), {}
    yield "yarn.betas_swapped", plain / factor * swapped + plain * (1 - swapped), {}


def _llama3(asked: Asked) -> Speeds:
    """Yield Llama 3's scaling with another ramp or other parameters, and other rules in its place."""
    low, high = float(asked.parameters["low_freq_factor"]), float(asked.parameters["high_freq_factor"])
    plain, factor, length = asked.plain(), asked.factor, asked.original
    rotations = length * plain / (2 * np.pi)
    even, middle = np.clip((rotations - low) / (high - low), 0, 1), (rotations >= low) & (rotations <= high)
    in_length = np.clip((1 / low - 1 / rotations) / (1 / low - 1 / high), 0, 1)
    for code, t, how in (  # the kept share of the unscaled frequency
        ("in_wavelength", in_length, ""),
        ("missing", rotations >= low, "kept"),
        ("missing", rotations > high, "divided"),
        ("inverted", 1 - even, "fast pairs are divided by the factor and slow ones kept"),
    ):
        yield f"llama3.ramp_{code}", t * plain + (1.0 - t) * plain / factor, {"how": how}
    yield "llama3.ramp_in_wavelength", 1 / (in_length / plain + (1 - in_length) * factor / plain), {}
    yield "llama3.factor_twice", asked.inv_freq(1) / np.where(middle, factor, 1.0), {}
    for used in (8.0, 32.0, 16.0, 4.0):
        yield "llama3.factor_hardcoded", asked.changed(factor=used), {"used": used}
    yield from _other_lengths(asked)
    for freq in (partial(_grown, asked, factor, length), _grown(asked, factor, length, 4096), _stretched(asked)):
        yield "llama3.as_dynamic", freq, {}


def _dynamic(asked: Asked) -> Speeds:
    """Yield bases that grow in another way with the text."""
    factor, trained, power = asked.factor, asked.original, asked.rotary_dim / (asked.rotary_dim - 2)
    for used in (1.0, 2.0, 4.0, 8.0):
        yield "dynamic.factor_not_read", partial(_grown, asked, used, trained), {"used": used}
    yield "dynamic.static", _grown(asked, factor, trained, int(trained * factor)), {}
    for over, how in ((1 / factor, "multiplied"), (factor, "divided")):
        yield "dynamic.positions_scaled", asked.plain() / over, {"how": how}
        yield "dynamic.positions_scaled", partial(_over, asked, over), {"how": how}
    for times, less, exponent, how in (
        (1.0, 0.0, power, "by (n / L)^(d/(d-2)), without the factor"),
        (factor, 0.0, power, "by (factor n / L)^(d/(d-2))"),
        (factor, factor - 1, 1.0, "without the exponent d/(d-2)"),
    ):
        yield "dynamic.formula", partial(_by_form, asked, times, less, exponent), {"how": how}


def _by_form(asked: Asked, times: float, less: float, exponent: float, seq_len: int) -> Array:
    ratio = seq_len / asked.original
    return asked.plain(asked.base * (times * ratio - less) ** exponent if ratio > 1 else None)


def _longrope(asked: Asked) -> Speeds:
    """Yield LongRoPE with the wrong list, or with a list that is chosen wrongly."""
    trained = asked.original
    short, long = asked.inv_freq(trained), asked.inv_freq(trained + 1)
    yield "longrope.always_long", long, {}
    yield "longrope.always_short", short, {}
    yield "longrope.boundary", lambda seq_len: long if seq_len >= trained else short, {}
    yield "longrope.lists_swapped", lambda seq_len: short if seq_len > trained else long, {}
