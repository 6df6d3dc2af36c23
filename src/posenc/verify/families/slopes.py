"""ALiBi's slopes by the authors' rule with every choice a parameter, and faults of slopes or of their bias."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from posenc.verify.engine import Fault
from posenc.verify.engine.precision import SHORT, rounded
from posenc.verify.engine.records import Array, Model

if TYPE_CHECKING:
    from posenc.verify.families.bias import Alibi

Series = Callable[[int], Array]
Form = Callable[[Array, Array, Array, Callable[[Array], Array]], Array]
FALCON = "alibi@falcon"
# the slopes of n heads from a series for powers of two; low is the next lower power
REST: Mapping[str, Callable[[Series, int, int], Array]] = {
    "the authors'": lambda s, n, low: np.append(s(low), s(2 * low)[0::2][: n - low]),
    "one geometric series, 2**(-8 (h + 1) / n), as in the paper's text": lambda s, n, low: s(n),
    "the first slopes of the next power of two": lambda s, n, low: s(2 * low)[:n],
    "only those of the lower power of two": lambda s, n, low: s(low),
    "those of the lower power of two, repeated": lambda s, n, low: np.tile(s(low), 2)[:n],
    "those of the lower power of two and the first of the next": lambda s, n, low: np.append(s(low), s(2 * low))[:n],
}
AUTHORS, GEOMETRIC, *_ = REST
# wrong slopes of p ranks that share n heads
RANKS: Mapping[str, Callable[[Series, int, int], Array]] = {
    "each of {} ranks takes the first of the model's slopes": lambda s, n, p: np.tile(s(n)[: n // p], p),
    "each of {} ranks takes the slopes of only its own heads": lambda s, n, p: np.tile(s(n // p), p),
}


def _product(m: Array, q: Array, k: Array, r: Callable[[Array], Array]) -> Array:
    return r(r(m) * r(k))  # Falcon's, in bfloat16


BASES = {math.e: ": powers of e, not of 2", 10.0: ": powers of 10, not of 2", 4.0: ": powers of 4, not of 2"}
ENDS = (256, 128, 512, 1024, 2048, 1000, 1 << 15)  # where positions may start again: the query's is above them
GROUPS = (2, 4, 8, 3)  # heads that share a slope, as query heads share a key
# wrong exponents of head h of n, by the words for them
INTEGERS: Mapping[str, Callable[[Array, int, int], Array]] = {
    "-({top} // n) * (h + 1)": lambda h, n, top: top // n * (h + 1),
    "-{top} // n * (h + 1)": lambda h, n, top: -(-top // n) * (h + 1),
    "-({top} * (h + 1) // n)": lambda h, n, top: top * (h + 1) // n,
    "-{top} * (h + 1) // n": lambda h, n, top: -(-top * (h + 1) // n),
}
# codes, words and formulas of slopes (heads, 1, 1), queries (q_len, 1), keys and a rounding function
FORMS: tuple[tuple[str, str, Form], ...] = (
    ("buffer_slice_shifted", "queries are counted from 0", lambda m, q, k, r: -m * np.abs(q - q[0] - k)),
    ("buffer_slice_shifted", "queries are counted from 0", lambda m, q, k, r: -m * np.maximum(q - q[0] - k, 0)),
    ("distance.shifted", "|query - key + 1|", lambda m, q, k, r: -m * np.abs(q - k + 1)),
    ("distance.shifted", "|query - key - 1|", lambda m, q, k, r: -m * np.abs(q - k - 1)),
    ("distance.shifted", "|query - key| - 1, and not below 0", lambda m, q, k, r: -m * np.maximum(abs(q - k) - 1, 0)),
    ("distance.shifted", "|query - key| + 1 but for the own key", lambda m, q, k, r: -m * (abs(q - k) + (q != k))),
    # slopes of as many queries or keys as heads, if these are a power of two
    ("axis.queries", "query", lambda m, q, k, r: -(m.flat[0] ** (q - q[0] + 1)) * (q - k)),
    ("axis.queries", "key", lambda m, q, k, r: -(m.flat[0] ** (k + 1)) * (q - k)),
    ("distance.normalised", "k_len", lambda m, q, k, r: -m * np.abs(q - k) / len(k)),
    ("distance.normalised", "k_len - 1", lambda m, q, k, r: -m * np.abs(q - k) / max(len(k) - 1, 1)),
    ("distance.normalised", "q_len", lambda m, q, k, r: -m * np.abs(q - k) / len(q)),
    ("distance.curved", "the squared distance", lambda m, q, k, r: -m * (q - k) ** 2),
    ("distance.curved", "minus the squared distance", lambda m, q, k, r: m * (q - k) ** 2),
    ("distance.curved", "the root of the distance", lambda m, q, k, r: -m * np.sqrt(np.abs(q - k))),
    ("distance.curved", "log(1 + distance)", lambda m, q, k, r: -m * np.log1p(np.abs(q - k))),
    ("precision.whole_numbers", "down", lambda m, q, k, r: -np.floor(m * np.abs(q - k))),
    ("precision.whole_numbers", "up", lambda m, q, k, r: -np.ceil(m * np.abs(q - k))),
    ("precision.whole_numbers", "to the nearest one", lambda m, q, k, r: -np.round(m * np.abs(q - k))),
)
ROUNDED: tuple[tuple[str, Form], ...] = (
    ("positions_{}", lambda m, q, k, r: -m * np.abs(r(q) - r(k))),
    ("positions_{}", lambda m, q, k, r: -m * np.abs(r(r(q) - r(k)))),
    ("positions_{}", lambda m, q, k, r: -m * np.abs(q - r(k))),
    ("product_bf16", _product),
    ("product_bf16", lambda m, q, k, r: r(-m * np.abs(q - k))),
    ("product_bf16", lambda m, q, k, r: r(r(m) * r(-np.abs(q - k)))),
)


def truth(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters that a specification declares."""
    if spec.get("order") not in (None, "any"):
        asked = f"{spec['order']!r:.60}"
        raise ValueError(f"verify: order of ALiBi's heads can only be 'any'; got {asked}. Remove it for the usual one.")
    config = spec.get("config") or {}
    top = config.get("alibi_bias_max", (config.get("attn_config") or {}).get("alibi_bias_max", 8))
    said = {str(spec.get(word)).removeprefix("alibi@") for word in ("variant", "slopes", "encoding")}
    return {
        "series": partial(geometric, top=float(spec.get("bias_max") or top)),
        "rest": GEOMETRIC if said & {"geometric", "paper"} else AUTHORS,
        "ranks": None,  # a key of RANKS and the number of ranks
        "factor": 1.0,
        "round_slopes": None,
        "given": {},  # measured slopes, by the number of heads
        "ahead": 0.0 if "one-sided" in said else 1.0,  # the weight of a distance ahead
        "form": (_product, "bfloat16") if "falcon" in said | {config.get("model_type")} else None,  # of the bias
        "flat": None,  # a condition on q_len and k_len, under which there is no bias
    }


def definition(model: Model) -> str:
    """Return the name of a definition."""
    if model["form"]:
        return FALCON
    return f"alibi@{'one-sided' if not model['ahead'] else 'geometric' if model['rest'] == GEOMETRIC else 'authors'}"


def geometric(n: int, top: float = 8.0, first: float = 1.0, over: int | None = None) -> Array:
    """Return 2^(-top (h + first) / n) for n heads: 1/4, 1/16, 1/64, 1/256 for 4."""
    powers: Array = 2.0 ** (-top * (np.arange(n) + first) / (over or n))
    return powers


def is_power(n: int) -> bool:
    """Return whether the number of heads is a power of two."""
    return n & (n - 1) == 0


def slopes_of(model: Model, n: int) -> Array:
    """Return the slopes of n heads with a model's parameters."""
    if n in model["given"]:
        return np.asarray(model["factor"] * model["given"][n])

    def whole(m: int) -> Array:
        low = 1 << (m.bit_length() - 1)
        return np.asarray(model["series"](m) if m == low else REST[model["rest"]](model["series"], m, low))

    words, ranks = model["ranks"] or ("", n)
    usual = n % ranks or n < 2 * ranks or not words
    return rounded(model["factor"] * (whole(n) if usual else RANKS[words](whole, n, ranks)), model["round_slopes"])


def alike(found: Array, want: Array, tolerance: float = 1e-3) -> bool:
    """Return whether all slopes agree within a relative tolerance."""
    return found.shape == want.shape and bool((np.abs(found - want) <= tolerance * np.abs(want) + 1e-12).all())


def faults(family: "Alibi") -> Iterator[Fault]:
    """Yield the known faults, with the measured numbers."""
    right = family.truth
    yield Fault("alibi.no_effect", {"factor": 0.0})
    yield from _series(family)
    yield from _scaled(family)
    yield from family.windows()
    asked = definition(right)
    sides = {"ahead": 1.0 - right["ahead"]}
    for change, how in ({"rest": AUTHORS}, ""), ({"form": None}, ", computed in full precision"), (sides, ""):
        if (given := definition({**right, **change})) != asked:
            yield Fault("alibi.definition.other_version", change, {"given": given, "how": how, "asked": asked})
    if right["rest"] == AUTHORS:
        yield from (Fault("alibi.slopes.not_power_of_two", {"rest": how}, {"how": how}) for how in REST)
    top = int(right["series"].keywords["top"])
    for words, exponents in INTEGERS.items():
        change = {"series": partial(_whole, exponents, top)}
        yield Fault("alibi.slopes.integer_division", change, {"words": words.format(top=top)})
    for dtype in SHORT:
        yield Fault("alibi.precision.slopes_fp16", {"round_slopes": dtype}, {"dtype": dtype})
    words = "when there are more keys than queries, the bias is the same for all keys"
    yield Fault("alibi.kv_cache.bias_zero", {"flat": lambda q, k: q < k}, {"words": words})
    words = "for a single query the bias is the same for all keys"
    yield Fault("alibi.kv_cache.bias_zero", {"flat": lambda q, k: q == 1 < k}, {"words": words})
    yield Fault("alibi.bidirectional.ahead_favoured", {"form": None, "ahead": -1.0})
    factor = {"factor": f"{family.side:.5g}"}
    yield Fault("alibi.bidirectional.ahead_slope", {"form": None, "ahead": family.side}, factor)
    for ranks, words in product((2, 4, 8, 3), RANKS):
        values = {"words": words.format(ranks)}
        yield Fault("alibi.tensor_parallel.head_offset", {"ranks": (words, ranks)}, values)
    yield from (Fault(f"alibi.{code}", {"form": (form, None)}, {"words": words}) for code, words, form in FORMS)
    code, _, form = FORMS[0]
    words = (
        "the mask, or both the mask and the bias, count queries from 0, so a query after a cache loses keys behind it"
    )
    change = {"form": (form, None), "mask": replace(right["mask"], from_zero=True)}
    yield Fault(f"alibi.{code}", change, {"message": words})  # scores show no difference between the two
    for end in dict.fromkeys((family.end, *ENDS)) if family.end else ():
        yield from _ends(end)
    values = {"given": FALCON, "how": ", rounded to bfloat16", "asked": asked}
    yield Fault("alibi.definition.other_version", {"form": (_product, "bfloat16")}, values)
    for (dtype, short), (code, form) in product(SHORT.items(), ROUNDED):
        slots = {"dtype": dtype, "top": 256 if short == "bf16" else 2048}
        yield Fault(f"alibi.precision.{code.format(short)}", {"form": (form, dtype)}, slots)
    found = family.found
    if same := family.reordered():
        n = next((n for n in same if not alike(found[n], slopes_of(right, n))), max(same))
        exponents, usual = ((-np.log2(s[:8])).round(2).tolist() for s in (found[n], slopes_of(right, n)))
        yield Fault("alibi.slopes.head_order", {"given": same}, {"exponents": exponents, "usual": usual})
    one = {n: np.full(n, s[0]) for n, s in found.items()}
    yield Fault("alibi.slopes.shared", {"given": one}, {"words": "all heads have one slope"})
    for each in GROUPS:
        fewer = {n: np.repeat(slopes_of(right, n // each), each) for n in found if n % each == 0}
        if fewer:
            yield Fault("alibi.slopes.shared", {"given": fewer}, {"words": f"each {each} heads have one slope"})


def _ends(end: int) -> Iterator[Fault]:
    """Yield distances and positions that stop, or start again, at a number."""
    limited: Form = lambda m, q, k, r: -m * np.minimum(np.abs(q - k), end - 1)  # noqa: E731
    yield Fault("alibi.distance.clamped", {"form": (limited, None)}, {"end": end - 1})
    over: tuple[Form, ...] = (
        lambda m, q, k, r: -m * (np.abs(q - k) % end),
        lambda m, q, k, r: -m * np.abs(q % end - k % end),
        lambda m, q, k, r: -m * np.abs(q - k % end),
        lambda m, q, k, r: -m * np.abs((q - k + end) % (2 * end) - end),
        lambda m, q, k, r: m * ((k - q + end) % (2 * end) - end),
        lambda m, q, k, r: -m * ((q - k + end) % (2 * end) - end),
        lambda m, q, k, r: -m * np.abs((q + end) % (2 * end) - (k + end) % (2 * end)),
    )
    yield from (Fault("alibi.distance.wrapped", {"form": (form, None)}, {"end": end}) for form in over)


def described(family: "Alibi") -> Fault | None:
    """Return what is wrong with slopes that multiply the distance, but that no known rule explains."""
    right = family.truth
    wrong = {n: s for n, s in family.found.items() if not alike(s, family.steps_of(right, n))}
    if not wrong:
        return None
    n, s = min(wrong.items(), key=lambda pair: (pair[0] < 3, pair[0]))  # one or two slopes show no rule
    want, low = slopes_of(right, n), 1 << (n.bit_length() - 1)
    if len(s) != n:
        return Fault("alibi.slopes.count", {}, {"n": n, "count": len(s)})
    first = int((np.abs(s - want) > 1e-3 * np.abs(want)).argmax())
    values = {"n": n, "found": _listed(s, first), "asked": _listed(want, first)}
    if low < n and alike(s[:low], want[:low]) and all(map(is_power, set(family.found) - set(wrong))):
        how = f"{_listed(s[low:])} from head {low} on"
        return Fault("alibi.slopes.not_power_of_two", {}, {"how": how})
    steps = np.diff(s)
    if n > 2 and s.min() > 0 and np.ptp(steps) < 1e-3 * np.abs(steps).max():
        return Fault("alibi.slopes.linear", {}, values)
    return Fault("alibi.slopes.other", {}, values)


def _listed(some: Array, first: int = 0) -> str:
    shown = (f"from head {first} on " if first else "") + ", ".join(f"{x:.4g}" for x in some[first : first + 4])
    used = int(some.astype(bool)[::-1].argmax())  # how many of the last ones are 0
    tail = f", and 0 from head {len(some) - used} on" if used else ""
    return shown + (", ..." if len(some) > first + 4 else "") + tail


def _scaled(family: "Alibi") -> Iterator[Fault]:
    """Yield the constant factor between the measured slopes and right ones, if there is one."""
    for n, s in list(family.found.items())[:1]:
        for rest in (family.truth["rest"], GEOMETRIC):
            want = family.steps_of({**family.truth, "rest": rest}, n)
            factor = float(s[0] / want[0])
            if abs(factor - 1) < 1e-4 or not alike(s, factor * want, 1e-4):
                continue
            root = 1 / (factor * factor + 1e-12)  # the head dimension?
            why = f", that is, divided by sqrt({root:.0f})" if root > 1.5 and abs(root - round(root)) < 1e-3 else ""
            values = {"factor": f"{factor:.5g}", "why": why}
            code = "alibi.sign" if factor < 0 else "alibi.scale.applied_to_bias"
            yield Fault(code, {"factor": factor, "rest": rest}, values)


def _series(family: "Alibi") -> Iterator[Fault]:
    """Yield wrong series of powers."""
    series = family.truth["series"]
    top = series.keywords["top"]
    for first, count in ((0, "h"), (2, "h + 2")):
        change = {"series": partial(series, first=first)}
        yield Fault("alibi.slopes.exponent_off_by_one", change, {"top": top, "count": count})
    for n in (4, 8, 12, 16, 32) if len(family.found) > 1 else ():  # with one number it is another last exponent
        yield Fault("alibi.slopes.heads_hardwired", {"series": partial(series, over=n)}, {"n": n})
    for n, s in list(family.found.items())[:1]:
        over = n if family.truth["rest"] == GEOMETRIC else 1 << (n.bit_length() - 1)
        last = -math.log2(s[0]) * over if 0 < s[0] < 0.999 else top
        if abs(last - top) > 1e-4:
            bases = BASES if top == 8 else {}  # a last exponent of 8 is the usual one, not another base
            words = next((w for base, w in bases.items() if abs(last / top - math.log2(base)) < 1e-4), "")
            heads = n * top / last  # of whose slopes these are the first
            if not words and heads > n + 0.5 and abs(heads - round(heads)) < 1e-3 and is_power(round(heads)):
                words = f", as in the first {n} slopes of {round(heads)} heads"
            values = {"last": f"{last:.4g}", "top": top, "words": words}
            yield Fault("alibi.slopes.bias_max", {"series": partial(series, top=last)}, values)


def _whole(exponents: Callable[[Array, int, int], Array], top: int, n: int) -> Array:
    powers: Array = 2.0 ** -exponents(np.arange(float(n)), n, top)
    return powers
