"""Biases out of tables that are not shown: which distances share a number can be seen, whose row it is cannot."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from torch import nn

from posenc.verify.engine import CannotTellError, Case, Choice, Family, Fault, Seen
from posenc.verify.engine.observe import fresh
from posenc.verify.engine.records import Array, Model, kind
from posenc.verify.families import bias_faults, indices
from posenc.verify.families.bias_calls import Asker, added, distance
from posenc.verify.families.buckets import T5
from posenc.verify.families.masks import HIDDEN, Mask, on_both_sides, window
from posenc.verify.guard import SubjectError
from posenc.verify.report import Cause

HEADS = (4, 8, 12, 6, 3, 2, 16, 1, 5, 10, 20, 24, 32)
UNKNOWN = "which row of the table a distance has: the table is not shown"
EMPTY = "all distances have one bias: the table is empty, or the bias has no effect"
NO_PLACE, FLAT = 1e3, 2e3  # of a row of the bias: no query has it; it is the same for all keys


def _ask(asker: Asker, subject: Any, heads: int, sizes: Sequence[int]) -> tuple[int, int, Array, float]:
    """Return how many heads and tokens could be asked for, the bias and its rounding.

    Raises:
        SubjectError: No usual number of heads can be asked for.
    """
    error = None
    for size in sizes:
        for n in [heads] if heads else HEADS:
            try:
                return (n, size, *asker.ask(subject, (n, size, size)))
            except SubjectError as one:
                error = error or one
    assert error
    raise error


def _numbers(values: Array) -> Array:
    """Number the different columns of (heads, n) numbers."""
    size = float(np.abs(values).max()) or 1.0
    _, numbers = np.unique(np.round(values / size * 2**20), axis=1, return_inverse=True)
    return numbers.ravel().astype(np.float64)


class Line(Family):
    """Distances along a line: T5's buckets, or one number each up to a largest distance."""

    def __init__(self, convention: str, spec: Mapping[str, Any]) -> None:
        super().__init__(convention, spec)
        self.t5 = spec.get("encoding") == "t5"
        self.definition = "t5" if self.t5 else "relative_bias"
        self.mismatch = f"{self.definition}.mismatch"
        self.kinds = (kind(f"{self.definition}.bias.state_kept", "again", "near cached"),)
        self.both = bool(spec.get("bidirectional", not spec.get("causal", False)))
        self.open = spec.get("bidirectional") is None and spec.get("causal") is None
        size = window(spec)
        one_sided = Mask(True, None if size is None else size - 1)
        self.masks = [*(on_both_sides(size) if self.both else []), *([one_sided] if self.open or not self.both else [])]
        self.mask = self.masks[0]
        self.rule = T5("bucket_fn", {**spec, "bidirectional": self.both})
        top = float(spec.get("max_distance") or np.inf)
        self.truth = {**self.rule.truth, "place": "end", **({} if self.t5 else {"top": top})}
        self.asker = Asker(convention == "score_mod", spec.get("heads"), f"{self.definition}.bias.state_kept")
        self.values: tuple[Array, float] | None = None  # the bias of each distance, nearest key ahead last

    def cases(self) -> Iterator[Case]:
        """Yield a square, and calls with a cache, some of them after others."""
        size = min(int(self.rule.max_distance * 1.2) + 8, 320)
        yield Case("near", (size, 64, 24), "the bias of a square")
        if self.asker.score_mod:
            yield Case("score", (self.values_heads, 5, 5), "a score_mod of other scores")
        if self.both and not self.open:
            return
        heads, reach = self.values_heads, self.mask.reach
        if reach is not None:
            yield Case("far", (heads, 1, min(2 * reach + 10, 1 << 17)), "a long row", optional=True)
        for size_ in ((3, 8), (3, 9), (1, 9)):
            yield Case("cached", (heads, *size_), self.asker.words((heads, *size_)))
        if not self.asker.score_mod:
            yield Case("again", (heads, 1, 9, heads, 3, 9), "a call after another")
            yield Case("again", (heads, 3, 9, heads, 3, 8), "a call after another")

    def observe(self, subject: Any, case: Case) -> Seen:
        """Return the row of each distance, or where the queries of a call with a cache stand."""
        one = fresh(subject)
        if case.kind == "near":
            return self._square(one, case)
        size = case.args[:3]
        if case.kind == "score":
            return self.asker.added(one, case)
        if case.kind == "again":
            self.asker.ask(one, case.args[3:])
        found, eps = self.asker.ask(one, size)
        self._refuse_hidden(size, found)
        return Seen(case, np.zeros(1) if case.kind == "far" else self._places(size, found, eps), eps)

    def _refuse_hidden(self, size: tuple[int, int, int], found: Array) -> None:
        right = [mask for mask in self.masks if not mask.wrong(size, found <= HIDDEN).any()]
        self.mask = right[0] if right else self.mask
        if fault := self.mask.fault(size, found <= HIDDEN, self.definition):
            raise SubjectError(Cause(fault.code, "", 1.0, {"fault": fault}))

    def _square(self, subject: Any, case: Case) -> Seen:
        heads = int(self.spec.get("heads") or 0)
        n, size, found, eps = _ask(self.asker, subject, heads, case.args)
        self.values_heads = n
        self._refuse_hidden((n, size, size), found)
        rel = np.arange(-size + 1.0, size)
        shown = self.mask.shown((n, size, size)) & (found > HIDDEN).all(0)
        at = (size - 1 - distance((n, size, size))).astype(int)
        values = np.full((n, len(rel)), np.nan)
        values[:, at[shown]] = found[:, shown]
        off = np.where(shown, np.abs(found - values[:, at]), 0.0)
        if off.max() > 8 * eps * np.nanmax(np.abs(values)):
            h, i, j = (int(v) for v in np.unravel_index(int(off.argmax()), off.shape))
            place = {"heads": n, "q_len": size, "k_len": size, "head": h, "query": i, "key": j}
            fault = Fault(
                f"{self.definition}.bias.not_by_distance", {}, {"value": f"{found[h, i, j]:.5g}", **place}, place
            )
            raise SubjectError(Cause(fault.code, "", 1.0, {"fault": fault}))
        self.values = values, eps
        known = ~np.isnan(values[0])
        rows = self._rows(subject, values[:, known])
        if rows is None and (values[:, known] == values[:, known][:, :1]).all():
            self._constant(found)
        labels = np.full(len(rel), -1.0)
        labels[known] = _numbers(values[:, known]) if rows is None else rows
        return Seen(Case("near", (n, size, size), self.asker.words((n, size, size))), labels, eps, rows is not None)

    def _constant(self, found: Array) -> None:
        """Report one bias for all distances: a decoder's past in one bucket, or an empty table."""
        first = np.where(found[:, 0] > HIDDEN, found[:, 0], found[:, 0, :1])
        if self.t5 and not self.both and (first != first[:, :1]).any():
            raise SubjectError(Cause("t5.bucket.direction", "", 1.0, {}))
        raise CannotTellError(EMPTY)

    def _rows(self, subject: Any, values: Array) -> Array | None:
        """Return the row of the subject's own table for each distance; None if it has no such table."""
        owner = subject if isinstance(subject, nn.Module) else getattr(subject, "__self__", None)
        if not self.t5 or not isinstance(owner, nn.Module):
            return None
        for table in owner.parameters():
            rows = table.detach().double().cpu().numpy()
            if rows.ndim != 2 or len(values) not in rows.shape or self.rule.n_buckets not in rows.shape:
                continue
            rows = rows if rows.shape[1] == len(values) else rows.T
            off = np.abs(values.T[:, None] - rows[None]).max(-1)
            if off.min(-1).max() < 1e-6 and len(np.unique(rows, axis=0)) == len(rows):
                return np.asarray(off.argmin(-1), dtype=np.float64)
        return None

    def _places(self, size: tuple[int, int, int], found: Array, eps: float) -> Array:
        """Return how far each query stands from its place, by the bias of its row."""
        assert self.values is not None
        values, eps = self.values[0], max(eps, self.values[1])
        middle, allowed = (values.shape[1] - 1) // 2, 8 * eps * float(np.nanmax(np.abs(values)))
        d, home = distance(size), size[2] - size[1]
        shown = self.mask.shown(size) & (found > HIDDEN).all(0)
        places = np.full(size[1], NO_PLACE)
        for i in range(size[1]):
            for shift in (-home, 0):
                see = shown[i] & (d[i] + shift >= 0)
                want = values[:, (middle - d[i, see] - shift).astype(int)]
                if (np.abs(found[:, i, see] - want) <= allowed).all():
                    places[i] = shift
            if places[i] == NO_PLACE and np.ptp(found[:, i, shown[i]], axis=1).max() == 0:
                places[i] = FLAT
        return places

    def predict(self, model: Model, case: Case) -> Array:
        """Return the rows of a rule, or where queries stand."""
        if case.kind == "near":
            rel = np.arange(-case.args[1] + 1.0, case.args[1])
            return (
                self.rule.predict(model, Case("near", (rel,))) if self.t5 else np.clip(rel, -model["top"], model["top"])
            )
        if case.kind == "score":
            return added(case)
        if case.kind == "far":
            return np.zeros(1)
        shift = {"end": 0.0, "start": float(case.args[1] - case.args[2]), "flat": FLAT}[model["place"]]
        return np.full(case.args[1], shift)

    def off(self, seen: Seen, predicted: Array, model: Model) -> Array:
        """Return where distances share a row otherwise, but for edges that rounding moves."""
        if seen.case.kind == "score":
            return np.asarray(np.abs(seen.value - predicted) / seen.note)
        if seen.case.kind != "near":
            return np.where(seen.value == predicted, 0.0, np.inf)
        rel, known = np.arange(-seen.case.args[1] + 1.0, seen.case.args[1]), seen.value >= 0
        if self.t5:
            edges = [self.rule.rows(m, rel)[1] for m in ((self.truth,) if seen.note else (self.truth, model))]
            known = known & ~np.any(edges, axis=0)
        found, want = seen.value[known], predicted[known]
        if not seen.note:
            found, want = indices.labels(found), indices.labels(want)
        return np.where(found == want, 0.0, np.inf)

    def same(self, seen: Seen, predicted: Array) -> bool:
        """Return True: `off` has compared every distance."""
        return True

    def free(self) -> Iterator[Choice]:
        """Yield the side that is seen where the specification is silent."""
        if self.open and self.t5:
            yield Choice({"bidirectional": False})

    def faults(self) -> Iterator[Fault]:
        """Yield wrong buckets, and what goes wrong once there are more keys than queries."""
        yield from self.rule.faults() if self.t5 else ()
        yield Fault(f"{self.definition}.kv_cache.query_from_zero", {"place": "start"})
        yield Fault(f"{self.definition}.decode.bias_dropped", {"place": "flat"})

    def read(self, seen: Sequence[Seen], wrong: Sequence[Seen], model: Model) -> Fault | None:
        """Return what becomes of scores, or a memory where an answer was given to another call before."""
        if scored := [s for s in wrong if s.case.kind == "score"]:
            return bias_faults.of_score(scored[0], f"{self.definition}.score.not_added")
        stale = any(self.asker.stale(s.case.args) for s in wrong if s.case.kind == "cached")
        return Fault(self.asker.code) if stale else None

    def raised(self, cause: Cause, case: Case) -> Fault | None:
        """Return a fault that was found while asking."""
        ours = {"message": "", "fix": ""}
        if case.kind == "again":
            return Fault(self.asker.code, {}, ours)
        if "fault" in cause.smallest_case:
            fault: Fault = cause.smallest_case["fault"]
            return replace(fault, values={**fault.values, **ours}, case={**fault.case, "fault": None})
        return Fault(cause.code, {}, ours) if cause.message == "" else None

    def smallest(self, seen: Seen, predicted: Array, off: Array) -> dict[str, Any]:
        """Return the least distance that shares its number with others than it should, or the call."""
        if seen.case.kind != "near":
            return dict(zip(("heads", "q_len", "k_len"), seen.case.args, strict=False))
        return {"heads": seen.case.args[0], "k_len": seen.case.args[1]}

    def measured(self, seen: Sequence[Seen], model: Model) -> dict[str, Any]:
        """Return how far distances were asked for."""
        return {"longest": max(s.case.args[1] for s in seen if s.case.kind == "near")}

    def not_judged(self, seen: Sequence[Seen]) -> list[str]:
        """Return what cannot be seen."""
        return [] if any(s.note for s in seen) else [UNKNOWN]


class Window(indices.Indices):
    """A bias over the tokens of a window of an image."""

    def __init__(self, convention: str, spec: Mapping[str, Any]) -> None:
        super().__init__(convention, spec)
        if self.asked is None:
            raise CannotTellError("the window is not said; say window")
        self.asker = Asker(convention == "score_mod", spec.get("heads"), "swin.index.not_by_distance")

    def cases(self) -> Iterator[Case]:
        """Yield the one window."""
        assert self.asked
        yield Case("near", self.asked, f"the bias of a window of {self.asked}")

    def observe(self, subject: Any, case: Case) -> Seen:
        """Return numbers for the pairs of tokens, the same where their biases are."""
        tokens = case.args[0] * case.args[1]
        *_, found, _ = _ask(self.asker, fresh(subject), int(self.spec.get("heads") or 0), (tokens,))
        numbers = _numbers(found.reshape(len(found), -1)).reshape(tokens, tokens)
        if not numbers.any():
            raise CannotTellError(EMPTY)
        return Seen(case, numbers, 0.0)

    def look(self, seen: Sequence[Seen]) -> None:
        """Set no size of the table: it is not shown."""

    def same(self, seen: Seen, predicted: Array) -> bool:
        """Return True: no numbering can be seen."""
        return True

    def not_judged(self, seen: Sequence[Seen]) -> list[str]:
        """Return what cannot be seen."""
        return [UNKNOWN]
