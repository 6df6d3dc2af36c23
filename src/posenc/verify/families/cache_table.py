"""Find the positions that a model with a cache uses, from the scores of one repeated token.

If all tokens are equal, so are all values, whatever the weights: every layer sees the same tokens as in a single
pass, and a score shows only the two positions. One long pass is the table; a fault maps calls to places in it.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

import numpy as np
from torch import Tensor

from posenc.verify.engine import Fault
from posenc.verify.engine.read import rowless
from posenc.verify.engine.records import Array
from posenc.verify.families.cache_runs import Bench, distance
from posenc.verify.families.cache_watch import Look, watch
from posenc.verify.guard import NotAnsweredError, SubjectError

LENGTHS = (96, 48, 24, 12)
FLAT = 1e-3  # scores that vary less show no positions
BIASES = ("alibi", "t5")


@dataclass(frozen=True)
class Place:
    """Where a call places its tokens, as a rule on the sizes of calls."""

    q: str  # where queries start, as a sum of named counts, such as "seen new" or "seen -one"
    k: str | None = None  # where new keys start, if not with their queries
    flat: bool = False  # all tokens of the call are at the start
    still: bool = False  # all new keys are at their start
    since: int = 1  # the first call with the fault; those before are right
    single: bool = False  # only calls of one token have the fault
    above: bool = False  # only layers above the first one have the fault
    # by what cached keys are rotated once more: their "index", the "offset" of the call, or their index "on reading",
    # if the cache keeps keys rotated once; "never" removes all rotation, "prompt" that of the first call
    again: str = ""
    scale: float = 1.0  # of scores after the first call

    def put(self, sizes: tuple[int, ...], past: Array, layer: int, layers: int) -> tuple[Array, Array, Array]:
        """Return positions of the queries, of all keys, and of the keys that the cache then holds."""
        *before, new = sizes
        right = len(before) < self.since or (self.single and new > 1) or (self.above and layer == 0)
        if right and self is not RIGHT:
            return RIGHT.put(sizes, past, layer, layers)
        seen, last = sum(before), before[-1] if before else 0
        known = {"one": 1, "seen": seen, "new": new, "before": last, "prompt": sizes[0], "call": len(before)}
        known |= {"kept": len(past), "summed": sum(accumulate(before))}
        known |= {"steps": (seen - sizes[0]) * (layers - 1) + new * layer, "each": seen * (layers - 1) + new * layer}
        each = np.zeros(new) if self.flat else np.arange(new, dtype=np.float64)
        q, k = (_total(words, known) + each for words in (self.q, self.q if self.k is None else self.k))
        k = k - each if self.still else k
        index = seen - len(past) + np.arange(len(past))
        more = {"": 0 * past, "offset": 0 * past + seen, "never": -past, "prompt": -past * (index < sizes[0])}
        keys = np.append(past + more.get(self.again, index), k)
        return q, keys, np.append(past, k) if self.again == "on reading" else keys


def _total(words: str, known: Mapping[str, int]) -> int:
    return sum(-known[word[1:]] if word[0] == "-" else known[word] for word in words.split())


RIGHT = Place("seen")
# names of faults and where each places tokens; those seldom mistaken for others come first
PLACES: Mapping[str, Sequence[Place]] = {
    "kv_cache.offset_ignored": [Place("")],
    "kv_cache.keys_from_zero": [Place("seen", ""), Place("seen", "", still=True)],
    "kv_cache.eviction_offset": [Place("kept")],
    "kv_cache.off_by_one": [Place(f"seen {by}") for by in ("one", "-one", "one one", "-one -one")],
    "kv_cache.count_too_early": [Place("seen new", since=n, above=above) for n in (1, 0) for above in (False, True)],
    "kv_cache.counts_calls": [Place("call")],
    "kv_cache.counts_layers": [Place("seen steps"), Place("seen each", since=0)],
    "kv_cache.first_layer_only": [Place("", above=True)],
    "kv_cache.past_constant": [Place("one " * past) for past in (*range(1, 17), 32, 64)],
    "kv_cache.offset_double_counted": [
        *(Place(f"seen {more}") for more in ("seen", "prompt", "before", "seen new", "prompt -before")),
        Place("summed"),
    ],
}
ROTATED: Mapping[str, Sequence[Place]] = {
    "kv_cache.query_offset_missing": [Place("", "seen")],
    "kv_cache.rotated_then_rotated_again": [Place("seen", again=how) for how in ("index", "offset", "on reading")],
    "kv_cache.keys_not_rotated": [Place("seen", again="never"), Place("seen", again="prompt")],
    "window.positions_constant": [Place(at, flat=True) for at in ("seen", "seen new -one", "")],
}
SIDES = {"one": "off_by_one", "-one": "off_by_one", "new": "count_too_early"}  # of only the queries or only the keys
NOWHERE = Place("", flat=True, again="never")


def faults(encoding: str) -> Iterator[Fault]:
    """Yield wrong positions with finding codes of an encoding."""
    places = [*PLACES.items()]
    for by, name in SIDES.items():
        places.append((f"kv_cache.{name}", [Place(f"seen {by}", "seen"), Place("seen", f"seen {by}")]))
    if encoding in ("rope", "xpos", "model"):
        places += ROTATED.items()
    if encoding in BIASES:
        places.append(("kv_cache.query_from_zero", [Place("", "seen")]))
    if encoding == "alibi":
        places.append(("kv_cache.bias_zero", [replace(NOWHERE, single=True)]))
    if encoding in (*BIASES, "model"):
        places.append(("decode.bias_dropped", [NOWHERE]))
    for name, some in places:
        for place in some:
            nowhere = place.flat and not place.q
            how = f"all tokens of a call {'are at position 0, or not rotated' if nowhere else 'get one position'}"
            yield Fault(f"{encoding}.{name}", {"place": place}, {"how": how})


@dataclass
class Table:
    """One layer's scores of equal tokens in a single pass."""

    at: Array  # (heads, queries, keys), minus each token's score for itself; NaN if not visible
    noise: float  # smaller differences count as equal
    extra: int  # columns after the keys that are not keys


@dataclass
class Tables:
    """The scores of a single pass in each layer."""

    token: Tensor  # (width,), the repeated token
    tables: dict[int, Table]  # one for each softmax that shows positions, by its index
    looks: int  # how many softmaxes a call has
    # for each schedule the number of keys of each call, in each table
    keys: dict[tuple[int, ...], list[list[int]]] = field(default_factory=dict)

    def observe(self, b: Bench, sizes: tuple[int, ...]) -> Array:
        """Return the scores of a schedule, a row for each layer, call, head and query."""
        calls = watch(b.subject, self.token.expand(1, sum(sizes), -1), sizes)
        if {len(looks) for looks in calls} != {self.looks}:
            raise NotAnsweredError("the calls compute other scores than a single pass")
        ends = np.cumsum(sizes)
        layers = [
            [looks[n].without(t.extra)[..., :end] / t.noise for looks, end in zip(calls, ends, strict=True)]
            for n, t in self.tables.items()
        ]
        self.keys[sizes] = [[scores.shape[-1] for scores in layer] for layer in layers]
        return _rows([scores for layer in layers for scores in layer], sum(sizes))

    def speeds_differ(self, b: Bench, sizes: tuple[int, ...]) -> bool:
        """Return whether a later call of as many tokens has other scores among its tokens, not only scaled ones."""
        first, later, *_ = watch(b.subject, self.token.expand(1, sum(sizes), -1), sizes)
        n, table = next(iter(self.tables.items()))
        one, two = (_less_itself(looks[n].without(table.extra)[..., -sizes[0] :]) for looks in (first, later))
        if one.shape != two.shape:
            return False
        scale = np.nansum(one * two) / max(np.nansum(one * one), 1e-30)
        return all(bool(np.nanmax(np.abs(t - two), initial=0.0) > table.noise) for t in (one, scale * one))

    def predict(self, place: Place, sizes: tuple[int, ...]) -> Array:
        """Return the scores of a schedule in which each call places its tokens so."""
        found: list[Array] = []
        for layer, (table, keys) in enumerate(zip(self.tables.values(), self.keys[sizes], strict=True)):
            past = np.zeros(0)
            for c, new in enumerate(sizes):
                past = past[len(past) - max(keys[c] - new, 0) :]
                put = place.put(sizes[: c + 1], past, layer, len(self.tables))
                q, k, past = (p.astype(int) for p in put)
                i, j, n = q[:, None], k[: keys[c]], table.at.shape[-1]
                known = (i >= 0) & (i < n) & (j >= 0) & (j < n)
                seen = table.at[:, i.clip(0, n - 1), j.clip(0, n - 1)] / table.noise
                found.append(np.where(known, seen * (place.scale if c else 1.0), math.nan))
        return _rows(found, sum(sizes))

    def rule(self, got: Array, sizes: tuple[int, ...]) -> str:
        """Return how the scores of steps for each other differ from a single pass, if only the distance decides them.

        Returns:
            "constant" if they do not depend on it either, "distance", or empty.
        """
        table, calls = next(iter(self.tables.values())), len(sizes)
        heads = len(table.at)
        if self.keys[sizes][0] != [*range(1, calls + 1)]:
            return ""
        rows = got[: calls * heads].reshape(calls, heads, -1)
        lags = [  # scores of the token `lag` before, less that of the token itself, in the calls after the first one
            np.stack([rows[c, :, c - lag] - rows[c, :, c] for c in range(lag + 1, calls)]) for lag in range(calls - 1)
        ]
        right = [(table.at[:, calls - 1, calls - 1 - lag] / table.noise)[None] for lag in range(calls - 1)]
        if any(np.ptp(each, axis=0).max() > 2 for each in lags) or not all(np.isfinite(each).all() for each in lags):
            return ""
        if not any(np.abs(each - want).max() > 2 for each, want in zip(lags, right, strict=True)):
            return ""
        return "distance" if any(np.abs(each).max() > 2 for each in lags) else "constant"

    def scale(self, got: Array, sizes: tuple[int, ...]) -> float:
        """Return the best factor from the scores of a single pass to those that differ from them."""
        wanted = self.predict(RIGHT, sizes)
        shown = np.isfinite(got) & np.isfinite(wanted)
        a, b = rowless(got, shown), rowless(wanted, shown)
        off = np.abs(a - b).max(-1) > 1
        return float((a[off] * b[off]).sum() / max((b[off] ** 2).sum(), 1e-30)) if off.any() else 1.0


def _rows(calls: Sequence[Array], width: int) -> Array:
    """Return all rows of calls (heads, queries, keys), padded with NaN."""
    filled = [np.pad(s, ((0, 0), (0, 0), (0, width - s.shape[-1])), constant_values=math.nan) for s in calls]
    return np.concatenate([s.reshape(-1, width) for s in filled])


def apart(got: Array, wanted: Array) -> Array:
    """Return the difference up to a constant per row; infinite if few pairs of positions are known."""
    shown = np.isfinite(got)
    known = shown & np.isfinite(wanted)
    if known.sum() <= 0.5 * shown.sum():
        return np.full(1, np.inf)
    return np.abs(rowless(got - wanted, known))


def read(b: Bench) -> Tables | None:
    """Return the tables of one token; None if no scores are visible, or they show no positions."""
    token = b.x[0, 0]
    for n in LENGTHS:
        text = token.expand(1, n, -1)
        try:
            (looks,), even = watch(b.subject, text, (n,)), b.run(text)
        except SubjectError:
            continue
        tables = {i: t for i, look in enumerate(looks) if (t := _table(look, n, b.tolerance)) is not None}
        if distance(even, even[:, :1].expand_as(even)) > b.tolerance:
            tables = dict([*tables.items()][:1])  # tokens contain positions: layers above see more than one token
        return Tables(token, tables, len(looks)) if tables else None
    return None


def place_of(b: Bench, n: int) -> int | None:
    """Return the position that the query of a step after n tokens has, as its scores for the cached keys show it."""
    text, chunks = b.x[0, 0].expand(1, n + 1, -1), (n, 1)
    try:
        calls, (whole,) = watch(b.subject, text, chunks), watch(b.subject, text, (n + 1,))
    except SubjectError:
        return None
    for look, step in zip(whole, calls[-1], strict=False):
        table, got = _table(look, n + 1, b.tolerance), step.without(look.extra())[:, 0]
        if table is None or got.shape[-1] != n + 1:
            continue
        known = np.isfinite(table.at[:, :, :n]) & np.isfinite(got[:, None, :n])
        off = np.abs(rowless(table.at[:, :, :n] - got[:, None, :n], known)).max((0, 2))
        return int(off.argmin()) if off.min() <= table.noise and known.all() else None
    return None


def _table(s: Look, n: int, tolerance: float) -> Table | None:
    """Complete the scores of a single pass; None if they show no positions."""
    at = s.scores[..., :n].numpy()
    if at.shape[1] != n or at.shape[2] < n:
        return None
    at = _less_itself(at)
    spread = float(np.nanmax(np.abs(at), initial=0.0))
    if not spread > FLAT:
        return None
    noise = (50 if tolerance > 1e-3 else 10) * tolerance * min(spread, 1.0) * (1 + 0.2 * spread)
    if s.product is not None:
        product, shown = s.product[..., :n].numpy(), np.isfinite(at)
        x, y = rowless(product, shown), rowless(at, shown)
        scale = (x * y).sum() / max((x * x).sum(), 1e-30)
        is_all = float((np.abs(scale * x - y) / (1 + np.abs(y))).max()) <= max(noise, tolerance)
        # hidden scores are known from the product; a bias of keys ahead, if any, depends on the size of the distance
        at = _less_itself(scale * product) if is_all else np.where(shown, at, at.swapaxes(-1, -2))
    return Table(at, noise, s.extra())


def _less_itself(at: Array) -> Array:
    return at - np.diagonal(at, axis1=-2, axis2=-1)[..., None]
