"""Buckets of distances: T5's rule with every choice a parameter, and DeBERTa-v2's signed buckets."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise, product
from typing import Any

import numpy as np
import torch

from posenc.verify import guard
from posenc.verify.engine import CannotTellError, Case, Choice, Family, Fault, Seen
from posenc.verify.engine.observe import fresh
from posenc.verify.engine.precision import rounded
from posenc.verify.engine.records import Array, Model
from posenc.verify.report import Cause

FEW = (-3, 0, 40, -60, 5, 1)
TOPS = (1 << 40, 1500, 500, 120)  # a table of buckets may end before the farthest distances
MOST = 40  # largest distances that are tried if the answers leave several
LASTS = {  # wrong ends of far distances
    "none": "run on past the last bucket of their side",
    "side": "stop one bucket too high",
    "side - 2": "stop one bucket too low",
    "all - 1": "stop at the last of all buckets, not of their side",
}


SIGNED: Mapping[str, Callable[[Array], Array]] = {  # of query - key, with both sides visible
    "behind": lambda d: -d,
    "ahead": lambda d: d,
    "past": lambda d: -np.maximum(d, 0),  # in a decoder
}
RENUMBERED = {  # wrong numbers of the rows
    "they start at 1": lambda rows, n: rows + 1,
    "they are counted from the last": lambda rows, n: n - 1 - rows,
}


INSIDE = 1e-3  # whole numbers are moved so far from the edge of a bucket


def _right(d: Array, exact: int, side: int, top: int) -> Array:
    """Return how many buckets beyond the exact ones a distance is, before rounding down."""
    share: Array = np.log(d / exact) / (math.log(top / exact) if top > exact else 1e-3) * (side - exact)
    return share


def _half(d: Array, exact: int, side: int, top: int) -> Array:
    ratio = rounded(rounded(d, "bfloat16") / exact, "bfloat16")
    share = rounded(rounded(np.log(ratio), "bfloat16") / math.log(top / exact), "bfloat16")
    return rounded(share * (side - exact), "bfloat16") + INSIDE


Share = Callable[[Array, int, int, int], Array]
WHOLE: Mapping[str, Share] = {  # integer divisions in the logarithm
    "|d| / exact is rounded down before the logarithm": lambda d, e, side, top: _right(
        e * (np.maximum(d, e) // e + INSIDE), e, side, top
    ),
    "max_distance / exact is rounded down before the logarithm": lambda d, e, side, top: (
        np.log(d / e) / np.log(top // e) * (side - e)
    ),
    "the logarithms are divided as whole numbers": lambda d, e, side, top: (
        np.floor(_right(d, e, side, top) / (side - e)) * (side - e) + INSIDE
    ),
    "log(max_distance) is divided by log(exact) as a whole number": lambda d, e, side, top: (
        np.log(d / e) / (np.log(top) // np.log(e)) * (side - e)
    ),
}
SHARES: Mapping[str, Share] = {
    "": _right,
    "the logarithm is spread over all buckets of a side, not only over the inexact ones": lambda d, e, side, top: (
        _right(d, e, side, top) / (side - e) * side
    ),
    "it uses log(|d|) instead of log(|d| / exact)": lambda d, e, side, top: _right(d * e, e, side, top),
    "it uses log(max_distance) instead of log(max_distance / exact)": lambda d, e, side, top: (
        np.log(d / e) / math.log(top) * (side - e)
    ),
    "it uses log(|d|) / log(max_distance), neither divided by exact": lambda d, e, side, top: (
        np.log(d) / math.log(top) * (side - e)
    ),
    "it uses log(1 + |d| / exact) instead of log(|d| / exact)": lambda d, e, side, top: _right(d + e, e, side, top),
    "it uses log((|d| + 1) / exact) instead of log(|d| / exact)": lambda d, e, side, top: _right(d + 1, e, side, top),
    "log2 is divided by a natural logarithm": lambda d, e, side, top: _right(d, e, side, top) / math.log(2),
    "a natural logarithm is divided by log2": lambda d, e, side, top: _right(d, e, side, top) * math.log(2),
    "the number of exact buckets is not added to the logarithm's share": lambda d, e, side, top: (
        _right(d, e, side, top) - e
    ),
    "it is not divided by log(max_distance / exact)": lambda d, e, side, top: np.log(d / e) * (side - e),
    "it is not multiplied by the number of inexact buckets": lambda d, e, side, top: (
        _right(d, e, side, top) / (side - e)
    ),
    "log(|d| / exact) is used as it is": lambda d, e, side, top: np.log(d / e),
    "log2(|d| / exact) is used as it is": lambda d, e, side, top: np.log2(d / e),
    "distances beyond the exact ones are spread evenly": lambda d, e, side, top: (d - e) / max(top - e, 1) * (side - e),
    "it is rounded to the nearest number, not down": lambda d, e, side, top: _right(d, e, side, top) + 0.5,
    "it is rounded up, not down": lambda d, e, side, top: _right(d, e, side, top) + 1,
    "the logarithm is computed in bfloat16": _half,
    **WHOLE,
}


def family(convention: str, spec: Mapping[str, Any]) -> Family:
    """Return the family of `bucket(relative_position)` for a specification."""
    return Deberta(convention, spec) if spec.get("encoding") == "deberta" else T5(convention, spec)


class T5(Family):
    """T5's buckets (Raffel et al. 2020, section 2.1 and its code), of key - query."""

    definition, mismatch = "t5", "t5.mismatch"

    def __init__(self, convention: str, spec: Mapping[str, Any]) -> None:
        super().__init__(convention, spec)
        both = spec.get("bidirectional", None if spec.get("causal") is None else not spec["causal"])
        self.open = both is None
        self.n_buckets, self.max_distance = int(spec.get("num_buckets") or 32), int(spec.get("max_distance") or 128)
        self.truth = {
            "n_buckets": self.n_buckets,
            "max_distance": self.max_distance,
            "bidirectional": True if both is None else bool(both),
            "sign": -1.0,  # of key - query: distances are positive for keys behind
            "halves": 2,  # n_buckets divided by this is one side
            "ahead": 0.5,  # where buckets of keys ahead start, as a share of all
            "exact": 0.5,  # the share of a side with a bucket for each distance
            "more": 0,  # buckets of one distance each beyond that share
            "signed": "",  # the side whose distances are negative, since no absolute value is taken
            "last": "side - 1",  # where far distances stop
            "shift": 0,  # added to key - query
            "reach": 0,  # added to the distance
            "formula": "",
            "zero": False,  # the query's own key counts as a key ahead
            "number": None,  # what a short type or a modulo makes of query - key, but not of its sign
            "renumbered": "",
            "hidden": False,  # keys ahead are not compared
        }
        exact = self.n_buckets // (4 if both else 2)  # a decoder's if no side is declared
        if self.n_buckets < (2 if both is False else 4):
            raise ValueError(f"verify: num_buckets must be 2 or more for a side; got {self.n_buckets} in all.")
        if self.max_distance <= exact:
            open_ = f"max_distance {self.max_distance} is within the {exact} buckets of one distance each"
            raise CannotTellError(f"{open_}, where T5's logarithm is undefined and implementations differ")
        dense = np.arange(1, min(int(2.3 * self.max_distance), 700) + 1)  # all near ones, then growing gaps
        far = [int(self.max_distance * f) for f in (0.5, 0.7, 0.9, 0.99, 1, 1.01, 1.5, 2, 3, 8, 10, 100, 1000)]
        side = np.unique(np.maximum(np.concatenate([dense, [d + o for d in far for o in (-1, 0, 1)]]), 1))
        self.rel = np.concatenate([-side[::-1], [0], side]).astype(np.float64)
        self.answers: dict[float, float] = {}

    def cases(self) -> Iterator[Case]:
        """Yield all distances in both orders, as far as the subject allows, and a few separately."""
        asked = Case("near", (self.rel,), f"bucket of {len(self.rel)} distances in one list")
        for top in reversed(TOPS):
            near = self.rel[np.abs(self.rel) <= top]
            asked = Case("near", (np.stack([near, near[::-1]]),), f"bucket of {2 * len(near)} distances", False, asked)
        yield asked
        yield Case("near", (np.array(FEW),), f"bucket of {len(FEW)} distances", optional=True)

    def observe(self, subject: Any, case: Case) -> Seen:
        """Return the buckets."""
        asked = torch.from_numpy(case.args[0].astype(np.int64))
        found = guard.array(guard.call(fresh(subject), asked, what=case.words), case.words)
        found = guard.shaped(found, tuple(asked.shape), case.words)
        if found.is_floating_point() or found.is_complex():
            message = f"buckets are row numbers of a table and must be integers; got {found.dtype}"
            cause = Cause(f"{self.definition}.bucket.not_integer", message, 1.0, {"call": case.words})
            raise guard.SubjectError(cause)
        return Seen(case, found.double().numpy(), 0.0)

    def look(self, seen: Sequence[Seen]) -> None:
        """Keep the row of each distance."""
        self.answers = {rel: row for s in seen for rel, row in zip(s.case.args[0].flat, s.value.flat, strict=True)}

    def read(self, seen: Sequence[Seen], wrong: Sequence[Seen], model: Model) -> Fault | None:
        """Return rows that depend on the other distances of a call."""
        pairs = {pair for s in seen for pair in zip(s.case.args[0].flat, s.value.flat, strict=True)}
        one = len({rel for rel, _ in pairs}) == len(pairs)
        return None if one else Fault(f"{self.definition}.bucket.not_by_distance")

    def predict(self, model: Model, case: Case) -> Array:
        """Return the buckets of a model's rule."""
        return self.rows(model, case.args[0])[0]

    def slack(self, seen: Seen, predicted: Array, model: Model) -> Array:
        """Return the rounding error: edges of the logarithm may be off by one."""
        return self.rows(model, seen.case.args[0])[1]

    def smallest(self, seen: Seen, predicted: Array, off: Array) -> dict[str, Any]:
        """Return the nearest distance in a wrong bucket."""
        (rel,) = seen.case.args
        wrong = np.flatnonzero(off > 1)
        at = wrong[np.abs(rel.flat[wrong]).argmin()]
        numbers = {"relative_position": rel, "found": seen.value, "expected": predicted}
        return {name: int(some.flat[at]) for name, some in numbers.items()}

    def rows(self, model: Model, rel: Array) -> tuple[Array, Array]:
        """Return the buckets, and by how much rounding may change each."""
        d = (rel + model["shift"]) * model["sign"]
        both, n_buckets = model["bidirectional"], model["n_buckets"]
        side = n_buckets // model["halves"] if both else n_buckets
        start = ((d < 0) | ((d == 0) & model["zero"])) * float(int(model["ahead"] * n_buckets)) * both
        d = d if model["number"] is None else model["number"](d)
        distance = np.maximum((np.abs(d) if both else np.maximum(d, 0)) + model["reach"], 0)
        distance = SIGNED[model["signed"]](d) if model["signed"] else distance
        exact = max(int(side * model["exact"]) + model["more"], 1)
        with np.errstate(divide="ignore", invalid="ignore"):
            share = SHARES[model["formula"]](np.maximum(distance, 1), exact, side, model["max_distance"])
        far = exact + np.clip(np.floor(np.nan_to_num(share) + 1e-9), -1e6, 1e6)
        lasts = {"side - 1": side - 1, "side - 2": side - 2, "all - 1": n_buckets - 1, "side": side, "none": 1 << 30}
        last = lasts[model["last"]]
        rows = start + np.where(distance < exact, distance, np.minimum(far, last))
        rows = RENUMBERED[model["renumbered"]](rows, n_buckets) if model["renumbered"] else rows
        edge = (np.abs(share - np.round(share)) < 1e-5 * max(side, 32)) & (distance >= exact) & (far <= last)
        middle, hidden = (self.n_buckets - 1) / 2, (rel > 0) & model["hidden"]  # any row of the table is right
        return np.where(hidden, middle, rows), np.where(hidden, middle, np.where(edge, 1.0, 0.5))

    def free(self) -> Iterator[Choice]:
        """Yield the side if the specification declares none, and what a decoder does not see."""
        if self.open:
            yield Choice({"bidirectional": False})
        if not self.truth["bidirectional"]:
            because = "only keys ahead of the query have other buckets, and a decoder does not see them"
            yield Choice({"hidden": True}, because)
        if self.spec.get("direction") == "any":
            yield Choice({"sign": 1.0}, "past and future are exchanged, which the specification allows")

    def faults(self) -> Iterator[Fault]:
        """Yield wrong rules, those of public reports first."""
        both, n, top = self.truth["bidirectional"], self.n_buckets, self.max_distance
        yield Fault("t5.bucket.direction", {"sign": 1.0})
        for last, where in LASTS.items():
            yield Fault("t5.bucket.not_clamped", {"last": last}, {"where": where})
        tops = (128, 20, 32, 64, 100, 200, 256, 512, 1024, top // 2, top // 4, top * 2, top * 4, top - 1, top + 1)
        counts = (32, 8, 16, 64, 128, 256, n // 2, n * 2, n - 1, n + 1, n - 2, n + 2)
        numbers = [
            _hardwired(f"t5.bucket.{word}", name, used, self.truth[name])
            for name, word, tried in (("max_distance", "max_distance", tops), ("n_buckets", "num_buckets", counts))
            for used in tried
            if used >= 4 and used != self.truth[name]
        ]
        yield from (fault for fault in numbers if fault.change in ({"max_distance": 128}, {"n_buckets": 32}))
        yield Fault("t5.bucket.bidirectional", {"bidirectional": not both})
        yield Fault("t5.bucket.sign_lost", {"ahead": 0.0})
        yield Fault("t5.bucket.zero_ahead", {"zero": True})
        for code, halves, starts in ("not_halved", 1, (0.5, 1.0)), ("halved_twice", 4, (0.5, 0.25)):
            yield from (Fault(f"t5.bucket.{code}", {"halves": halves, "ahead": ahead}) for ahead in starts)
        for share, name in (0.25, "a quarter"), (1.0, "all"):
            yield Fault("t5.bucket.exact_range", {"exact": share}, {"share": name})
        for more, name in (-1, "half, less one,"), (1, "half, and one more,"):
            yield Fault("t5.bucket.exact_range", {"more": more}, {"share": name})
        for signed in ("behind", "ahead") if both else ():
            yield Fault("t5.bucket.not_absolute", {"signed": signed}, {"side": signed})
        if not both:
            values = {"message": "distances are negative: a minus is missing", "fix": "Use -min(key - query, 0)."}
            yield Fault("t5.bucket.not_absolute", {"signed": "past"}, values)
        for by in (1, -1):
            for name, what in ("reach", "|distance|"), ("shift", "key - query"):
                yield Fault("t5.bucket.off_by_one", {name: by}, {"what": what, "by": by})
            inside = lambda d, by=by: d - by  # noqa: E731
            yield Fault("t5.bucket.off_by_one", {"number": inside}, {"what": "|key - query|, inside of it,", "by": by})
            ahead = lambda d, by=by: np.where(d < 0, d - by, d)  # noqa: E731
            yield Fault("t5.bucket.off_by_one", {"number": ahead}, {"what": "the distance of keys ahead", "by": by})
        for words in SHARES:
            code = "integer_division" if words in WHOLE else "formula"
            yield Fault(f"t5.bucket.{code}", {"formula": words}, {"words": words})
        yield from numbers
        yield from (Fault("t5.bucket.renumbered", {"renumbered": words}, {"words": words}) for words in RENUMBERED)
        words = "those of keys ahead start at num_buckets, not at half of them"
        yield Fault("t5.bucket.renumbered", {"ahead": 1.0}, {"words": words})
        for end in dict.fromkeys((256, 128, top, n)):
            for again in (lambda rel, m=end: np.fmod(rel, m), lambda rel, m=end: (rel + m) % (2 * m) - m):
                yield Fault("t5.bucket.wrapped", {"number": again}, {"end": end})
        yield from self._measured()

    def _measured(self) -> Iterator[Fault]:
        """Yield the number of buckets and the largest distance that the answers show."""
        behind = {int(r): int(row) for r, row in self.answers.items() if (r < 0) != (self.truth["sign"] > 0)}
        side = max(behind.values(), default=0) + 1
        exact, both = side // 2, self.truth["bidirectional"]
        if side < 4:
            return
        used = side * (2 if both else 1)
        changes = {} if used == self.n_buckets else {"n_buckets": used}
        if changes:
            yield _hardwired("t5.bucket.num_buckets", "n_buckets", used, self.n_buckets)
        low, high = 1.0, float(exact**2)
        for (near, row), (far, other) in pairwise(sorted((abs(r), row) for r, row in behind.items())):
            if other > row >= exact:  # the share of the far one reaches its row, that of the near one does not
                high = min(high, (far / exact) ** ((side - exact) / (other - exact)))
                low = max(low, (near / exact) ** ((side - exact) / (row + 1 - exact)))
        for top in range(math.floor(low * exact), math.ceil(high * exact) + 1)[:MOST]:
            if top <= exact or top == self.max_distance:
                continue
            if changes:
                both_ = f", and max_distance is {top}, not {self.max_distance}"
                values = {"used": used, "asked": self.n_buckets, "same": both_}
                yield Fault("t5.bucket.num_buckets_hardwired", {**changes, "max_distance": top}, values)
            else:
                yield _hardwired("t5.bucket.max_distance", "max_distance", top, self.max_distance)


# what gives the same buckets as another number, by the code and that number's share of the declared one
SAME = {
    ("t5.bucket.max_distance", 0.5): ", or the logarithm is divided by log(max_distance / side), not by "
    "log(max_distance / exact), where exact = side // 2",
    ("deberta.bucket.num_buckets", 2.0): ", or mid is num_buckets, not num_buckets // 2",
}


def _hardwired(code: str, name: str, used: int, asked: int) -> Fault:
    values = {"used": used, "asked": asked, "same": SAME.get((code, used / asked), "")}
    return Fault(f"{code}_hardwired", {name: used}, values)


# wrong buckets of query - key, from mid, max_distance and the share of buckets beyond mid
def _share(ratio: Array, mid: int, top: int) -> Array:
    return np.log(np.maximum(ratio, 1)) / math.log((top - 1) / mid) * (mid - 1)


DEBERTA: Mapping[str, Callable[[Array, int, int, Array], Array]] = {
    "far distances are rounded down, not up": lambda d, mid, top, s: _signed(d, mid, mid + np.floor(s + 1e-9)),
    "it uses log(max_distance / mid), not log((max_distance - 1) / mid)": lambda d, mid, top, s: _signed(
        d, mid, mid + np.ceil(s * math.log((top - 1) / mid) / math.log(top / mid) - 1e-9)
    ),
    "the share is multiplied by mid, not by mid - 1": lambda d, mid, top, s: _signed(
        d, mid, mid + np.ceil(s * mid / (mid - 1) - 1e-9)
    ),
    "far distances are all positive": lambda d, mid, top, s: np.where(np.abs(d) <= mid, d, mid + np.ceil(s - 1e-9)),
    "far distances are all negative": lambda d, mid, top, s: np.where(np.abs(d) <= mid, d, -mid - np.ceil(s - 1e-9)),
    "no distance has a sign": lambda d, mid, top, s: np.abs(_signed(d, mid, mid + np.ceil(s - 1e-9))),
    "near distances are all positive": lambda d, mid, top, s: np.where(
        np.abs(d) <= mid, np.abs(d), np.sign(d) * (mid + np.ceil(s - 1e-9))
    ),
    "near distances are all negative": lambda d, mid, top, s: np.where(
        np.abs(d) <= mid, -np.abs(d), np.sign(d) * (mid + np.ceil(s - 1e-9))
    ),
    "mid is not added to the share of far distances": lambda d, mid, top, s: _signed(d, mid, np.ceil(s - 1e-9)),
    "far distances all have the last exact bucket": lambda d, mid, top, s: np.clip(d, -mid, mid),
    "every distance has a bucket of its own": lambda d, mid, top, s: d,
    "|distance| is divided by mid as integers": lambda d, mid, top, s: _signed(
        d, mid, mid + np.ceil(_share(np.abs(d) // mid, mid, top) - 1e-9)
    ),
    "it uses log(|distance|), not log(|distance| / mid)": lambda d, mid, top, s: _signed(
        d, mid, mid + np.ceil(_share(np.abs(d), mid, top) - 1e-9)
    ),
    "it is divided by log(max_distance - 1)": lambda d, mid, top, s: _signed(
        d, mid, mid + np.ceil(s * math.log((top - 1) / mid) / math.log(top - 1) - 1e-9)
    ),
    "log2 is divided by a natural logarithm": lambda d, mid, top, s: _signed(
        d, mid, mid + np.ceil(s / math.log(2) - 1e-9)
    ),
    "far distances of keys behind have buckets of their own": lambda d, mid, top, s: np.where(
        d > 0, d, _signed(d, mid, mid + np.ceil(s - 1e-9))
    ),
    "far distances of keys ahead have buckets of their own": lambda d, mid, top, s: np.where(
        d < 0, d, _signed(d, mid, mid + np.ceil(s - 1e-9))
    ),
    "they are T5's buckets": lambda d, mid, top, s: _of_t5(d, 2 * mid, top),
    "they are T5's buckets, of the opposite distance": lambda d, mid, top, s: _of_t5(-d, 2 * mid, top),
    "it begins beyond num_buckets / 4, not / 2": lambda d, mid, top, s: _signed(
        d, mid // 2, mid // 2 + np.ceil(_share(np.abs(d) / (mid // 2), mid // 2, top) - 1e-9)
    ),
}


def _of_t5(d: Array, n_buckets: int, top: int) -> Array:
    sizes = {"num_buckets": n_buckets, "max_distance": max(top, n_buckets // 4 + 1)}
    rule = T5("bucket_fn", {"bidirectional": True, **sizes})
    return rule.rows(rule.truth, -d)[0]


def _signed(d: Array, mid: int, far: Array) -> Array:
    return np.where(np.abs(d) <= mid, d, np.sign(d) * far)


class Deberta(T5):
    """DeBERTa-v2's signed buckets (He et al. 2021), with either sign of the distance and any first number."""

    definition, mismatch = "deberta", "deberta.mismatch"

    def __init__(self, convention: str, spec: Mapping[str, Any]) -> None:
        super().__init__(convention, {"num_buckets": 256, "max_distance": 512, **spec})
        self.rel = np.arange(-self.max_distance + 1, self.max_distance, dtype=np.float64)
        sizes = {"n_buckets": self.n_buckets, "max_distance": self.max_distance}
        self.truth = {"sign": 1, "start": 0, "clamped": False, "formula": "", **sizes}

    def rows(self, model: Model, rel: Array) -> tuple[Array, Array]:
        """Return the signed buckets, and 1 where rounding may move one."""
        d, mid = -rel, model["n_buckets"] // 2
        span = math.log((model["max_distance"] - 1) / mid) or 1e-9  # two wrong numbers together may leave none
        share = np.log(np.maximum(np.abs(d), mid) / mid) / span * (mid - 1)
        plain = np.where(np.abs(d) <= mid, d, np.sign(d) * (mid + np.ceil(share - 1e-9)))
        edge = (np.abs(d) > mid) & (np.abs(share - np.round(share)) < 1e-5 * mid)
        if model["formula"]:
            plain, edge = DEBERTA[model["formula"]](d, mid, model["max_distance"], share), edge | (np.abs(d) == mid)
        rows = model["sign"] * plain + model["start"]
        rows = np.clip(rows, 0, 2 * self.n_buckets - 1) if model["clamped"] else rows
        return rows, np.where(edge, 1.0, 0.5)

    def free(self) -> Iterator[Choice]:
        """Yield the other sign and the other first number: which is right depends on how the rows are used."""
        for sign, start, clamped in product((1, -1), (0, self.n_buckets), (False, True)):
            which = "query - key" if sign == 1 else "key - query"
            because = f"buckets of {which}, counted from {-start}: which is right depends on how the rows are used"
            yield Choice({"sign": sign, "start": start, "clamped": clamped}, because)

    def faults(self) -> Iterator[Fault]:
        """Yield other formulas, and other numbers of buckets and largest distances."""
        for words in DEBERTA:
            yield Fault("deberta.bucket.formula", {"formula": words}, {"words": words})
        for name, word in ("max_distance", "max_distance"), ("n_buckets", "num_buckets"):
            asked = self.truth[name]
            for used in (32, 64, 128, 256, 320, 384, 400, 500, 511, 512, 513, 1024, asked // 2, 2 * asked):
                if used != asked and (name == "n_buckets" or used > self.n_buckets // 2 + 1):
                    yield _hardwired(f"deberta.bucket.{word}", name, used, asked)
