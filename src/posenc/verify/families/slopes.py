"""Slopes of ALiBi's heads: the authors' rule with every choice a parameter, its faults, and what slopes show."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np

from posenc.definitions import versions
from posenc.verify.engine import Fault
from posenc.verify.engine.precision import SHORT, rounded
from posenc.verify.engine.records import Array, Model

Series = Callable[[int], Array]
Found = Mapping[int, Array]  # measured slopes by the number of heads
ROOTS = (8, 16, 24, 32, 40, 48, 64, 72, 80, 88, 96, 112, 128, 160, 192, 256)  # usual sizes of a head
FALCON = "alibi@falcon"
# how the slopes of n heads come from a series for powers of two, of which low is the next lower one
REST: Mapping[str, Callable[[Series, int, int], Array]] = {
    "the authors'": lambda s, n, low: np.append(s(low), s(2 * low)[0::2][: n - low]),
    "one geometric series, 2**(-8 (h + 1) / n), as in the paper's text": lambda s, n, low: s(n),
    "the first slopes of the next power of two": lambda s, n, low: s(2 * low)[:n],
    "the last slopes of the next power of two": lambda s, n, low: s(2 * low)[-n:],
    "those of the lower power of two, over and over": lambda s, n, low: np.tile(s(low), 2)[:n],
    "those of the lower power of two, then the first of twice that": lambda s, n, low: np.append(s(low), s(2 * low))[
        :n
    ],
}
AUTHORS, GEOMETRIC, *_ = REST


def _first_of_rank(s: Series, n: int, parts: int) -> Array:
    return np.tile(s(n)[: n // parts], parts)


def _only_own_heads(s: Series, n: int, parts: int) -> Array:
    return np.tile(s(n // parts), parts)


def _first_of_group(s: Series, n: int, parts: int) -> Array:
    return np.repeat(s(n)[::parts], parts)


def _one_a_group(s: Series, n: int, parts: int) -> Array:
    return np.repeat(s(n // parts), parts)


_RANKS = {
    _first_of_rank: "each of {parts} ranks takes the first slopes in place of its own part of the model's",
    _only_own_heads: "each of {parts} ranks takes the slopes of a model with only its own heads",
}


def is_falcons(spec: Mapping[str, Any]) -> bool:
    """Return whether a specification asks for Falcon's definition."""
    said = {str(spec.get("encoding")), f"alibi@{spec.get('variant')}"}
    return FALCON in said or (spec.get("config") or {}).get("model_type") == "falcon"


def truth(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of the slopes that a specification asks for.

    Raises:
        ValueError: `order` says something else than that any is right.
    """
    if spec.get("order") not in (None, "any"):
        asked = f"{spec['order']!r:.60}"
        raise ValueError(f"verify: order of ALiBi's heads can only be 'any'; got {asked}. Leave it out for the usual.")
    config = spec.get("config") or {}
    top = config.get("alibi_bias_max", (config.get("attn_config") or {}).get("alibi_bias_max", 8))
    said = {str(spec.get("variant")), str(spec.get("slopes")), str(spec.get("encoding")).removeprefix("alibi@")}
    return {
        "series": partial(geometric, top=float(spec.get("bias_max") or top)),
        "rest": GEOMETRIC if said & {"geometric", "paper"} else AUTHORS,
        "falcon": is_falcons(spec),  # each slope and each product rounded to bfloat16
        "parts": None,  # how slopes come over and over
        "factor": 1.0,
        "round_slopes": None,
        "given": {},  # slopes by the number of heads, as they were read off
    }


def definition(model: Model) -> str:
    """Return the name of a definition."""
    return FALCON if model["falcon"] else f"alibi@{'geometric' if model['rest'] == GEOMETRIC else 'authors'}"


def geometric(n: int, top: float = 8.0, first: float = 1.0, base: float = 2.0, over: int | None = None) -> Array:
    """Return base^(-top (h + first) / n) of n heads.

    >>> geometric(4).tolist()
    [0.25, 0.0625, 0.015625, 0.00390625]
    """
    powers: Array = base ** (-top * (np.arange(n) + first) / (over or n))
    return powers


def slopes_of(model: Model, n: int) -> Array:
    """Return the slopes of n heads with a model's parameters."""
    if n in model["given"]:
        return np.asarray(model["given"][n])

    def whole(m: int) -> Array:
        low = 1 << (m.bit_length() - 1)
        return np.asarray(model["series"](m) if m == low else REST[model["rest"]](model["series"], m, low))

    if model["falcon"]:
        return np.asarray(model["factor"] * _falcon(n))
    return rounded(model["factor"] * (model["parts"](whole, n) if model["parts"] else whole(n)), model["round_slopes"])


@cache
def _falcon(n: int) -> Array:
    return np.asarray(versions.alibi_falcon(np.array([0.0]), np.arange(2.0), n_heads=n)[:, 0, 1])


def alike(found: Array, want: Array, tolerance: float = 1e-5) -> bool:
    """Return whether all slopes agree to a share of themselves."""
    return found.shape == want.shape and bool((np.abs(found - want) <= tolerance * np.abs(want) + 1e-12).all())


def faults(found: Found, right: Model, head_dim: int | None = None) -> Iterator[Fault]:
    """Yield wrong slopes, with the numbers that are read off measured ones.

    Args:
        found: Measured slopes by the number of heads.
        right: The parameters that are asked for.
        head_dim: Known size of a head.
    """
    if right["falcon"]:
        plain = {"falcon": False}
        values = {"given": definition({**right, **plain}), "how": ", formed in full precision,", "asked": FALCON}
        yield Fault("alibi.definition.other_version", plain, values)
        yield from _scaled(found, right, head_dim)
        yield from (replace(f, change={**plain, **f.change}) for f in faults(found, {**right, **plain}, head_dim))
        return
    if right["rest"] == GEOMETRIC:
        values = {"given": "alibi@authors", "how": "", "asked": "alibi@geometric"}
        yield Fault("alibi.definition.other_version", {"rest": AUTHORS}, values)
    else:
        yield from (Fault("alibi.slopes.not_power_of_two", {"rest": how}, {"how": how}) for how in REST)
    for parts in (2, 4, 8, 3):
        for make, words in _RANKS.items():
            change = {"parts": partial(_by_parts, make, parts)}
            yield Fault("alibi.tensor_parallel.head_offset", change, {"words": words.format(parts=parts)})
        for make in (_one_a_group, _first_of_group):
            words = f"the {parts} heads of a group share a slope"
            yield Fault("alibi.slopes.shared", {"parts": partial(_by_parts, make, parts)}, {"words": words})
    for fault in (*_series(found, right), *_scaled(found, right, head_dim)):
        yield fault
        yield replace(fault, change={"rest": GEOMETRIC, **fault.change})


def _by_parts(make: Callable[[Series, int, int], Array], parts: int, series: Series, n: int) -> Array:
    return series(n) if n % parts or n <= 2 else make(series, n, parts)


def _series(found: Found, right: Model) -> Iterator[Fault]:
    """Yield wrong series of powers."""
    top = right["series"].keywords["top"]
    for first, count in ((0, "h"), (2, "h + 2")):
        change = {"series": partial(geometric, top=top, first=first)}
        yield Fault("alibi.slopes.exponent_off_by_one", change, {"top": top, "count": count})
    yield Fault("alibi.slopes.base", {"series": partial(geometric, top=top, base=math.e)})
    yield Fault("alibi.slopes.inverted", {"series": partial(geometric, top=-top)})
    n = _speaking(found)
    s = found.get(n, np.zeros(0))
    if len(s) > 1 and (s > 0).all() and s[0] != s[1]:
        heads, last = top / math.log2(s[0] / s[1]), -math.log2(s[-1])
        many = max(round(heads), 1)
        fixed = partial(geometric, top=top, over=many)
        powers = [m for m in found if m & (m - 1) == 0]
        if abs(heads - many) < 1e-3 and many != n and all(alike(found[m], fixed(m), 1e-3) for m in powers):
            yield Fault("alibi.slopes.heads_hardwired", {"series": fixed}, {"n": many})
        if abs(last - top) > 1e-4:
            values = {"last": f"{last:.4g}", "top": top}
            yield Fault("alibi.slopes.bias_max", {"series": partial(geometric, top=last)}, values)
    for dtype in SHORT:
        yield Fault("alibi.precision.slopes_fp16", {"round_slopes": dtype}, {"dtype": dtype, "of": ""})


def _speaking(found: Found) -> int:
    """Return the number of heads whose slopes say most: a power of two above 2 if there is one."""
    return next((n for n in found if n > 2 and n & (n - 1) == 0), next(iter(found), 0))


def _scaled(found: Found, right: Model, head_dim: int | None) -> Iterator[Fault]:
    """Yield the right slopes times the one factor by which the measured ones differ, if there is one."""
    n = _speaking(found)
    for rest in (right["rest"], GEOMETRIC):
        want = slopes_of({**right, "rest": rest}, n) if n else np.zeros(0)
        s = found.get(n, want)
        if s.shape != want.shape or not s.any() or not alike(s / want, np.full(len(s), s[0] / want[0]), 1e-4):
            continue
        size, sign = abs(float(s[0] / want[0])), math.copysign(1.0, s[0])
        size = 1.0 if abs(size - 1) < 1e-4 else size
        if size * sign == 1:
            return
        roots = (head_dim,) if head_dim else ROOTS
        root = next((d for d in roots if abs(size * math.sqrt(d) - 1) < 1e-4), None)
        code = "alibi.sign" if sign < 0 else "alibi.scale.applied_to_bias" if root else "alibi.scale.factor"
        why = f", that is divided by sqrt({root})" if root else ""
        if abs(size - math.log2(math.e)) < 1e-4:
            why = ", which is log2(e): a bias for exp2"
        yield Fault(code, {"factor": size * sign}, {"factor": f"{size * sign:.6g}", "why": why})
        return


def named(found: Found, right: Model, wrong: Sequence[int]) -> Fault | None:
    """Return the fault that slopes of no known formula show by their form; None if they show none.

    Args:
        found: Measured slopes by the number of heads.
        right: The parameters that are asked for.
        wrong: The numbers of heads whose slopes are not right.
    """
    if not wrong:
        return None
    given = {"given": dict(found)}
    if values := order(found, right, wrong):
        return Fault("alibi.slopes.head_order", given, values)
    powers = {n for n in found if n > 1 and n & (n - 1) == 0}
    if right["rest"] == AUTHORS and powers and all(alike(found[n], slopes_of(right, n), 1e-3) for n in powers):
        return Fault("alibi.slopes.not_power_of_two", given, {"how": "others, by no known rule"})
    if len(found[wrong[0]]) != wrong[0]:
        return Fault("alibi.slopes.count", given, {"n": wrong[0], "many": len(found[wrong[0]])})
    many = [s for n, s in found.items() if n > 2]
    for of, words in ((np.positive, ""), (np.reciprocal, "whose reciprocals go ")):
        if many and all(s.all() and _straight(of(s)) for s in many):
            return Fault("alibi.slopes.not_geometric", given, {"words": f"{words}in equal steps from head to head"})
    s = found[max(wrong)]
    if len(s) > 1 and alike(s, np.full(len(s), s[0])):
        return Fault("alibi.slopes.shared", given, {"words": f"all heads have one slope, {s[0]:.6g}"})
    if len(s) > 2 and (s > 0).all() and _straight(-np.log2(s)):
        first, second = (-math.log2(v) for v in s[:2])
        return Fault("alibi.slopes.ratio", given, {"first": f"{first + 0.0:.5g}", "step": f"{second - first:.5g}"})
    return None


def _straight(s: Array) -> bool:
    """Return whether numbers go in equal steps, that are not 0."""
    steps = np.diff(s)
    return bool(steps.any() and (np.abs(steps - steps[0]) <= 1e-4 * np.abs(s).max()).all())


def order(found: Found, right: Model, wrong: Sequence[int]) -> dict[str, Any] | None:
    """Return the words for heads that have each other's slopes; None if they have others."""
    wants = {n: slopes_of(right, n) for n in wrong}
    if not wrong or not all(alike(np.sort(found[n]), np.sort(want), 1e-3) for n, want in wants.items()):
        return None
    s, want = found[wrong[-1]], wants[wrong[-1]]
    ways = {
        "sorted": np.sort(want)[::-1],
        "sorted upwards": np.sort(want),
        "from the last head to the first": want[::-1],
    }
    how = next((f", {words}" for words, other in ways.items() if alike(s, other, 1e-3)), "")
    exponents, usual = ([round(-math.log2(v), 2) for v in some[:8]] for some in (s, want))
    return {"how": how, "exponents": exponents, "usual": usual}
