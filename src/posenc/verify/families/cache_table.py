"""Which positions a model with a cache works with, read off the scores of one token said again and again.

Where all tokens are equal, so are all values, whatever the weights: every layer sees the same tokens as in one pass,
and a score shows the two positions only. One long pass is the table; a fault says where to look.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from posenc.verify.engine.read import rowless
from posenc.verify.engine.records import Array
from posenc.verify.families.cache_places import Place
from posenc.verify.families.cache_runs import Bench, distance
from posenc.verify.families.cache_watch import Look, watch
from posenc.verify.guard import SubjectError

LENGTHS = (96, 48, 24, 12)
FLAT = 1e-3  # scores that vary by less show no positions


@dataclass
class Table:
    """One layer's scores of equal tokens in one pass.

    Args:
        at: (heads, queries, keys), less each token's score for itself; NaN where it was not seen.
        noise: What counts as equal.
        extra: Columns behind the keys that are no keys.
    """

    at: Array
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
    """

    token: Tensor
    tables: dict[int, Table]
    looks: int
    layers: int
    keys: dict[tuple[int, ...], list[list[int]]] = field(default_factory=dict)

    def observe(self, b: Bench, sizes: tuple[int, ...]) -> Array:
        """Return the scores of a schedule, a row for each layer, call, head and query; no rows if none are seen."""
        try:
            calls = watch(b.subject, self.token.expand(1, sum(sizes), -1), sizes)
        except SubjectError:
            calls = []
        if {len(looks) for looks in calls} != {self.looks}:
            return np.zeros((0, sum(sizes)))
        ends = np.cumsum(sizes)
        layers = [
            [looks[n].without(t.extra)[..., :end] / t.noise for looks, end in zip(calls, ends, strict=True)]
            for n, t in self.tables.items()
        ]
        self.keys[sizes] = [[scores.shape[-1] for scores in layer] for layer in layers]
        return _rows([scores for layer in layers for scores in layer], sum(sizes))

    def predict(self, place: Place, sizes: tuple[int, ...]) -> Array:
        """Return the scores of a schedule where each call puts its tokens so."""
        found: list[Array] = []
        for n, (table, keys) in enumerate(zip(self.tables.values(), self.keys.get(sizes, []), strict=False)):
            past = np.zeros(0)
            for c, new in enumerate(sizes):
                past = past[len(past) - max(keys[c] - new, 0) :]
                q, k, past = place.put(sizes[: c + 1], past, n * self.layers // len(self.tables))
                scores = table.look_up(q, k)[..., : keys[c]] / table.noise
                found.append(0 * scores if place.even and c else scores)
        return _rows(found, sum(sizes))

    def room(self) -> int | None:
        """Return how many keys a window leaves in the cache, None where all stay."""
        calls = [(sizes, c, n) for sizes, layers in self.keys.items() for keys in layers for c, n in enumerate(keys)]
        return max((n - sizes[c] for sizes, c, n in calls if n < sum(sizes[: c + 1])), default=None)


def _rows(calls: Sequence[Array], width: int) -> Array:
    """Return all rows of calls (heads, queries, keys), filled up with NaN."""
    filled = [np.pad(s, ((0, 0), (0, 0), (0, width - s.shape[-1])), constant_values=math.nan) for s in calls]
    return np.concatenate([np.zeros((0, width)), *(s.reshape(-1, width) for s in filled)])


def apart(got: Array, wanted: Array) -> Array:
    """Return the difference without a constant per row; infinite where few pairs of positions are known."""
    if got.shape != wanted.shape:
        return np.full(1, np.inf)
    shown = np.isfinite(got)
    known = shown & np.isfinite(wanted)
    if known.sum() <= 0.5 * shown.sum():
        return np.full(1, np.inf)
    return np.abs(rowless(got - wanted, known))


def read(b: Bench, layers: int) -> Tables | None:
    """Return the tables of one token; None where no scores are seen, or no positions in them.

    Args:
        b: The model.
        layers: As the specification says; 0 where it does not.
    """
    for token in b.x[:, 0]:
        for n in LENGTHS:
            text = token.expand(1, n, -1)
            try:
                (looks,), even = watch(b.subject, text, (n,)), b.run(text)
            except SubjectError:
                continue
            tables = {i: t for i, look in enumerate(looks) if (t := _table(look, n, b.tolerance)) is not None}
            if distance(even, even[:, :1].expand_as(even)) > b.tolerance:
                tables = dict([*tables.items()][:1])  # tokens hold positions: layers above see more than one token
            if tables:
                return Tables(token, tables, len(looks), layers if layers and not len(tables) % layers else len(tables))
            break
    return None


def _table(s: Look, n: int, tolerance: float) -> Table | None:
    """Complete the scores of one pass; None where they show no positions."""
    at = s.scores[..., :n].numpy()
    if at.shape[1] != n or at.shape[2] < n:
        return None
    spread = float(np.nanmax(np.abs(_less_itself(at)), initial=0.0))
    if not spread > FLAT:
        return None
    noise = (50 if tolerance > 1e-3 else 10) * tolerance * min(spread, 1.0) * (1 + 0.2 * spread)
    if s.product is not None:
        products = s.product[..., :n].numpy(), s.product[..., :n].mT.numpy()
        fitted = next((p for p in (_scaled(p, at, max(noise, tolerance)) for p in products) if p is not None), None)
        # a bias of keys ahead is hidden: of the distance's size, if any
        at = np.where(np.isnan(at), at.swapaxes(-1, -2), at) if fitted is None else fitted
    return Table(_less_itself(at), noise, s.extra())


def _less_itself(at: Array) -> Array:
    return at - np.diagonal(at, axis1=-2, axis2=-1)[..., None]


def _scaled(product: Array, scores: Array, noise: float) -> Array | None:
    """Return the product at the scale of the scores if these are no more than that: hidden ones are known, too."""
    shown = np.isfinite(scores)
    x, y = rowless(product, shown), rowless(scores, shown)
    scale = (x * y).sum() / max((x * x).sum(), 1e-30)
    off = np.abs((scale * x - y) / (1 + np.abs(y)))
    return scale * product if float(off.max()) <= noise else None
