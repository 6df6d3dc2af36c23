"""Which positions a model with a cache works with, read off the scores of one token said again and again.

Where all tokens are equal, so are all values, whatever the weights: every layer sees the same tokens as in one pass,
and a score shows the two positions only. One long pass is the table; a fault says where to look.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from posenc.verify.engine.records import Array, Model
from posenc.verify.families.cache_names import BIASES
from posenc.verify.families.cache_runs import Bench, distance
from posenc.verify.families.cache_watch import FLAT, Look, watch
from posenc.verify.guard import SubjectError

LENGTHS = (96, 64, 48, 32, 24, 16, 12)


@dataclass
class Table:
    """One layer's scores of equal tokens in one pass.

    Args:
        at: (heads, queries, keys), less each token's score for itself; NaN where it was not seen.
        itself: A token's mean score for itself; None where a constant per row was taken out.
        noise: What counts as equal.
        extra: Columns behind the keys that are no keys.
    """

    at: Array
    itself: float | None
    noise: float
    extra: int

    def look_up(self, q: Array, k: Array) -> Array:
        """Return scores (heads, queries, keys) at positions, NaN where they are not known."""
        n = self.at.shape[-1]
        i, j = q.astype(int)[:, None], k.astype(int)
        known = (i >= 0) & (i < n) & (j >= 0) & (j < n)
        return np.where(known, self.at[:, i.clip(0, n - 1), j.clip(0, n - 1)], math.nan)


@dataclass
class Tables:
    """What one pass shows of each layer, and how many keys each call of a schedule had.

    Args:
        token: The token (width,) that is said again and again.
        tables: One for each softmax that shows positions, by its number among all softmaxes.
        looks: How many softmaxes a call has.
        layers: How many layers they belong to; heads may be looked at one by one.
        keys: Of each schedule, how many keys each call had, in each table.
        predicted: Scores under faults that were asked for before.
    """

    token: Tensor
    tables: dict[int, Table]
    looks: int
    layers: int
    keys: dict[tuple[int, ...], list[list[int]]] = field(default_factory=dict)
    predicted: dict[Any, Array] = field(default_factory=dict)

    def noise(self, sizes: tuple[int, ...]) -> Array:
        """Return what counts as equal in each row of a schedule: (rows, 1)."""
        rows = [np.full(len(t.at) * sum(sizes), t.noise) for t in self.tables.values()]
        return np.concatenate(rows)[:, None]

    def observe(self, b: Bench, sizes: tuple[int, ...]) -> Array:
        """Return the scores of a schedule, a row for each layer, call, head and query; no rows if none are seen."""
        try:
            calls = watch(b.subject, self.token.expand(1, sum(sizes), -1), sizes)
        except SubjectError:
            calls = []
        if {len(looks) for looks in calls} != {self.looks}:
            return np.zeros((0, sum(sizes)))
        rows: list[Array] = []
        self.keys[sizes] = []
        for n, table in self.tables.items():
            shown = [looks[n].without(table.extra).numpy() for looks in calls]
            scores = [s[..., : sum(sizes[: c + 1])] for c, s in enumerate(shown)]
            self.keys[sizes].append([s.shape[-1] for s in scores])
            rows += scores
        return _stacked(rows, sum(sizes))

    def predict(self, model: Model, sizes: tuple[int, ...]) -> Array:
        """Return the scores of a schedule under faults of single tokens and of several."""
        if sizes not in self.keys:
            return np.zeros((0, sum(sizes)))
        asked = (model["single"], model["several"], sizes)
        if asked not in self.predicted:
            self.predicted[asked] = self._predict(model, sizes)
        return self.predicted[asked]

    def _predict(self, model: Model, sizes: tuple[int, ...]) -> Array:
        rows: list[Array] = []
        for n, (table, keys) in enumerate(zip(self.tables.values(), self.keys[sizes], strict=True)):
            past = np.zeros(0)
            for c, new in enumerate(sizes):
                kept = max(keys[c] - new, 0)
                place = model["single" if new == 1 else "several"]
                layer = n * self.layers // len(self.tables)
                q, k, past = place.put(sizes[: c + 1], past[len(past) - kept :], layer)
                scores = table.look_up(q, k)[..., : keys[c]]
                if place.even and c:
                    scores = 0 * scores
                hidden = place.within and np.arange(keys[c]) < kept
                rows.append(np.where(hidden, math.nan, scores))
        return _stacked(rows, sum(sizes))

    def as_of_itself(self, value: Array, sizes: tuple[int, ...]) -> bool:
        """Return whether each single token scores all keys as one pass scores a token for itself: at distance 0."""
        first = next(iter(self.tables.values()))
        rows = value[len(first.at) * sizes[0] : len(first.at) * sum(sizes)]
        return first.itself is not None and bool((np.abs(np.nanmean(rows, -1) - first.itself) <= first.noise).all())

    def evicted(self) -> int | None:
        """Return how many keys a window leaves in the cache, None where all stay."""
        left = [
            end - sizes[c]
            for sizes, layers in self.keys.items()
            for keys in layers
            for c, end in enumerate(keys)
            if end < sum(sizes[: c + 1])
        ]
        return max(left, default=None)


def _stacked(calls: Sequence[Array], width: int) -> Array:
    """Return all rows of calls (heads, queries, keys), filled up with NaN."""
    rows = np.full((sum(call[..., 0].size for call in calls), width), math.nan)
    begin = 0
    for call in calls:
        end = begin + call[..., 0].size
        rows[begin:end, : call.shape[-1]] = call.reshape(end - begin, -1)
        begin = end
    return rows


def apart(got: Array, wanted: Array) -> tuple[Array, float]:
    """Return the difference in each element without a constant per row, and the share of pairs that show it."""
    shown = np.isfinite(got)
    known = shown & np.isfinite(wanted)
    off = np.where(known, got - wanted, 0.0)
    mean = off.sum(-1, keepdims=True) / np.maximum(known.sum(-1, keepdims=True), 1)
    size = 1 + 0.2 * np.abs(np.where(known, wanted, 0.0))
    return np.abs(np.where(known, (off - mean) / size, 0.0)), float(known.sum() / max(shown.sum(), 1))


def read(b: Bench, family: str, layers: int | None, lengths: Sequence[int] = LENGTHS) -> Tables | None:
    """Return the tables of one token; None where no scores are seen, or no positions in them."""
    for token in b.x[:, 0]:
        for n in lengths:
            try:
                found = _read(b, family, token, layers, n)
            except SubjectError:
                continue
            if found is not None:
                return found
            break
    return None


def _read(b: Bench, family: str, token: Tensor, layers: int | None, n: int) -> Tables | None:
    text = token.expand(1, n, -1)
    looks = watch(b.subject, text, (n,))[0]
    even = b.one_pass(text)
    tables = {i: t for i, s in enumerate(looks) if (t := _table(s, n, family, b.tolerance)) is not None}
    if not tables:
        return None
    if distance(even, even[:, :1].expand_as(even)) > b.tolerance:
        tables = dict([*tables.items()][:1])  # positions are in the tokens: layers above see more than one token
    divided = layers if layers and len(tables) % layers == 0 else len(tables)
    return Tables(token, tables, len(looks), divided)


def _table(s: Look, n: int, family: str, tolerance: float) -> Table | None:
    """Complete the scores of one pass; None where they show no positions."""
    at = s.scores[..., :n].numpy()
    if at.shape[1] != n or at.shape[2] < n:
        return None
    spread = float(np.nanmax(np.abs(at - _itself(at)), initial=0.0))
    if not spread > FLAT:
        return None
    noise = (50 if tolerance > 1e-3 else 10) * tolerance * min(spread, 1.0)
    products = [] if s.product is None else [s.product[..., :n].numpy()]
    products += [p.swapaxes(-1, -2) for p in products]
    fitted = (_scaled(p, at, max(noise, tolerance)) for p in products)
    at = next((p for p in fitted if p is not None), at)
    itself = _itself(at)
    at = at - itself
    if family in BIASES:  # a bias of keys ahead is hidden: of the distance's size, if any
        at = np.where(np.isnan(at), at.swapaxes(-1, -2), at)
    return Table(at, float(itself[:, 0].mean()) if s.whole else None, noise, s.extra())


def _itself(at: Array) -> Array:
    return np.diagonal(at, axis1=-2, axis2=-1)[..., None]


def _scaled(product: Array, scores: Array, noise: float) -> Array | None:
    """Return the product at the scale of the scores if these are no more than that: hidden ones are known, too."""
    shown = np.isfinite(scores)
    count = np.maximum(shown.sum(-1, keepdims=True), 1)
    x, y = (np.where(shown, t, 0.0) for t in (product, scores))
    x, y = (np.where(shown, t - t.sum(-1, keepdims=True) / count, 0.0) for t in (x, y))
    scale = (x * y).sum() / max((x * x).sum(), 1e-30)
    off = np.abs((scale * x - y) / (1 + np.abs(y)))
    return scale * product if float(off.max()) <= noise else None
