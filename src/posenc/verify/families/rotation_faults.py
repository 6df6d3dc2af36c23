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

Order = Callable[[int, int], Array]  # tokens and ranks -> positions in the order of the tokens


def zigzag(n: int, ranks: int) -> Array:
    """Return the positions of tokens if each rank has a chunk from the start and one from the end of a text.

    >>> zigzag(8, 2).tolist()
    [0, 1, 6, 7, 2, 3, 4, 5]
    """
    size = -(-n // (2 * ranks))
    chunks = [np.arange(i * size, min((i + 1) * size, n)) for i in range(2 * ranks)]
    return np.concatenate([chunks[i] for rank in range(ranks) for i in (rank, 2 * ranks - 1 - rank)])


def striped(n: int, ranks: int) -> Array:
    """Return the positions of tokens if each rank has every so manieth token.

    >>> striped(5, 2).tolist()
    [0, 2, 4, 1, 3]
    """
    return np.concatenate([np.arange(rank, n, ranks) for rank in range(ranks)])


def reordered(order: Order, ranks: int, at: Places) -> Array:
    """Return the positions of tokens whose call has its positions in the order of several ranks."""
    to = order(int(at.tokens[0]), ranks)[at.index.astype(int)]
    return np.asarray(at.pos[to] if np.array_equal(at.index, np.arange(at.tokens[0])) else at.first + to)


OTHER = {"half": "interleaved", "interleaved": "half"}
SIDES = {"q": "queries", "k": "keys"}
ALPHA = "alpha = {:g}"  # HunYuan's scaling, whose type is "dynamic"
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
        ("table.wraps", lambda at: at.index + at.first % 256, "the offset is kept in uint8"),
        ("table.wraps", lambda at: at.index + (at.first + 128) % 256 - 128, "the offset is kept in int8"),
    ),
    "any": (
        ("positions.given_ignored", lambda at: at.index, "given positions are ignored; tokens are counted"),
        ("positions.given_ignored", lambda at: at.index + 1, "tokens are counted from 1, whatever positions are given"),
        (
            "positions.given_ignored",
            lambda at: (at.pos.T - at.first).T,
            "positions are counted from the first of each call",
        ),
    ),
    "": (
        ("window.positions_constant", lambda at: at.first, "all tokens of a call get the position of the first"),
        ("window.positions_constant", lambda at: at.last, "all tokens of a call get the position of the last"),
        ("window.positions_constant", lambda at: np.where(at.first, at.first, at.pos), "all get a nonzero offset"),
        ("table.wraps", lambda at: at.pos % 256, "positions are kept in uint8: they restart at 256"),
        ("table.wraps", lambda at: (at.pos + 128) % 256 - 128, "positions are kept in int8"),
        ("table.wraps", lambda at: (at.pos + 2**15) % 2**16 - 2**15, "positions are kept in int16"),
        ("positions.normalised", lambda at: at.pos / at.tokens, "the number of tokens of the call"),
        ("positions.normalised", lambda at: at.pos / np.maximum(at.last, 1), "the last position of the call"),
        *(
            ("positions.other_order", partial(reordered, order, n), f"{how} {n} ranks")
            for n in (2, 4, 8)
            for order, how in ((zigzag, "in zigzag order over"), (striped, "in turns over"))
        ),
    ),
}


def faults(asked: Asked, truth: Model, reach: str) -> Iterator[Fault]:
    """Yield all known faults of a specification, for one way to call it."""
    want = float(asked.gain(asked.original)[0])
    both = [
        *_gains(asked),
        *rotation_scalings.faults(asked),
        *_twice(asked, reach),
        *_blocks(asked, truth),
        *((code, {"pos": pos}, {"how": how}) for code, pos, how in (*PLACES.get(reach, ()), *PLACES[""])),
        *_precision(reach),
        *(
            (gain_code(asked).removeprefix("rope."), {"gain": gain}, {"used": gain, "asked": want, "words": words})
            for gain, words in gains(asked)
        ),
    ]
    for code, change, values in (*both, *_sides(asked, truth), *_decay(asked)):
        yield Fault(_full(code), change, values)
    for code, change, values in both:  # the same on one side only
        if {"pairing", "tables", "first", "form", "by", "times"} & set(change):
            continue
        for side, name in SIDES.items():
            said = {**values, "side": name, "why": _full(code), "scope": f" of {name} only"}
            code_of_side = code if code.startswith("precision.") else "side.differ"
            yield Fault(f"rope.{code_of_side}", {side: {**truth[side], **change}}, said)


def _full(code: str) -> str:
    return code if code.startswith(("xpos.", "positions.given")) else f"rope.{code}"


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
            ("side.rotated_twice", {"times": 2}),
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
    for first in dict.fromkeys((head_dim - width - asked.first, 0, head_dim - width)):
        lanes = {"found": f"{width} from {first} on", "asked": f"{width} from {asked.first} on"}
        yield "partial.other_lanes", {"first": first}, lanes
    for rest, how in ((0.0, "returned as zeros"), (asked.gain(asked.original)[0], "multiplied by the gain as well")):
        yield "partial.rest_changed", {"rest": rest}, {"how": how}
    if pairing == "half" and asked.first == 0:
        yield "partial.head_dim_used", {"freq": over_head, "partner": head_dim // 2}, widths
        yield "partial.wrong_partner", {"partner": head_dim // 2}, {}


def _gains(asked: Asked) -> Iterator[Known]:
    """Yield a missing scaling, and other gains."""
    if asked.scaling == "default":
        return
    name = ALPHA.format(asked.factor) if asked.scaling == "ntk_alpha" else asked.scaling
    plain, values = asked.plain(), {"scaling": name, "base": asked.base}
    if asked.scaling == "proportional":
        yield "proportional.full_rotation", {"freq": plain}, {}
    yield "config.scaling_ignored", {"freq": plain, "gain": 1.0}, values
    yield "config.scaling_ignored", {"freq": plain}, values
    how = "the offset is added after the division by the factor"
    yield "offset.miscounted", {"pos": lambda at: at.index + asked.factor * at.first}, {"how": how}
    if asked.scaling == "linear":
        yield "scaling.positions_whole", {"pos": lambda at: at.pos // asked.factor * asked.factor}, {}
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
    for table in ("cos", "sin"):
        yield "gain.one_table", {"gained": table}, {"table": table, "asked": want}
    if asked.scaling == "longrope":
        late = partial(_late, asked.original, want)
        yield "scaling.gain", {"gain": late}, {"used": 1.0, "asked": want, "words": "none up to the trained length"}
        words = "of the length of the text, not of the declared one"
        yield "scaling.gain", {"gain": partial(_of_text, asked.original)}, {"used": 1.0, "asked": want, "words": words}
    for used in (2.0, 4.0, 8.0, 16.0, 32.0, 40.0) if asked.scaling in ("linear", "yarn", "proportional") else ():
        if used != asked.factor**2 and (other := asked.other(factor=used)) is not None:
            for more in ({"gain": other.gain(asked.original)}, {}):
                yield (
                    "scaling.factor_not_read",
                    {"freq": other.inv_freq(1), **more},
                    {"used": used, "asked": asked.factor},
                )


def _late(length: int, gain: float, seq_len: int) -> Array:
    return np.array([gain if seq_len > length else 1.0])


def _of_text(length: int, seq_len: int) -> Array:
    return np.sqrt([1 + math.log(max(seq_len / length, 1.0)) / math.log(length)])


def gain_code(asked: Asked) -> str:
    """Return the code of a gain whose formula has no code of its own."""
    return {"yarn": "rope.yarn.attention_factor", "default": "rope.gain"}.get(asked.scaling, "rope.scaling.gain")


def gains(asked: Asked) -> Iterator[tuple[float, str]]:
    """Yield other gains and their formulas."""
    want, log = float(asked.gain(asked.original)[0]), math.log(max(asked.factor, 1.0))
    head = float(asked.head_dim)
    found = (
        (want**0.5, "the square root of the right one"),
        (1 / want, "the inverse of the right one"),
        (want**3, "the cube of the right one"),
        (want**4, "the fourth power of the right one"),
        (want**-2, "the inverse of the square of the right one"),
        (0.1 * log, "0.1 ln(factor), without the 1"),
        (0.1 * log / math.log(2) + 1, "0.1 log2(factor) + 1"),
        (0.1 * log / math.log(10) + 1, "0.1 log10(factor) + 1"),
        (0.1 * float(asked.parameters.get("mscale") or 1.0) * log + 1, "0.1 mscale ln(factor) + 1"),
        (0.1 * float(asked.parameters.get("mscale_all_dim") or 1.0) * log + 1, "0.1 mscale_all_dim ln(factor) + 1"),
        (math.sqrt(1 + log / math.log(max(asked.original, 2))), "sqrt(1 + ln(factor) / ln(trained length))"),
        (asked.factor, "the factor"),
        (math.sqrt(asked.factor), "the square root of the factor"),
        (1 / asked.factor, "the inverse of the factor"),
        (head**-0.5, "1 / sqrt(head_dim), the scale of the scores"),
        (head**-0.25, "1 / sqrt(sqrt(head_dim)), half of the scale of the scores"),
        (head**0.5, "sqrt(head_dim)"),
        *((want * times, f"{times:g} times the right one") for times in (2.0, 0.5, math.sqrt(2), math.sqrt(0.5))),
    )
    yield from (each for each in found if each[0] > 0)


def _twice(asked: Asked, reach: str) -> Iterator[Known]:
    """Yield rotations of everything by two parts of a program."""
    gain = float(asked.gain(asked.original)[0])
    squared = "" if gain == 1 else f", and the gain {gain:.5g} is squared"
    how = f"all angles are doubled{squared}"
    yield "applied_twice", {"times": 2}, {"how": how}
    if reach:
        how = f"once by its position and once by its index in the call{squared}"
        yield "applied_twice", {"pos": lambda at: at.pos + at.index, "gain": gain**2}, {"how": how}


def _precision(reach: str) -> Iterator[Known]:
    """Yield every step of the formula in half precision, by itself and together with others."""
    before = ("positions", "frequencies", "product")
    yield "precision.angles_summed", {"round_sum": "float32"}, {"dtype": "float32", "scope": ""}
    for dtype, short in SHORT.items():
        values, table = {"dtype": dtype, "scope": "", "also": ""}, {"round_table": dtype}
        yield "precision.angles_summed", {"round_sum": dtype}, values
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


def growth(
    asked: Asked, base: float, gamma: float, step: Any = np.asarray, times: float = 2.0, over: float | None = None
) -> Callable[[Array], Array]:
    """Return the logarithms of xPos's scales of queries as a function of positions, (positions, pairs)."""
    zeta = (times * np.arange(asked.n_pairs) / asked.rotary_dim + gamma) / (over or 1 + gamma)
    return lambda pos: np.outer(step(pos / base), np.log(zeta))


def _decay(asked: Asked) -> Iterator[Known]:
    """Yield xPos's faults: which side decays, and by which exponent."""
    if asked.xpos is None:
        return
    base, gamma = asked.xpos
    what = "xPos's scales are laid out for one pairing, but dimensions are paired in the other"
    other = OTHER[asked.layout or "half"]
    yield "layout.mixed", {"powers": other}, {"what": what}
    yield "layout.mixed", {"tables": other, "powers": other}, {"what": f"{what}, and so are cos and sin"}
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
    for changed, zeta in (({"times": 1.0}, "(i/d + gamma) / (1 + gamma)"), ({"over": 1.0}, "2i/d + gamma")):
        yield "xpos.scale.over_pairs", {"growth": growth(asked, base, gamma, **changed)}, {"zeta": zeta}
    for used in (0.4, 1.0, 0.04, 0.1, 0.2, 0.5, 4.0):
        yield "xpos.gamma.not_read", {"growth": growth(asked, base, used)}, {"used": used, "asked": gamma}
