"""Buckets of distances: T5's rule with every choice a parameter, and DeBERTa-v2's signed buckets."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from posenc import definitions
from posenc.verify import guard
from posenc.verify.engine import Case, Choice, Family, Fault, Seen
from posenc.verify.engine.observe import fresh
from posenc.verify.engine.records import Array, Model
from posenc.verify.guard import SubjectError
from posenc.verify.report import Cause

FEW = (-3, 0, 5, 1)
TOPS = (1 << 40, 1500, 500, 120)  # a table of buckets may end, so that the farthest distances cannot be asked
WHOLE: Mapping[str, Callable[[Array], Array]] = {
    "floor": lambda x: np.trunc(x + 1e-9),
    "round": np.round,
    "ceil": lambda x: np.ceil(x - 1e-9),
}
FORMULAS = {
    "side": "the logarithm is spread over all buckets of a side, not over those beyond the exact ones",
    "exact_not_divided": "it uses log(|d|) in place of log(|d| / exact)",
    "span_not_divided": "it uses log(max_distance) in place of log(max_distance / exact)",
    "neither_divided": "it uses log(|d|) / log(max_distance), neither divided by exact",
    "log2_over_ln": "log2 is divided by a natural logarithm",
    "ln_over_log2": "a natural logarithm is divided by log2",
    "ln_over_log10": "a natural logarithm is divided by log10",
    "no_start": "the number of exact buckets is not added to the logarithm's share",
    "linear": "distances beyond the exact ones are spread evenly, without a logarithm",
    "log1p": "it uses log(1 + |d| / exact) in place of log(|d| / exact)",
    "less_one": "the logarithm is spread over one bucket too few",
    "whole_first": "|d| / exact is rounded down before the logarithm",
}


def family(convention: str, spec: Mapping[str, Any]) -> Family:
    """Return the family of `bucket(relative_position)` for a specification."""
    return Deberta(convention, spec) if spec.get("encoding") == "deberta" else T5(convention, spec)


class Buckets(Family):
    """What both rules share: the question is a matrix of key - query, the answer whole numbers.

    Attributes:
        rel: The values of key - query that are asked, ascending.
    """

    rel: Array
    word: str

    def cases(self) -> Iterator[Case]:
        """Yield all distances, as far as the subject goes, and a few alone."""
        asked: Case | None = None
        for top in reversed(TOPS):
            near = self.rel[np.abs(self.rel) <= top]
            asked = Case("near", (near,), f"bucket of {2 * len(near)} distances", otherwise=asked)
        assert asked is not None
        yield asked
        yield Case("near", (np.array(FEW),), "bucket of 4 distances", optional=True)

    def observe(self, subject: Any, case: Case) -> Seen:
        """Return the buckets; those of the distances in the other order must be the same."""
        (rel,) = case.args
        asked = torch.from_numpy(rel.astype(np.int64))
        if len(rel) > len(FEW):
            asked = torch.stack([asked, asked.flip(0)])
        found = guard.call(fresh(subject), asked, what=case.words)
        found = guard.shaped(found, tuple(asked.shape), case.words)
        if found.is_floating_point() or found.is_complex():
            message = f"buckets are row numbers of a table, and must be whole; they are {found.dtype}"
            raise SubjectError(Cause(f"{self.word}.bucket.not_integer", message, 1.0, {"call": case.words}))
        rows = found.reshape(-1, len(rel)).double().numpy()
        if len(rows) > 1 and (rows[0] != rows[1][::-1]).any():
            message = "the bucket of a distance depends on what other distances are asked with it"
            share = float((rows[0] != rows[1][::-1]).mean())
            raise SubjectError(Cause(f"{self.word}.bucket.not_by_distance", message, share, {"call": case.words}))
        return Seen(case, rows[0], 0.0)

    def smallest(self, seen: Seen, predicted: Array, off: Array) -> dict[str, Any]:
        """Return the nearest distance in a wrong bucket."""
        (rel,) = seen.case.args
        wrong = np.flatnonzero(off > 1)
        at = wrong[np.abs(rel[wrong]).argmin()]
        return {
            "relative_position": int(rel[at]),
            "found": int(seen.value[at]),
            "expected": int(predicted[at]),
        }


class T5(Buckets):
    """T5's buckets (Raffel et al. 2020, section 2.1 and its code), of key - query."""

    definition, mismatch, word = "t5", "t5.mismatch", "t5"

    def __init__(self, convention: str, spec: Mapping[str, Any]) -> None:
        super().__init__(convention, spec)
        both = spec.get("bidirectional", None if spec.get("causal") is None else not spec["causal"])
        self.open = both is None
        self.n_buckets, self.max_distance = int(spec.get("num_buckets") or 32), int(spec.get("max_distance") or 128)
        self.truth = {
            "n_buckets": self.n_buckets,
            "max_distance": self.max_distance,
            "bidirectional": True if both is None else bool(both),
            "reversed": False,  # query - key in place of key - query
            "halves": 2,  # n_buckets over this is a side
            "ahead": 0.5,  # where buckets of keys ahead begin, of all
            "exact": 0.5,  # the share of a side with a bucket for each distance
            "clamp": "side",  # where far distances stop: "side", "all", "over" (one too high), "off"
            "cut": "floor",
            "shift": 0,  # added to key - query
            "reach": 0,  # added to the distance
            "zero_ahead": False,
            "log": "",
            "hidden": False,  # keys ahead are not compared
        }
        self.rel = distances(self.max_distance)

    def predict(self, model: Model, case: Case) -> Array:
        """Return the buckets of a model's rule."""
        return self.rows(model, case.args[0])[0]

    def rows(self, model: Model, rel: Array) -> tuple[Array, Array]:
        """Return the buckets, and where rounding may put one a number lower or higher."""
        d = (rel + model["shift"]) * (1.0 if model["reversed"] else -1.0)
        both, n_buckets = model["bidirectional"], model["n_buckets"]
        side = n_buckets // model["halves"] if both else n_buckets
        is_ahead = d <= 0 if model["zero_ahead"] else d < 0
        start = is_ahead * float(int(model["ahead"] * n_buckets)) * both
        distance = np.maximum((np.abs(d) if both else np.maximum(d, 0)) + model["reach"], 0)
        exact = max(int(side * model["exact"]), 1)
        share = _share(model["log"], np.maximum(distance, 1), exact, side, model["max_distance"])
        far = exact * (model["log"] != "no_start") + np.clip(WHOLE[model["cut"]](share), -1e6, 1e6)
        last = {"side": side - 1, "all": n_buckets - 1, "over": side, "off": 1 << 30}[model["clamp"]]
        edge = (np.abs(share - np.round(share)) < 1e-5 * max(side, 32)) & (distance >= exact) & (far <= last)
        return start + np.where(distance < exact, distance, np.minimum(far, last)), edge

    def off(self, seen: Seen, predicted: Array, model: Model) -> Array:
        """Return the difference in buckets, where edges of the logarithm may be missed by one."""
        (rel,) = seen.case.args
        off = np.abs(seen.value - predicted) / np.where(self.rows(model, rel)[1], 1.0, 0.5)
        inside = (seen.value >= 0) & (seen.value < self.n_buckets)
        return np.where((rel > 0) & inside & model["hidden"], 0.0, off)

    def same(self, seen: Seen, predicted: Array) -> bool:
        """Return True: `off` has compared every bucket."""
        return True

    def free(self) -> Iterator[Choice]:
        """Yield the side where the specification is silent, and what a decoder does not see."""
        if self.open:
            yield Choice({"bidirectional": False})
        if not self.truth["bidirectional"]:
            yield Choice(
                {"hidden": True}, "only keys ahead of the query have other buckets, and a decoder does not see them"
            )
        if self.spec.get("direction") == "any":
            yield Choice({"reversed": True}, "past and future are exchanged, and the spec leaves the direction free")

    def faults(self) -> Iterator[Fault]:
        """Yield wrong rules, those of public reports first."""
        yield from _ends(self.truth["bidirectional"])
        yield from self._hardwired()
        yield from _sides(self.truth["bidirectional"])
        for share, name in ((0.25, "a quarter"), (1.0, "all"), (0.75, "three quarters")):
            yield Fault("t5.bucket.exact_range", {"exact": share}, {"share": name})
        for cut, word in (("round", "rounded"), ("ceil", "rounded up")):
            yield Fault("t5.bucket.rounding", {"cut": cut}, {"how": word})
        for by in (1, -1):
            yield Fault("t5.bucket.off_by_one", {"reach": by}, {"what": "|distance|", "by": by})
            yield Fault("t5.bucket.off_by_one", {"shift": by}, {"what": "key - query", "by": by})
        for name, words in FORMULAS.items():
            yield Fault("t5.bucket.formula", {"log": name}, {"words": words})
        yield from self._numbers()

    def _hardwired(self) -> Iterator[Fault]:
        for name, usual in (("max_distance", 128), ("n_buckets", 32)):
            asked = self.truth[name]
            if asked != usual:
                code = (
                    "t5.bucket.max_distance_hardwired" if name == "max_distance" else "t5.bucket.num_buckets_hardwired"
                )
                yield Fault(code, {name: usual}, {"used": usual, "asked": asked})

    def _numbers(self) -> Iterator[Fault]:
        n, top = self.n_buckets, self.max_distance
        tops = {20, 32, 64, 100, 200, 256, 512, 1024, 2048, top // 2, top // 4, top * 2, top * 4, top - 1, top + 1}
        counts = {8, 16, 64, 128, 256, n // 2, n * 2, n - 1, n + 1, n - 2, n + 2}
        for used in sorted(tops - {128, top}):
            if used >= 4:
                yield Fault("t5.bucket.max_distance", {"max_distance": used}, {"used": used, "asked": top})
        for used in sorted(counts - {32, n}):
            if used >= 4:
                yield Fault("t5.bucket.num_buckets", {"n_buckets": used}, {"used": used, "asked": n})

    def read(self, seen: Sequence[Seen], wrong: Sequence[Seen], model: Model) -> Fault | None:
        """Return rows that change with what else is asked, or rows before the table for keys ahead."""
        rel, rows = seen[0].case.args[0], seen[0].value
        if any((s.value != rows[np.searchsorted(rel, s.case.args[0])]).any() for s in seen[1:]):
            return Fault("t5.bucket.not_by_distance")
        behind_right = (self.off(seen[0], self.predict(model, seen[0].case), model)[rel <= 0] <= 1).all()
        if not model["bidirectional"] and behind_right and (rows[rel > 0] < 0).all():
            return Fault("t5.bucket.out_of_table")
        return None

    def measured(self, seen: Sequence[Seen], model: Model) -> dict[str, Any]:
        """Return which sides have buckets."""
        return {"bidirectional": model["bidirectional"]}


def _ends(both: bool) -> Iterator[Fault]:
    """Yield rules whose direction or last bucket is wrong."""
    yield Fault("t5.bucket.direction", {"reversed": True})
    yield Fault("t5.bucket.not_clamped", {"clamp": "off"}, {"where": "run on past the last bucket of their side"})
    yield Fault("t5.bucket.not_clamped", {"clamp": "over"}, {"where": "stop one bucket too high"})
    if both:
        where = "stop at the last of all buckets, not of their side"
        yield Fault("t5.bucket.not_clamped", {"clamp": "all"}, {"where": where})


def _sides(both: bool) -> Iterator[Fault]:
    """Yield rules that divide the buckets among the sides in another way."""
    if both:
        yield Fault("t5.bucket.sign_lost", {"ahead": 0.0})
        yield Fault("t5.bucket.not_halved", {"halves": 1})
        yield Fault("t5.bucket.not_halved", {"halves": 1, "ahead": 1.0})
        yield Fault("t5.bucket.halved_twice", {"halves": 4})
        yield Fault("t5.bucket.halved_twice", {"halves": 4, "ahead": 0.25})
        yield Fault("t5.bucket.zero", {"zero_ahead": True})
    yield Fault("t5.bucket.bidirectional", {"bidirectional": not both})


def _share(formula: str, distance: Array, exact: int, side: int, top: int) -> Array:
    """Return how many buckets beyond the exact ones a distance is, before rounding; "" is the right formula."""
    rest = side - exact
    span = math.log(max(top, 2) / exact) if top > exact else 1e-3
    ratio = np.log(distance / exact)
    formulas: Mapping[str, Callable[[], Array]] = {
        "side": lambda: ratio / span * side,
        "exact_not_divided": lambda: np.log(distance) / span * rest,
        "span_not_divided": lambda: ratio / math.log(top) * rest,
        "neither_divided": lambda: np.log(distance) / math.log(top) * rest,
        "log2_over_ln": lambda: np.log2(distance / exact) / span * rest,
        "ln_over_log2": lambda: ratio / (span / math.log(2)) * rest,
        "ln_over_log10": lambda: ratio / (span / math.log(10)) * rest,
        "linear": lambda: (distance - exact) / max(top - exact, 1) * rest,
        "log1p": lambda: np.log1p(distance / exact) / span * rest,
        "less_one": lambda: ratio / span * (rest - 1),
        "whole_first": lambda: np.log(np.maximum(np.floor(distance / exact), 1e-300)) / span * rest,
    }
    return formulas[formula]() if formula in formulas else ratio / span * rest


def distances(max_distance: int) -> Array:
    """Return values of key - query to ask for: all near ones, and far ones ever wider apart."""
    dense = np.arange(1, min(int(2.3 * max_distance), 700) + 1)
    far = [int(max_distance * f) for f in (0.5, 0.7, 0.9, 0.99, 1, 1.01, 1.5, 2, 3, 8, 10, 100, 1000)]
    side = np.unique(np.maximum(np.concatenate([dense, [d + o for d in far for o in (-1, 0, 1)]]), 1))
    return np.concatenate([-side[::-1], [0], side]).astype(np.float64)


class Deberta(Buckets):
    """DeBERTa-v2's signed buckets (He et al. 2021), of either sign of the distance and from either first number."""

    definition, mismatch, word = "deberta", "deberta.mismatch", "deberta"

    def __init__(self, convention: str, spec: Mapping[str, Any]) -> None:
        super().__init__(convention, spec)
        self.n_buckets, self.max_distance = int(spec.get("num_buckets") or 256), int(spec.get("max_distance") or 512)
        self.rel = np.arange(-self.max_distance + 1, self.max_distance, dtype=np.float64)
        self.truth = {"sign": 1, "start": 0, "clamped": False}

    def predict(self, model: Model, case: Case) -> Array:
        """Return the signed buckets."""
        bucket = definitions.scores._deberta_bucket
        rows = np.array([bucket(-int(r), self.n_buckets, self.max_distance) for r in case.args[0]], dtype=np.float64)
        rows = model["sign"] * rows + model["start"]
        last = 2 * self.n_buckets - 1 if model["clamped"] else np.inf
        stopped: Array = np.clip(rows, 0 if model["clamped"] else -np.inf, last)
        return stopped

    def slack(self, seen: Seen, predicted: Array, model: Model) -> Array:
        """Return 1 beyond the exact buckets, whose edges a rounded logarithm may miss."""
        rows = self.predict(self.truth, seen.case)
        return np.where(np.abs(rows) > self.n_buckets // 2, 1.0, 0.5)

    def same(self, seen: Seen, predicted: Array) -> bool:
        """Return True: `slack` has compared every bucket."""
        return True

    def free(self) -> Iterator[Choice]:
        """Yield the other sign and the other first number: how the rows are read decides which is right."""
        tail = "; how the rows are read decides which is right"
        for sign, start, words in (
            (-1, 0, "buckets of key - query, the other sign of the distance"),
            (1, self.n_buckets, f"counted from 0: {self.n_buckets} is added"),
            (-1, self.n_buckets, f"of key - query, and counted from 0: {self.n_buckets} is added"),
        ):
            for clamped in (False, True):
                yield Choice({"sign": sign, "start": start, "clamped": clamped}, words + tail)

    def faults(self) -> Iterator[Fault]:
        """Yield nothing: no public report names a fault of these."""
        return iter(())
