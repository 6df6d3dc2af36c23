"""Known faults of rotations, each a change of the formula's parameters; the likeliest first."""

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from posenc.verify.engine import Fault
from posenc.verify.engine.precision import SHORT, rounded
from posenc.verify.engine.read import BASES
from posenc.verify.engine.records import Array, Model
from posenc.verify.families.rotation_asked import Asked, Fixed
from posenc.verify.families.rotation_calls import Places
from posenc.verify.families.rotation_scalings import code_of, of_factor, of_scaling, unscaled

OTHER = {"half": "interleaved", "interleaved": "half"}
SIDES = {"q": "queries", "k": "keys"}
STAGES = {  # which of positions, frequencies and products are rounded: the word of the code
    (True, False, False): "positions",
    (False, True, False): "frequencies",
    (False, False, True): "product",
    (True, True, False): "positions",
    (False, True, True): "product",
    (True, False, True): "product",
    (True, True, True): "product",
}
PARAMETERS = ("round_positions", "round_frequencies", "round_product")


def faults(asked: Asked, truth: Model, reach: str) -> Iterator[Fault]:
    """Yield all known faults of a specification, for one way to call it."""
    both = [*_gains(asked), *of_scaling(asked), *_bases(asked), *_exponents(asked), *of_factor(asked)]
    both += [*_blocks(asked, truth), *_places(asked, reach), *_precision()]
    yield from both
    yield from _sides(asked, truth)
    if asked.xpos:
        yield from _decay(asked)
    yield Fault("subject.not_finite", {"lost": True}, {"message": "the answer is not finite from some position on"})
    for fault in both:  # the same on one side only
        if not {"pairing", "tables", "first", "form"} & set(fault.change) and "q" not in fault.change:
            yield from _one_side(fault, truth)


def _one_side(fault: Fault, truth: Model) -> Iterator[Fault]:
    """Yield a fault of queries only, and of keys only."""
    is_rounding = fault.code.startswith("rope.precision.")
    for side, name in SIDES.items():
        values = {**fault.values, "side": name, "why": fault.code, "whose": f" of {name} only"}
        code = fault.code if is_rounding else "rope.side.differ"
        yield Fault(code, {side: {**truth[side], **fault.change}}, values)


def _sides(asked: Asked, truth: Model) -> Iterator[Fault]:
    """Yield queries and keys that are not rotated alike."""
    nothing = {"freq": Fixed(np.zeros(asked.n_pairs)), "gain": Fixed(1.0)}
    for side, name in SIDES.items():
        yield Fault("rope.side.not_turned", {side: {**truth[side], **nothing}}, {"side": name})
    yield Fault("rope.not_turned", nothing)
    for side, name in SIDES.items():
        yield Fault("rope.sign.one_side", {side: {**truth[side], "sign": -truth["sign"]}}, {"side": name})
    for side, name in SIDES.items():
        for by in (1, -1, 2, -2):
            change = {side: {**truth[side], "pos": partial(_shifted, by)}}
            yield Fault("rope.offset.sides_differ", change, {"side": name, "by": by})
        other = {**truth[side], "pairing": OTHER[truth["pairing"]]}
        values = {"what": f"{name} are paired {other['pairing']}, and the other side {truth['pairing']}"}
        yield Fault("rope.layout.mixed", {side: other}, values)
        for order in _orders(asked):
            yield Fault("rope.layout.output_not_reinterleaved", {side: {**truth[side], "order": order}}, {"side": name})


def _orders(asked: Asked) -> list[NDArray[np.intp]]:
    """Return the orders of dimensions that a missing or an added interleaving makes."""
    lanes = np.arange(asked.head_dim)
    part = lanes[asked.first : asked.first + asked.rotary_dim]
    lanes[asked.first : asked.first + asked.rotary_dim] = np.concatenate((part[::2], part[1::2]))
    return [lanes, np.argsort(lanes)]


def _blocks(asked: Asked, truth: Model) -> Iterator[Fault]:
    """Yield other pairs of dimensions, and blocks that are no rotations."""
    pairing, head_dim, width = truth["pairing"], asked.head_dim, asked.rotary_dim
    other = OTHER[pairing]
    yield Fault("rope.layout.wrong_pairing", {"pairing": other}, {"found": other, "asked": pairing})
    what = "cos and sin are laid out for one pairing, and dimensions are paired in the other"
    yield Fault("rope.layout.mixed", {"tables": other}, {"what": what})
    yield Fault("rope.layout.mixed", {"pairing": other, "tables": pairing}, {"what": what})
    yield Fault("rope.sign.same_twice", {"form": "same"})
    yield Fault("rope.sign.reflection", {"form": "reflection"})
    for form, how in (("first", "y' = y cos + x' sin with x' = x cos - y sin"), ("second", "x' = x cos - y' sin")):
        yield Fault("rope.aliased_write", {"form": form}, {"how": how})
    if width == head_dim:
        return
    over_head = asked.plain(width=head_dim)
    yield Fault("rope.partial.head_dim_used", {"freq": Fixed(over_head)}, {"width": head_dim, "turning": width})
    if pairing == "half" and asked.first == 0:
        change = {"freq": Fixed(over_head), "partner": head_dim // 2}
        yield Fault("rope.partial.head_dim_used", change, {"width": head_dim, "turning": width})
        yield Fault("rope.partial.wrong_partner", {"partner": head_dim // 2})
    whole = asked.plain(width=head_dim, n_pairs=head_dim // 2)
    yield Fault("rope.partial.factor_not_read", {"freq": Fixed(whole), "first": 0}, {"width": head_dim})
    yield Fault("rope.partial.other_lanes", {"first": head_dim - width - asked.first}, {"width": width})


def _gains(asked: Asked) -> Iterator[Fault]:
    """Yield other gains; where the whole scaling is lost, the gain is lost with it."""
    if asked.scaling != "default":
        yield from unscaled(asked)
    want, factor = asked.gain(asked.original), asked.factor
    log = math.log(factor) if factor > 1 else 0.0
    formula = 0.1 * log + 1
    explicit = "attention_factor" in asked.parameters
    lost = "attention_factor" if explicit else "gain_lost"
    known = [
        ("attention_factor", formula, "0.1 ln(factor) + 1"),
        ("gain_squared", want**2, "the square of the right one"),
        ("gain_squared", want * formula, "the right one times 0.1 ln(factor) + 1"),
        ("mscale_of_mscale", 0.1 * want * log + 1, "0.1 gain ln(factor) + 1"),
        (lost, 1.0, "no gain"),
        ("gain_inverted", 1 / want, "the inverse of the right one"),
        ("gain_root", want**0.5, "the root of the right one"),
        ("gain_is_factor", factor, "the factor of the length"),
    ]
    for name, gain, words in known if asked.scaling != "default" else []:
        if abs(gain - want) > 1e-3:
            yield Fault(code_of(asked, name), {"gain": Fixed(gain)}, {"used": gain, "asked": want, "words": words})
    if asked.rotary_dim != asked.head_dim and abs(want - 1) > 1e-3:
        yield Fault("rope.partial.still_lanes_scaled", {"still": want}, {"by": want})


def _precision() -> Iterator[Fault]:
    """Yield every step of the formula in half precision, by itself and with others."""
    for dtype, short in SHORT.items():
        table = {"round_table": dtype}
        yield Fault(f"rope.precision.table_{short}", table, {"dtype": dtype, "whose": ""})
        yield Fault(f"rope.precision.x_{short}", {"round_x": dtype}, {"dtype": dtype, "whose": ""})
        yield Fault(f"rope.precision.x_{short}", {"round_y": dtype}, {"dtype": dtype, "whose": ""})
        yield Fault(f"rope.precision.x_{short}", {**table, "round_x": dtype}, {"dtype": dtype, "whose": ""})
    for dtype, short in SHORT.items():
        for steps, word in STAGES.items():
            names = [name for name, cut in zip(PARAMETERS, steps, strict=True) if cut]
            what = " and ".join(name[6:] for name in names).replace("product", "products of both")
            for more, also in (({}, ""), ({"round_table": dtype}, ", and cosines and sines are rounded as well")):
                values = {"dtype": dtype, "what": what, "also": also, "whose": ""}
                yield Fault(f"rope.precision.{word}_{short}", {**dict.fromkeys(names, dtype), **more}, values)


def _bases(asked: Asked) -> Iterator[Fault]:
    """Yield other bases, with and without the scaling that is asked for."""
    for base in BASES:
        if math.isclose(base, asked.base):
            continue
        values = {"used": base, "asked": asked.base}
        if asked.scaling != "default":
            yield Fault("rope.config.theta_not_read", {"freq": Fixed(asked.plain(base)), "gain": Fixed(1.0)}, values)
        yield Fault("rope.config.theta_not_read", {"freq": Fixed(asked.plain(base))}, values)
        if asked.scaling != "default" and (freq := asked.changed(rope_theta=base)) is not None:
            yield Fault("rope.config.theta_not_read", {"freq": freq}, values)


def _exponents(asked: Asked) -> Iterator[Fault]:
    """Yield exponents that count otherwise, and angles in other units."""
    n, width, base = asked.n_pairs, asked.rotary_dim, asked.base
    i = np.arange(n)
    source = asked.source or {}
    hidden, heads = source.get("hidden_size"), source.get("num_attention_heads")
    if hidden and heads and hidden != heads * asked.head_dim:
        quotient = hidden / heads
        freq = asked.plain(width=width * quotient / asked.head_dim)
        values = {"quotient": quotient, "asked": asked.head_dim}
        yield Fault("rope.config.head_dim_not_read", {"freq": Fixed(freq)}, values)
    for name, exponent in (
        ("inverted", 2.0 * i / width),
        ("whole_exponents", np.zeros(n)),
        ("exponent_halved", -1.0 * i / width),
        ("exponent_doubled", -4.0 * i / width),
        ("starts_at_one", -2.0 * (i + 1) / width),
        ("last_is_base", -1.0 * i / max(n - 1, 1)),
    ):
        yield Fault(f"rope.frequency.{name}", {"freq": Fixed(base**exponent)})
    right = asked.inv_freq(asked.original)
    yield Fault("rope.frequency.in_turns", {"freq": Fixed(right * 2 * np.pi)}, {"how": "multiplied"})
    yield Fault("rope.frequency.in_turns", {"freq": Fixed(right / (2 * np.pi))}, {"how": "divided"})
    yield Fault("rope.frequency.order_reversed", {"freq": Fixed(right[::-1])})


def _shifted(by: float, where: Places) -> Array:
    return where.pos + by


def _counted(where: Places) -> Array:
    return where.index


def _from_one(where: Places) -> Array:
    return where.index + 1


def _first(where: Places) -> Array:
    return where.first


def _first_behind(where: Places) -> Array:
    return np.where(where.first > 0, where.first, where.pos)


def _last(where: Places) -> Array:
    return where.last


def _backwards(where: Places) -> Array:
    return where.last - where.pos


def _of_bits(bits: int, where: Places) -> Array:
    half = 2.0 ** (bits - 1)
    return np.asarray((where.pos + half) % (2 * half) - half)


def _offset_times(factor: float, where: Places) -> Array:
    return where.index + factor * where.first


def _offset_by_tokens(where: Places) -> Array:
    return where.index + where.first * where.tokens


def _tokens_added(only_behind: bool, where: Places) -> Array:
    return where.pos + where.tokens * ((where.first > 0) | (not only_behind))


def _rounded_offset(dtype: str, where: Places) -> Array:
    return where.index + rounded(where.first, dtype)


def _one_more(by: float, where: Places) -> Array:
    return np.where(where.first > 0, where.pos + by, where.pos)


def _places(asked: Asked, reach: str) -> Iterator[Fault]:
    """Yield right frequencies at wrong positions."""
    if reach == "run":
        yield from _offsets(asked)
    how: list[tuple[str, Callable[[Places], Array], str]] = [
        ("positions.given_ignored", _counted, "the positions that are given are not used, tokens are counted instead"),
        ("positions.given_ignored", _from_one, "tokens are counted from 1, whatever positions are given"),
        ("rope.window.positions_constant", _first, "all tokens get the position of the first"),
        ("rope.window.positions_constant", _last, "all tokens get the position of the last"),
        ("rope.positions.reversed", _backwards, "positions run backwards"),
        *[
            ("rope.table.wraps", partial(_of_bits, bits), f"positions are kept in int{bits}, and go on below zero")
            for bits in (8, 16)
        ],
    ]
    for code, pos, words in how if reach != "start" else how[2:]:
        yield Fault(code, {"pos": pos}, {"how": words})


def _offsets(asked: Asked) -> Iterator[Fault]:
    """Yield what calls with offsets make of them: token i behind an offset should stand at offset + i."""
    yield Fault("rope.offset.ignored", {"pos": _counted})
    if asked.scaling == "linear":
        unscaled_offset = partial(_offset_times, asked.factor)
        yield Fault("rope.linear.offset_unscaled", {"pos": unscaled_offset}, {"factor": asked.factor})
    yield Fault("rope.window.positions_constant", {"pos": _first}, {"how": "all tokens of a call get its offset"})
    how = "all tokens behind an offset get the position of the first"
    yield Fault("rope.window.positions_constant", {"pos": _first_behind}, {"how": how})
    for pos, how in (
        (partial(_offset_times, 2.0), "the offset counts twice"),
        (partial(_offset_times, -1.0), "the offset is taken off and not added"),
        (_offset_by_tokens, "the offset is multiplied by the number of tokens of the call"),
        (partial(_tokens_added, False), "the number of tokens of the call is added to the offset"),
        (partial(_tokens_added, True), "the number of tokens of the call is added to an offset that is not 0"),
    ):
        yield Fault("rope.offset.miscounted", {"pos": pos}, {"how": how})
    for dtype, short in SHORT.items():
        values = {"dtype": dtype, "what": "offsets", "also": "", "whose": ""}
        yield Fault(f"rope.precision.positions_{short}", {"pos": partial(_rounded_offset, dtype)}, values)
    for by, words in ((1, "many"), (-1, "few")):
        yield Fault("rope.kv_cache.off_by_one", {"pos": partial(_one_more, by)}, {"how": f"one too {words}"})


def growth(asked: Asked, *, base: float | None = None, zeta: Array | None = None, step: float = 0.0) -> Any:
    """Return the logarithms of xPos's powers of queries as a function of positions, (positions, pairs)."""
    decay, gamma = asked.xpos or (512.0, 0.4)
    if zeta is None:
        zeta = (asked_share(asked) + gamma) / (1 + gamma)
    with np.errstate(divide="ignore"):
        return partial(_power, np.log(zeta), base or decay, step)


def asked_share(asked: Asked) -> Array:
    """Return 2i/d of each pair."""
    return np.asarray(2.0 * np.arange(asked.n_pairs) / asked.rotary_dim)


def _power(log_zeta: Array, base: float, step: float, pos: Array) -> Array:
    return np.outer(np.floor(pos / base) if step else pos / base, log_zeta)


def _decay(asked: Asked) -> Iterator[Fault]:
    """Yield xPos's faults: which side decays, by which power."""
    base, gamma = asked.xpos or (512.0, 0.4)
    for centre in (False, True):
        for code, q, k, how in (
            ("missing", 0.0, 0.0, ""),
            ("key_missing", 1.0, 0.0, ""),
            ("query_missing", 0.0, -1.0, ""),
            ("not_inverted", 1.0, 1.0, "keys are scaled as queries are"),
            ("not_inverted", -1.0, -1.0, "queries are scaled as keys are"),
            ("sign", -1.0, 1.0, ""),
        ):
            change = {"q": {"grow": q}, "k": {"grow": k}, "centre": centre}
            yield Fault(f"xpos.scale.{code}", change, {"how": how})
        stepped = growth(asked, step=1.0)
        yield Fault("xpos.power.stepped", {"growth": stepped, "centre": centre}, {"base": base})
    other = "interleaved" if asked.layout != "interleaved" else "half"
    yield Fault("xpos.scale.layout", {"growth_lanes": other}, {"found": other})
    yield Fault("xpos.power.precedence", {"growth": growth(asked, base=1.0)}, {"base": base})
    for used in (512.0, 1024.0, 256.0, 2048.0, 64.0, 1.0):
        if used != base:
            code = f"xpos.scale_base.too_{'small' if used < base else 'large'}"
            yield Fault(code, {"growth": growth(asked, base=used)}, {"used": used, "asked": base})
    share = asked_share(asked)
    for used in (0.4, 0.0, 1.0):
        if used != gamma:
            zeta = (share + used) / (1 + used)
            yield Fault("xpos.gamma.not_read", {"growth": growth(asked, zeta=zeta)}, {"used": used, "asked": gamma})
    counted = growth(asked, zeta=(share / 2 + gamma) / (1 + gamma))
    yield Fault("xpos.zeta.counts_lanes", {"growth": counted})
    for zeta, how in ((share + gamma, "zeta is"), (share + gamma / (1 + gamma), "2i/d is")):
        yield Fault("xpos.zeta.precedence", {"growth": growth(asked, zeta=zeta)}, {"how": how})
