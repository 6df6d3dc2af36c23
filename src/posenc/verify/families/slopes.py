"""Slopes of ALiBi's heads: the authors' rule with every choice a parameter, and `slopes(n_heads)` as a convention."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np
from torch import Tensor

from posenc.definitions import versions
from posenc.verify.engine import CannotTellError, Case, Choice, Family, Fault, Seen
from posenc.verify.engine.observe import fresh
from posenc.verify.engine.precision import rounded
from posenc.verify.engine.records import Array, Kind, Model, kind
from posenc.verify.families.bias_calls import invoke
from posenc.verify.guard import SubjectError
from posenc.verify.report import Cause

Series = Callable[[int], Array]
Found = Mapping[int, Array]  # measured slopes by the number of heads
ROOTS = (8, 16, 24, 32, 40, 48, 64, 72, 80, 88, 96, 112, 128, 160, 192, 256)
FALCON = "alibi@falcon"
REST: Mapping[str, Callable[[Series, int, int], Array]] = {  # n heads of a series, low the next lower power of two
    "the authors'": lambda s, n, low: np.concatenate([s(low), s(2 * low)[0::2][: n - low]]),
    "one geometric series, 2**(-8 (h + 1) / n), as in the paper's text": lambda s, n, low: s(n),
    "the first slopes of the next power of two": lambda s, n, low: s(2 * low)[:n],
    "the last slopes of the next power of two": lambda s, n, low: s(2 * low)[-n:],
    "those of the lower power of two, over and over": lambda s, n, low: np.tile(s(low), 2)[:n],
    "those of the lower power of two, then the first of twice that": lambda s, n, low: np.r_[s(low), s(2 * low)][:n],
    "those of the lower power of two, then the 2nd, 4th.. of twice that": lambda s, n, low: np.r_[
        s(low), s(2 * low)[1::2]
    ][:n],
    "those of the lower power of two, then zeros": lambda s, n, low: np.r_[s(low), np.zeros(n - low)],
    "those of the lower power of two, then their last one": lambda s, n, low: np.r_[s(low), [s(low)[-1]] * (n - low)],
    "those of the lower power of two, and no more": lambda s, n, low: s(low),
    "those of the lower power of two and all of its double's odd ones": lambda s, n, low: np.r_[
        s(low), s(2 * low)[0::2]
    ],
}
AUTHORS, GEOMETRIC = list(REST)[:2]
_RANKS: tuple[tuple[str, str, Callable[[Series, int, int], Array]], ...] = (
    (
        "alibi.tensor_parallel.head_offset",
        "each of {parts} ranks takes the first slopes in place of its own part of the model's",
        lambda s, n, r: np.tile(s(n)[: n // r], r),
    ),
    (
        "alibi.tensor_parallel.head_offset",
        "each of {parts} ranks takes the slopes of a model with only its own heads",
        lambda s, n, r: np.tile(s(n // r), r),
    ),
    ("alibi.slopes.shared", "the {parts} heads of a group share a slope", lambda s, n, r: np.repeat(s(n // r), r)),
    ("alibi.slopes.shared", "the {parts} heads of a group share a slope", lambda s, n, r: np.repeat(s(n)[::r], r)),
)
_OTHER_SERIES: Mapping[str, Callable[[Array, int], Array]] = {  # of the head, from 1, and how many there are
    "h + 1": lambda h, n: h,
    "(h + 1) / n": lambda h, n: h / n,
    "h / n": lambda h, n: (h - 1) / n,
    "(n - h) / n": lambda h, n: (n + 1 - h) / n,
    "1 - (h + 1) / n": lambda h, n: 1 - h / n,
    "h / (n - 1)": lambda h, n: (h - 1) / max(n - 1, 1),
    "1 / (h + 1)": lambda h, n: 1 / h,
    "1 / (h + 2)": lambda h, n: 1 / (h + 1),
    "1 / (8 (h + 1))": lambda h, n: 1 / (8 * h),
    "1 / (h + 1)**2": lambda h, n: 1 / h**2,
    "n / (h + 1)": lambda h, n: n / h,
    "8 (h + 1) / n": lambda h, n: 8 * h / n,
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
        said = f"{spec['order']!r:.60}"
        raise ValueError(f"verify: order of ALiBi's heads can only be 'any'; got {said}. Leave it out for the usual.")
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
        return model["factor"] * _falcon(n)
    return rounded(model["factor"] * (model["parts"](whole, n) if model["parts"] else whole(n)), model["round_slopes"])


@cache
def _falcon(n: int) -> Array:
    return np.asarray(versions.alibi_falcon(np.array([0.0]), np.arange(2.0), n_heads=n)[:, 0, 1])


def alike(found: Array, want: Array, tolerance: float = 1e-5) -> bool:
    """Return whether all slopes agree to a share of themselves."""
    return found.shape == want.shape and bool((np.abs(found - want) <= tolerance * np.abs(want) + 1e-12).all())


def faults(found: Found, right: Model, head_dim: int | None = None, rough: float = 1e-4) -> Iterator[Fault]:
    """Yield wrong slopes, with the numbers that are read off measured ones.

    Args:
        found: Measured slopes by the number of heads.
        right: The parameters that are asked for.
        head_dim: Known size of a head.
        rough: The relative error of the measured slopes.
    """
    if right["falcon"]:
        plain = {"falcon": False}
        words = {"given": definition({**right, **plain}), "how": ", formed in full precision,", "asked": FALCON}
        yield Fault("alibi.definition.other_version", plain, words)
        yield from _scaled(found, right, head_dim, rough)
        yield from (replace(f, change={**plain, **f.change}) for f in faults(found, {**right, **plain}, head_dim, rough))
        return
    for how in REST:
        if how != right["rest"] and right["rest"] == AUTHORS:
            yield Fault("alibi.slopes.not_power_of_two", {"rest": how}, {"how": how})
    for r in (2, 4, 8, 3):
        for code, words, make in _RANKS:
            yield Fault(code, {"parts": partial(_by_parts, make, r)}, {"words": words.format(parts=r)})
    for fault in (*_series(found, right), *_scaled(found, right, head_dim, rough)):
        yield fault
        yield replace(fault, change={"rest": GEOMETRIC, **fault.change})
    if right["rest"] == GEOMETRIC:
        words = {"given": "alibi@authors", "how": "", "asked": "alibi@geometric"}
        yield Fault("alibi.definition.other_version", {"rest": AUTHORS}, words)


def _by_parts(make: Callable[[Series, int, int], Array], parts: int, series: Series, n: int) -> Array:
    return series(n) if n % parts or n <= 2 else make(series, n, parts)


def _series(found: Found, right: Model) -> Iterator[Fault]:
    """Yield wrong series of powers."""
    true = right["series"]
    top = true.keywords["top"]
    for first, words in ((0, "h"), (2, "h + 2")):
        change = {"series": partial(geometric, top=top, first=first)}
        yield Fault("alibi.slopes.exponent_off_by_one", change, {"top": top, "count": words})
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
            change = {"series": partial(geometric, top=last)}
            yield Fault("alibi.slopes.bias_max", change, {"last": f"{last:.4g}", "top": top})
    for dtype in ("float16", "bfloat16"):
        yield Fault("alibi.precision.slopes_fp16", {"round_slopes": dtype}, {"dtype": dtype, "of": ""})


def _speaking(found: Found) -> int:
    """Return the number of heads whose slopes say most: a power of two above 2 if there is one."""
    return next((n for n in found if n > 2 and n & (n - 1) == 0), next(iter(found), 0))


def _scaled(found: Found, right: Model, head_dim: int | None, rough: float) -> Iterator[Fault]:
    """Yield the right slopes times the one factor by which the measured ones differ, if there is one."""
    n = _speaking(found)
    for rest in (right["rest"], GEOMETRIC):
        want = slopes_of({**right, "rest": rest}, n) if n else np.zeros(0)
        s = found.get(n, want)
        if s.shape != want.shape or not s.any() or not alike(s / want, np.full(len(s), s[0] / want[0]), rough):
            continue
        factor = float(s[0] / want[0])
        if abs(abs(factor) - 1) < rough:
            factor = math.copysign(1.0, factor)
        if factor == 1:
            return
        size = abs(factor)
        roots = (head_dim,) if head_dim else ROOTS
        root = next((d for d in roots if abs(size * math.sqrt(d) - 1) < rough), None)
        code = "alibi.sign" if factor < 0 else "alibi.scale.applied_to_bias" if root else "alibi.scale.factor"
        why = f", that is divided by sqrt({root})" if root else ""
        if abs(size - math.log2(math.e)) < rough:
            why = ", which is log2(e): a bias for exp2"
        yield Fault(code, {"factor": factor}, {"factor": f"{factor:.6g}", "why": why})
        return


def named(found: Found, right: Model, wrong: Sequence[int]) -> Fault | None:
    """Return the fault that slopes of no known formula show by their form; None if they show none.

    Args:
        found: Measured slopes by the number of heads.
        right: The parameters that are asked for.
        wrong: The numbers of heads whose slopes are not right.
    """
    given = {"given": dict(found)}
    if not wrong:
        return None
    first = wrong[0]
    if len(found[first]) != first:
        return Fault("alibi.slopes.count", given, {"n": first, "many": len(found[first])})
    if how := order(found, right, wrong):
        return Fault("alibi.slopes.head_order", given, how)
    powers = [n for n in found if n > 1 and n & (n - 1) == 0]
    if powers and not set(powers) & set(wrong) and right["rest"] == AUTHORS:
        return Fault("alibi.slopes.not_power_of_two", given, {"how": "others, by no known rule"})
    whole = {n: s for n, s in found.items() if len(s) == n}
    for words, make in _OTHER_SERIES.items():
        if len(found) == len(whole) and all(_near(s, make(np.arange(1.0, n + 1), n)) for n, s in whole.items()):
            return Fault("alibi.slopes.not_geometric", given, {"words": f"{words} for n heads"})
    many = {n: s for n, s in whole.items() if n > 2}
    if many and all(_near(np.diff(s), np.full(n - 1, s[1] - s[0])) and s[1] != s[0] for n, s in many.items()):
        return Fault("alibi.slopes.not_geometric", given, {"words": "in equal steps from head to head"})
    s = found[max(wrong)]
    if len(s) > 1 and alike(s, np.full(len(s), s[0])):
        return Fault("alibi.slopes.shared", given, {"words": f"all heads have one slope, {s[0]:.6g}"})
    if len(s) > 2 and (s > 0).all():
        powers_of_two = -np.log2(s)
        step = powers_of_two[1] - powers_of_two[0]
        if alike(np.diff(powers_of_two), np.full(len(s) - 1, step), 1e-4):
            words = {"first": f"{0 - round(float(powers_of_two[0]), 9):.5g}", "step": f"{step:.5g}"}
            return Fault("alibi.slopes.ratio", given, words)
    return None


def _near(found: Array, want: Array) -> bool:
    return bool((np.abs(found - want) <= 1e-4 * np.abs(want).max() + 1e-12).all())


def order(found: Found, right: Model, wrong: Sequence[int]) -> dict[str, Any] | None:
    """Return the words for heads that have each other's slopes; None if they have others."""
    wants = {n: slopes_of(right, n) for n in wrong}
    if not wrong or not all(alike(np.sort(found[n]), np.sort(want), 1e-3) for n, want in wants.items()):
        return None
    s, want = found[wrong[0]], wants[wrong[0]]
    ways = {"from the last head to the first": want[::-1], "sorted": np.sort(want)[::-1], "sorted upwards": np.sort(want)}
    how = next((f", {words}" for words, other in ways.items() if alike(s, other, 1e-3)), "")
    exponents, usual = ([round(float(-math.log2(v)), 2) for v in slopes] for slopes in (s, want))
    return {"how": how, "exponents": exponents, "usual": usual}


def family(convention: str, spec: Mapping[str, Any]) -> Family:
    """Return the family of `slopes(n_heads)` for a specification.

    Raises:
        CannotTellError: Slopes that are learned have no right values.
    """
    if spec.get("variant") == "learned":
        raise CannotTellError("learned slopes have no right values")
    return Slopes(convention, spec)


class Slopes(Family):
    """`slopes(n_heads)`, asked for one number of heads or many."""

    mismatch = "alibi.mismatch"
    kinds: Sequence[Kind] = (kind("alibi.mask_cached_on_class", "again"),)

    def __init__(self, convention: str, spec: Mapping[str, Any]) -> None:
        super().__init__(convention, spec)
        self.heads = int(spec["heads"]) if spec.get("heads") else None
        self.truth = truth(spec)
        self.definition = definition(self.truth)
        self.found: dict[int, Array] = {}

    def cases(self) -> Iterator[Case]:
        """Yield powers of two, other numbers of heads, and some of both again after others."""
        if self.heads:
            yield from (_case("other", n) for n in (8, 4) if n != self.heads and self.heads & (self.heads - 1))
            yield _case("near" if self.heads & (self.heads - 1) == 0 else "rest", self.heads)
            yield _case("other", 2 * self.heads)
            yield _case("again", self.heads, 2 * self.heads, 8)
            return
        yield from (_case("near" if n > 2 else "few", n) for n in (4, 8, 16, 32, 2, 1))
        yield from (_case("rest", n) for n in (3, 5, 6, 12, 20, 40))
        yield from (_case("again", n, 16, 40, 3, 6) for n in (12, 8, 5))

    def observe(self, subject: Any, case: Case) -> Seen:
        """Return the slopes; what became of them after other calls as the difference from the first time."""
        n, *before = case.args
        one = fresh(subject)
        if case.kind == "other":  # only helps to name what another number shows
            return Seen(case, self._other(one, n))
        if case.kind == "again":
            for m in before:
                self._other(one, m)
            now = _numbers(invoke(one, n, what=case.words), n)
            clean = self.found.get(n, now)
            return Seen(case, np.array([np.abs(now - clean).max(initial=0.0) if now.shape == clean.shape else np.inf]))
        self.found[n] = _numbers(invoke(one, n, what=case.words), n)
        return Seen(case, self.found[n])

    def _other(self, subject: Any, n: int) -> Array:
        try:
            found = _numbers(invoke(subject, n, what=f"slopes({n})"), n)
        except SubjectError:
            return np.zeros(0)
        self.found.setdefault(n, found)
        return found

    def prepare(self, seen: Sequence[Seen]) -> None:
        """Take the measured slopes from the answers."""
        self.found = {s.case.args[0]: s.value for s in seen if s.case.kind != "again" and len(s.value)}

    def predict(self, model: Model, case: Case) -> Array:
        """Return the slopes of a model."""
        n = case.args[0]
        return np.zeros(1) if case.kind == "again" else slopes_of(model, n)

    def off(self, seen: Seen, predicted: Array, model: Model) -> Array:
        """Return 0 for numbers of heads that are asked only to name a fault."""
        return np.zeros(1) if seen.case.kind == "other" else super().off(seen, predicted, model)

    def slack(self, seen: Seen, predicted: Array, model: Model) -> Array:
        """Return a share of each slope."""
        return 1e-5 * np.abs(predicted) + 1e-12

    def same(self, seen: Seen, predicted: Array) -> bool:
        """Return True: `slack` has compared every slope."""
        return True

    def free(self) -> Iterator[Choice]:
        """Yield another order of the heads where the specification says that any is right."""
        wrong = [n for n, s in self.found.items() if not alike(s, slopes_of(self.truth, n))]
        if self.spec.get("order") == "any" and order(self.found, self.truth, wrong):
            yield Choice({"given": self.found}, "the heads have ALiBi's slopes in another order, which the spec leaves free")

    def faults(self) -> Iterator[Fault]:
        """Yield wrong slopes."""
        yield from faults(self.found, self.truth, self.spec.get("head_dim"))

    def read(self, seen: Sequence[Seen], wrong: Sequence[Seen], model: Model) -> Fault | None:
        """Return what slopes of no known formula look like."""
        return named(self.found, self.truth, [s.case.args[0] for s in wrong if s.case.kind != "again"])

    def refine(self, fault: Fault, wrong: frozenset[str], right: frozenset[str], seen: Sequence[Seen]) -> Fault:
        """Return a memory of other calls where there is one: it spoils what comes after it."""
        return Fault("alibi.mask_cached_on_class") if "again" in wrong else fault

    def raised(self, cause: Cause, case: Case) -> Fault | None:
        """Return a memory of other calls, or slopes for powers of two only."""
        if case.kind == "again":
            return Fault("alibi.mask_cached_on_class")
        if case.kind == "rest" and cause.code == "subject.raises" and any(n & (n - 1) == 0 for n in self.found):
            how = f"no slopes at all: {cause.message}"
            return Fault("alibi.slopes.not_power_of_two", {}, {"how": how, "message": "", "fix": ""})
        return None

    def smallest(self, seen: Seen, predicted: Array, off: Array) -> dict[str, Any]:
        """Return the first wrong head."""
        case: dict[str, Any] = {"n_heads": seen.case.args[0]}
        if seen.value.shape == predicted.shape and seen.case.kind != "again":
            h = int((off > 1).argmax())
            case |= {"head": h, "found": float(seen.value[h]) + 0.0, "expected": float(predicted[h])}
        return case

    def measured(self, seen: Sequence[Seen], model: Model) -> dict[str, Any]:
        """Return the slopes."""
        return {"slopes": {str(n): s.tolist() for n, s in self.found.items()}}


def _case(kind: str, n: int, *before: int) -> Case:
    return Case(kind, (n, *before), f"slopes({n})", optional=n == 1)


def _numbers(found: Any, n: int) -> Array:
    """Return slopes of any kind of list as a vector.

    Raises:
        SubjectError: They are no numbers, or not finite.
    """
    try:
        if isinstance(found, Mapping):
            raise TypeError("a dict has no order")
        if isinstance(found, Tensor):
            found = found.detach().cpu()
            if found.is_complex():
                raise TypeError("slopes are real")
            found = found.double().numpy()
        slopes = np.array([float(s) for s in np.asarray(found).ravel()] if isinstance(found, np.ndarray) else list(map(float, found)))
    except (TypeError, ValueError) as error:
        message = f"slopes({n}) must return a list of numbers; got {type(found).__name__}"
        cause = Cause("subject.shape", message, 1.0, {"n_heads": n}, "Return one number per head.")
        raise SubjectError(cause) from error
    if not np.isfinite(slopes).all():
        message = f"slopes({n}) returns {slopes.tolist()[:4]}, which are not all finite"
        raise SubjectError(Cause("subject.not_finite", message, 1.0, {"n_heads": n}, "Return finite slopes."))
    return slopes
