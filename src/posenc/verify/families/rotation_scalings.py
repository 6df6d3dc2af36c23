"""Known faults of scaled frequencies, each a prediction: what a rotation would rotate by, were it made so."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from posenc import frequencies
from posenc.definitions import frequencies as defined
from posenc.verify.engine import Fault
from posenc.verify.engine.records import Array
from posenc.verify.families.rotation_asked import LENGTH, Asked, ByLength

Known = tuple[str, Array | ByLength | None, dict[str, Any]]  # a code without "rope.", frequencies, what its rule says
BY = {  # what else than the length of the whole text may choose frequencies
    "by_offset": ("first", "where a call begins"),
    "by_tokens": ("tokens", "the number of tokens of a call"),
    "length_from_head_axis": ("heads", "the number of heads"),
    "list_by_token": ("token", "the position of each token"),
}


def faults(asked: Asked) -> Iterator[Fault]:
    """Yield frequencies as faults of the scaling that is asked for would make them."""
    of = {"linear": _linear, "proportional": _proportional, "yarn": _yarn, "llama3": _llama3, "dynamic": _dynamic}
    for code, freq, values in of.get(asked.scaling, _unasked if asked.scaling == "default" else _longrope)(asked):
        if freq is not None:
            yield Fault(f"rope.{code}", {"freq": freq}, {"factor": asked.factor, "asked": asked.factor, **values})
    for code, (by, how) in BY.items() if asked.trained else ():
        yield Fault(f"rope.{asked.scaling}.{code}", {"by": by}, {"how": how})


def of_factor(asked: Asked) -> Iterator[Fault]:
    """Yield frequencies to which the factor is applied in another way."""
    factor, plain = asked.factor, asked.plain()
    for code, freq in (
        ("scaling.as_linear", plain / factor),
        ("dynamic.static" if asked.scaling == "dynamic" else "scaling.as_ntk", _stretched(asked)),
        ("scaling.factor_inverted", plain * factor),
        ("scaling.factor_twice", partial(_over, asked, factor)),
    ):
        yield Fault(f"rope.{code}", {"freq": freq}, {"factor": factor})


def _over(asked: Asked, factor: float, seq_len: int) -> Array:
    return np.asarray(asked.inv_freq(seq_len) / factor)


def _stretched(asked: Asked) -> Array:
    """Return the frequencies of static NTK scaling."""
    return asked.plain(frequencies.ntk_base(asked.base, width=asked.rotary_dim, factor=max(asked.factor, 1.0)))


def _grown(asked: Asked, factor: float, trained: int, seq_len: int) -> Array:
    """Return the frequencies of a base that grows with the text beyond a trained length."""
    lengths = {"seq_len": seq_len, "original_max_len": trained}
    return asked.plain(frequencies.dynamic_base(asked.base, width=asked.rotary_dim, factor=factor, **lengths))


def _unasked(asked: Asked) -> Iterator[Known]:
    for factor in (2.0, 4.0, 8.0, 0.5, 0.25):
        yield "config.scaling_unasked", asked.plain() / factor, {"factor": factor}


def _linear(asked: Asked) -> Iterator[Known]:
    if length := asked.max_positions:
        for over in (asked.factor, 1.0):
            yield "dynamic.not_gated_by_type", partial(_beyond, asked, length, over), {"length": length}


def _beyond(asked: Asked, length: int, over: float, seq_len: int) -> Array:
    return _grown(asked, asked.factor, length, seq_len) / over if seq_len > length else asked.inv_freq(seq_len)


def _proportional(asked: Asked) -> Iterator[Known]:
    i, turning = np.arange(asked.n_pairs), max(1, int(float(asked.parameters.get("share", 1.0)) * asked.n_pairs))
    yield "proportional.compressed_width", np.where(i < turning, asked.base ** (-i / turning), 0.0), {}


def _other_lengths(asked: Asked) -> Iterator[Known]:
    """Yield the scaling laid for another trained length."""
    for length in (asked.max_positions, asked.original * asked.factor, 2048, 4096, 8192, 32768, 131072):
        if length and length != asked.original:
            values = {"used": int(length), "asked": asked.original}
            yield f"{asked.scaling}.original_length_wrong", asked.changed(**{LENGTH: int(length)}), values


def _yarn(asked: Asked) -> Iterator[Known]:
    """Yield YaRN with other ends of its ramp, for another length, and with other things blended."""
    more, plain, factor, i = asked.parameters, asked.plain(), asked.factor, np.arange(asked.n_pairs)
    fast, slow = float(more.get("beta_fast", 32.0)), float(more.get("beta_slow", 1.0))
    rounds, length = bool(more.get("truncate", True)), asked.original
    how = "not rounded to whole pairs, and should be" if rounds else "rounded to whole pairs, and should not be"
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
    yield "yarn.ramp_inverted", plain / factor * (1 - t) + plain * t, {}


def _llama3(asked: Asked) -> Iterator[Known]:
    """Yield Llama 3's scaling with another ramp, with other parameters, and other rules in its place."""
    low, high = float(asked.parameters["low_freq_factor"]), float(asked.parameters["high_freq_factor"])
    plain, factor, length = asked.plain(), asked.factor, asked.original
    turns = length * plain / (2 * np.pi)
    even, middle = np.clip((turns - low) / (high - low), 0, 1), (turns >= low) & (turns <= high)
    in_length = np.clip((1 / low - 1 / turns) / (1 / low - 1 / high), 0, 1)
    ends = "fast pairs are divided by the factor and slow ones kept, as if both ends of the ramp were exchanged"
    for code, t, how in (  # how much of the plain frequency is kept
        ("ramp_in_wavelength", in_length, ""),
        ("ramp_missing", turns >= low, "kept"),
        ("ramp_missing", turns > high, "divided"),
        ("ramp_inverted", np.where(middle, 1 - even, even), "between the bands the ramp runs the wrong way"),
        ("ramp_inverted", 1 - even, ends),
    ):
        yield f"llama3.{code}", t * plain + (1.0 - t) * plain / factor, {"how": how}
    yield "llama3.ramp_in_wavelength", 1 / (in_length / plain + (1 - in_length) * factor / plain), {}
    yield "llama3.factor_twice", asked.inv_freq(1) / np.where(middle, factor, 1.0), {}
    for used in (8.0, 32.0, 16.0, 4.0):
        yield "llama3.factor_hardcoded", asked.changed(factor=used), {"used": used}
    yield from _other_lengths(asked)
    for freq in (partial(_grown, asked, factor, length), _grown(asked, factor, length, 4096), _stretched(asked)):
        yield "llama3.as_dynamic", freq, {}


def _dynamic(asked: Asked) -> Iterator[Known]:
    """Yield bases that grow otherwise with the text."""
    factor, trained = asked.factor, asked.original
    for used in (1.0, 2.0, 4.0, 8.0):
        yield "dynamic.factor_not_read", partial(_grown, asked, used, trained), {"used": used}
    yield "dynamic.static", _grown(asked, factor, trained, int(trained * factor)), {}
    for times, how in ((factor, "multiplied"), (1 / factor, "divided")):
        yield "dynamic.positions_scaled", asked.plain() * times, {"how": how}
        yield "dynamic.positions_scaled", partial(_over, asked, 1 / times), {"how": how}
    power = asked.rotary_dim / (asked.rotary_dim - 2)
    for times, less, exponent, how in (
        (1.0, 0.0, power, "by (n / L)^(d/(d-2)), without the factor"),
        (factor, 0.0, power, "by (factor n / L)^(d/(d-2))"),
        (factor, factor - 1, 1.0, "without the exponent d/(d-2)"),
    ):
        yield "dynamic.formula", partial(_by_form, asked, times, less, exponent), {"how": how}


def _by_form(asked: Asked, times: float, less: float, exponent: float, seq_len: int) -> Array:
    ratio = seq_len / asked.original
    return asked.plain(asked.base * (times * ratio - less) ** exponent if ratio > 1 else None)


def _longrope(asked: Asked) -> Iterator[Known]:
    """Yield LongRoPE with the wrong list, or with a list that is chosen wrongly."""
    trained = asked.original
    short, long = asked.inv_freq(trained), asked.inv_freq(trained + 1)
    yield "longrope.always_long", long, {}
    yield "longrope.always_short", short, {}
    yield "longrope.boundary", partial(_from, trained, short, long), {}
    yield "longrope.lists_swapped", partial(_from, trained + 1, long, short), {}


def _from(first: int, before: Array, after: Array, seq_len: int) -> Array:
    return after if seq_len >= first else before
