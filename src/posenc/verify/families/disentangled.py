"""DeBERTa's scores: each term with the row of the distance, or of its logarithmic bucket."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from posenc.definitions import scores
from posenc.verify.engine import Case, Fault, Seen
from posenc.verify.engine.records import Array, Model
from posenc.verify.families import buckets
from posenc.verify.families.given import COMPARED, Call, sampled
from posenc.verify.families.scored import DISTANCES, Scores, by_rows, content_of

Way = tuple[str, str, str, int, int]


class Deberta(Scores):
    """q . k, q . rel_k ("c2p") and k . rel_q ("p2c"), each with the row of query - key or of its bucket."""

    word, ahead = "deberta", COMPARED
    terms: Mapping[str, str] = {"content": "q . k", "c2p": "q . rel_k", "p2c": "k . rel_q"}
    # which vector, of the query's or the key's place, meets which table at which row: sign * distance + a number
    right: Mapping[str, Way] = {"c2p": ("q", "query", "rel_k", 1, 0), "p2c": ("k", "key", "rel_q", 1, 0)}

    def __init__(self, convention: str, spec: Mapping[str, Any]) -> None:
        said = spec.get("variant") or "c2p|p2c"
        self.kept = [name for name in ("c2p", "p2c") if name in said]
        self.terms = {name: words for name, words in self.terms.items() if name in ("content", *self.kept)}
        self.alone = (self.kept,)
        super().__init__(convention, spec)
        self.top, self.buckets = int(spec.get("max_distance") or 512), int(spec.get("num_buckets") or 0)
        self.half = self.buckets or self.top  # of the rows
        if self.buckets and (self.buckets < 4 or self.top <= self.buckets // 2 + 1):
            raise ValueError(
                f"verify: num_buckets of deberta must be 4 or more, and max_distance above num_buckets / 2 + 1; got "
                f"{self.buckets} and {self.top}. Without logarithmic buckets (DeBERTa v1) give only max_distance."
            )
        sizes = {"num_buckets": self.buckets, "max_distance": self.top} if self.buckets else {}
        self.rule = buckets.Deberta("bucket_fn", sizes)
        self.mismatch = "deberta.scores.mismatch"  # of buckets there is another
        self.truth |= {"bucket": None, **{name: self.right[name] for name in self.kept}}

    def widths(self) -> int:
        """Return 3 for both terms."""
        return 1 + len(self.kept)

    def numbers(self, m: int, n: int, batch: int) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the arguments."""
        tables = dict.fromkeys(("rel_k", "rel_q"), (self.heads, 2 * self.half, self.head_dim))
        return super().numbers(m, n, batch) | tables

    def cases(self) -> Iterator[Case]:
        """Yield squares, one as long as the largest distance."""
        yield from (self.sized("near", n, n) for n in (6, 9, min(self.top + 8, 700)))
        yield self.repeated(6)

    def columns(self, m: int, n: int) -> Any:
        """Return all keys of a short text, and of a long one some near and far from the compared queries."""
        if n <= 40:
            return np.arange(n)
        near = (sampled(n)[:, None] + np.arange(-3, 4)).ravel()
        edges = (sampled(n)[:, None] + np.array([-1, 1])[:, None, None] * (self.half // 2 + np.arange(-1, 2))).ravel()
        every = np.concatenate((near, edges, np.linspace(0, n - 1, 40).round().astype(int)))
        return np.unique(every[(every >= 0) & (every < n)])

    def doubtful(self, call: Call, model: Model) -> Any:
        """Return the edges of logarithmic buckets, which rounding moves."""
        rules = [rule for rule in (self.right_bucket, model["bucket"]) if rule and self.buckets]
        return np.any([rule(self.distances(self.truth, call))[1] for rule in rules], 0) if rules else False

    def right_bucket(self, distance: Array) -> tuple[Array, Any]:
        """Return the signed bucket of query - key, and where rounding may move it."""
        return self.bucket_by(self.rule.truth, distance)

    def bucket_by(self, model: Model, distance: Array) -> tuple[Array, Any]:
        """Return the same by another rule."""
        rows, slack = self.rule.rows(model, -distance)
        return rows, slack >= 1

    def parts(self, model: Model, call: Call) -> dict[str, Array]:
        """Return q . k, and each term by the definition."""
        n, distance = self.given(model, call), self.distances(model, call)
        parts = {name: self._term(model, n, call, distance, model[name]) for name in self.kept}
        return {"content": content_of(n["q"], n["k"], call), **parts}

    def _term(self, model: Model, n: dict[str, Array], call: Call, distance: Array, way: Way) -> Array:
        """Return the products of a vector at the query's or at the key's place with rows of a table."""
        who, at, name, sign, by = way
        table, d, half, rule = n[name], self.head_dim, self.half, model["bucket"]
        rows: dict[str, Any] = {"n_buckets": self.buckets, "max_distance": self.top}
        distance = sign * distance
        if rule or by or not self.buckets:  # rows by another rule: a larger table, in which all buckets are exact
            rule = rule or (self.right_bucket if self.buckets else lambda d: (d, d < 0))
            bucket = rule(distance)[0] + by
            distance = np.clip(bucket, -half, half).astype(int)
            table = table[:, np.clip(np.arange(8 * half) - 3 * half, 0, 2 * half - 1)]
            rows = {"n_buckets": 4 * half, "max_distance": 16 * half}
        term, which = ("c2p", "key_table") if at == "query" else ("p2c", "query_table")
        options = {"n_heads": self.heads, "head_dim": d, "terms": (term,), which: table, **rows}
        vectors = n[who]
        found = by_rows(lambda *args: scores.deberta(*args, **options), vectors, vectors, call, distance)
        return np.asarray((2 * d) ** 0.5 * found)

    def faults(self) -> Iterator[Fault]:
        """Yield exchanged tables, wrong places of the terms, wrong distances, buckets and factors."""
        yield from self.factors()
        yield from self.listed("distance", DISTANCES)
        if len(self.kept) == 2:
            yield Fault(
                "deberta.tables_exchanged", {"numbers": lambda n: {**n, "rel_k": n["rel_q"], "rel_q": n["rel_k"]}}
            )
        for name in self.kept:
            other = product(("q", "k"), ("query", "key"), ("rel_k", "rel_q"), (1, -1), (0,))
            for way in (*other, *((*self.right[name][:4], by) for by in (1, -1))):
                if way != self.right[name]:
                    yield Fault(f"deberta.{_gathered(way, self.right[name])}", {name: way}, _words(name, way))
        for fault in self.rule.faults() if self.buckets else ():
            model = {**self.rule.truth, **fault.change}
            yield Fault(fault.code, {"bucket": partial(self.bucket_by, model)}, fault.values)
        half = self.half
        for top, words in (half - 1, "far keys ahead have"), (np.inf, "far keys have"):
            round_ = lambda d, top=top: ((np.minimum(d, top) + half) % (2 * half) - half, d < -np.inf)  # noqa: E731
            yield Fault("deberta.table.wraps", {"bucket": round_}, {"words": f"{words} rows of the table's other end"})
        for names in ("rel_k",), ("rel_q",), ("rel_k", "rel_q"):
            shared = lambda n, names=names: n | {name: n[name][:1] + 0 * n[name] for name in names}  # noqa: E731
            yield Fault("deberta.table.heads", {"numbers": shared}, {"words": " and ".join(names)})
        for at in {self.half - 1, self.half // 2} if not self.buckets else ():
            change = {"bucket": lambda d, at=at: (np.clip(d, -at, at), d < -np.inf)}
            yield Fault("deberta.table.clip", change, {"words": f"{at}", "top": self.half})

    def not_judged(self, seen: Sequence[Seen]) -> list[str]:
        """Return that all calls are of an encoder."""
        return [*super().not_judged(seen), "fewer queries than keys: DeBERTa is an encoder"]


def _gathered(way: Way, right: Way) -> str:
    """Return the end of the code of a wrong term."""
    if way[:3] == right[:3]:
        return "term.off_by_one" if way[4] else "term.direction"
    if (way[0] != right[0] and way[1:3] != right[1:3]) or way[1:3] == right[1:3]:
        return "term.vector"
    return "term.not_transposed" if way[1] != right[1] else "term.table"


def _words(name: str, way: Way) -> dict[str, str]:
    who, at, table, sign, by = way
    place = {"query": "i", "key": "j"}[at]
    row = ("i - j" if sign > 0 else "j - i") + (f" {by:+}" if by else "")
    return {"name": name, "words": f"{who}[{place}] . {table}[{row}]"}
