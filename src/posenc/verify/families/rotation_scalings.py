"""Known faults of scaled frequencies, each a prediction: what a rotation would rotate by, were it made so."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from posenc import frequencies
from posenc.definitions import frequencies as defined
from posenc.verify.engine import Fault
from posenc.verify.engine.records import Array
from posenc.verify.families.rotation_asked import LENGTH, Asked, ByLength, Fixed

REPORTED = ("attention_factor", "gain_lost", "gain_squared", "mscale_of_mscale")  # faults of YaRN's gain
LENGTHS = (2048.0, 4096.0, 8192.0, 32768.0, 131072.0)


def _fault(code: str, freq: ByLength | Array | None, **values: Any) -> Iterator[Fault]:
    """Yield a fault of frequencies, unless they cannot be formed."""
    if freq is not None:
        yield Fault(code, {"freq": freq if callable(freq) else Fixed(freq)}, values)


def unscaled(asked: Asked) -> Iterator[Fault]:
    """Yield a scaling that is lost as a whole."""
    values = {"scaling": asked.scaling, "base": asked.base}
    plain = Fixed(asked.plain())
    if asked.scaling == "proportional":
        yield Fault("rope.proportional.full_rotation", {"freq": plain})
    yield Fault("rope.config.scaling_ignored", {"freq": plain, "gain": Fixed(1.0)}, values)
    yield Fault("rope.config.scaling_ignored", {"freq": plain}, values)


def code_of(asked: Asked, what: str) -> str:
    """Return the code of a fault that all scalings may have."""
    return f"rope.yarn.{what}" if asked.scaling == "yarn" and what in REPORTED else f"rope.scaling.{what}"


def of_scaling(asked: Asked) -> Iterator[Fault]:
    """Yield frequencies as faults of the scaling that is asked for would make them."""
    of = {
        "default": _unasked,
        "linear": _of_linear,
        "proportional": _of_proportional,
        "yarn": _of_yarn,
        "llama3": _of_llama3,
        "dynamic": _of_dynamic,
        "longrope": _of_longrope,
    }
    if asked.scaling in of:
        yield from of[asked.scaling](asked)


def of_factor(asked: Asked) -> Iterator[Fault]:
    """Yield frequencies to which the factor is applied in another way."""
    if asked.scaling == "default":
        return
    factor = asked.factor
    if asked.scaling != "linear":
        yield from _fault("rope.scaling.as_linear", asked.plain() / factor, factor=factor)
    code = "rope.dynamic.static" if asked.scaling == "dynamic" else "rope.scaling.as_ntk"
    yield from _fault(code, asked.plain(_stretched(asked)), factor=factor)
    yield from _fault("rope.scaling.factor_inverted", asked.plain() * factor, factor=factor)
    yield from _fault("rope.scaling.factor_twice", partial(_over, asked, factor), factor=factor)


def _over(asked: Asked, factor: float, seq_len: int) -> Array:
    return np.asarray(asked.inv_freq(seq_len) / factor)


def _stretched(asked: Asked) -> float:
    """Return the base of static NTK scaling."""
    if asked.factor <= 1:
        return asked.base
    return frequencies.ntk_base(asked.base, width=asked.rotary_dim, factor=asked.factor)


def _unasked(asked: Asked) -> Iterator[Fault]:
    for factor in (2.0, 4.0, 8.0, 0.5, 0.25):
        yield from _fault("rope.config.scaling_unasked", asked.plain() / factor, factor=factor)


def _of_linear(asked: Asked) -> Iterator[Fault]:
    if asked.max_positions:
        for over in (asked.factor, 1.0):
            grown = partial(_grown, asked, asked.factor, asked.max_positions)
            beyond = partial(_beyond, asked, asked.max_positions, over, grown)
            yield from _fault("rope.dynamic.not_gated_by_type", beyond, length=asked.max_positions)


def _beyond(asked: Asked, length: int, over: float, grown: ByLength, seq_len: int) -> Array:
    return grown(seq_len) / over if seq_len > length else asked.inv_freq(seq_len)


def _grown(asked: Asked, factor: float, trained: int, seq_len: int) -> Array:
    """Return the frequencies of a base that grows with the text beyond a trained length."""
    lengths = {"seq_len": seq_len, "original_max_len": trained}
    return asked.plain(frequencies.dynamic_base(asked.base, width=asked.rotary_dim, factor=factor, **lengths))


def _of_proportional(asked: Asked) -> Iterator[Fault]:
    n, share = asked.n_pairs, float(asked.parameters.get("share", 1.0))
    turning = max(1, int(share * n))
    compressed = np.where(np.arange(n) < turning, asked.base ** (-np.arange(n) / turning), 0.0)
    yield from _fault("rope.proportional.compressed_width", compressed)


def _of_yarn(asked: Asked) -> Iterator[Fault]:
    """Yield YaRN with other ends of its ramp, for another length, and with other things blended."""
    fast, slow = float(asked.parameters.get("beta_fast", 32.0)), float(asked.parameters.get("beta_slow", 1.0))
    rounds = bool(asked.parameters.get("truncate", True))
    how = "not rounded to whole pairs, and should be" if rounds else "rounded to whole pairs, and should not be"
    yield from _fault("rope.yarn.range_rounded", asked.changed(truncate=not rounds), how=how)
    yield from _fault("rope.yarn.betas_swapped", _yarn(asked, beta_fast=slow, beta_slow=fast))
    if (fast, slow) != (32.0, 1.0):
        yield from _fault("rope.yarn.betas_not_read", asked.changed(beta_fast=32.0, beta_slow=1.0))
    yield from _other_lengths(asked, "rope.yarn.original_length_wrong", LENGTHS)
    width, base, factor, plain, length = asked.rotary_dim, asked.base, asked.factor, asked.plain(), asked.original
    by_turns = defined.by_parts(plain, factor=factor, original_max_len=length, low_turns=slow, high_turns=fast)
    yield from _fault("rope.yarn.ramp_in_turns", by_turns)
    ends = {"beta_fast": fast, "beta_slow": slow, "truncate": rounds}
    low, high = defined.yarn_bounds(width=width, base=base, original_max_len=length, **ends)  # type: ignore[arg-type]
    i = np.arange(asked.n_pairs)
    t = np.clip((i - low) / max(high - low, 0.001), 0, 1)
    yield from _fault("rope.yarn.factor_in_power", (factor * base) ** (-2.0 * i / width) * t + plain * (1 - t))
    yield from _fault("rope.yarn.ramp_inverted", plain / factor * (1 - t) + plain * t)
    of_lanes = np.clip((2 * i - low) / max(high - low, 0.001), 0, 1)
    yield from _fault("rope.yarn.ramp_by_dimension", plain / factor * of_lanes + plain * (1 - of_lanes))
    yield from _fault("rope.yarn.ramp_in_wavelength", 1 / (t * factor / plain + (1 - t) / plain))


def _yarn(asked: Asked, **changed: Any) -> Array | None:
    """Return YaRN's frequencies by the definition with parameters that a configuration may not have."""
    ramp = {"width": asked.rotary_dim, "base": asked.base, "factor": asked.factor, "original_max_len": asked.original}
    ramp["truncate"] = bool(asked.parameters.get("truncate", True))
    try:
        return defined.yarn(**(ramp | changed))
    except (ValueError, ZeroDivisionError, OverflowError):
        return None


def _other_lengths(asked: Asked, code: str, lengths: tuple[float, ...]) -> Iterator[Fault]:
    """Yield the scaling laid for another trained length."""
    for length in dict.fromkeys((asked.max_positions, asked.original * asked.factor, *lengths)):
        if length and length != asked.original:
            freq = asked.changed(**{LENGTH: int(length)})
            yield from _fault(code, freq, used=int(length), asked=asked.original)


def _of_llama3(asked: Asked) -> Iterator[Fault]:
    """Yield Llama 3's scaling with another ramp, with other parameters, and other rules in its place."""
    low, high = float(asked.parameters["low_freq_factor"]), float(asked.parameters["high_freq_factor"])
    plain, factor, right = asked.plain(), asked.factor, asked.inv_freq(1)
    turns, length = asked.original * plain / (2 * np.pi), asked.original
    kept, divided = length / high, length / low
    t = np.clip((divided - 2 * np.pi / plain) / (divided - kept), 0, 1)
    yield from _fault("rope.llama3.ramp_in_wavelength", (1 - t) * plain / factor + t * plain)
    yield from _fault("rope.llama3.ramp_in_wavelength", 1 / (t / plain + (1 - t) * factor / plain))
    middle = (turns >= low) & (turns <= high)
    yield from _fault("rope.llama3.ramp_missing", np.where(turns < low, plain / factor, plain), how="kept")
    yield from _fault("rope.llama3.ramp_missing", np.where(turns <= high, plain / factor, plain), how="divided")
    smooth = np.clip((turns - low) / (high - low), 0, 1)
    inverted = np.where(middle, smooth * plain / factor + (1 - smooth) * plain, right)
    how = "between the bands the ramp runs the wrong way"
    yield from _fault("rope.llama3.ramp_inverted", inverted, how=how)
    how = "fast pairs are divided by the factor and slow ones kept, as if both ends of the ramp were exchanged"
    yield from _fault("rope.llama3.ramp_inverted", smooth * plain / factor + (1 - smooth) * plain, how=how)
    twice = np.where(middle, (1 - smooth) * plain / factor**2 + smooth * plain / factor, right)
    yield from _fault("rope.llama3.factor_twice", twice)
    for used in (8.0, 32.0, 16.0, 4.0):
        if used != factor:
            yield from _fault("rope.llama3.factor_hardcoded", asked.changed(factor=used), used=used, asked=factor)
    yield from _fault("rope.llama3.bands_swapped", np.where(turns > low, plain, plain / factor))
    yield from _other_lengths(asked, "rope.llama3.original_length_wrong", (8192.0, 131072.0))
    for trained in dict.fromkeys((length, asked.max_positions or length)):
        grown = partial(_grown, asked, factor, trained)
        yield from _fault("rope.llama3.as_dynamic", grown)
    for end in dict.fromkeys((asked.max_positions or 4096, 4096)):
        if end > length:
            yield from _fault("rope.llama3.as_dynamic", _grown(asked, factor, length, end))
    yield from _fault("rope.llama3.as_dynamic", asked.plain(_stretched(asked)))


def _of_dynamic(asked: Asked) -> Iterator[Fault]:
    """Yield bases that grow otherwise with the text."""
    factor, trained = asked.factor, asked.original
    for used in (1.0, 2.0, 4.0, 8.0):
        if used != factor:
            yield from _fault(
                "rope.dynamic.factor_not_read", partial(_grown, asked, used, trained), used=used, asked=factor
            )
    yield from _fault("rope.dynamic.static", _grown(asked, factor, trained, int(trained * factor)), factor=factor)
    for times, how in ((factor, "multiplied"), (1 / factor, "divided")):
        yield from _fault("rope.dynamic.positions_scaled", asked.plain() * times, how=how, factor=factor)
        grown = partial(_over, asked, 1 / times)
        yield from _fault("rope.dynamic.positions_scaled", grown, how=how, factor=factor)
    for form, how in enumerate(FORMS):
        yield from _fault("rope.dynamic.formula", partial(_of_form, asked, form), how=how)
    for by, code in (("first", "by_offset"), ("tokens", "by_tokens"), ("heads", "length_from_head_axis")):
        yield Fault(f"rope.dynamic.{code}", {"by": by})


FORMS = ("by (n / L)^(d/(d-2)), without the factor", "by (factor n / L)^(d/(d-2))", "without the exponent d/(d-2)")


def _of_form(asked: Asked, form: int, seq_len: int) -> Array:
    """Return the frequencies of a base that grows by another formula."""
    ratio, factor = seq_len / asked.original, asked.factor
    power = asked.rotary_dim / (asked.rotary_dim - 2)
    growth = (ratio**power, (factor * ratio) ** power, factor * ratio - (factor - 1))[form]
    return asked.plain(asked.base * growth) if ratio > 1 else asked.plain()


def _of_longrope(asked: Asked) -> Iterator[Fault]:
    """Yield LongRoPE with the wrong list, or with a list that is chosen wrongly."""
    plain, trained = asked.plain(), asked.original
    short, long = asked.inv_freq(trained), asked.inv_freq(trained + 1)
    yield from _fault("rope.longrope.always_long", long)
    yield from _fault("rope.longrope.always_short", short)
    yield from _fault("rope.longrope.boundary", partial(_from, trained, short, long))
    yield from _fault("rope.longrope.lists_swapped", partial(_from, trained + 1, long, short))
    yield from _fault("rope.longrope.lists_swapped", partial(_from, trained, long, short))
    for by, code in (("token", "list_by_token"), ("first", "by_offset"), ("tokens", "by_tokens")):
        yield Fault(f"rope.longrope.{code}", {"by": by})
    times = partial(_from, trained + 1, plain**2 / short, plain**2 / long)
    yield from _fault("rope.longrope.factors_multiplied", times)


def _from(first: int, before: Array, after: Array, seq_len: int) -> Array:
    return after if seq_len >= first else before
