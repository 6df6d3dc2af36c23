"""Known faults of rotations, each a change of the formula's parameters; the likeliest first."""

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np

from posenc.verify.engine import Fault
from posenc.verify.engine.precision import SHORT, rounded
from posenc.verify.engine.records import Array, Model
from posenc.verify.families import rotation_scalings
from posenc.verify.families.rotation_asked import Asked
from posenc.verify.families.rotation_calls import Places

OTHER = {"half": "interleaved", "interleaved": "half"}
SIDES = {"q": "queries", "k": "keys"}
Known = tuple[str, Model, Mapping[str, Any]]  # a code without "rope.", a change, values for its rule
# wrong positions of a token, by the positions that a call may use; the right one is offset + index
PLACES: Mapping[str, tuple[tuple[str, Callable[[Places], Array], str], ...]] = {
    "run": (
        ("offset.ignored", lambda at: at.index, ""),
        ("offset.miscounted", lambda at: at.index + 2 * at.first, "the offset counts twice"),
        ("offset.miscounted", lambda at: at.index - at.first, "the offset is subtracted instead of added"),
        ("offset.miscounted", lambda at: at.index + at.first * at.tokens, "the offset is multiplied by the length"),
        ("offset.miscounted", lambda at: at.pos + at.tokens, "the length of the call is added to the offset"),
        ("kv_cache.off_by_one", lambda at: at.pos + (at.first > 0), "one too many"),
        ("kv_cache.off_by_one", lambda at: at.pos - (at.first > 0), "one too few"),
    ),
    "any": (
        ("positions.given_ignored", lambda at: at.index, "given positions are ignored; tokens are counted"),
        ("positions.given_ignored", lambda at: at.index + 1, "tokens are counted from 1, whatever positions are given"),
    ),
    "": (
        ("window.positions_constant", lambda at: at.first, "all tokens of a call get the position of the first"),
        ("window.positions_constant", lambda at: at.last, "all tokens of a call get the position of the last"),
        ("window.positions_constant", lambda at: np.where(at.first, at.first, at.pos), "all get a nonzero offset"),
        ("table.wraps", lambda at: (at.pos + 128) % 256 - 128, "positions are kept in int8"),
        ("table.wraps", lambda at: (at.pos + 2**15) % 2**16 - 2**15, "positions are kept in int16"),
    ),
}


def faults(asked: Asked, truth: Model, reach: str) -> Iterator[Fault]:
    """Yield all known faults of a specification, for one way to call it."""
    both = [
        *_gains(asked),
        *rotation_scalings.faults(asked),
        *_blocks(asked, truth),
        *((code, {"pos": pos}, {"how": how}) for code, pos, how in (*PLACES.get(reach, ()), *PLACES[""])),
        *_precision(reach),
    ]
    for code, change, values in (*both, *_sides(asked, truth), *_decay(asked)):
        yield Fault(_full(code), change, values)
    for code, change, values in both:  # the same on one side only
        if {"pairing", "tables", "first", "form", "by"} & set(change):
            continue
        for side, name in SIDES.items():
            said = {**values, "side": name, "why": _full(code), "scope": f" of {name} only"}
            code_of_side = code if code.startswith("precision.") else "side.differ"
            yield Fault(f"rope.{code_of_side}", {side: {**truth[side], **change}}, said)


def _full(code: str) -> str:
    return code if code.startswith(("xpos.", "positions.")) else f"rope.{code}"


def _sides(asked: Asked, truth: Model) -> Iterator[Known]:
    """Yield queries and keys that are rotated differently."""
    lanes, end = np.arange(asked.head_dim), asked.first + asked.rotary_dim
    part = lanes[asked.first : end]
    order = np.concatenate((lanes[: asked.first], part[::2], part[1::2], lanes[end:]))
    pairing, other = truth["pairing"], OTHER[truth["pairing"]]
    nothing = {"freq": np.zeros(asked.n_pairs), "gain": 1.0}
    yield "not_turned", nothing, {}
    for side, name in SIDES.items():
        what = f"{name} are paired {other}, but the other side {pairing}"
        for code, change in (
            ("side.not_turned", nothing),
            ("sign.one_side", {"sign": -truth["sign"]}),
            ("layout.mixed", {"pairing": other}),
            ("layout.output_not_reinterleaved", {"order": order}),
            ("layout.output_not_reinterleaved", {"order": np.argsort(order)}),
            ("offset.sides_differ", {"pos": lambda at: at.pos + 1}),
            ("offset.sides_differ", {"pos": lambda at: at.pos - 1}),
        ):
            yield code, {side: {**truth[side], **change}}, {"side": name, "what": what}


def _blocks(asked: Asked, truth: Model) -> Iterator[Known]:
    """Yield other pairs of dimensions, and blocks that are not rotations."""
    pairing, other, head_dim, width = truth["pairing"], OTHER[truth["pairing"]], asked.head_dim, asked.rotary_dim
    what = "cos and sin are laid out for one pairing, but dimensions are paired in the other"
    widths = {"width": head_dim, "rotating": width}
    over_head, whole = asked.plain(width=head_dim), asked.plain(width=head_dim, n_pairs=head_dim // 2)
    yield "layout.wrong_pairing", {"pairing": other}, {"found": other, "asked": pairing}
    yield "layout.mixed", {"tables": other}, {"what": what}
    yield "layout.mixed", {"pairing": other, "tables": pairing}, {"what": what}
    yield "sign.same_twice", {"form": "same"}, {}
    yield "aliased_write", {"form": "first"}, {"how": "y' = y cos + x' sin with x' = x cos - y sin"}
    yield "aliased_write", {"form": "second"}, {"how": "x' = x cos - y' sin"}
    yield "partial.head_dim_used", {"freq": over_head}, widths
    yield "partial.factor_not_read", {"freq": whole, "first": 0}, {}
    yield "partial.other_lanes", {"first": head_dim - width - asked.first}, {}
    if pairing == "half" and asked.first == 0:
        yield "partial.head_dim_used", {"freq": over_head, "partner": head_dim // 2}, widths
        yield "partial.wrong_partner", {"partner": head_dim // 2}, {}


def _gains(asked: Asked) -> Iterator[Known]:
    """Yield a missing scaling, and other gains."""
    if asked.scaling == "default":
        return
    plain, values = asked.plain(), {"scaling": asked.scaling, "base": asked.base}
    if asked.scaling == "proportional":
        yield "proportional.full_rotation", {"freq": plain}, {}
    yield "config.scaling_ignored", {"freq": plain, "gain": 1.0}, values
    yield "config.scaling_ignored", {"freq": plain}, values
    how = "the offset is added after the division by the factor"
    yield "offset.miscounted", {"pos": lambda at: at.index + asked.factor * at.first}, {"how": how}
    want, log = float(asked.gain(asked.original)[0]), math.log(max(asked.factor, 1.0))
    lost = "attention_factor" if "attention_factor" in asked.parameters else "gain_lost"
    for name, gain, words in (
        ("attention_factor", 0.1 * log + 1, "0.1 ln(factor) + 1"),
        ("gain_squared", want**2, "the square of the right one"),
        ("gain_squared", want * (0.1 * log + 1), "the right one times 0.1 ln(factor) + 1"),
        ("mscale_of_mscale", 0.1 * want * log + 1, "0.1 gain ln(factor) + 1"),
        (lost, 1.0, "no gain"),
    ):
        code = f"yarn.{name}" if asked.scaling == "yarn" else "scaling.gain"
        yield code, {"gain": gain}, {"used": gain, "asked": want, "words": words}


def _precision(reach: str) -> Iterator[Known]:
    """Yield every step of the formula in half precision, by itself and together with others."""
    before = ("positions", "frequencies", "product")
    for dtype, short in SHORT.items():
        values, table = {"dtype": dtype, "scope": "", "also": ""}, {"round_table": dtype}
        for more in ({}, {"round_positions": dtype}) if reach == "run" else ():
            offset = {"pos": partial(_rounded_offset, dtype), **more}
            yield f"precision.positions_{short}", offset, {**values, "what": "offsets"}
        yield f"precision.table_{short}", table, values
        for change in ({"round_x": dtype}, {"round_y": dtype}, {**table, "round_x": dtype}):
            yield f"precision.x_{short}", change, values
        for steps in (*combinations(before, 1), *combinations(before, 2), before):
            cut, what = {f"round_{s}": dtype for s in steps}, " and ".join(steps).replace("product", "products of both")
            code = f"precision.{'product' if 'product' in steps else steps[0]}_{short}"
            yield code, cut, {**values, "what": what}
            yield code, {**cut, **table}, {**values, "what": what, "also": "; cosines and sines are rounded too"}


def _rounded_offset(dtype: str, at: Places) -> Array:
    return at.index + rounded(at.first, dtype)


def growth(asked: Asked, base: float, gamma: float, step: Any = np.asarray) -> Callable[[Array], Array]:
    """Return the logarithms of xPos's scales of queries as a function of positions, (positions, pairs)."""
    zeta = (2.0 * np.arange(asked.n_pairs) / asked.rotary_dim + gamma) / (1 + gamma)
    return lambda pos: np.outer(step(pos / base), np.log(zeta))


def _decay(asked: Asked) -> Iterator[Known]:
    """Yield xPos's faults: which side decays, and by which exponent."""
    if asked.xpos is None:
        return
    base, gamma = asked.xpos
    what = "xPos's scales are laid out for one pairing, but dimensions are paired in the other"
    yield "layout.mixed", {"powers": OTHER[asked.layout or "half"]}, {"what": what}
    for dtype, short in SHORT.items():
        values = {"dtype": dtype, "what": "positions", "also": ", and before the exponents of scales", "scope": ""}
        yield f"precision.positions_{short}", {"round_positions": dtype, "round_powers": dtype}, values
    for centre in (False, True):
        for code, q, k in (
            ("missing", 0.0, 0.0),
            ("key_missing", 1.0, 0.0),
            ("query_missing", 0.0, -1.0),
            ("not_inverted", 1.0, 1.0),
            ("not_inverted", -1.0, -1.0),
            ("sign", -1.0, 1.0),
        ):
            yield f"xpos.scale.{code}", {"q": {"grow": q}, "k": {"grow": k}, "centre": centre}, {}
        yield "xpos.power.stepped", {"growth": growth(asked, base, gamma, np.floor), "centre": centre}, {"base": base}
    yield "xpos.power.precedence", {"growth": growth(asked, 1.0, gamma)}, {"base": base}
    for used in (512.0, 1024.0, 256.0, 2048.0, 64.0):
        code = f"xpos.scale_base.too_{'small' if used < base else 'large'}"
        yield code, {"growth": growth(asked, used, gamma)}, {"used": used, "asked": base}
    for used in (0.4, 1.0):
        yield "xpos.gamma.not_read", {"growth": growth(asked, base, used)}, {"used": used, "asked": gamma}
