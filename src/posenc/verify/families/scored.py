"""Scores as a sum of parts, each with its factor: q . k, and products with vectors of the distance.

Faults change the distances, the numbers or the factors of parts.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from posenc.verify.engine import Case, Choice, Fault, Seen
from posenc.verify.engine.read import rowless
from posenc.verify.engine.records import Array, Model
from posenc.verify.families.given import COMPARED, Call, Given, Table, sampled

# wrong distances from the right ones, and queries i of m and keys j of n
DISTANCES: Table = {
    "distance.sign": {"": lambda d, *_: -d},
    "distance.query_from_zero": {"": lambda d, i, j, *_: i - j},
    "distance.off_by_one": {"+ 1": lambda d, *_: d + 1, "- 1": lambda d, *_: d - 1},
    "distance.unsigned": {"|query - key|": lambda d, *_: abs(d), "-|query - key|": lambda d, *_: -abs(d)},
    "distance.absolute": {
        "one distance for all keys": lambda d, *_: 0 * d,
        "the key's position": lambda d, i, j, *_: j + 0 * d,
        "the query's position": lambda d, i, *_: i + 0 * d,
        "minus the key's position": lambda d, i, j, *_: -j + 0 * d,
        "minus the query's position": lambda d, i, *_: -i + 0 * d,
    },
}


class Scores(Given):
    """Scores as a sum of parts: q . k and terms of the position.

    Attributes:
        terms: The words of each part.
        alone: The parts of a function that returns only the term of the position.
    """

    terms: Mapping[str, str]
    alone: Sequence[Sequence[str]]
    pairs = 10

    def __init__(self, convention: str, spec: Mapping[str, Any]) -> None:
        super().__init__(convention, spec)
        self.scale = float(spec.get("scale") or (self.head_dim * self.widths()) ** -0.5)
        self.truth |= {"weights": dict.fromkeys(self.terms, self.scale), "distance": None, "numbers": None}
        self.fitted: dict[str, float] = {}
        self.constant = False  # whether a constant is added to each row
        self.known: dict[tuple[Any, ...], dict[str, Array]] = {}  # parts, which many models share

    def widths(self) -> int:
        """Return how often head_dim counts in the scale."""
        return 1

    def numbers(self, m: int, n: int, batch: int) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the arguments."""
        d = self.head_dim
        return {"q": (batch, self.heads, m, d), "k": (batch, self.heads, n, d)}

    def sized(self, kind: str, m: int, n: int) -> Case:
        """Return a case of m queries and n keys."""
        batch = 2 if n <= 40 else 1
        args = self.normal(m + 1000 * n, **self.numbers(m, n, batch))
        call = Call(args, (batch, self.heads, m, n), sampled(m), self.columns(m, n))
        size = f"{m} queries and {n} keys"
        return self.case(kind, call, size, optional=m != n)

    def columns(self, m: int, n: int) -> Any:
        """Return the compared keys."""
        return np.arange(n)

    def repeated(self, n: int) -> Case:
        """Return a square case after one with other numbers."""
        return self.again(self.sized("near", n, n), self.normal(n, **self.numbers(n, n, 2)))

    def distances(self, model: Model, call: Call) -> Array:
        """Return query - key, or what a fault takes for it, for each compared place."""
        *_, m, n = call.shape
        i, j = np.ogrid[:m, :n]
        wrong: Callable[..., Array] | None = model["distance"]
        d = i + n - m - j if wrong is None else wrong(i + n - m - j, i, j, m, n)
        return np.asarray(d[call.rows[:, None], call.cols])

    def given(self, model: Model, call: Call) -> dict[str, Array]:
        """Return the arguments in float64, or those that a fault takes for them."""
        exact = {name: call.exact(name) for name in call.args}
        wrong: Callable[[dict[str, Array]], dict[str, Array]] | None = model["numbers"]
        return wrong(exact) if wrong else exact

    def result(self, model: Model, call: Call) -> Array:
        """Return the sum of the parts."""
        weights: Mapping[str, float] = model["weights"]
        key = call, *(model[name] for name in self.truth if name not in ("weights", "ahead", "cancels"))
        if key not in self.known:
            self.known[key] = self.parts(model, call)
        return np.asarray(sum(weights[name] * part for name, part in self.known[key].items()))

    def parts(self, model: Model, call: Call) -> dict[str, Array]:
        """Return the parts without a scale."""
        raise NotImplementedError

    def look(self, seen: Sequence[Seen]) -> None:
        """Measure the factors of the parts, if the answer is a sum of them."""
        s = seen[0]
        call = s.case.args[0]
        shown = np.broadcast_to(~call.ahead | (self.truth["ahead"] == COMPARED), s.value.shape)
        parts = self.parts(self.truth, call)
        if not np.isfinite(s.value[shown]).all():
            return
        for reduced in (np.array, partial(rowless, shown=shown)):  # a softmax cancels constants of rows
            columns, value = np.stack([reduced(part)[shown] for part in parts.values()], -1), reduced(s.value)[shown]
            factors, *_ = np.linalg.lstsq(columns, value, rcond=None)
            if np.abs(columns @ factors - value).max() <= 1e-4 * max(np.abs(value).max(), 1e-30) + 8 * s.eps:
                near = np.abs(factors) < 1e-4
                self.fitted = dict(zip(parts, np.where(near, 0.0, factors).tolist(), strict=True))
                self.constant = reduced is not np.array
                return

    def free(self) -> Iterator[Choice]:
        """Yield scores, and only the term of the position."""
        for choice in super().free():
            yield choice
            for names in self.alone:
                only = {name: self.scale * (name in names) for name in self.terms}
                yield Choice({**choice.change, "weights": only}, choice.because)

    def factors(self) -> Iterator[Fault]:
        """Yield the measured factors of the parts, if they are wrong."""
        fitted = {name: factor for name, factor in self.fitted.items() if factor or name != "content"}
        if not fitted:
            return
        change = {"weights": self.fitted, **({"cancels": True} if self.constant else {})}
        wrong = {name: f for name, f in fitted.items() if abs(f / self.scale - 1) > 1e-3}
        right = f"{self.scale:.5g}{self.why(self.scale)}"
        if lost := [name for name, factor in wrong.items() if factor == 0]:
            words = " and ".join(self.terms[name] for name in lost)
            yield Fault(f"{self.word}.term.missing", change, {"words": words})
        elif same := [f for f in fitted.values() if abs(f / next(iter(fitted.values())) - 1) < 1e-3]:
            f = next(iter(wrong.values()), self.scale)
            if len(same) == len(fitted) and f > 0:
                words = f"all parts are multiplied by {f:.5g}{self.why(f)}"
                yield Fault(f"{self.word}.scale", change, {"words": words, "right": right})
            for name, f in wrong.items():
                words = f"{self.terms[name]} is multiplied by {f:.5g}{self.why(f)}"
                yield Fault(
                    f"{self.word}.{'scale' if f > 0 else 'term.sign'}", change, {"words": words, "right": right}
                )

    def why(self, factor: float) -> str:
        """Return the formula of a factor, if it is a usual one."""
        return formula(factor, self.head_dim, self.heads)

    def measured(self, seen: Sequence[Seen], model: Model) -> dict[str, Any]:
        """Return whether scores are returned, or only the term of the position."""
        return {"returns": "scores" if model["weights"]["content"] else "the term of the position"}


def formula(factor: float, d: int, heads: int) -> str:
    """Return the formula of a factor of scores with head_dim d, if it is a usual one."""
    if abs(factor - 1) < 1e-4:
        return ", that is, not scaled"
    names = {"sqrt(head_dim)": d**0.5, "head_dim": float(d), "sqrt(heads * head_dim)": (d * heads) ** 0.5}
    names |= {f"sqrt({n} head_dim)": (n * d) ** 0.5 for n in (2, 3)}
    names |= {f"sqrt({n})": n**0.5 for n in (2, 3)}
    same = [f"1 / {name}" for name, size in names.items() if abs(factor * size - 1) < 1e-3]
    return f" = {' or '.join(same)}" if same else ""


def by_rows(define: Callable[..., Array], q: Array, k: Array, call: Call, distance: Array) -> Array:
    """Return a definition for any distances: each query stands at position 0, its keys at minus the distances."""
    here = np.zeros(1, dtype=int)
    rows = [
        [define(q[b][:, [i]], k[b][:, call.cols], here, -distance[row]) for row, i in enumerate(call.rows)]
        for b in range(len(q))
    ]
    return np.stack([np.concatenate(of_text, 1) for of_text in rows])


def content_of(q: Array, k: Array, call: Call) -> Array:
    """Return q . k for the compared places."""
    return np.asarray(q[:, :, call.rows] @ k[:, :, call.cols].swapaxes(-1, -2))
