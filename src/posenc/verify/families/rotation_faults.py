"""Known faults of rotations, each a change of the formula's parameters; the likeliest first."""

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np

from posenc.verify.engine import Fault
from posenc.verify.engine.precision import SHORT, rounded
from posenc.verify.engine.read import BASES
from posenc.verify.engine.records import Array, Model
from posenc.verify.families import rotation_scalings
from posenc.verify.families.rotation_asked import Asked
from posenc.verify.families.rotation_calls import Places

OTHER = {"half": "interleaved", "interleaved": "half"}
SIDES = {"q": "queries", "k": "keys"}
Known = tuple[str, Model, Mapping[str, Any]]  # a code without its first word, a change, what its rule says
Place = Callable[[Places], Array]
_OFFSETS: tuple[tuple[str, Place, str], ...] = (  # where a token stands; it should stand at offset + index
    ("rope.offset.ignored", lambda at: at.index, ""),
    ("rope.offset.miscounted", lambda at: at.index + 2 * at.first, "the offset counts twice"),
    ("rope.offset.miscounted", lambda at: at.index - at.first, "the offset is taken off and not added"),
    ("rope.offset.miscounted", lambda at: at.index + at.first * at.tokens, "the offset is multiplied by the length"),
    ("rope.offset.miscounted", lambda at: at.pos + at.tokens, "the length of the call is added to the offset"),
    ("rope.offset.miscounted", lambda at: at.pos + at.tokens * (at.first > 0), "the length is added to an offset"),
    ("rope.kv_cache.off_by_one", lambda at: at.pos + (at.first > 0), "one too many"),
    ("rope.kv_cache.off_by_one", lambda at: at.pos - (at.first > 0), "one too few"),
)
_GIVEN: tuple[tuple[str, Place, str], ...] = (
    ("positions.given_ignored", lambda at: at.index, "given positions are not used, tokens are counted instead"),
    ("positions.given_ignored", lambda at: at.index + 1, "tokens are counted from 1, whatever positions are given"),
)
_ALL: tuple[tuple[str, Place, str], ...] = (
    ("rope.window.positions_constant", lambda at: at.first, "all tokens of a call get the position of the first"),
    ("rope.window.positions_constant", lambda at: at.last, "all tokens of a call get the position of the last"),
    (
        "rope.window.positions_constant",
        lambda at: np.where(at.first, at.first, at.pos),
        "all get an offset that is not 0",
    ),
    ("rope.table.wraps", lambda at: (at.pos + 2**7) % 2**8 - 2**7, "positions are kept in int8, and go on below zero"),
    (
        "rope.table.wraps",
        lambda at: (at.pos + 2**15) % 2**16 - 2**15,
        "positions are kept in int16, and go on below zero",
    ),
)


def faults(asked: Asked, truth: Model, reach: str) -> Iterator[Fault]:
    """Yield all known faults of a specification, for one way to call it."""
    both = [*_gains(asked), *rotation_scalings.faults(asked), *_quotients(asked), *_bases(asked), *_exponents(asked)]
    both += [*(rotation_scalings.of_factor(asked) if asked.scaling != "default" else ())]
    both += [*_blocks(asked, truth), *_places(asked, reach), *_precision()]
    yield from both
    yield from _sides(asked, truth)
    if asked.xpos:
        yield from _decay(asked, *asked.xpos)
    for fault in both:  # the same on one side only
        if {"pairing", "tables", "first", "form", "by"} & set(fault.change):
            continue
        for side, name in SIDES.items():
            values = {**fault.values, "side": name, "why": fault.code, "whose": f" of {name} only"}
            code = fault.code if fault.code.startswith("rope.precision.") else "rope.side.differ"
            yield Fault(code, {side: {**truth[side], **fault.change}}, values)


def _sides(asked: Asked, truth: Model) -> Iterator[Fault]:
    """Yield queries and keys that are not rotated alike."""
    lanes, end = np.arange(asked.head_dim), asked.first + asked.rotary_dim
    part = lanes[asked.first : end]
    order = np.concatenate((lanes[: asked.first], part[::2], part[1::2], lanes[end:]))
    pairing, other = truth["pairing"], OTHER[truth["pairing"]]
    nothing = {"freq": np.zeros(asked.n_pairs), "gain": 1.0}
    yield Fault("rope.not_turned", nothing)
    for side, name in SIDES.items():
        what = f"{name} are paired {other}, and the other side {pairing}"
        known: list[Known] = [("side.not_turned", nothing, {}), ("sign.one_side", {"sign": -truth["sign"]}, {})]
        known += [("layout.mixed", {"pairing": other}, {"what": what})]
        known += [("layout.output_not_reinterleaved", {"order": lanes}, {}) for lanes in (order, np.argsort(order))]
        known += [("offset.sides_differ", {"pos": partial(_shifted, by)}, {"by": by}) for by in (1, -1, 2, -2)]
        for code, change, values in known:
            yield Fault(f"rope.{code}", {side: {**truth[side], **change}}, {"side": name, **values})


def _shifted(by: float, at: Places) -> Array:
    return at.pos + by


def _blocks(asked: Asked, truth: Model) -> Iterator[Fault]:
    """Yield other pairs of dimensions, and blocks that are no rotations."""
    pairing, other, head_dim, width = truth["pairing"], OTHER[truth["pairing"]], asked.head_dim, asked.rotary_dim
    what = "cos and sin are laid out for one pairing, and dimensions are paired in the other"
    widths = {"width": head_dim, "turning": width}
    over_head, whole = asked.plain(width=head_dim), asked.plain(width=head_dim, n_pairs=head_dim // 2)
    known: list[Known] = [
        ("layout.wrong_pairing", {"pairing": other}, {"found": other, "asked": pairing}),
        ("layout.mixed", {"tables": other}, {"what": what}),
        ("layout.mixed", {"pairing": other, "tables": pairing}, {"what": what}),
        ("sign.same_twice", {"form": "same"}, {}),
        ("aliased_write", {"form": "first"}, {"how": "y' = y cos + x' sin with x' = x cos - y sin"}),
        ("aliased_write", {"form": "second"}, {"how": "x' = x cos - y' sin"}),
        ("partial.head_dim_used", {"freq": over_head}, widths),
        ("partial.factor_not_read", {"freq": whole, "first": 0}, {}),
        ("partial.other_lanes", {"first": head_dim - width - asked.first}, {}),
    ]
    if pairing == "half" and asked.first == 0:
        known += [("partial.head_dim_used", {"freq": over_head, "partner": head_dim // 2}, widths)]
        known += [("partial.wrong_partner", {"partner": head_dim // 2}, {})]
    for code, change, values in known:
        yield Fault(f"rope.{code}", change, values)


def _gains(asked: Asked) -> Iterator[Fault]:
    """Yield a scaling that is lost as a whole, and other gains."""
    if asked.scaling == "default":
        return
    plain, values = asked.plain(), {"scaling": asked.scaling, "base": asked.base}
    if asked.scaling == "proportional":
        yield Fault("rope.proportional.full_rotation", {"freq": plain})
    yield Fault("rope.config.scaling_ignored", {"freq": plain, "gain": 1.0}, values)
    yield Fault("rope.config.scaling_ignored", {"freq": plain}, values)
    want, log = float(asked.gain(asked.original)[0]), math.log(max(asked.factor, 1.0))
    lost = "attention_factor" if "attention_factor" in asked.parameters else "gain_lost"
    for name, gain, words in (
        ("attention_factor", 0.1 * log + 1, "0.1 ln(factor) + 1"),
        ("gain_squared", want**2, "the square of the right one"),
        ("gain_squared", want * (0.1 * log + 1), "the right one times 0.1 ln(factor) + 1"),
        ("mscale_of_mscale", 0.1 * want * log + 1, "0.1 gain ln(factor) + 1"),
        (lost, 1.0, "no gain"),
    ):
        code = f"rope.yarn.{name}" if asked.scaling == "yarn" else "rope.scaling.gain"
        yield Fault(code, {"gain": gain}, {"used": gain, "asked": want, "words": words})


def _precision() -> Iterator[Fault]:
    """Yield every step of the formula in half precision, by itself and with others."""
    for dtype, short in SHORT.items():
        values, table = {"dtype": dtype, "whose": ""}, {"round_table": dtype}
        yield Fault(f"rope.precision.table_{short}", table, values)
        for change in ({"round_x": dtype}, {"round_y": dtype}, {**table, "round_x": dtype}):
            yield Fault(f"rope.precision.x_{short}", change, values)
    before = ("positions", "frequencies", "product")
    for dtype, short in SHORT.items():
        for steps in (*combinations(before, 1), *combinations(before, 2), before):
            word = "product" if "product" in steps else steps[0]
            what, cut = " and ".join(steps).replace("product", "products of both"), {f"round_{s}": dtype for s in steps}
            for more, also in (({}, ""), ({"round_table": dtype}, ", and cosines and sines are rounded as well")):
                values = {"dtype": dtype, "what": what, "also": also, "whose": ""}
                yield Fault(f"rope.precision.{word}_{short}", {**cut, **more}, values)


def _bases(asked: Asked) -> Iterator[Fault]:
    """Yield other bases, with and without the scaling that is asked for."""
    for base in BASES:
        for freq, more in (
            (asked.plain(base), {"gain": 1.0}),
            (asked.plain(base), {}),
            (asked.changed(rope_theta=base), {}),
        ):
            if freq is not None:
                yield Fault("rope.config.theta_not_read", {"freq": freq, **more}, {"used": base, "asked": asked.base})


def _quotients(asked: Asked) -> Iterator[Fault]:
    """Yield exponents over hidden_size / num_attention_heads, where a configuration has another head_dim."""
    quotient = asked.source.get("hidden_size", asked.head_dim) / asked.source.get("num_attention_heads", 1)
    if quotient != asked.head_dim:
        freq = asked.plain(width=asked.rotary_dim * quotient / asked.head_dim)
        values = {"quotient": quotient, "asked": asked.head_dim}
        yield Fault("rope.config.head_dim_not_read", {"freq": freq}, values)


def _exponents(asked: Asked) -> Iterator[Fault]:
    """Yield exponents that count otherwise."""
    n, width, base, i = asked.n_pairs, asked.rotary_dim, asked.base, np.arange(asked.n_pairs)
    right = asked.inv_freq(asked.original)
    for code, freq, how in (
        ("frequency.inverted", base ** (2.0 * i / width), "2i/d: frequencies rise from pair to pair"),
        ("frequency.whole_exponents", np.ones(n), "cut to whole numbers, so that all pairs rotate alike"),
        ("frequency.exponents", base ** (-1.0 * i / width), "half as large as they should be"),
        ("frequency.exponents", base ** (-4.0 * i / width), "twice as large as they should be"),
        ("frequency.exponents", base ** (-2.0 * (i + 1) / width), "counted from 1"),
        ("frequency.exponents", right[::-1], "in the other order: the slowest pair comes first"),
        ("frequency.last_is_base", base ** (-1.0 * i / max(n - 1, 1)), "spread so that the last pair reaches the base"),
    ):
        yield Fault(f"rope.{code}", {"freq": freq}, {"how": how})


def _places(asked: Asked, reach: str) -> Iterator[Fault]:
    """Yield right frequencies at wrong positions."""
    for code, pos, how in (*{"run": _OFFSETS, "any": _GIVEN}.get(reach, ()), *_ALL):
        yield Fault(code, {"pos": pos}, {"how": how})
    if reach == "run":
        how = "the offset is added after the division by the factor"
        yield Fault("rope.offset.miscounted", {"pos": lambda at: at.index + asked.factor * at.first}, {"how": how})
        for dtype, short in SHORT.items():
            values, pos = {"dtype": dtype, "what": "offsets", "also": "", "whose": ""}, partial(_rounded_offset, dtype)
            for change in ({"pos": pos}, {"pos": pos, "round_positions": dtype}):
                yield Fault(f"rope.precision.positions_{short}", change, values)


def _rounded_offset(dtype: str, at: Places) -> Array:
    return at.index + rounded(at.first, dtype)


def growth(asked: Asked, base: float, gamma: float, step: Any = np.asarray) -> Callable[[Array], Array]:
    """Return the logarithms of xPos's powers of queries as a function of positions, (positions, pairs)."""
    zeta = (2.0 * np.arange(asked.n_pairs) / asked.rotary_dim + gamma) / (1 + gamma)
    return lambda pos: np.outer(step(pos / base), np.log(zeta))


def _decay(asked: Asked, base: float, gamma: float) -> Iterator[Fault]:
    """Yield xPos's faults: which side decays, by which power."""
    what = "xPos's scales are laid out for one pairing, and dimensions are paired in the other"
    yield Fault("rope.layout.mixed", {"powers": OTHER[asked.layout or "half"]}, {"what": what})
    for dtype, short in SHORT.items():
        values = {"dtype": dtype, "what": "positions", "also": ", and before powers are formed", "whose": ""}
        yield Fault(f"rope.precision.positions_{short}", {"round_positions": dtype, "round_powers": dtype}, values)
    for centre in (False, True):
        for code, q, k in (
            ("missing", 0.0, 0.0),
            ("key_missing", 1.0, 0.0),
            ("query_missing", 0.0, -1.0),
            ("not_inverted", 1.0, 1.0),
            ("not_inverted", -1.0, -1.0),
            ("sign", -1.0, 1.0),
        ):
            yield Fault(f"xpos.scale.{code}", {"q": {"grow": q}, "k": {"grow": k}, "centre": centre})
        stepped = growth(asked, base, gamma, np.floor)
        yield Fault("xpos.power.stepped", {"growth": stepped, "centre": centre}, {"base": base})
    yield Fault("xpos.power.precedence", {"growth": growth(asked, 1.0, gamma)}, {"base": base})
    for used in (512.0, 1024.0, 256.0, 2048.0, 64.0):
        code = f"xpos.scale_base.too_{'small' if used < base else 'large'}"
        yield Fault(code, {"growth": growth(asked, used, gamma)}, {"used": used, "asked": base})
    for used in (0.4, 1.0):
        yield Fault("xpos.gamma.not_read", {"growth": growth(asked, base, used)}, {"used": used, "asked": gamma})
