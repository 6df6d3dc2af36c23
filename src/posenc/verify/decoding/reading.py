"""Which positions a model with a cache works with, read off the scores of one token said again and again.

Where all tokens are equal, so are all values, whatever the weights: every layer sees what it sees in one pass, and a
score tells the two positions alone. One long pass is the table; a fault says where to look.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from posenc.verify import guard
from posenc.verify.decoding.places import Rule, Step, parted, right, rules
from posenc.verify.decoding.runs import Bench
from posenc.verify.decoding.watch import Look, watch

PARTS = ((5, 3, 1, 1, 4, 2, 1), (4, 1, 1, 1, 1, 1), (1, 1, 1, 1, 1, 1), (3, 3, 3, 3), (2, 6, 1, 3))
ONES = ((5, 1, 1, 1, 1, 1, 1), (8, 1, 1, 1, 1), (1, 1, 1, 1, 1, 1), (2, 1, 1, 1))
FAR = ((40, 1, 1, 1), (3, *[1] * 40), (64, 1, 1, 1))
LENGTHS = (96, 64, 48, 32, 24, 16, 12)


@dataclass
class Table:
    """One layer's scores of equal tokens in one pass, a constant per row taken out.

    Args:
        at: (heads, queries, keys), NaN where it was not seen.
        by_distance: (heads, 2 n - 1), query minus key from 1 - n on; None if scores do not go by distance.
        itself: What was taken out of the first row: a token's mean score for itself.
        noise: What counts as equal.
    """

    at: Tensor
    by_distance: Tensor | None
    itself: float
    noise: float

    def look_up(self, q: Tensor, k: Tensor) -> Tensor:
        """Return scores (heads, queries, keys) at positions, NaN where they are not known."""
        n = self.at.shape[-1]
        if self.by_distance is not None:
            d = q[:, None] - k + n - 1
            known = (d >= 0) & (d < 2 * n - 1)
            return torch.where(known, self.by_distance[:, d.clamp(0, 2 * n - 2)], math.nan)
        known = (q[:, None] >= 0) & (q[:, None] < n) & (k >= 0) & (k < n)
        return torch.where(known, self.at[:, q.clamp(0, n - 1)][..., k.clamp(0, n - 1)], math.nan)


@dataclass
class Reading:
    """What was seen: a table for each layer, and for each schedule the looks of its calls."""

    tables: list[Table]
    runs: list[tuple[tuple[int, ...], list[list[Look]]]]
    whole: bool
    window: int | None = None
    layers: int | None = None

    def step(self, sizes: tuple[int, ...], kept: int, look: int) -> Step:
        """Say where a look stands: heads may be looked at one by one."""
        looks = len(self.tables)
        layers = self.layers if self.layers and looks % self.layers == 0 else looks
        return Step(len(sizes) - 1, sizes, kept, look * layers // looks, layers)

    def right(self) -> bool:
        """Whether all scores are those of one pass."""
        return all(self.explains(Rule("", right), n) for n in range(len(self.tables)))

    def explains(self, rule: Rule, layer: int) -> bool:
        """Whether a fault predicts all scores of a layer."""
        known = asked = 0
        for sizes, calls in self.runs:
            past = torch.zeros(0, dtype=torch.long)
            for c, looks in enumerate(calls):
                scores, total = looks[layer].scores, sum(sizes[: c + 1])
                m = min(scores.shape[-1], total)
                kept = max(m - sizes[c], 0)
                q, k = rule(self.step(sizes[: c + 1], kept, layer), past[-kept:] if kept else past[:0])
                wanted = self.tables[layer].look_up(q, k)
                off, seen, there = _apart(scores[..., : k.shape[0]], wanted)
                if off > self.tables[layer].noise:
                    return False
                known, asked = known + seen, asked + there
                past = _stored(rule, k, past, kept)
        return known > 0.5 * asked


def _stored(rule: Rule, k: Tensor, past: Tensor, kept: int) -> Tensor:
    """Return where the keys are that the cache holds from now on."""
    if getattr(rule.place, "reads", False) and kept:
        return torch.cat((past[-kept:], k[kept:]))
    return k


def _apart(seen: Tensor, wanted: Tensor) -> tuple[float, int, int]:
    """Return the largest difference without a constant per row, and how many pairs tell it, of how many."""
    shown = seen.isfinite()
    known = shown & wanted.isfinite()
    off = torch.where(known, seen - wanted, 0.0)
    mean = off.sum(-1, keepdim=True) / known.sum(-1, keepdim=True).clamp(min=1)
    size = 1 + 0.2 * torch.where(known, wanted, 0.0).abs()
    off = torch.where(known, (off - mean) / size, 0.0)
    return float(off.abs().max()), int(known.sum()), int(shown.sum())


Schedules = Sequence[tuple[int, ...]]


def read(
    b: Bench, family: str, spec: Mapping[str, Any], *, whole: bool, far: Schedules | None = None
) -> Reading | None:
    """Run one token said again and again; None where no scores are seen, or no positions in them.

    Args:
        b: The subject, and tokens.
        family: Of its encoding.
        spec: What is told of windows and layers.
        whole: Parts of several tokens as well.
        far: Other parts than the usual ones.
    """
    try:
        for token in b.x[:, 0]:
            found = _read(b, family, token, spec, whole=whole, far=far)
            if found is not None:
                return found
    except guard.SubjectError:
        return None
    return None


def _read(
    b: Bench, family: str, token: Tensor, spec: Mapping[str, Any], *, whole: bool, far: Schedules | None
) -> Reading | None:
    tables: list[Table] = []
    which: list[int] = []  # softmaxes of other things, and of layers without positions, are left out
    made = 0
    for n in LENGTHS if far is None or far is FAR else (max(map(sum, far)),):
        try:
            text = token.expand(1, n, -1)
            looks = watch(b.subject, text, (n,))[0]
            even = b.one_pass(text)
        except guard.SubjectError:
            continue
        known = [(i, t) for i, s in enumerate(looks) if (t := _table(s, n, family, b.tolerance)) is not None]
        made, which, tables = len(looks), [i for i, _ in known], [t for _, t in known]
        if b.distance(even, even[:, :1].expand_as(even)) > b.tolerance:
            tables = tables[:1]  # positions are in the tokens: layers above see more than one token
        break
    if not tables:
        return None
    runs = []
    schedules: Schedules = far or (PARTS if whole else ONES)
    for sizes in schedules:
        try:
            calls = watch(b.subject, token.expand(1, sum(sizes), -1), sizes)
        except guard.SubjectError:
            if not far:
                raise
            continue
        if {len(c) for c in calls} != {made}:
            return None
        runs.append((sizes, [[c[i] for i in which[: len(tables)]] for c in calls]))
    widths = [s[0].scores.shape[-1] - n for sizes, calls in runs for s, n in zip(calls, sizes, strict=True)]
    full = [sum(sizes[:i]) for sizes, _ in runs for i in range(len(sizes))]
    evicted = [w for w, f in zip(widths, full, strict=True) if w < f]
    told = {word: v for word in ("window", "layers") if isinstance(v := spec.get(word), int) and v > 0}
    room = max(evicted) if evicted else told.get("window")
    return Reading(tables, runs, whole, room, told.get("layers")) if runs else None


def _table(s: Look, n: int, family: str, tolerance: float) -> Table | None:
    """Complete the scores of one pass; None where they tell no positions."""
    scores = s.scores[..., :n]
    if scores.shape[1] != n or scores.shape[2] < n:
        return None
    spread = float((scores - scores.diagonal(dim1=-2, dim2=-1)[..., None]).nan_to_num().abs().max())
    if not spread > 1e-3:
        return None
    noise = (50 if tolerance > 1e-3 else 10) * tolerance * min(spread, 1.0)
    noise_here = max(noise, tolerance)
    found = [p for p in (() if s.product is None else (s.product, s.product.mT)) if p.shape[-1] == n]
    at = next((p for t in found if (p := _scaled(t, scores, noise_here)) is not None), scores)
    itself = at.diagonal(dim1=-2, dim2=-1)
    at = at - itself[..., None]
    lines = torch.stack([torch.nanmean(at.diagonal(-d, -2, -1), -1) for d in range(1 - n, n)], -1)
    if family == "alibi":  # a bias of keys ahead is hidden: of the distance's size, if any
        lines = torch.where(lines.isnan(), lines.flip(-1), lines)
    table = Table(at, lines, float(itself[:, 0].mean()), noise)
    places = torch.arange(n)
    if _apart(at, table.look_up(places, places))[0] > noise:
        table.by_distance = None
    return table


def _scaled(product: Tensor, scores: Tensor, noise: float) -> Tensor | None:
    """Return the product at the scale of the scores if these are no more than that: what a mask hides is known too."""
    rows = [torch.where(scores.isfinite(), t, math.nan) for t in (product, scores)]
    x, y = ((t - t.nanmean(-1, keepdim=True)).nan_to_num() for t in rows)
    scale = (x * y).sum() / (x * x).sum().clamp(min=1e-30)
    return scale * product if float(((scale * x - y) / (1 + y.abs())).abs().max()) <= noise else None


def name(reading: Reading, first: Sequence[Rule] = (), *, alone: bool = False) -> str | None:
    """Return the fault that predicts all scores, layer by layer; None if none does.

    Args:
        reading: What was seen.
        first: Faults to be tried before the usual ones.
        alone: Try those only.
    """
    if reading.right():
        return None
    found: list[str] = []
    whole = [*first, *(() if alone else rules(reading.window))]
    for layer in range(len(reading.tables)):
        tried = (Rule("", right), *whole, *(parted(whole) if reading.whole else ()))
        rule = next((r for r in tried if reading.explains(r, layer)), None)
        if rule is None:
            return None
        found.append(rule.fault)
    at = next(i for i, fault in enumerate(found) if fault)
    if at and found[at] in ("off_by", "count_early"):
        return "count_early_deep"
    return found[at]


def flat(reading: Reading, *, several: bool) -> bool:
    """Whether queries beside a cache score all keys alike: those of one token, or those of several."""
    rows = [
        looks[0].scores
        for sizes, calls in reading.runs
        for c, looks in enumerate(calls)
        if c and (sizes[c] > 1) == several
    ]
    if not rows:
        return False
    even = [(r - r.nan_to_num(-math.inf).amax(-1, keepdim=True)).nan_to_num().abs().max() for r in rows]
    return max(float(e) for e in even) <= reading.tables[0].noise


def as_of_itself(reading: Reading) -> bool:
    """Whether a query beside a cache scores each key as one pass scores a token for itself: at distance 0."""
    if not all(c[0].whole for _, calls in reading.runs for c in calls):
        return False
    table = reading.tables[0]
    rows = [c[0].scores for sizes, calls in reading.runs for c, n in zip(calls[1:], sizes[1:], strict=True) if n == 1]
    return all(abs(float(torch.nanmean(r)) - table.itself) <= table.noise for r in rows)


def right_within(reading: Reading) -> bool:
    """Whether the tokens of each call score one another as in one pass, whatever they make of those before."""
    table = reading.tables[0]
    for sizes, calls in reading.runs:
        for c, looks in enumerate(calls):
            total, p = sum(sizes[: c + 1]), torch.arange(sizes[c]) + sum(sizes[:c])
            scores = looks[0].scores
            end = min(total, scores.shape[-1])
            if _apart(scores[..., end - sizes[c] : end], table.look_up(p, p))[0] > table.noise:
                return False
    return True
