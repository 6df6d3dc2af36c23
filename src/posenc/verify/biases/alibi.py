"""ALiBi in whole: is a bias -slope * distance, with the right slopes, with and without a cache."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from posenc.verify.biases import axes, sides
from posenc.verify.biases.calls import HIDDEN, BiasMeter, Meter, Probe, Seen
from posenc.verify.biases.forms import (
    Fit,
    cached_forms,
    distance_forms,
    explaining,
    fit,
    right,
    same,
    same_scores,
    shifted,
    shown,
    worst,
)
from posenc.verify.biases.masks import case_of, masks
from posenc.verify.biases.slopes import Asked, Measured, alike, judge
from posenc.verify.biases.state import State
from posenc.verify.guard import SubjectError
from posenc.verify.report import Cause, Findings, first

NUMBERS = [6, 8, 12, 4, 2, 3, 5, 16, 20]
SQUARES = ((7, 7), (11, 11), (4, 4))
CACHED = ((1, 2), (1, 9), (3, 8), (5, 6), (3, 7))  # the last one has keys as many as a square had
LONGEST = 1 << 17  # keys of one query
FAR = 33_000  # where 16 bits have ended
UNASKED = 12  # from here on sizes are new to the subject
MEND = "Add slope * (key - query), which is 0 for the query's own key and falls the further back a key is."


class Alibi:
    """One check of one bias.

    Args:
        meter: How it is measured.
        spec: What was asked.
        asked: What slopes are right.
    """

    def __init__(self, meter: Meter, spec: Mapping[str, Any], asked: Asked) -> None:
        self.meter = meter
        self.asked = asked
        self.learned = spec.get("variant") == "learned"
        self.causal = bool(spec.get("causal", not spec.get("bidirectional", False)))
        self.sides = spec.get("variant") if spec.get("variant") in ("symmetric", "one-sided") else None
        heads = spec.get("heads")
        self.numbers = [int(heads)] if heads else list(NUMBERS)
        self.extra = [n for n in (8, 4, 16, 12) if n not in self.numbers]
        self.findings = Findings(definitions=[f"alibi@{asked.rule}"])
        self.fit: Fit | None = None
        self.seen: list[Seen] = []
        self.state = State(meter, bool(heads))

    def run(self) -> Findings:
        """Return what was found."""
        causes = self._causes()
        self.findings.causes = first(causes)
        return self.findings

    def _causes(self) -> list[Cause]:
        n = self.numbers[0]
        try:
            squares = [self.meter.see(Probe(n, *size)) for size in SQUARES]
        except SubjectError as error:
            return [self.state.stale(Probe(n, 11, 11)) or self._along(n) or error.cause]
        now, changed = self.state.again(squares[0], self.causal)
        if changed:
            form = shifted([*squares, *([now] if now else [])], self.asked.slopes, self.causal)
            return [self._wrong(*form[:3], [now], self.asked.slopes(n))] if form and now else changed
        hidden = masks(self.meter, squares, self.causal)
        if hidden:
            return hidden
        fits = [fit(s, self.causal) for s in squares]
        self.fit = fits[1]
        if not all(
            f.linear and torch.allclose(f.back, self.fit.back, max(1e-3, 8 * squares[0].eps), 1e-6) for f in fits
        ):
            return self._unlike(squares)
        if not bool((self.fit.back.abs() > 1e-9).any()):
            return [self._no_effect(squares[1])]
        causes = [*self._sides(self.fit), *self._slopes(n, squares[1])]
        slopes = self.fit.back
        cached = self._cached(n, slopes) if self.causal else []
        causes += cached
        if not cached and not any(c.code.startswith("alibi.bidirectional") for c in causes):
            causes += self._long(n, slopes)
        causes = self.state.again(squares[0], self.causal)[1] + causes
        if not causes:
            self._note_constant([*squares, *self.seen], n)
        return causes

    def _slopes(self, n: int, seen: Seen) -> list[Cause]:
        """Judge the slopes, for as many numbers of heads as can be asked."""
        assert self.fit
        found = Measured({n: self.fit.back})
        self.findings.measured["slopes"] = self.fit.back.tolist()
        if self.learned:
            if bool((self.fit.back >= 0).all()):
                return []
            message = f"A learned slope is negative, {float(self.fit.back.min()):.4g}: far keys are favoured."
            return [Cause("alibi.sign", message, float(self.fit.back.min()), {}, MEND)]
        others = [*self.numbers[1:], *self.extra] if self.meter.counts_heads else []
        for m, size in zip(others, range(UNASKED, 99), strict=False):
            seen_at, error = self._one_of(Probe(m, size, size), Probe(m, 7, 7))
            if error:
                hands_old = not self.state.heads_said and self.state.stale(Probe(m, 7, 7))
                if hands_old:
                    return [hands_old]
                found.failed[m] = error
                continue
            assert seen_at
            if hidden := masks(self.meter, [seen_at], self.causal):
                return hidden
            one = fit(seen_at, self.causal)
            if one.linear:
                found.slopes[m] = one.back
            elif m in self.numbers:
                return self._unlike([seen_at])
        kept = self.state.other_heads(n, found.slopes, 7, self.causal, seen.eps)
        if kept:
            return kept
        reach = float(torch.where(shown(seen, self.causal), seen.bias, 0.0).abs().max() / self.fit.back.abs().max())
        tolerance = max(self.asked.tolerance, 8 * seen.eps * max(reach / seen.probe.k_len, 1.0))
        asked = Asked(
            self.asked.rule,
            self.asked.bias_max,
            self.asked.head_dim,
            lambda m: self.meter.says(Probe(m, 7, 7)),
            tolerance,
        )
        causes, same_heads = judge(found, self.numbers, asked)
        self.findings.equivalent = same_heads
        return causes

    def _sides(self, found: Fit) -> list[Cause]:
        """Judge the keys ahead of a query where they are seen."""
        if self.causal:
            return []
        one_sided, causes = sides.judge(found, self.sides)
        self.findings.definitions += ["alibi@one-sided"] if one_sided else []
        return causes

    def _cached(self, n: int, slopes: Tensor) -> list[Cause]:
        """Judge calls with more keys than queries, by the slopes that the subject has."""
        seen: list[Seen] = []
        for size in CACHED:
            probe = Probe(n, *size)
            try:
                seen.append(self.meter.see(probe))
            except SubjectError as error:
                if self._over_queries(probe):
                    message = f"The bias is formed over the queries alone: {error.cause.message}."
                    help_ = next(iter(cached_forms())).mend
                    return [Cause("alibi.kv_cache.bias_zero", message, 1.0, probe._asdict(), help_)]
                return [self.state.stale(probe) or error.cause]
            if size == (1, 9) and bool((seen[-1].bias.std(-1) == 0).all()) and bool((slopes != 0).any()):
                form = next(iter(cached_forms()))
                return [self._wrong(form.code, form.words, form.mend, seen[:1], slopes)]
        self.seen = seen
        hidden = masks(self.meter, seen, self.causal)
        if hidden:
            return hidden
        bad = [s for s in seen if not self._fine(s, slopes)]
        if not bad:
            return []
        known = explaining(cached_forms(), seen, lambda _: slopes, self.causal) or shifted(
            seen, lambda _: slopes, self.causal
        )
        if known:
            return [self._wrong(known.code, known.words, known.mend, bad, slopes)]
        stale = next((c for s in bad if (c := self.state.stale(s.probe, s.raw))), None)
        words = "with more keys than queries the bias is no longer -slope * distance, by no known fault"
        return [stale or self._wrong("alibi.mismatch", words, MEND, bad, slopes)]

    def _long(self, n: int, slopes: Tensor) -> list[Cause]:
        """Judge distances that rounding, an end of a table or of a window would show at."""
        usual = int(min(2200, math.sqrt(1.2e7 / n)))
        beyond = min(2 * (self.meter.window or 0) + 8, LONGEST)  # a window twice as wide must be seen to end too
        causes = self._row(n, slopes, (max(usual, beyond), usual, 520, 300, 130))
        if not causes and self.causal and not self.meter.counts_heads:  # which is asked key by key, with no matrix
            causes = self._row(n, slopes, (FAR,))
        return causes

    def _row(self, n: int, slopes: Tensor, lengths: tuple[int, ...]) -> list[Cause]:
        """Judge the first of some lengths that can be asked for."""
        seen = None
        for k_len in lengths:
            try:
                seen = self.meter.see(Probe(n, 1, k_len) if self.causal else Probe(n, min(k_len, 300), min(k_len, 300)))
                break
            except SubjectError as error:  # a table may end; only where it does not raise it must be right
                if error.cause.code not in ("subject.raises", "subject.shape"):
                    return [error.cause]
        if seen is None:
            return []
        self.findings.measured["longest"] = seen.probe.k_len
        # far keys are as low by their distance as near ones that are hidden
        seen = replace(seen, hides_at=min(HIDDEN, -2 * float(slopes.abs().max()) * seen.probe.k_len))
        if hidden := masks(self.meter, [seen], self.causal):
            return hidden
        # slopes read off short distances are too rough for long ones
        want = self.asked.slopes(n)
        exact = slopes if self.learned or not alike(slopes, want, 1e-2) else want
        now = fit(seen, self.causal)
        if self._fine(seen, exact) or self._fine(seen, now.back if now.linear else exact):
            return []
        return self._unlike([seen], exact)

    def _unlike(self, seen: list[Seen], slopes: Tensor | None = None) -> list[Cause]:
        """Return the fault of a bias that is not linear."""

        def of(n: int) -> Tensor:
            return self.asked.slopes(n) if slopes is None else slopes

        form = explaining(distance_forms(seen, of, self.causal), seen, of, self.causal)
        form = form or (shifted(seen, of, self.causal) if len(seen) > 1 else None)
        bad = [s for s in seen if not self._fine(s, of(s.probe.heads))] or seen
        if form:
            return [self._wrong(form.code, form.words, form.mend, bad, of(bad[0].probe.heads))]
        if other := axes.told(seen, self.causal):
            return [self._wrong(*other, axes.MEND, bad, of(bad[0].probe.heads))]
        stale = next((c for s in bad if (c := self.state.stale(s.probe, s.raw))), None)
        words = "this is not -slope * distance, nor that with a constant in each row, nor a known fault of it"
        return [stale or self._wrong("alibi.mismatch", words, MEND, bad, of(bad[0].probe.heads))]

    def _along(self, n: int) -> Cause | None:
        """Return why a bias cannot be asked for these sizes, if its slopes do not lie along the heads."""
        if found := axes.behind(self.meter, n, self.causal):
            return self._wrong(*found[:2], axes.MEND, found[2], self.asked.slopes(n))
        return None

    def _one_of(self, *probes: Probe) -> tuple[Seen | None, Cause | None]:
        """Return what the first call gives that can be made, or why the last one could not."""
        cause = None
        for probe in probes:
            try:
                return self.meter.see(probe), None
            except SubjectError as error:
                cause = error.cause
        return None, cause

    def _over_queries(self, probe: Probe) -> bool:
        """Say whether the last answer had as many keys as queries."""
        raw = self.meter.last if isinstance(self.meter, BiasMeter) else None
        return raw is not None and raw.ndim > 1 and raw.shape[-1] == probe.q_len and raw.shape[-2] in (1, probe.q_len)

    def _fine(self, seen: Seen, slopes: Tensor) -> bool:
        return same_scores(seen, self._want(seen, slopes), self.causal)

    def _want(self, seen: Seen, slopes: Tensor) -> Tensor:
        if self.causal or self.fit is None:
            return right(seen.probe, slopes)
        d = seen.probe.distance()
        ahead = (
            torch.where(slopes == 0, 0.0, self.fit.ahead / self.fit.back * slopes)
            if len(slopes) == len(self.fit.back)
            else slopes
        )
        return -slopes[:, None, None] * d.clamp(min=0) - ahead[:, None, None] * (-d).clamp(min=0)

    def _no_effect(self, seen: Seen) -> Cause:
        row = seen.bias[0, -1]
        message = f"The bias is the same for all keys of a query ({float(row[0]):.4g} in the last row of head 0 of "
        message += f"{self.meter.says(seen.probe)}): the softmax takes it away, and positions have no effect."
        return Cause("alibi.no_effect", message, 0.0, seen.probe._asdict(), MEND)

    def _wrong(self, code: str, words: str, mend: str, seen: list[Seen], slopes: Tensor) -> Cause:
        """Return a cause with the least call that shows it."""
        s = min(seen, key=lambda s: s.probe.q_len * s.probe.k_len)
        want = self._want(s, slopes)
        most, (h, i, j) = worst(s, want, self.causal)
        message = f"{words[:1].upper()}{words[1:]}: {self.meter.says(s.probe)} has {float(s.bias[h, i, j]) + 0.0:.6g} "
        message += f"in head {h} "
        message += f"for query {i} (position {s.probe.k_len - s.probe.q_len + i}) and key {j}, where "
        message += f"{float(want[h, i, j]):.6g} is right, but for a constant of the row; off by {most:.4g}."
        return Cause(code, message, most, case_of(s, h, i, j, float(want[h, i, j])), mend)

    def _note_constant(self, squares: list[Seen], n: int) -> None:
        """Say so if rows have constants that scores cannot see."""
        want = self.asked.slopes(n)
        if self.learned and self.fit:
            want = self.fit.back
        off = next((s for s in squares if not same(s, self._want(s, want), self.causal)), None)
        if off is None or self.findings.equivalent:
            return
        own = (off.bias - self._want(off, want)).diagonal(off.probe.k_len - off.probe.q_len, 1, 2)
        h, i = divmod(int(own.abs().argmax()), off.probe.q_len)
        self.findings.equivalent = "each row has a constant added, which a softmax over the row takes away: in "
        self.findings.equivalent += f"{self.meter.says(off.probe)} it is {float(own[h, i]):.5g} in head {h}, query {i}"
