"""Scores with a term of the content and the distance, Shaw's and Transformer-XL's, and the relative shift."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from posenc.definitions import bias
from posenc.verify.engine import Case, Choice, Fault, Seen
from posenc.verify.engine.read import BASES
from posenc.verify.engine.records import Array, Model
from posenc.verify.families.disentangled import Deberta
from posenc.verify.families.given import COMPARED, IGNORED, Call, Given, Table, chosen
from posenc.verify.families.scored import DISTANCES, Scores, by_rows, content_of

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
        "to the right by the query's number, round the row": lambda i, j, m, n: (j - i) % n,
    },
    "shift.key_length": {
        "": lambda i, j, m, n: j + n - 1 - i,
        ", but within the row": lambda i, j, m, n: np.minimum(j + n - 1 - i, n - 1),
    },
    "shift.reversed": {"": lambda i, j, m, n: n - m + i - j, " and not shifted": lambda i, j, m, n: n - 1 - j + 0 * i},
}


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
        yield self.repeated(6)
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
        term = by_rows(define, q, k, call, distance)
        if model["keys"]:
            turned = Call(call.args, call.shape, call.cols, call.rows)
            term = by_rows(define, k, q, turned, distance.T).swapaxes(-1, -2)
        return {"content": content_of(n["q"], n["k"], call), "position": term}

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
        yield from self.listed("distance", DISTANCES)
        yield from self.listed("distance", self._ends())
        yield Fault("shaw.term.vector", {"keys": True})

    def _ends(self) -> Table:
        """Return wrong rows of the table for x = key - query, or query - key if its rows count that."""
        side = 1 if self.flipped else -1
        low, high = (-self.most, self.behind) if self.flipped else (-self.behind, self.most)
        rows, center = high - low + 1, -low

        def rule(row: Callable[[Array], Array]) -> Callable[..., Array]:
            return lambda d, *_: side * (row(side * d) + low)

        def clip(x: Array, first: int = low, last: int = high) -> Array:
            return np.clip(x, first, last)

        def clipped(top: int, first: int) -> Callable[[Array], Array]:
            return lambda x: clip(x, max(low, -top), min(high, top)) + first

        clips = {
            "the last row is left out": lambda x: clip(x, low, high - 1) + center,
            "the first row is left out": lambda x: clip(x, low + 1, high) + center,
            "the two sides are exchanged": lambda x: clip(x, -high, -low) + high,
        }
        most = max(high, center)
        for top in sorted({most - 1, most - 2, *(t for t in (1, 2, 4, 8, 16, 32, 64, 128, most // 2) if t < most - 2)}):
            words = f"distances are clipped at {top}, not at {most}"
            clips[words] = clipped(top, center)
            clips[f"{words}, and rows counted from there"] = clipped(top, top)
        found: dict[str, dict[str, Callable[[Array], Array]]] = {
            "table.clip": clips,
            "distance.off_by_one": {
                "+ 1, round the table": lambda x: (clip(x) + center + side) % rows,
                "- 1, round the table": lambda x: (clip(x) + center - side) % rows,
            },
            "table.wraps": {
                "distances are not clipped: beyond the table they continue at its other end": lambda x: (
                    (x - low) % rows
                ),
                "max_distance is not added, so that negative rows count from the end": lambda x: clip(x) % rows,
                "|distance| is the row": lambda x: np.minimum(abs(x), rows - 1),
                "|distance|, up to max_distance, is the row": lambda x: np.minimum(abs(x), most),
            },
            "table.one_sided": {
                "ahead": lambda x: clip(x, *((0, high) if self.flipped else (low, 0))) + center,
                "behind": lambda x: clip(x, *((low, 0) if self.flipped else (0, high))) + center,
            },
        }
        tables = {code: {words: rule(row) for words, row in formulas.items()} for code, formulas in found.items()}
        positions = {"": lambda d, i, j, m, n: np.minimum(i + n - m, self.behind) - np.minimum(j, self.behind)}
        return {**tables, "table.positions": positions}


class TransformerXL(Scores):
    """(q + u) . k + (q + v) . W r, with r the sinusoids of the distance."""

    word, ahead = "transformer_xl", IGNORED
    terms: Mapping[str, str] = {"content": "q . k", "b": "q . W r", "u": "u . k", "v": "v . W r"}
    alone = (("b", "v"), ("b", "u", "v"))

    def __init__(self, convention: str, spec: Mapping[str, Any]) -> None:
        super().__init__(convention, spec)
        self.d_model = int(spec.get("d_model") or self.heads * self.head_dim)
        # whole: whether the products with k are shifted too
        self.truth |= {"base": float(spec.get("base") or 10_000.0), "whole": False}
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
        yield self.repeated(6)

    def parts(self, model: Model, call: Call) -> dict[str, Array]:
        """Return the four parts, those of the distance by the definition with the other numbers at 0."""
        n, distance = self.given(model, call), self.distances(model, call)
        weight = n["w_r"].reshape(self.heads, self.head_dim, self.d_model)
        none = {name: 0 * n[name] for name in "qv"}
        sizes = {"d_model": self.d_model, "n_heads": self.heads, "head_dim": self.head_dim, "base": model["base"]}

        def part(**kept: Array) -> Array:
            q, v = ({**none, **kept}[name] for name in "qv")
            options = sizes | {"u": 0 * v, "v": v, "weight": weight}
            term = by_rows(lambda *args: bias.transformer_xl(*args, **options), q, n["k"], call, distance)
            return np.asarray(self.head_dim**0.5 * term)

        k = n["k"]
        content = content_of(n["q"], k, call)
        if model["whole"]:
            *_, m, n_keys = call.shape
            at = np.clip(call.cols + m - 1 - call.rows[:, None], 0, n_keys - 1)
            content = np.take_along_axis(content, at[None, None], -1)
            moved = np.take_along_axis(n["u"][:, None] @ k.swapaxes(-1, -2) + 0 * content, at[None, None], -1)
            return {"content": content, "b": part(q=n["q"]), "u": moved, "v": part(v=n["v"])}
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
        exact = ("distance.off_by_one", "distance.query_from_zero")  # some columns of such a shift would be others
        yield from self.listed("distance", {code: DISTANCES[code] for code in exact})
        for code, rules in SHIFTS.items():
            yield from self.listed("distance", {code: {words: _distance_of(index) for words, index in rules.items()}})
        yield from self.listed("distance", DISTANCES)
        tops: Table = {
            "distance.clamped": {str(n): lambda d, *_, n=n: np.minimum(d, n) for n in (*range(1, 8), 16, 20)}
        }
        yield from self.listed("distance", tops)
        yield Fault("transformer_xl.shift.whole", {"whole": True})
        half, base = self.d_model // 2, self.truth["base"]
        bases = {**dict.fromkeys(BASES, ""), base**0.5: "k / d_model", base**2: "4 k / d_model"}
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
        yield from self.listed("index", SHIFTS)
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
    "rows of zeros make a square, of which the first rows are returned": lambda x, m: _viewed(1, lambda m, n: n)(
        np.pad(x, [(0, 0), (0, 0), (x.shape[-1] - m, 0), (0, 0)]), x.shape[-1]
    ),
}
LENGTHS: Table = {
    "cosine": {
        "nothing is normalised": lambda q, k: (q, k),
        "only queries are normalised": lambda q, k: (_unit(q), k),
        "only keys are normalised": lambda q, k: (q, _unit(k)),
        "they are also divided by sqrt(head_dim)": lambda q, k: (_unit(q), _unit(k) / k.shape[-1] ** 0.5),
        "q . k / sqrt(head_dim) is scaled": lambda q, k: (q, k / k.shape[-1] ** 0.5),
    }
}
TAUS: Table = {
    "tau": {
        "there is no exponential": lambda s: np.minimum(s, math.log(100)),
        "there is neither an exponential nor the limit": lambda s: s,
        "there is no limit of 100": np.exp,
        "the scale is limited at 100 before the exponential, not at log(100)": lambda s: np.exp(np.minimum(s, 100)),
        "it is divided by the scale": lambda s: np.exp(-np.minimum(s, math.log(100))),
        "the scale is missing": lambda s: 1 + 0 * s,
        "it is divided by logit_scale": lambda s: 1 / s,
        "all heads have the first one's": lambda s: np.exp(np.minimum(s[:1], math.log(100))) + 0 * s,
    }
}


def _unit(t: Array) -> Array:
    return np.asarray(t / np.linalg.norm(t, axis=-1, keepdims=True))


class Cosine(Given):
    """Swin v2's scores without the bias: cos(q, k) * exp(min(logit_scale, log 100)) (Liu et al. 2021, section 3.2)."""

    word, ahead = "swin_v2", COMPARED

    def __init__(self, convention: str, spec: Mapping[str, Any]) -> None:
        super().__init__(convention, spec)
        self.definition, self.mismatch = "swin_v2 (cosine)", "swin_v2.cosine"
        self.truth |= {"lengths": None, "tau": None}

    def cases(self) -> Iterator[Case]:
        """Yield windows of 6 and 9 tokens; the last head's scale is above its limit."""
        for seed, n in enumerate((6, 9)):
            vectors = self.normal(seed, q=(2, self.heads, n, self.head_dim), k=(2, self.heads, n, self.head_dim))
            scale = (
                torch.linspace(1.0, 5.5, self.heads).reshape(-1, 1, 1) if self.heads > 1 else torch.full((1, 1, 1), 5.5)
            )
            shape = (2, self.heads, n, n)
            call = Call({**vectors, "logit_scale": scale}, shape, np.arange(n), np.arange(n))
            yield self.case("near", call, f"{n} queries and keys")

    def result(self, model: Model, call: Call) -> Array:
        """Return the scaled cosines."""
        q, k, scale = (call.exact(name) for name in ("q", "k", "logit_scale"))
        q, k = model["lengths"](q, k) if model["lengths"] else (_unit(q), _unit(k))
        factor = model["tau"](scale) if model["tau"] else np.exp(np.minimum(scale, math.log(100)))
        return np.asarray(q @ k.swapaxes(-1, -2) * factor)

    def faults(self) -> Iterator[Fault]:
        """Yield wrong lengths and scales."""
        yield from self.listed("lengths", LENGTHS)
        yield from self.listed("tau", TAUS)


_KNOWN: Mapping[str, type[Given]] = {
    "shaw": Shaw,
    "transformer_xl": TransformerXL,
    "swin_v2": Cosine,
    "deberta": Deberta,
}


def family(convention: str, spec: Mapping[str, Any]) -> Given:
    """Return the family of an encoding's scores, or of the relative shift."""
    known: Mapping[str, type[Given]] = {"transformer_xl": Shift} if convention == "shift_fn" else _KNOWN
    implied = {"encoding": "transformer_xl"} if convention == "shift_fn" else {}
    return chosen(convention, {**implied, **spec}, known)
