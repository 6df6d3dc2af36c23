"""Biases from learned numbers without the content: FIRE's of a text, Swin v2's and BEiT's of an image."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import permutations
from typing import Any

import numpy as np
import torch

from posenc.definitions import images, scores
from posenc.verify.engine import Case, Choice, Fault
from posenc.verify.engine.records import Array, Model
from posenc.verify.families.given import COMPARED, Call, Given, Row, chosen, sampled

WIDTH = 8  # of the hidden layers


def _perceptron(numbers: Mapping[str, Array], features: Array) -> Array:
    """Return w2 relu(w1 features + b1) with the heads first, from features (.., inputs)."""
    hidden = np.maximum(features @ numbers["w1"].T + numbers["b1"], 0.0)
    return np.moveaxis(hidden @ numbers["w2"].T + numbers.get("b2", 0.0), -1, 0)


class Fire(Given):
    """f(log(c d + 1) / log(c max(L, i) + 1)) for the distance d of query i."""

    word = "fire"

    def __init__(self, convention: str, spec: Mapping[str, Any]) -> None:
        super().__init__(convention, spec)
        self.truth |= {"share": None, "start": 0}

    def cases(self) -> Iterator[Case]:
        """Yield texts shorter and longer than the threshold, and calls with a cache."""
        sizes = (("near", 9, 9, 4.0), ("near", 7, 7, 64.0), ("cached", 1, 12, 4.0), ("cached", 3, 10, 4.0))
        for seed, (kind, m, n, threshold) in enumerate((*sizes, ("far", 1, 90, 16.0), ("far", 40, 40, 16.0))):
            layers = {"w1": (WIDTH, 1), "b1": (WIDTH,), "w2": (self.heads, WIDTH), "b2": (self.heads,)}
            c = torch.tensor(0.1 + 0.3 * seed)
            args = {
                "q_len": m,
                "kv_len": n,
                **self.normal(seed, **layers),
                "c": c,
                "threshold": torch.tensor(threshold),
            }
            call = Call(args, (self.heads, m, n), sampled(m), np.arange(n))
            yield self.case(
                kind, call, f"{m} queries, {n} keys, c = {c:.2g} and threshold = {threshold:g}", optional=m < n
            )

    def result(self, model: Model, call: Call) -> Array:
        """Return the bias by the definition, or with a wrong input of the network."""
        *_, m, n = call.shape
        at, k_pos = call.rows + n - m, call.cols
        c, top = (float(call.args[name]) for name in ("c", "threshold"))
        numbers = {name: call.exact(name) for name in ("w1", "b1", "w2", "b2")}
        if (share := model["share"]) is not None:
            with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
                t = share(at[:, None] - k_pos, at[:, None], k_pos + 0 * at[:, None], n, c, top)
            return _perceptron(numbers, np.nan_to_num(t, posinf=1e9, neginf=-1e9)[..., None])
        numbers["w1"] = numbers["w1"][:, 0]
        options: dict[str, Any] = {"n_heads": self.heads, "width": WIDTH, "log_c": np.log(c), "init_threshold": top}
        by = model["start"]
        return scores.fire(at + by, k_pos + by, **options, **numbers)

    def free(self) -> Iterable[Choice]:
        """Yield positions counted from 1, which the paper leaves open."""
        for choice in super().free():
            yield choice
            yield Choice({**choice.change, "start": 1}, choice.because)

    def faults(self) -> Iterable[Fault]:
        """Yield wrong inputs of the network."""
        return self.listed("share", _SHARES)


def _psi(x: Array, c: float) -> Array:
    return np.log(np.abs(c * x) + 1)


# wrong inputs from distance d, query i, key j, the number n of keys, c and threshold
_SHARES: tuple[Row, ...] = (
    ("normaliser", "the key's position", lambda d, i, j, n, c, top: _psi(d, c) / _psi(np.maximum(j, top), c)),
    ("normaliser", "the number of keys", lambda d, i, j, n, c, top: _psi(d, c) / _psi(max(n, top), c)),
    ("normaliser", "the last position", lambda d, i, j, n, c, top: _psi(d, c) / _psi(max(n - 1, top), c)),
    ("normaliser", "the distance", lambda d, i, j, n, c, top: _psi(d, c) / _psi(np.maximum(d, top), c)),
    ("normaliser", "1", lambda d, i, j, n, c, top: _psi(d, c)),
    (
        "normaliser",
        "the query's number within the call",
        lambda d, i, j, n, c, top: _psi(d, c) / _psi(np.maximum(i - i.min(), top), c),
    ),
    ("threshold", "there is no threshold", lambda d, i, j, n, c, top: _psi(d, c) / (_psi(i, c) + 1e-6)),
    (
        "threshold",
        "the normaliser is at least 1, not the threshold",
        lambda d, i, j, n, c, top: _psi(d, c) / _psi(np.maximum(i, 1), c),
    ),
    ("threshold", "the threshold replaces the position", lambda d, i, j, n, c, top: _psi(d, c) / _psi(top + 0 * i, c)),
    (
        "threshold",
        "it is the minimum, not the maximum",
        lambda d, i, j, n, c, top: _psi(d, c) / (_psi(np.minimum(i, top), c) + 1e-6),
    ),
    ("threshold", "the threshold is added to the position", lambda d, i, j, n, c, top: _psi(d, c) / _psi(i + top, c)),
    (
        "threshold",
        "the threshold is compared after the logarithm",
        lambda d, i, j, n, c, top: _psi(d, c) / np.maximum(_psi(i, c), top),
    ),
    ("c", "c is missing", lambda d, i, j, n, c, top: _psi(d, 1) / _psi(np.maximum(i, top), 1)),
    ("c", "c is missing in the normaliser", lambda d, i, j, n, c, top: _psi(d, c) / _psi(np.maximum(i, top), 1)),
    ("c", "c multiplies only the normaliser", lambda d, i, j, n, c, top: _psi(d, 1) / _psi(np.maximum(i, top), c)),
    (
        "c",
        "its exponential is used",
        lambda d, i, j, n, c, top: _psi(d, np.exp(c)) / _psi(np.maximum(i, top), np.exp(c)),
    ),
    ("c", "distances are divided by it", lambda d, i, j, n, c, top: _psi(d, 1 / c) / _psi(np.maximum(i, top), 1 / c)),
    ("c", "it multiplies the logarithm", lambda d, i, j, n, c, top: c * _psi(d, 1) / _psi(np.maximum(i, top), 1)),
    ("log", "neither number has a logarithm", lambda d, i, j, n, c, top: d / np.maximum(i, top)),
    (
        "log",
        "neither number has a logarithm, and c multiplies the distance",
        lambda d, i, j, n, c, top: c * d / np.maximum(i, top),
    ),
    ("log", "the distance has none", lambda d, i, j, n, c, top: d / _psi(np.maximum(i, top), c)),
    ("log", "the distance has none", lambda d, i, j, n, c, top: c * d / _psi(np.maximum(i, top), c)),
    ("log", "the normaliser has none", lambda d, i, j, n, c, top: _psi(d, c) / np.maximum(i, top)),
    ("log", "the logarithm is of the quotient", lambda d, i, j, n, c, top: _psi(d / np.maximum(i, top), c)),
    (
        "log",
        "the bases differ: 2 for the distance",
        lambda d, i, j, n, c, top: _psi(d, c) / np.log(2) / _psi(np.maximum(i, top), c),
    ),
    (
        "log",
        "the bases differ: 2 for the normaliser",
        lambda d, i, j, n, c, top: _psi(d, c) * np.log(2) / _psi(np.maximum(i, top), c),
    ),
    ("log", "1 is not added", lambda d, i, j, n, c, top: np.log(np.abs(c * d) + 1e-6) / np.log(c * np.maximum(i, top))),
    ("distance", "key - query, at least 0", lambda d, i, j, n, c, top: 0.0 * d),
    ("distance", "query - key + 1", lambda d, i, j, n, c, top: _psi(d + 1, c) / _psi(np.maximum(i, top), c)),
    (
        "distance",
        "query - key - 1",
        lambda d, i, j, n, c, top: _psi(np.maximum(d - 1, 0), c) / _psi(np.maximum(i, top), c),
    ),
    ("distance", "minus query - key", lambda d, i, j, n, c, top: -_psi(d, c) / _psi(np.maximum(i, top), c)),
    ("distance", "the key's position", lambda d, i, j, n, c, top: _psi(j, c) / _psi(np.maximum(i, top), c)),
    (
        "distance",
        "query - key with queries counted from 0",
        lambda d, i, j, n, c, top: _psi(i - i.min() - j, c) / _psi(np.maximum(i - i.min(), top), c),
    ),
)


class Image(Given):
    """A bias over the tokens of h rows and w columns, in a few windows of which the specification may name one."""

    ahead, prefix = COMPARED, 0

    def __init__(self, convention: str, spec: Mapping[str, Any]) -> None:
        super().__init__(convention, {**spec, "causal": None})
        self.truth |= {"tokens": None}
        self.asked, self.pretrained = (_pair(spec.get(word)) for word in ("window", "pretrained_window"))

    def cases(self) -> Iterator[Case]:
        """Yield the declared window and others, which code for one window may refuse."""
        windows = dict.fromkeys([*([self.asked] if self.asked else []), (3, 5), (5, 2), (4, 4)])
        for seed, (h, w) in enumerate(windows):
            n = h * w + self.prefix
            call = Call({"h": h, "w": w, **self.drawn(seed, h, w)}, (self.heads, n, n), sampled(n), np.arange(n))
            optional = bool(self.asked) and (h, w) != self.asked
            yield self.case("other" if optional else "near", call, f"h = {h} and w = {w}", optional=optional)

    def drawn(self, seed: int, h: int, w: int) -> dict[str, Any]:
        """Return the learned numbers."""
        raise NotImplementedError

    def steps(self, call: Call) -> tuple[Array, Array]:
        """Return query - key in rows and in columns, for the compared patches."""
        w, rows, cols = call.args["w"], call.rows - self.prefix, call.cols - self.prefix
        return rows[:, None] // w - cols // w, rows[:, None] % w - cols % w


def _pair(said: Any) -> tuple[int, int] | None:
    if said is None:
        return None
    h, w = (said, said) if isinstance(said, int) else said
    return int(h), int(w)


class SwinV2(Image):
    """16 sigmoid of a network of the logarithmic steps (dy, dx)."""

    word = "swin_v2"

    def __init__(self, convention: str, spec: Mapping[str, Any]) -> None:
        super().__init__(convention, spec)
        self.truth |= {"coords": None, "out": None}

    def drawn(self, seed: int, h: int, w: int) -> dict[str, Any]:
        """Return the layers of a network."""
        return self.normal(seed, w1=(WIDTH, 2), b1=(WIDTH,), w2=(self.heads, WIDTH))

    def result(self, model: Model, call: Call) -> Array:
        """Return the bias by the definition, or with wrong inputs or another last function."""
        h, w = call.args["h"], call.args["w"]
        numbers = {name: call.exact(name) for name in ("w1", "b1", "w2")}
        if model["coords"] is None and model["out"] is None and model["tokens"] is None:
            q_pos, k_pos = (np.stack((at // w, at % w), -1) for at in (call.rows, call.cols))
            sizes: dict[str, Any] = {"window": (h, w), "pretrained_window": self.pretrained, "width": WIDTH}
            return images.swin_v2(q_pos, k_pos, n_heads=self.heads, **sizes, **numbers)
        dy, dx = model["tokens"](call) if model["tokens"] else self.steps(call)
        own, trained = np.array([h, w]), np.array(self.pretrained or (h, w))
        coords = (model["coords"] or _COORDS)(np.stack((dy, dx), -1), own, trained)
        return np.asarray((model["out"] or _OUT)(_perceptron(numbers, coords)))

    def faults(self) -> Iterator[Fault]:
        """Yield wrong inputs of the network, another last function, and tokens in another order."""
        yield from self.listed("coords", _WRONG_COORDS if self.pretrained else _WRONG_COORDS[:-2])
        yield from self.listed("out", _OUTS)
        yield Fault("swin_v2.tokens", {"tokens": lambda call: _down(call, 0)})


def _down(call: Call, prefix: int) -> tuple[Array, Array]:
    """Return query - key in rows and in columns if tokens ran down the columns."""
    h, rows, cols = call.args["h"], call.rows - prefix, call.cols - prefix
    return rows[:, None] % h - cols % h, rows[:, None] // h - cols // h


def _signed(d: Array, size: Array) -> Array:
    return np.asarray(np.sign(d) * np.log2(1 + np.abs(size)) / 3)


def _COORDS(d: Array, own: Array, trained: Array) -> Array:  # noqa: N802
    return _signed(d, 8 * d / (trained - 1))


def _OUT(z: Array) -> Array:  # noqa: N802
    return 16 / (1 + np.exp(-z))


_WRONG_COORDS: tuple[Row, ...] = (
    ("coords.log", "there is no logarithm", lambda d, own, pre: 8 * d / (pre - 1)),
    ("coords.log", "there is neither a logarithm nor the 8", lambda d, own, pre: d / (pre - 1)),
    ("coords.log", "neither a logarithm nor a normalisation", lambda d, own, pre: 1.0 * d),
    (
        "coords.log",
        "the logarithm is natural, and not divided by log(8)",
        lambda d, own, pre: _signed(d, 8 * d / (pre - 1)) * np.log(8),
    ),
    ("coords.log", "the logarithm has base 2, not 8", lambda d, own, pre: 3 * _signed(d, 8 * d / (pre - 1))),
    (
        "coords.log",
        "it is natural, and divided by log2(8)",
        lambda d, own, pre: np.log(2) * _signed(d, 8 * d / (pre - 1)),
    ),
    (
        "coords.log",
        "it has base 2, and is divided by the natural log(8)",
        lambda d, own, pre: _signed(d, 8 * d / (pre - 1)) / np.log(2),
    ),
    ("coords.log", "it has base 10", lambda d, own, pre: _signed(d, 8 * d / (pre - 1)) * np.log10(8)),
    ("coords.log", "it is divided by 8", lambda d, own, pre: 3 / 8 * _signed(d, 8 * d / (pre - 1))),
    ("coords.log", "the sign is lost", lambda d, own, pre: np.abs(_signed(d, 8 * d / (pre - 1)))),
    ("coords.log", "it is taken before the normalisation", lambda d, own, pre: 8 * _signed(d, d) / (3 * (pre - 1))),
    ("coords.log", "it is taken before the normalisation", lambda d, own, pre: 8 * _signed(d, d) / (pre - 1)),
    ("coords.normalised", "they are not normalised", lambda d, own, pre: 3 * _signed(d, d)),
    ("coords.normalised", "they are not normalised", lambda d, own, pre: _signed(d, d)),
    ("coords.normalised", "they are not normalised", lambda d, own, pre: np.log(8) * _signed(d, d)),
    ("coords.normalised", "they are not normalised, but multiplied by 8", lambda d, own, pre: _signed(d, 8 * d)),
    ("coords.normalised", "the factor 8 is missing", lambda d, own, pre: _signed(d, d / (pre - 1))),
    ("coords.normalised", "they are divided by W, not by W - 1", lambda d, own, pre: _signed(d, 8 * d / pre)),
    ("coords.normalised", "they are divided by 2 W - 1", lambda d, own, pre: _signed(d, 8 * d / (2 * pre - 1))),
    ("coords.normalised", "they are divided by 2 (W - 1)", lambda d, own, pre: _signed(d, 4 * d / (pre - 1))),
    (
        "coords.normalised",
        "rows are divided by the columns, and columns by the rows",
        lambda d, own, pre: _signed(d, 8 * d / (pre[::-1] - 1)),
    ),
    ("coords.axes", "", lambda d, own, pre: _COORDS(d, own, pre)[..., ::-1]),
    ("coords.sign", "", lambda d, own, pre: -_COORDS(d, own, pre)),
    ("coords.pretrained", "", lambda d, own, pre: _signed(d, 8 * d / (own - 1))),
    ("coords.pretrained", " (it is used, but without - 1)", lambda d, own, pre: _signed(d, 8 * d / pre)),
)
_OUTS: tuple[Row, ...] = (
    ("out", "its result is not bounded: there is no 16 sigmoid", lambda z: z),
    ("out", "the factor 16 is missing", lambda z: _OUT(z) / 16),
    ("out", "the factor is 8, not 16", lambda z: _OUT(z) / 2),
    ("out", "the sigmoid is missing", lambda z: 16 * z),
    ("out", "it is 16 tanh", lambda z: 16 * np.tanh(z)),
    ("out", "16 multiplies its argument", lambda z: _OUT(16 * z) / 16),
)


class Beit(Image):
    """Swin's rows of a table over the whole image, and three rows for the class token, which comes first."""

    word, prefix = "beit", 1

    def __init__(self, convention: str, spec: Mapping[str, Any]) -> None:
        super().__init__(convention, spec)
        self.truth |= {"rows": None, "classes": None}

    def drawn(self, seed: int, h: int, w: int) -> dict[str, Any]:
        """Return a table."""
        return self.normal(seed, table=((2 * h - 1) * (2 * w - 1) + 3, self.heads))

    def result(self, model: Model, call: Call) -> Array:
        """Return the bias by the definition, or with rows by another rule; a row beyond the table is 0."""
        h, w, table = call.args["h"], call.args["w"], call.exact("table")
        if model["rows"] is None and model["classes"] is None and model["tokens"] is None:
            at = [
                np.where(p[:, None] < 1, -1, np.stack(((p - 1) // w, (p - 1) % w), -1)) for p in (call.rows, call.cols)
            ]
            return images.beit(*at, n_heads=self.heads, window=(h, w), weight=table)
        patches, last, q, k = len(table) - 3, model["classes"] == LAST, call.rows[:, None], call.cols
        is_q, is_k = (p == (h * w if last else 0) for p in (q, k))
        dy, dx = (
            model["tokens"](call)
            if model["tokens"]
            else self.steps(Call(call.args, call.shape, call.rows + last, call.cols + last))
        )
        rows = (model["rows"] or _ROWS)(dy, dx, h, w)
        order: Callable[[int], Array] = model["classes"] if callable(model["classes"]) else _CLASSES
        to_key, to_class, own = order(patches)
        rows = np.where(is_q & is_k, own, np.where(is_q, to_key, np.where(is_k, to_class, rows)))
        table = np.concatenate((table, 0 * table[:1]))
        return np.moveaxis(table[np.clip(rows, -len(table) + 1, len(table) - 1).astype(int)], -1, 0)

    def faults(self) -> Iterator[Fault]:
        """Yield other rows for the class token, and other rows for patches."""
        names = ("class to patch", "patch to class", "class to class")
        for order in permutations(range(3)):
            if order != (0, 1, 2):
                words = ", ".join(f"{name} has row {i - 3}" for name, i in zip(names, order, strict=True))
                yield Fault("beit.cls.rows", {"classes": lambda n, o=order: [n + i for i in o]}, {"words": words})
        yield Fault("beit.cls.place", {"classes": LAST})
        for name, one in {"class to patch": 0, "patch to class": 1, "class to class": 2}.items():
            change = {"classes": lambda n, one=one: [n + one] * 3}
            yield Fault("beit.cls.rows", change, {"words": f"all have the row of {name}"})
        for own in (0, 1):
            words = f"class to class has the row of {names[own]}"
            yield Fault("beit.cls.rows", {"classes": lambda n, own=own: [n, n + 1, n + own]}, {"words": words})
        change = {"classes": lambda n: [n + 3] * 3}
        yield Fault("beit.cls.rows", change, {"words": "the class token has no bias"})
        start = {"classes": lambda n: [0, 1, 2], "rows": lambda dy, dx, h, w: _ROWS(dy, dx, h, w) + 3}
        yield Fault("beit.cls.rows", start, {"words": "they are the first three rows, and patches follow"})
        yield from self.listed("rows", _INDICES)
        yield Fault("beit.tokens", {"tokens": lambda call: _down(call, 1)})


LAST = "last"


def _ROWS(dy: Array, dx: Array, h: int, w: int) -> Array:  # noqa: N802
    return (dy + h - 1) * (2 * w - 1) + dx + w - 1


def _CLASSES(patches: int) -> list[int]:  # noqa: N802
    return [patches, patches + 1, patches + 2]


_INDICES: tuple[Row, ...] = (
    ("index.axes", "(dx + w - 1) (2 h - 1) + dy + h - 1", lambda dy, dx, h, w: _ROWS(dx, dy, w, h)),
    ("index.axes", "(dy + h - 1) (2 h - 1) + dx + w - 1", lambda dy, dx, h, w: (dy + h - 1) * (2 * h - 1) + dx + w - 1),
    ("index.axes", "(dx + w - 1) (2 w - 1) + dy + h - 1", lambda dy, dx, h, w: (dx + w - 1) * (2 * w - 1) + dy + h - 1),
    ("index.sign", "", lambda dy, dx, h, w: _ROWS(-dy, -dx, h, w)),
    ("index.sign", " in the rows", lambda dy, dx, h, w: _ROWS(-dy, dx, h, w)),
    ("index.sign", " in the columns", lambda dy, dx, h, w: _ROWS(dy, -dx, h, w)),
    ("index.step", "the step of a row is 2 w, not 2 w - 1", lambda dy, dx, h, w: _ROWS(dy, dx, h, w) + dy + h - 1),
    ("index.step", "the step of a row is w, not 2 w - 1", lambda dy, dx, h, w: (dy + h - 1) * w + dx + w - 1),
    ("index.step", "w - 1 is not added to dx", lambda dy, dx, h, w: _ROWS(dy, dx, h, w) - w + 1),
    ("index.step", "h - 1 is not added to dy", lambda dy, dx, h, w: _ROWS(dy, dx, h, w) - (h - 1) * (2 * w - 1)),
    ("index.step", "rows are one too high", lambda dy, dx, h, w: _ROWS(dy, dx, h, w) + 1),
    ("index.step", "|dy| and |dx| are used", lambda dy, dx, h, w: _ROWS(abs(dy), abs(dx), h, w)),
)
_KNOWN: Mapping[str, type[Given]] = {"fire": Fire, "swin_v2": SwinV2, "beit": Beit}


def family(convention: str, spec: Mapping[str, Any]) -> Given:
    """Return the family of an encoding's bias."""
    return chosen(convention, spec, _KNOWN)
