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
    "those of the lower power of two and the first of the next": lambda s, n, low: np.append(s(low), s(2 * low))[:n],
}
AUTHORS, GEOMETRIC, *_ = REST
RANKS, GROUPS = "alibi.tensor_parallel.head_offset", "alibi.slopes.shared"
# how the slopes of n heads come from those of fewer heads, in parts
PARTS: Mapping[str, tuple[str, Callable[[Series, int, int], Array]]] = {
    "each of {} ranks takes the first of the model's slopes": (RANKS, lambda s, n, p: np.tile(s(n)[: n // p], p)),
    "each of {} ranks takes the slopes of its own heads alone": (RANKS, lambda s, n, p: np.tile(s(n // p), p)),
    "groups of {} heads share a slope": (GROUPS, lambda s, n, p: np.repeat(s(n // p), p)),
    "groups of {} heads share their first slope": (GROUPS, lambda s, n, p: np.repeat(s(n)[::p], p)),
}


def truth(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of the slopes that a specification asks for."""
    if spec.get("order") not in (None, "any"):
        asked = f"{spec['order']!r:.60}"
        raise ValueError(f"verify: order of ALiBi's heads can only be 'any'; got {asked}. Leave it out for the usual.")
    config = spec.get("config") or {}
    top = config.get("alibi_bias_max", (config.get("attn_config") or {}).get("alibi_bias_max", 8))
    said = {str(spec.get(word)).removeprefix("alibi@") for word in ("variant", "slopes", "encoding")}
    return {
        "series": partial(geometric, top=float(spec.get("bias_max") or top)),
        "rest": GEOMETRIC if said & {"geometric", "paper"} else AUTHORS,
        "falcon": "falcon" in said | {config.get("model_type")},  # each slope and each product rounded to bfloat16
        "parts": None,  # a key of PARTS and how many
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


def is_power(n: int) -> bool:
    """Return whether a number of heads is a power of two."""
    return n & (n - 1) == 0


def slopes_of(model: Model, n: int) -> Array:
    """Return the slopes of n heads with a model's parameters."""
    if n in model["given"]:
        return np.asarray(model["given"][n])
    if model["falcon"]:
        return np.asarray(model["factor"] * _falcon(n))

    def whole(m: int) -> Array:
        low = 1 << (m.bit_length() - 1)
        return np.asarray(model["series"](m) if m == low else REST[model["rest"]](model["series"], m, low))

    words, parts = model["parts"] or ("", n)
    usual = n % parts or n <= 2 or not words
    return rounded(model["factor"] * (whole(n) if usual else PARTS[words][1](whole, n, parts)), model["round_slopes"])


@cache
def _falcon(n: int) -> Array:
    return np.asarray(versions.alibi_falcon(np.array([0.0]), np.arange(2.0), n_heads=n)[:, 0, 1])


def alike(found: Array, want: Array, tolerance: float = 1e-5) -> bool:
    """Return whether all slopes agree to a share of themselves."""
    return found.shape == want.shape and bool((np.abs(found - want) <= tolerance * np.abs(want) + 1e-12).all())


def faults(found: Found, right: Model, head_dim: int | None = None) -> Iterator[Fault]:
    """Yield wrong slopes, with the numbers that are read off measured ones."""
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
        for words, (code, _) in PARTS.items():
            yield Fault(code, {"parts": (words, parts)}, {"words": words.format(parts)})
    for fault in (*_series(found, right), *_scaled(found, right, head_dim)):
        yield fault
        yield replace(fault, change={"rest": GEOMETRIC, **fault.change})


def _series(found: Found, right: Model) -> Iterator[Fault]:
    """Yield wrong series of powers."""
    series, top = right["series"], right["series"].keywords["top"]
    for first, count in ((0, "h"), (2, "h + 2")):
        change = {"series": partial(series, first=first)}
        yield Fault("alibi.slopes.exponent_off_by_one", change, {"top": top, "count": count})
    yield Fault("alibi.slopes.base", {"series": partial(series, base=math.e)})
    yield Fault("alibi.slopes.inverted", {"series": partial(series, top=-top)})
    if len(found) > 1:  # of one number of heads it is another last exponent
        for n in (8, 12, 16, 32):
            yield Fault("alibi.slopes.heads_hardwired", {"series": partial(series, over=n)}, {"n": n})
    s = found.get(_telling(found), np.zeros(0))
    last = -math.log2(s[-1]) if len(s) and s[0] != s[-1] > 0 else top
    if abs(last - top) > 1e-4:
        values = {"last": f"{last:.4g}", "top": top}
        yield Fault("alibi.slopes.bias_max", {"series": partial(series, top=last)}, values)
    for dtype in SHORT:
        yield Fault("alibi.precision.slopes_fp16", {"round_slopes": dtype}, {"dtype": dtype})


def _telling(found: Found) -> int:
    """Return the number of heads whose slopes show most: a power of two above 2 if there is one."""
    return next((n for n in found if n > 2 and is_power(n)), next(iter(found), 0))


def _scaled(found: Found, right: Model, head_dim: int | None) -> Iterator[Fault]:
    """Yield the right slopes times the one factor by which the measured ones differ, if there is one."""
    n = _telling(found)
    if n == 0:
        return
    s, want = found[n], slopes_of(right, n)
    factor = float(s[0] / want[0])
    if not factor or abs(factor - 1) < 1e-4 or not alike(s, factor * want, 1e-4):
        return
    roots = (head_dim,) if head_dim else ROOTS
    root = next((d for d in roots if abs(abs(factor) * math.sqrt(d) - 1) < 1e-4), None)
    code = "alibi.sign" if factor < 0 else "alibi.scale.applied_to_bias" if root else "alibi.scale.factor"
    why = f", that is divided by sqrt({root})" if root else ""
    yield Fault(code, {"factor": factor}, {"factor": f"{factor:.5g}", "why": why})


def named(found: Found, right: Model, wrong: Sequence[int]) -> Fault | None:
    """Return the fault that slopes of no known formula show by their form; None if they show none."""
    if not wrong:
        return None
    if values := order(found, right, wrong):
        return Fault("alibi.slopes.head_order", {}, values)
    powers = [n for n in found if n > 1 and is_power(n)]
    if right["rest"] == AUTHORS and powers and all(alike(found[n], slopes_of(right, n), 1e-3) for n in powers):
        return Fault("alibi.slopes.not_power_of_two", {}, {"how": "others, by no known rule"})
    s = found[max(wrong)]
    if len(s) > 1 and alike(s, np.full(len(s), s[0])):
        return Fault(GROUPS, {}, {"words": f"all heads have one slope, {s[0]:.6g}"})
    return None


def order(found: Found, right: Model, wrong: Sequence[int]) -> dict[str, Any] | None:
    """Return the words for heads that have each other's slopes; None if they have others."""
    wants = {n: slopes_of(right, n) for n in wrong}
    if not wrong or not all(alike(np.sort(found[n]), np.sort(want), 1e-3) for n, want in wants.items()):
        return None
    last = wrong[-1]
    exponents, usual = ([round(-math.log2(v), 2) for v in some[:8]] for some in (found[last], wants[last]))
    return {"exponents": exponents, "usual": usual}
