"""Biases from learned numbers without the content: FIRE's of a text, Swin v2's and BEiT's of an image."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import permutations
from typing import Any

import numpy as np
import torch

from posenc.definitions import images, scores
from posenc.verify.engine import Case, Choice, Fault
from posenc.verify.engine.records import Array, Model
from posenc.verify.families.given import COMPARED, Call, Given, Places, chosen, sampled
from posenc.verify.families.indices import INDICES, index_of

WIDTH = 8  # of the hidden layers


def _perceptron(numbers: Mapping[str, Array], features: Array, between: Callable[[Array], Array] | None) -> Array:
    """Return w2 relu(w1 features + b1), or another function in between, with the heads first."""
    z = features @ numbers["w1"].T + numbers["b1"]
    hidden = between(z) if between else np.maximum(z, 0.0)
    return np.moveaxis(hidden @ numbers["w2"].T + numbers.get("b2", 0.0), -1, 0)


def _sigmoid(z: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-z)))


HIDDEN: Mapping[str, Mapping[str, Callable[[Array], Array]]] = {
    "hidden": {
        "there is no ReLU": lambda z: z,
        "it is a sigmoid, not ReLU": _sigmoid,
        "it is tanh, not ReLU": np.tanh,
        "it is SiLU, not ReLU": lambda z: z * _sigmoid(z),
        "it is GELU, not ReLU": lambda z: z * _normal(z),
        "it is GELU (by tanh), not ReLU": lambda z: z * _sigmoid(2 * (2 / np.pi) ** 0.5 * (z + 0.044715 * z**3)),
        "it is LeakyReLU, not ReLU": lambda z: np.maximum(z, 0.01 * z),
    }
}


def _normal(z: Array) -> Array:
    return np.asarray(torch.special.ndtr(torch.from_numpy(np.ascontiguousarray(z))).numpy())


@dataclass(frozen=True)
class Share:
    """What the input of FIRE's network is made from: the distance d of query i and key j of n, c and the threshold."""

    d: Places
    i: Places
    j: Places
    n: int
    c: float
    top: float

    def psi(self, x: Any, c: float | None = None) -> Array:
        """Return log(c x + 1)."""
        return np.asarray(np.log(np.abs((self.c if c is None else c) * x) + 1))

    def over(self, x: Any, c: float | None = None) -> Array:
        """Return the same of max(x, threshold)."""
        return self.psi(np.maximum(x, self.top), c)


SHARES: Mapping[str, Mapping[str, Callable[[Share], Array]]] = {
    "normaliser": {
        "the key's position": lambda x: x.psi(x.d) / x.over(x.j),
        "the number of keys": lambda x: x.psi(x.d) / x.over(x.n),
        "the last position": lambda x: x.psi(x.d) / x.over(x.n - 1),
        "the distance": lambda x: x.psi(x.d) / x.over(x.d),
        "1": lambda x: x.psi(x.d),
        "the query's number within the call": lambda x: x.psi(x.d) / x.over(x.i - x.i.min()),
    },
    "threshold": {
        "there is no threshold": lambda x: x.psi(x.d) / (x.psi(x.i) + 1e-6),
        "there is no threshold, and positions count from 1": lambda x: x.psi(x.d) / x.psi(x.i + 1),
        "the normaliser is at least 1, not the threshold": lambda x: x.psi(x.d) / x.psi(np.maximum(x.i, 1)),
        "the threshold replaces the position": lambda x: x.psi(x.d) / x.psi(x.top + 0 * x.i),
        "the minimum is taken, not the maximum": lambda x: x.psi(x.d) / (x.psi(np.minimum(x.i, x.top)) + 1e-6),
        "the threshold is added to the position": lambda x: x.psi(x.d) / x.psi(x.i + x.top),
        "the threshold is compared after the logarithm": lambda x: x.psi(x.d) / np.maximum(x.psi(x.i), x.top),
        "the threshold is a lower bound of the distance too": lambda x: x.over(x.d) / x.over(x.i),
    },
    "c": {
        "c is missing": lambda x: x.psi(x.d, 1) / x.over(x.i, 1),
        "c multiplies only the distance": lambda x: x.psi(x.d) / x.over(x.i, 1),
        "c multiplies only the normaliser": lambda x: x.psi(x.d, 1) / x.over(x.i),
        "its exponential is used": lambda x: x.psi(x.d, np.exp(x.c)) / x.over(x.i, np.exp(x.c)),
        "distances are divided by it": lambda x: x.psi(x.d, 1 / x.c) / x.over(x.i, 1 / x.c),
        "it multiplies the logarithm": lambda x: x.c * x.psi(x.d, 1) / x.over(x.i, 1),
    },
    "log": {
        "neither number has a logarithm": lambda x: x.d / np.maximum(x.i, x.top),
        "neither number has a logarithm, and c multiplies one": lambda x: x.c * x.d / np.maximum(x.i, x.top),
        "the distance has none": lambda x: x.d / x.over(x.i),
        "the distance, multiplied by c, has none": lambda x: x.c * x.d / x.over(x.i),
        "the normaliser has none": lambda x: x.psi(x.d) / np.maximum(x.i, x.top),
        "the normaliser, multiplied by c, has none": lambda x: x.psi(x.d) / (x.c * np.maximum(x.i, x.top)),
        "the logarithm is of the quotient": lambda x: x.psi(x.d / np.maximum(x.i, x.top)),
        "the bases differ: 2 for the distance": lambda x: x.psi(x.d) / np.log(2) / x.over(x.i),
        "the bases differ: 2 for the normaliser": lambda x: x.psi(x.d) * np.log(2) / x.over(x.i),
        "the bases differ: 10 for the distance": lambda x: x.psi(x.d) / np.log(10) / x.over(x.i),
        "1 is not added": lambda x: np.log(np.abs(x.c * x.d) + 1e-6) / np.log(x.c * np.maximum(x.i, x.top)),
    },
    "distance": {
        "key - query, at least 0": lambda x: 0 * x.psi(x.d),
        "query - key, at least 0": lambda x: x.psi(np.maximum(x.d, 0)) / x.over(x.i),
        "query - key with its sign, which the logarithm keeps": lambda x: np.sign(x.d) * x.psi(x.d) / x.over(x.i),
        "query - key + 1": lambda x: x.psi(x.d + 1) / x.over(x.i),
        "query - key - 1": lambda x: x.psi(np.maximum(x.d - 1, 0)) / x.over(x.i),
        "minus query - key": lambda x: -x.psi(x.d) / x.over(x.i),
        "the key's position": lambda x: x.psi(x.j) / x.over(x.i),
        "the query's position": lambda x: x.psi(x.i) / x.over(x.i),
        "counted from a query at 0": lambda x: x.psi(x.i - x.i.min() - x.j) / x.over(x.i - x.i.min()),
        "counted from a query at 0, but not the normaliser": lambda x: x.psi(x.i - x.i.min() - x.j) / x.over(x.i),
    },
}


class Fire(Given):
    """f(log(c d + 1) / log(c max(L, i) + 1)) for the distance d of query i."""

    word = "fire"

    def __init__(self, convention: str, spec: Mapping[str, Any]) -> None:
        super().__init__(convention, spec)
        self.truth |= {"share": None, "hidden": None, "without": "", "start": 0, "factor": 1.0}

    def cases(self) -> Iterator[Case]:
        """Yield texts shorter and longer than the threshold, and calls with a cache."""
        sizes = (("near", 9, 9, 4.0), ("near", 7, 7, 64.0), ("cached", 1, 12, 4.0), ("cached", 3, 10, 4.0))
        for seed, (kind, m, n, threshold) in enumerate((*sizes, ("far", 1, 90, 16.0), ("far", 40, 40, 16.0))):
            layers = {"w1": (WIDTH, 1), "b1": (WIDTH,), "w2": (self.heads, WIDTH), "b2": (self.heads,)}
            scalars = {"c": torch.tensor(0.1 + 0.3 * seed), "threshold": torch.tensor(threshold)}
            args = {"q_len": m, "kv_len": n, **self.normal(seed, **layers), **scalars}
            call = Call(args, (self.heads, m, n), sampled(m), np.arange(n))
            size = f"{m} queries, {n} keys, c = {scalars['c']:.2g} and threshold = {threshold:g}"
            yield self.case(kind, call, size, optional=m < n)
            if not seed:
                yield self.again(self.case(kind, call, size), {**args, **self.normal(99, **layers)})

    def result(self, model: Model, call: Call) -> Array:
        """Return the bias by the definition, or with a wrong input of the network."""
        *_, m, n = call.shape
        i, j = call.rows + n - m, call.cols
        c, top = (float(call.args[name]) for name in ("c", "threshold"))
        numbers: dict[str, Any] = {
            name: call.exact(name) * (name != model["without"]) for name in ("w1", "b1", "w2", "b2")
        }
        if model["share"] or model["hidden"]:
            share = model["share"] or (lambda x: x.psi(x.d) / x.over(x.i))
            with np.errstate(all="ignore"):
                t = share(Share(i[:, None] - j, i[:, None], j + 0 * i[:, None], n, c, top))
            return _perceptron(numbers, np.nan_to_num(t, posinf=1e9, neginf=-1e9)[..., None], model["hidden"])
        numbers["w1"] = numbers["w1"][:, 0]
        options: dict[str, Any] = {"n_heads": self.heads, "width": WIDTH, "log_c": np.log(c), "init_threshold": top}
        bias = scores.fire(i + model["start"], j + model["start"], **options, **numbers)
        return np.asarray(model["factor"] * bias)

    def free(self) -> Iterable[Choice]:
        """Yield positions counted from 1, which the paper leaves open."""
        for choice in super().free():
            yield choice
            yield Choice({**choice.change, "start": 1}, choice.because)

    def faults(self) -> Iterable[Fault]:
        """Yield wrong inputs of the network, and other functions in it."""
        yield from self.listed("share", SHARES)
        yield from self.listed("hidden", HIDDEN)
        yield Fault("fire.hidden", {"without": "b1"}, {"words": "b1 is not added"})
        yield Fault("fire.out", {"factor": -1.0})


class Image(Given):
    """A bias over the tokens of h rows and w columns, in a few windows of which the specification may name one."""

    ahead, prefix = COMPARED, 0

    def __init__(self, convention: str, spec: Mapping[str, Any]) -> None:
        super().__init__(convention, {**spec, "causal": None})
        self.truth |= {"tokens": False, "viewed": False}  # whether they run down the columns; heads moved by a view
        self.asked, self.pretrained = (_pair(spec.get(word)) for word in ("window", "pretrained_window"))

    def cases(self) -> Iterator[Case]:
        """Yield the declared window and others, which code for one window may refuse."""
        windows = dict.fromkeys([*([self.asked] if self.asked else []), (3, 5), (5, 2), (4, 4)])
        for seed, (h, w) in enumerate(windows):
            n = h * w + self.prefix
            call = Call({"h": h, "w": w, **self.drawn(seed, h, w)}, (self.heads, n, n), sampled(n), np.arange(n))
            optional = bool(self.asked) and (h, w) != self.asked
            yield self.case("other" if optional else "near", call, f"h = {h} and w = {w}", optional=optional)
            if not seed:
                other = {"h": h, "w": w, **self.drawn(99, h, w)}
                yield self.again(self.case("near", call, f"h = {h} and w = {w}"), other)

    def drawn(self, seed: int, h: int, w: int) -> dict[str, Any]:
        """Return the learned numbers."""
        raise NotImplementedError

    def predict(self, model: Model, case: Case) -> Array:
        """Return the bias, or what a view of (queries, keys, heads) as (heads, queries, keys) makes of it."""
        call, every = case.args[0], np.arange(case.args[0].shape[-1])
        if not model["viewed"]:
            return self.result(model, call)
        whole = self.result(model, replace(call, rows=every, cols=every))
        return np.moveaxis(whole, 0, -1).reshape(call.shape)[:, call.rows[:, None], call.cols]

    def places(self, call: Call, *, down: bool = False, prefix: int | None = None) -> list[Array]:
        """Return the row and the column of each compared query and key."""
        first = self.prefix if prefix is None else prefix
        h, w, both = call.args["h"], call.args["w"], (call.rows - first, call.cols - first)
        return [np.stack((at % h, at // h) if down else (at // w, at % w), -1) for at in both]


def _pair(said: Any) -> tuple[int, int] | None:
    if said is None:
        return None
    h, w = (said, said) if isinstance(said, int) else said
    return int(h), int(w)


@dataclass(frozen=True)
class Steps:
    """What the inputs of Swin v2's network are made from: query - key, the own window and that of the training."""

    d: Array
    own: Array
    trained: Array

    @property
    def size(self) -> Array:
        """The right steps before the logarithm."""
        return np.asarray(8 * self.d / (self.trained - 1))

    def log8(self, size: Array) -> Array:
        """Return the logarithm with base 8 of 1 + |size|, with the sign of a step."""
        return np.asarray(np.sign(self.d) * np.log2(1 + np.abs(size)) / 3)


COORDS: Mapping[str, Mapping[str, Callable[[Steps], Array]]] = {
    "coords.log": {
        "there is no logarithm": lambda x: x.size,
        "there is neither a logarithm nor the 8": lambda x: x.size / 8,
        "there is neither a logarithm nor a normalisation": lambda x: 1.0 * x.d,
        "the logarithm is natural": lambda x: x.log8(x.size) * np.log(8),
        "the logarithm has base 2, not 8": lambda x: 3 * x.log8(x.size),
        "it is natural, and divided by log2(8)": lambda x: np.log(2) * x.log8(x.size),
        "it has base 2, and is divided by the natural log(8)": lambda x: x.log8(x.size) / np.log(2),
        "it has base 10": lambda x: x.log8(x.size) * np.log10(8),
        "it is divided by 8, not by log2(8)": lambda x: 3 / 8 * x.log8(x.size),
        "the sign is lost": lambda x: np.abs(x.log8(x.size)),
        "it is taken before the normalisation": lambda x: 8 * x.log8(x.d) / (x.trained - 1),
        "it has base 2, and is taken before the normalisation": lambda x: 24 * x.log8(x.d) / (x.trained - 1),
        "1 is not added": lambda x: x.log8(np.maximum(np.abs(x.size) - 1, 1e-6 - 1)),
    },
    "coords.normalised": {
        "they are not normalised": lambda x: x.log8(x.d),
        "they are not normalised, and the logarithm has base 2": lambda x: 3 * x.log8(x.d),
        "they are not normalised, and the logarithm is natural": lambda x: np.log(8) * x.log8(x.d),
        "they are multiplied by 8, but not normalised": lambda x: x.log8(8 * x.d),
        "the factor 8 is missing": lambda x: x.log8(x.size / 8),
        "they are divided by W, not by W - 1": lambda x: x.log8(8 * x.d / x.trained),
        "they are divided by 2 W - 1": lambda x: x.log8(8 * x.d / (2 * x.trained - 1)),
        "they are divided by 2 (W - 1)": lambda x: x.log8(x.size / 2),
        "rows are divided by the columns, and columns by the rows": lambda x: x.log8(8 * x.d / (x.trained[::-1] - 1)),
        "both are divided by the number of rows": lambda x: x.log8(8 * x.d / (x.trained[0] - 1)),
        "both are divided by the number of columns": lambda x: x.log8(8 * x.d / (x.trained[1] - 1)),
        "the factor 8 multiplies the logarithm": lambda x: 8 * x.log8(x.size / 8),
    },
    "coords.axes": {"": lambda x: x.log8(x.size)[..., ::-1]},
    "coords.sign": {
        "": lambda x: -x.log8(x.size),
        " in the rows": lambda x: x.log8(x.size) * [-1, 1],
        " in the columns": lambda x: x.log8(x.size) * [1, -1],
    },
}
PRETRAINED: Mapping[str, Mapping[str, Callable[[Steps], Array]]] = {
    "coords.pretrained": {"": lambda x: x.log8(8 * x.d / (x.own - 1))}
}


OUTS: Mapping[str, Mapping[str, Callable[[Array], Array]]] = {
    "out": {
        "its result is not bounded: there is no 16 sigmoid": lambda z: z,
        "the factor 16 is missing": _sigmoid,
        "the factor is 8, not 16": lambda z: 8 * _sigmoid(z),
        "the sigmoid is missing": lambda z: 16 * z,
        "it is 16 tanh": lambda z: 16 * np.tanh(z),
        "16 multiplies its argument": lambda z: _sigmoid(16 * z),
        "16 sigmoid is applied twice": lambda z: 16 * _sigmoid(16 * _sigmoid(z)),
    }
}


class SwinV2(Image):
    """16 sigmoid of a network of the logarithmic steps (dy, dx)."""

    word = "swin_v2"

    def __init__(self, convention: str, spec: Mapping[str, Any]) -> None:
        super().__init__(convention, spec)
        self.truth |= {"coords": None, "out": None, "hidden": None, "without": "", "rows": None}

    def drawn(self, seed: int, h: int, w: int) -> dict[str, Any]:
        """Return the layers of a network."""
        return self.normal(seed, w1=(WIDTH, 2), b1=(WIDTH,), w2=(self.heads, WIDTH))

    def result(self, model: Model, call: Call) -> Array:
        """Return the bias by the definition, or with wrong inputs or another last function."""
        own = call.args["h"], call.args["w"]
        numbers: dict[str, Any] = {name: call.exact(name) * (name != model["without"]) for name in ("w1", "b1", "w2")}
        q_pos, k_pos = self.places(call, down=model["tokens"])
        if not (model["coords"] or model["out"] or model["hidden"] or model["rows"]):
            sizes: dict[str, Any] = {"window": own, "pretrained_window": self.pretrained, "width": WIDTH}
            return images.swin_v2(q_pos, k_pos, n_heads=self.heads, **sizes, **numbers)
        (h, w), d = own, q_pos[:, None] - k_pos
        if model["rows"]:  # of the table of all steps
            row = np.clip(model["rows"](d[..., 0], d[..., 1], h, w), 0, (2 * h - 1) * (2 * w - 1) - 1)
            d = np.stack((row // (2 * w - 1) - h + 1, row % (2 * w - 1) - w + 1), -1)
        steps = Steps(d, np.array(own), np.array(self.pretrained or own))
        coords = model["coords"](steps) if model["coords"] else steps.log8(steps.size)
        z = _perceptron(numbers, coords, model["hidden"])
        return np.asarray(model["out"](z) if model["out"] else 16 * _sigmoid(z))

    def faults(self) -> Iterator[Fault]:
        """Yield wrong inputs of the network, another last function, and tokens in another order."""
        yield from self.listed("coords", {**COORDS, **(PRETRAINED if self.pretrained else {})})
        yield from self.listed("out", OUTS)
        yield from self.listed("hidden", HIDDEN)
        yield Fault("swin_v2.hidden", {"without": "b1"}, {"words": "b1 is not added"})
        yield from self.listed("rows", INDICES)
        yield Fault("swin_v2.tokens", {"tokens": True})
        yield Fault("swin_v2.bias.heads_viewed", {"viewed": True})


# what the rows of class to patch, patch to class and class to class are from the number of the patches' rows
CLASSES: Mapping[str, Callable[[int], list[int]]] = {
    "all have the row of class to patch": lambda n: [n, n, n],
    "all have the row of patch to class": lambda n: [n + 1, n + 1, n + 1],
    "all have the row of class to class": lambda n: [n + 2, n + 2, n + 2],
    "class to class has the row of class to patch": lambda n: [n, n + 1, n],
    "class to class has the row of patch to class": lambda n: [n, n + 1, n + 1],
    "the class token has no bias": lambda n: [n + 3, n + 3, n + 3],  # a row of zeros
    "class to class has no bias": lambda n: [n, n + 1, n + 3],
}


class Beit(Image):
    """Swin's rows of a table over the whole image, and three rows for the class token, which comes first."""

    word, prefix = "beit", 1

    def __init__(self, convention: str, spec: Mapping[str, Any]) -> None:
        super().__init__(convention, spec)
        self.truth |= {"rows": None, "classes": None, "last": False}

    def drawn(self, seed: int, h: int, w: int) -> dict[str, Any]:
        """Return a table."""
        return self.normal(seed, table=((2 * h - 1) * (2 * w - 1) + 3, self.heads))

    def result(self, model: Model, call: Call) -> Array:
        """Return the bias by the definition, or with rows by another rule; a row beyond the table is 0."""
        h, w, table = call.args["h"], call.args["w"], call.exact("table")
        patches, at = len(table) - 3, h * w if model["last"] else 0
        is_q, is_k = (places == at for places in (call.rows, call.cols))
        q_pos, k_pos = self.places(call, down=model["tokens"], prefix=0 if model["last"] else 1)
        if model["rows"] is None and model["classes"] is None:
            q_pos, k_pos = (np.where(c[:, None], -1, p) for c, p in ((is_q, q_pos), (is_k, k_pos)))
            return images.beit(q_pos, k_pos, n_heads=self.heads, window=(h, w), weight=table)
        steps, row_of = q_pos[:, None] - k_pos, model["rows"] or index_of
        rows = row_of(steps[..., 0], steps[..., 1], h, w)
        to_key, to_class, own = model["classes"](patches) if model["classes"] else range(patches, patches + 3)
        rows = np.where(is_q[:, None], np.where(is_k, own, to_key), np.where(is_k, to_class, rows))
        table = np.concatenate((table, 0 * table[:1]))
        return np.moveaxis(table[np.clip(rows, 1 - len(table), len(table) - 1).astype(int)], -1, 0)

    def faults(self) -> Iterator[Fault]:
        """Yield other rows for the class token, and other rows for patches."""
        names = ("class to patch", "patch to class", "class to class")
        for order in [order for order in permutations(range(3)) if order != (0, 1, 2)]:
            words = ", ".join(f"{name} has row {i - 3}" for name, i in zip(names, order, strict=True))
            yield Fault("beit.cls.rows", {"classes": lambda n, o=order: [n + i for i in o]}, {"words": words})
        yield from self.listed("classes", {"cls.rows": CLASSES})
        start: Model = {"classes": lambda n: [0, 1, 2], "rows": lambda y, x, h, w: index_of(y, x, h, w) + 3}
        yield Fault("beit.cls.rows", start, {"words": "they are the first three rows, and patches follow"})
        yield Fault("beit.cls.place", {"last": True})
        turned = {"classes": lambda n: [n + 1, n, n + 2], "rows": INDICES["index.sign"][""]}
        yield Fault("beit.transposed", turned)
        yield from self.listed("rows", INDICES)
        yield Fault("beit.tokens", {"tokens": True})
        yield Fault("beit.bias.heads_viewed", {"viewed": True})


_KNOWN: Mapping[str, type[Given]] = {"fire": Fire, "swin_v2": SwinV2, "beit": Beit}


def family(convention: str, spec: Mapping[str, Any]) -> Given:
    """Return the family of an encoding's bias."""
    return chosen(convention, spec, _KNOWN)
