"""Buckets of distances: T5's rule with every choice a parameter, and DeBERTa-v2's signed buckets."""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
import torch

from posenc import definitions
from posenc.verify import guard
from posenc.verify.engine import CannotTellError, Case, Choice, Family, Fault, Seen
from posenc.verify.engine.observe import fresh
from posenc.verify.engine.records import Array, Model
from posenc.verify.report import Cause

FEW = (-3, 0, 5, 1)
TOPS = (1 << 40, 1500, 500, 120)  # a table of buckets may end before the farthest distances
LASTS = {  # wrong ends of far distances
    "none": "run on past the last bucket of their side",
    "side": "stop one bucket too high",
    "all - 1": "stop at the last of all buckets, not of their side",
}


def _shares(d: Array, exact: int, side: int, top: int) -> Mapping[str, Array]:
    """Return how many buckets beyond the exact ones a distance is, before rounding down, for each wrong rule."""
    rest, span = side - exact, math.log(top / exact) if top > exact else 1e-3
    ratio = np.log(d / exact)
    right = ratio / span * rest
    return {
        "": right,
        "the logarithm is spread over all buckets of a side, not only over the inexact ones": ratio / span * side,
        "it uses log(|d|) instead of log(|d| / exact)": np.log(d) / span * rest,
        "it uses log(max_distance) instead of log(max_distance / exact)": ratio / math.log(top) * rest,
        "it uses log(|d|) / log(max_distance), neither divided by exact": np.log(d) / math.log(top) * rest,
        "it uses log(1 + |d| / exact) instead of log(|d| / exact)": np.log1p(d / exact) / span * rest,
        "log2 is divided by a natural logarithm": right / math.log(2),
        "a natural logarithm is divided by log2": right * math.log(2),
        "the number of exact buckets is not added to the logarithm's share": right - exact,
        "distances beyond the exact ones are spread evenly": (d - exact) / max(top - exact, 1) * rest,
        "it is rounded to the nearest number, not down": right + 0.5,
        "it is rounded up, not down": right + 1,
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
            "last": "side - 1",  # where far distances stop
            "shift": 0,  # added to key - query
            "reach": 0,  # added to the distance
            "formula": "",
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

    def cases(self) -> Iterator[Case]:
        """Yield all distances in both orders, as far as the subject allows, and a few separately."""
        asked: Case | None = None
        for top in reversed(TOPS):
            near = self.rel[np.abs(self.rel) <= top]
            asked = Case("near", (np.stack([near, near[::-1]]),), f"bucket of {2 * len(near)} distances", False, asked)
        yield from [asked] if asked else []
        yield Case("near", (np.array(FEW),), "bucket of 4 distances", optional=True)

    def observe(self, subject: Any, case: Case) -> Seen:
        """Return the buckets."""
        asked = torch.from_numpy(case.args[0].astype(np.int64))
        found = guard.shaped(guard.call(fresh(subject), asked, what=case.words), tuple(asked.shape), case.words)
        if found.is_floating_point() or found.is_complex():
            message = f"buckets are row numbers of a table and must be integers; got {found.dtype}"
            cause = Cause(f"{self.definition}.bucket.not_integer", message, 1.0, {"call": case.words})
            raise guard.SubjectError(cause)
        return Seen(case, found.double().numpy(), 0.0)

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
        start = (d < 0) * float(int(model["ahead"] * n_buckets)) * both
        distance = np.maximum((np.abs(d) if both else np.maximum(d, 0)) + model["reach"], 0)
        exact = max(int(side * model["exact"]), 1)
        share = _shares(np.maximum(distance, 1), exact, side, model["max_distance"])[model["formula"]]
        far = exact + np.clip(np.trunc(share + 1e-9), -1e6, 1e6)
        last = {"side - 1": side - 1, "all - 1": n_buckets - 1, "side": side, "none": 1 << 30}[model["last"]]
        rows = start + np.where(distance < exact, distance, np.minimum(far, last))
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
            Fault(f"t5.bucket.{word}_hardwired", {name: used}, {"used": used, "asked": self.truth[name]})
            for name, word, tried in (("max_distance", "max_distance", tops), ("n_buckets", "num_buckets", counts))
            for used in tried
            if used >= 4 and used != self.truth[name]
        ]
        yield from (fault for fault in numbers if fault.change in ({"max_distance": 128}, {"n_buckets": 32}))
        yield Fault("t5.bucket.bidirectional", {"bidirectional": not both})
        yield Fault("t5.bucket.sign_lost", {"ahead": 0.0})
        for code, halves, starts in ("not_halved", 1, (0.5, 1.0)), ("halved_twice", 4, (0.5, 0.25)):
            yield from (Fault(f"t5.bucket.{code}", {"halves": halves, "ahead": ahead}) for ahead in starts)
        for share, name in (0.25, "a quarter"), (1.0, "all"):
            yield Fault("t5.bucket.exact_range", {"exact": share}, {"share": name})
        for by in (1, -1):
            for name, what in ("reach", "|distance|"), ("shift", "key - query"):
                yield Fault("t5.bucket.off_by_one", {name: by}, {"what": what, "by": by})
        for words in _shares(np.ones(1), 8, 16, 128):
            yield Fault("t5.bucket.formula", {"formula": words}, {"words": words})
        yield from numbers


class Deberta(T5):
    """DeBERTa-v2's signed buckets (He et al. 2021), with either sign of the distance and any first number."""

    definition, mismatch = "deberta", "deberta.mismatch"

    def __init__(self, convention: str, spec: Mapping[str, Any]) -> None:
        super().__init__(convention, {"num_buckets": 256, "max_distance": 512, **spec})
        self.rel = np.arange(-self.max_distance + 1, self.max_distance, dtype=np.float64)
        self.truth = {"sign": 1, "start": 0, "clamped": False}

    def rows(self, model: Model, rel: Array) -> tuple[Array, Array]:
        """Return the signed buckets, and 1 beyond the exact ones, where rounding may move the edges."""
        bucket = definitions.scores._deberta_bucket
        plain = np.array([float(bucket(-int(r), self.n_buckets, self.max_distance)) for r in rel.flat])
        rows = model["sign"] * plain.reshape(rel.shape) + model["start"]
        rows = np.clip(rows, 0, 2 * self.n_buckets - 1) if model["clamped"] else rows
        return rows, np.where(np.abs(plain.reshape(rel.shape)) > self.n_buckets // 2, 1.0, 0.5)

    def free(self) -> Iterator[Choice]:
        """Yield the other sign and the other first number: which is right depends on how the rows are used."""
        for sign, start, clamped in product((1, -1), (0, self.n_buckets), (False, True)):
            which = "query - key" if sign == 1 else "key - query"
            because = f"buckets of {which}, counted from {-start}: which is right depends on how the rows are used"
            yield Choice({"sign": sign, "start": start, "clamped": clamped}, because)

    def faults(self) -> Iterator[Fault]:
        """Yield nothing: no public report describes a fault of these."""
        return iter(())
