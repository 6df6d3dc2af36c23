"""Scores with a term of the content and the distance: Shaw's, Transformer-XL's and DeBERTa's, and the relative shift.

A result is a sum of parts, each with its factor. Faults change the distances, the numbers or the factors of parts.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np

from posenc.definitions import bias, scores
from posenc.verify.engine import Case, Choice, Fault, Seen
from posenc.verify.engine.records import Array, Model
from posenc.verify.families.given import COMPARED, IGNORED, Call, Given, Table, chosen, sampled

# wrong distances from the right ones, and queries i of m and keys j of n
DISTANCES: Table = {
    "distance.sign": {"": lambda d, *_: -d},
    "distance.query_from_zero": {"": lambda d, i, j, *_: i - j},
    "distance.off_by_one": {"+ 1": lambda d, *_: d + 1, "- 1": lambda d, *_: d - 1},
    "distance.unsigned": {"|query - key|": lambda d, *_: abs(d), "-|query - key|": lambda d, *_: -abs(d)},
    "distance.absolute": {
        "the key's position": lambda d, i, j, *_: j + 0 * d,
        "the query's position": lambda d, i, *_: i + 0 * d,
        "one distance for all keys": lambda d, *_: 0 * d,
    },
}
# columns of x = (q + v) . r that a shift takes, for query i of m and key j of n; right is j + m - 1 - i
SHIFTS: Table = {
    "shift.missing": {"": lambda i, j, m, n: j + 0 * i},
    "shift.off_by_one": {
        "one column too far": lambda i, j, m, n: j + m - i,
        "one column too little": lambda i, j, m, n: j + m - 2 - i,
    },
    "shift.direction": {
        "by the query's number from the first on": lambda i, j, m, n: j + i,
        "to the right": lambda i, j, m, n: j - m + 1 + i,
    },
    "shift.reversed": {"": lambda i, j, m, n: n - m + i - j, " and not shifted": lambda i, j, m, n: n - 1 - j + 0 * i},
}


class Scores(Given):
    """Scores as a sum of parts: q . k and terms of the position.

    Attributes:
        terms: The words of each part.
        alone: The parts of a function that returns only the term of the position.
    """

    terms: Mapping[str, str]
    alone: Sequence[Sequence[str]]
    pairs = 30

    def __init__(self, convention: str, spec: Mapping[str, Any]) -> None:
        super().__init__(convention, spec)
        self.scale = float(spec.get("scale") or (self.head_dim * self.widths()) ** -0.5)
        self.truth |= {"weights": dict.fromkeys(self.terms, self.scale), "distance": None, "numbers": None}
        self.fitted: dict[str, float] = {}
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
        columns, value = np.stack([part[shown] for part in parts.values()], -1), s.value[shown]
        if not np.isfinite(value).all():
            return
        factors, *_ = np.linalg.lstsq(columns, value, rcond=None)
        if np.abs(columns @ factors - value).max() <= 1e-4 * max(np.abs(value).max(), 1e-30) + 8 * s.eps:
            near = np.abs(factors) < 1e-4
            self.fitted = dict(zip(parts, np.where(near, 0.0, factors).tolist(), strict=True))

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
        change = {"weights": self.fitted}
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
        d = self.head_dim
        names = {"sqrt(head_dim)": d**0.5, "head_dim": float(d), "sqrt(heads * head_dim)": (d * self.heads) ** 0.5}
        names |= {f"sqrt({n} head_dim)": (n * d) ** 0.5 for n in (2, 3)}
        names |= {f"sqrt({n})": n**0.5 for n in (2, 3)}
        found = {1.0: ", that is, not scaled"} if abs(factor - 1) < 1e-4 else {}
        near = [f" = 1 / {name}" for name, size in names.items() if abs(factor * size - 1) < 1e-3]
        return found.get(1.0) or next(iter(near), "")

    def measured(self, seen: Sequence[Seen], model: Model) -> dict[str, Any]:
        """Return whether scores are returned, or only the term of the position."""
        return {"returns": "scores" if model["weights"]["content"] else "the term of the position"}


def _by_rows(define: Callable[..., Array], q: Array, k: Array, call: Call, distance: Array) -> Array:
    """Return a definition for any distances: each query stands at position 0, its keys at minus the distances."""
    here = np.zeros(1, dtype=int)
    rows = [
        [define(q[b][:, [i]], k[b][:, call.cols], here, -distance[row]) for row, i in enumerate(call.rows)]
        for b in range(len(q))
    ]
    return np.stack([np.concatenate(of_text, 1) for of_text in rows])


def _content(q: Array, k: Array, call: Call) -> Array:
    return np.asarray(q[:, :, call.rows] @ k[:, :, call.cols].swapaxes(-1, -2))


class Shaw(Scores):
    """q . (k + a), with a row of a table for each distance up to a largest one."""

    word, ahead = "shaw", COMPARED
    terms: Mapping[str, str] = {"content": "q . k", "position": "q . rel_k"}
    alone = (("position",),)

    def __init__(self, convention: str, spec: Mapping[str, Any]) -> None:
        super().__init__(convention, spec)
        self.truth |= {"keys": False}  # whether keys meet the table, and not queries
        self.behind = int(spec.get("max_distance") or 16)
        self.most = int(spec.get("table_rows") or 2 * self.behind + 1) - self.behind - 1  # the largest distance ahead
        if self.most < 0:
            raise ValueError(
                f"verify: table_rows must be above max_distance; got {spec['table_rows']} of {self.behind}."
            )
        self.flipped = spec.get("direction") == "query-key"

    def numbers(self, m: int, n: int, batch: int) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the arguments."""
        return super().numbers(m, n, batch) | {"rel_k": (self.behind + self.most + 1, self.head_dim)}

    def cases(self) -> Iterator[Case]:
        """Yield squares, one with clipped distances, and calls with a cache."""
        long = min(max(self.behind, self.most) + 4, 300)
        yield from (self.sized("near", n, n) for n in (6, long))
        if self.spec.get("causal") is not False:  # an encoder
            yield from (self.sized("cached", m, n) for m, n in ((1, 9), (3, 8), (1, long)))

    def parts(self, model: Model, call: Call) -> dict[str, Array]:
        """Return q . k, and q . a by the definition."""
        n, d = self.given(model, call), self.head_dim
        table = n["rel_k"] if self.flipped else n["rel_k"][::-1]

        def define(q: Array, k: Array, q_pos: Array, k_pos: Array) -> Array:
            sizes = {"head_dim": d, "max_distance": self.behind, "max_ahead": self.most}
            return np.asarray(d**0.5 * bias.shaw(q, k, q_pos, k_pos, weight=table, **sizes))

        q, k, distance = n["q"], n["k"], self.distances(model, call)
        term = _by_rows(define, q, k, call, distance)
        if model["keys"]:
            turned = Call(call.args, call.shape, call.cols, call.rows)
            term = _by_rows(define, k, q, turned, distance.T).swapaxes(-1, -2)
        return {"content": _content(n["q"], n["k"], call), "position": term}

    def not_judged(self, seen: Sequence[Seen]) -> list[str]:
        """Return that no call was that of a decoder."""
        asked = any(s.case.kind == "cached" for s in seen)
        return [*super().not_judged(seen), *([] if asked else ["fewer queries than keys"])]

    def free(self) -> Iterator[Choice]:
        """Yield the other order of rows if the specification allows it."""
        yield from super().free()
        if self.spec.get("direction") == "any":
            for choice in super().free():
                words = "the rows of the table are in reverse order, which the specification allows"
                yield Choice({**choice.change, "distance": DISTANCES["distance.sign"][""]}, words)

    def faults(self) -> Iterator[Fault]:
        """Yield wrong distances, wrong ends of the table, and wrong factors."""
        yield from self.factors()
        yield from self.listed("distance", {**DISTANCES, **self._ends()})
        yield Fault("shaw.term.vector", {"keys": True})

    def _ends(self) -> Table:
        """Return wrong rows of far distances; the rows count key - query from the farthest key behind on."""
        low, high, down = -self.most, self.behind, -1 if self.flipped else 1
        rows = high - low + 1

        def clipped(top: int, by: int = 0) -> Callable[..., Array]:
            return lambda d, *_: np.clip(d, -top if top < high - 2 else low + high - top, top) + by

        def next_row(by: int) -> Callable[..., Array]:
            return lambda d, *_: low + (np.clip(d, low, high) - low + by) % rows

        clips = {
            "the last row is left out": lambda d, *_: np.clip(d, low + (down > 0), high - (down < 0)),
            "the first row is left out": lambda d, *_: np.clip(d, low + (down < 0), high - (down > 0)),
            "the two sides are exchanged": lambda d, *_: np.clip(d, -high, -low) + (high + low) * down,
        }
        for top in [high - 1, high - 2, *(top for top in {1, 2, 4, 8, 16, 32, 64, 128, high // 2} if top < high - 2)]:
            if top > 0:
                words = f"distances are clipped at {top}, not at {high}"
                clips |= {
                    words: clipped(top),
                    f"{words}, and rows counted from there": clipped(top, (high - top) * down),
                }
        return {
            "table.clip": clips,
            "distance.off_by_one": {**DISTANCES["distance.off_by_one"], " + 1": next_row(1), " - 1": next_row(-1)},
            "table.wraps": {"": lambda d, *_: low + (d - low) % rows},
            "table.one_sided": {"ahead": lambda d, *_: np.clip(d, 0, high), "behind": lambda d, *_: np.clip(d, low, 0)},
        }


class TransformerXL(Scores):
    """(q + u) . k + (q + v) . W r, with r the sinusoids of the distance."""

    word, ahead = "transformer_xl", IGNORED
    terms: Mapping[str, str] = {"content": "q . k", "b": "q . W r", "u": "u . k", "v": "v . W r"}
    alone = (("b", "v"), ("b", "u", "v"))

    def __init__(self, convention: str, spec: Mapping[str, Any]) -> None:
        super().__init__(convention, spec)
        self.d_model = int(spec.get("d_model") or self.heads * self.head_dim)
        self.truth |= {"base": float(spec.get("base") or 10_000.0)}
        if self.d_model % 2:
            raise ValueError(f"verify: d_model of transformer_xl must be even; got {self.d_model}.")

    def numbers(self, m: int, n: int, batch: int) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the arguments."""
        biases = dict.fromkeys("uv", (self.heads, self.head_dim))
        return super().numbers(m, n, batch) | biases | {"w_r": (self.heads * self.head_dim, self.d_model)}

    def cases(self) -> Iterator[Case]:
        """Yield squares, and calls with a memory."""
        sizes = (("near", 6, 6), ("cached", 3, 8), ("cached", 1, 9), ("far", 1, 30))
        yield from (self.sized(*size) for size in sizes)

    def parts(self, model: Model, call: Call) -> dict[str, Array]:
        """Return the four parts, those of the distance by the definition with the other numbers at 0."""
        n, distance = self.given(model, call), self.distances(model, call)
        weight = n["w_r"].reshape(self.heads, self.head_dim, self.d_model)
        none = {name: 0 * n[name] for name in "qv"}
        sizes = {"d_model": self.d_model, "n_heads": self.heads, "head_dim": self.head_dim, "base": model["base"]}

        def part(**kept: Array) -> Array:
            q, v = ({**none, **kept}[name] for name in "qv")
            options = sizes | {"u": 0 * v, "v": v, "weight": weight}
            term = _by_rows(lambda *args: bias.transformer_xl(*args, **options), q, n["k"], call, distance)
            return np.asarray(self.head_dim**0.5 * term)

        content = _content(n["q"], n["k"], call)
        terms = {"b": part(q=n["q"]), "u": n["u"][:, None] @ n["k"][:, :, call.cols].swapaxes(-1, -2) + 0 * content}
        return {"content": content, **terms, "v": part(v=n["v"])}

    def faults(self) -> Iterator[Fault]:
        """Yield wrong biases, shifts, distances, sinusoids and factors."""
        biases = {
            "u and v are exchanged": lambda n: {**n, "u": n["v"], "v": n["u"]},
            "u is used in both places": lambda n: {**n, "v": n["u"]},
            "v is used in both places": lambda n: {**n, "u": n["v"]},
        }
        yield from self.listed("numbers", {"bias.exchanged": biases})
        yield from self.factors()
        for code, rules in SHIFTS.items():
            yield from self.listed("distance", {code: {words: _distance_of(index) for words, index in rules.items()}})
        yield from self.listed("distance", DISTANCES)
        half, base = self.d_model // 2, self.truth["base"]
        bases = {10_000.0: "", base**0.5: "k / d_model", base**2: "4 k / d_model"}
        bases |= {base ** (half / (half - 1)): "2 k / (d_model - 2)"} if half > 1 else {}
        for used, exponent in bases.items():
            words = f"their exponents are -{exponent}" if exponent else f"their base is {used:,.0f}"
            if used != base:
                yield Fault("transformer_xl.r.frequencies", {"base": used}, {"words": words})
        yield from self.listed("numbers", self._weights())

    def _weights(self) -> Table:
        """Return wrong orders of the weights, of which some stand for another order of the sinusoids."""

        def of(change: Callable[[Array], Array]) -> Callable[[dict[str, Array]], dict[str, Array]]:
            return lambda n: {**n, "w_r": change(n["w_r"])}

        half, split = self.d_model // 2, (self.head_dim, self.heads, self.d_model)
        alternate = of(lambda w: np.concatenate((w[:, ::2], w[:, 1::2]), 1))
        cosines = of(lambda w: np.concatenate((w[:, half:], w[:, :half]), 1))
        found: dict[str, Any] = {
            "r.layout": {"sines and cosines alternate": alternate, "cosines stand first": cosines},
            "r.heads": {"": of(lambda w: w.reshape(split).swapaxes(0, 1).reshape(w.shape))},
        }
        is_square = self.d_model == self.heads * self.head_dim
        return {**found, **({"r.transposed": {"": of(lambda w: w.T)}} if is_square else {})}


def _distance_of(index: Callable[..., Array]) -> Callable[..., Array]:
    """Return the distance whose column a shift takes: the columns run from the farthest key behind to 0."""
    return lambda d, i, j, m, n: n - 1 - index(i, j, m, n)


class Shift(Given):
    """shift(x): column c of x has distance n - 1 - c, and column j of the result belongs to key j."""

    word = "transformer_xl"

    def __init__(self, convention: str, spec: Mapping[str, Any]) -> None:
        super().__init__(convention, {"causal": True, **spec})
        self.both = self.truth["ahead"] == COMPARED
        self.cancels = False
        self.truth |= {"index": lambda i, j, m, n: j + m - 1 - i, "flat": None}

    def cases(self) -> Iterator[Case]:
        """Yield squares, and fewer rows than columns; x has columns for both sides if keys ahead count."""
        for seed, (m, n) in enumerate([(5, 5), (8, 8), *([] if self.both else [(3, 7), (1, 6), (4, 5)])]):
            columns = 2 * n - 1 if self.both else n
            args = self.normal(seed, x=(2, 3, m, columns))
            call = Call(args, (2, 3, m, n), np.arange(m), np.arange(n))
            yield self.case("near" if m == n else "cached", call, f"x of (2, 3, {m}, {columns})", optional=m != n)

    def result(self, model: Model, call: Call) -> Array:
        """Return the columns that a rule takes; 0 where there is none."""
        x, (*_, m, n) = call.exact("x"), call.shape
        if model["flat"] is not None:
            return np.asarray(model["flat"](x, m)[..., : m * n].reshape(call.shape))
        i, j = np.ogrid[:m, :n]
        at = np.broadcast_to(model["index"](i, j, m, n), (m, n))
        taken = np.take_along_axis(x, np.clip(at, 0, x.shape[-1] - 1)[None, None], -1)
        return np.where((at >= 0) & (at < x.shape[-1]), taken, 0.0)

    def faults(self) -> Iterator[Fault]:
        """Yield wrong columns, and the trick of the padded view gone wrong."""
        by_keys: Table = {"shift.key_length": {"": lambda i, j, m, n: j + n - 1 - i}}
        yield from self.listed("index", {**SHIFTS, **by_keys})
        if not self.both:
            yield from self.listed("flat", {"shift.padded_view": VIEWS})


def _viewed(left: int, skip: Callable[[int, int], int]) -> Callable[[Array, int], Array]:
    """Return x with a column of zeros on the left or on the right, from some number of its flat numbers on."""

    def made(x: Array, m: int) -> Array:
        padded = np.pad(x, [(0, 0)] * 3 + [(left, 1 - left)]).reshape(*x.shape[:2], -1)
        start = skip(m, x.shape[-1])
        return np.pad(padded[..., start:], [(0, 0)] * 2 + [(0, start)])

    return made


VIEWS: Mapping[str, Callable[[Array, int], Array]] = {
    "the zeros stand on the right, not on the left": _viewed(0, lambda m, n: m),
    "the first row of the view is kept": _viewed(1, lambda m, n: 0),
    "one number is dropped, not one row": _viewed(1, lambda m, n: 1),
    "a row of as many numbers as keys is dropped": _viewed(1, lambda m, n: n),
}
Way = tuple[str, str, str, int]
# wrong buckets of DeBERTa-v2 from |distance| beyond mid, and the largest distance
_BUCKETS: Mapping[str, Callable[[Array, int, int], Array]] = {
    "beyond num_buckets / 2, |distance| is divided by mid as integers": lambda a, mid, top: (
        mid + np.ceil(_log(a // mid, mid, top))
    ),
    "beyond num_buckets / 2, it is rounded down, not up": lambda a, mid, top: mid + np.floor(_log(a / mid, mid, top)),
    "beyond num_buckets / 2, it is rounded to the nearest number, not up": lambda a, mid, top: (
        mid + np.round(_log(a / mid, mid, top))
    ),
    "beyond num_buckets / 2, mid is not added": lambda a, mid, top: np.ceil(_log(a / mid, mid, top)),
    "beyond num_buckets / 2, it is multiplied by mid, not by mid - 1": lambda a, mid, top: (
        mid + np.ceil(_log(a / mid, mid, top, 1))
    ),
    "beyond num_buckets / 2, it is divided by log(max_distance / mid)": lambda a, mid, top: (
        mid + np.ceil(_log(a / mid, mid, top + 1))
    ),
    "beyond num_buckets / 2, it uses log(|distance|), not log(|distance| / mid)": lambda a, mid, top: (
        mid + np.ceil(_log(a, mid, top))
    ),
    "beyond num_buckets / 2, there is no logarithm: far distances are clipped": lambda a, mid, top: a,
    "beyond num_buckets / 2, distances beyond mid share one bucket": lambda a, mid, top: mid + 0 * a,
}


def _log(ratio: Array, mid: int, top: int, more: int = 0) -> Array:
    return np.log(np.maximum(ratio, 1)) / math.log((top - 1) / mid) * (mid - 1 + more)


class Deberta(Scores):
    """q . k, q . rel_k ("c2p") and k . rel_q ("p2c"), each with the row of query - key or of its bucket."""

    word, ahead = "deberta", COMPARED
    terms: Mapping[str, str] = {"content": "q . k", "c2p": "q . rel_k", "p2c": "k . rel_q"}
    # which vector, of the query's or of the key's place, meets which table at the row of the distance times a sign
    right: Mapping[str, Way] = {"c2p": ("q", "query", "rel_k", 1), "p2c": ("k", "key", "rel_q", 1)}

    def __init__(self, convention: str, spec: Mapping[str, Any]) -> None:
        said = str(spec.get("variant") or "c2p|p2c").lower()
        self.kept = [name for name in ("c2p", "p2c") if name in said]
        if not self.kept:
            raise ValueError(f"verify: variant of deberta must be 'c2p', 'p2c' or 'c2p|p2c'; got {said!r:.60}.")
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
        for n in (6, 9, min(self.top + 8, 700)):
            yield self.sized("near", n, n)

    def columns(self, m: int, n: int) -> Any:
        """Return all keys of a short text, and of a long one some near and far from the compared queries."""
        if n <= 40:
            return np.arange(n)
        near = (sampled(n)[:, None] + np.arange(-3, 4)).ravel()
        edges = (sampled(n)[:, None] + np.array([-1, 1])[:, None, None] * (self.half // 2 + np.arange(-1, 2))).ravel()
        every = np.concatenate((near, edges, np.linspace(0, n - 1, 40).round().astype(int)))
        return np.unique(every[(every >= 0) & (every < n)])

    def doubtful(self, call: Call) -> Any:
        """Return the edges of logarithmic buckets, which rounding moves."""
        mid, reach = self.buckets // 2, np.abs(self.distances(self.truth, call))
        if not self.buckets:
            return False
        share = _log(reach / mid, mid, self.top)
        return (reach > mid) & (np.abs(share - np.round(share)) < 1e-4)

    def parts(self, model: Model, call: Call) -> dict[str, Array]:
        """Return q . k, and each term by the definition."""
        n, distance = self.given(model, call), self.distances(model, call)
        parts = {name: self._term(model, n, call, distance, *model[name]) for name in self.kept}
        return {"content": _content(n["q"], n["k"], call), **parts}

    def _term(
        self, model: Model, n: dict[str, Array], call: Call, distance: Array, who: str, at: str, name: str, sign: int
    ) -> Array:
        """Return the products of a vector at the query's or at the key's place with rows of a table."""
        table, d, half, rule = n[name], self.head_dim, self.half, model["bucket"]
        rows: dict[str, Any] = {"n_buckets": self.buckets, "max_distance": self.top}
        distance = sign * distance
        if rule is not None or not self.buckets:  # rows by another rule: a larger table, in which all buckets are exact
            mid, reach = half // 2, np.abs(distance)
            wrong = reach if rule is None else np.where(reach <= mid, reach, rule(reach, mid, self.top))
            distance = np.clip(np.sign(distance) * wrong, -half, half).astype(int)
            table = table[:, np.clip(np.arange(8 * half) - 3 * half, 0, 2 * half - 1)]
            rows = {"n_buckets": 4 * half, "max_distance": 16 * half}
        term, which = ("c2p", "key_table") if at == "query" else ("p2c", "query_table")
        options = {"n_heads": self.heads, "head_dim": d, "terms": (term,), which: table, **rows}
        vectors = n[who]
        found = _by_rows(lambda *args: scores.deberta(*args, **options), vectors, vectors, call, distance)
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
            for way in product(("q", "k"), ("query", "key"), ("rel_k", "rel_q"), (1, -1)):
                if way != self.right[name]:
                    yield Fault(f"deberta.{_gathered(way, self.right[name])}", {name: way}, _words(name, way))
        if self.buckets:
            yield from self.listed("bucket", {"bucket.formula": _BUCKETS})
        for at in {self.half - 1, self.half // 2} if not self.buckets else ():
            change = {"bucket": lambda a, mid, top, at=at: np.minimum(a, at)}
            yield Fault("deberta.table.clip", change, {"words": f"{at}", "top": self.half})

    def not_judged(self, seen: Sequence[Seen]) -> list[str]:
        """Return that all calls are of an encoder."""
        return [*super().not_judged(seen), "fewer queries than keys: DeBERTa is an encoder"]


def _gathered(way: Way, right: Way) -> str:
    """Return the end of the code of a wrong term."""
    if way[:3] == right[:3]:
        return "term.direction"
    if (way[0] != right[0] and way[1:3] != right[1:3]) or way[1:3] == right[1:3]:
        return "term.vector"
    return "term.not_transposed" if way[1] != right[1] else "term.table"


def _words(name: str, way: Way) -> dict[str, str]:
    who, at, table, sign = way
    place = {"query": "i", "key": "j"}[at]
    row = "i - j" if sign > 0 else "j - i"
    return {"name": name, "words": f"{who}[{place}] . {table}[{row}]"}


_KNOWN: Mapping[str, type[Given]] = {"shaw": Shaw, "transformer_xl": TransformerXL, "deberta": Deberta}


def family(convention: str, spec: Mapping[str, Any]) -> Given:
    """Return the family of an encoding's scores, or of the relative shift."""
    known: Mapping[str, type[Given]] = {"transformer_xl": Shift} if convention == "shift_fn" else _KNOWN
    implied = {"encoding": "transformer_xl"} if convention == "shift_fn" else {}
    return chosen(convention, {**implied, **spec}, known)
