"""Biases from hidden tables: it is visible which distances share a number, but not whose row it is."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from torch import nn

from posenc.verify.engine import CannotTellError, Case, Choice, Fault, Seen
from posenc.verify.engine.observe import fresh
from posenc.verify.engine.records import Array, Model
from posenc.verify.families import indices
from posenc.verify.families.bias_calls import HIDDEN, LONGEST, Biases, ask, count, distance, gone
from posenc.verify.families.buckets import T5

UNKNOWN = "which row of the table belongs to a distance: the table is not visible"
AHEAD = "keys ahead of the query, which are right only if a causal mask hides them"
ALIKE = "whether each head has a bias of its own: all heads have the same numbers"
EMPTY = "all distances have the same bias: the table is empty, or the bias has no effect"


def _numbers(values: Array) -> Array:
    """Number the different columns of (heads, n) numbers."""
    size = float(np.abs(values).max(initial=0.0)) or 1.0
    _, numbers = np.unique(np.round(values / size * 2**20), axis=1, return_inverse=True)
    return numbers.ravel().astype(np.float64)


def _viewed(bias: Array) -> Array:
    """Return a bias (heads, q, k) whose numbers stand as (q, k, heads), with the heads first."""
    heads, *places = bias.shape
    return np.moveaxis(bias.reshape(*places, heads), -1, 0)


def _even(bias: Array, tolerance: float) -> bool:
    """Return whether the visible numbers of each distance agree."""
    lines = (line[line > HIDDEN] for k in range(1 - len(bias[0]), len(bias[0])) for line in bias.diagonal(k, 1, 2))
    return all(line.max(initial=-np.inf) - line.min(initial=np.inf) <= tolerance for line in lines)


def _limited(rel: Array, top: float) -> Array:
    return np.clip(rel, -top, top)


class Line(Biases):
    """Distances along a line: T5's buckets, or one number for each distance up to a largest one."""

    both, usual = True, (4,)

    def __init__(self, convention: str, spec: Mapping[str, Any]) -> None:
        self.t5 = spec.get("encoding") == "t5"
        self.word = self.definition = "t5" if self.t5 else "relative_bias"
        self.mismatch, self.state = f"{self.word}.mismatch", f"{self.word}.bias.state_kept"
        super().__init__(convention, spec)
        self.rule = T5("bucket_fn", {**(spec if self.t5 else {}), "bidirectional": not self.causal})
        top = float(spec.get("max_distance") or np.inf)
        own = {"top": top, "ends": None, "factor": 1.0}  # ends: a wrong rule of far distances, if there is one
        self.truth = {**self.rule.truth, "mask": self.masks()[0], "place": "end", **own}
        self.tables: list[Array] = []
        self.factor = 1.0  # of the rows of a visible table
        self.alike = self.decodes = False  # whether all heads are alike; whether keys ahead are shown but not judged

    def cases(self) -> Iterator[Case]:
        """Yield a square, and calls with a cache, some of them after others."""
        case = None
        for size in (24, 64, min(int(self.rule.max_distance * 1.2) + 8, 320)):
            case = Case("near", (self.heads, size, size), otherwise=case)
        yield from [case] if case else []
        if self.score_mod:
            yield Case("score", (self.heads, 5, 5))
        if (self.causal or self.open) and self.window:
            yield Case("far", (self.heads, 1, min(2 * self.window + 8, LONGEST)), optional=True)
        yield from self.steps(self.heads) if self.causal or self.open else ()

    def observe(self, subject: Any, case: Case) -> Seen:
        """Return the bias, and keep the object's tables."""
        owner = getattr(subject, "__self__", subject)
        tables = owner.parameters() if isinstance(owner, nn.Module) and self.t5 else ()
        self.tables = [t.detach().double().cpu().numpy() for t in tables if t.ndim == 2]
        return super().observe(subject, case)

    def look(self, seen: Sequence[Seen]) -> None:
        """Read the bias of each distance from the square, from the farthest key behind on; NaN if it is hidden."""
        s = seen[0]
        n, size, _ = s.case.args
        at = (size - 1 - distance(s.case.args)).astype(int)
        shown = ~gone(s).any(0)
        self.values = np.full((n, 2 * size - 1), np.nan)
        self.values[:, at[shown]] = s.value[:, shown]
        known = ~np.isnan(self.values[0])
        values = self.values[:, known]
        self.tolerance = 8 * s.eps * float(np.abs(values).max(initial=0.0))
        self.even = bool(np.abs(s.value - self.values[:, at])[:, shown].max(initial=0.0) <= self.tolerance)
        hides = all(mask.wrong(distance(s.case.args), gone(s)).any() for mask in self.masks())
        if (values == values[:, :1]).all() and not hides:
            raise CannotTellError(EMPTY)
        self.alike = len(values) > 1 and bool((values == values[:1]).all())
        rows = next((rows for table in self.tables if (rows := self._rows(table, values)) is not None), None)
        if self.factor > 0 and not self.score_mod:  # a bias alone does not show whether the scores are scaled too
            self.truth = {**self.truth, "factor": self.factor}
        self.shown, self.numbers = rows is not None, np.full(2 * size - 1, np.nan)
        self.numbers[known] = _numbers(values) if rows is None else rows

    def _rows(self, table: Array, values: Array) -> Array | None:
        """Return the row of a table for each bias in a list; None if the table does not contain it."""
        rows = table if table.shape[1] == len(values) else table.T
        if rows.shape != (self.rule.n_buckets, len(values)) or len(np.unique(rows, axis=0)) < len(rows):
            return None
        first = values[:, 0]  # a row, or a multiple of one
        factors = rows @ first / np.maximum((rows**2).sum(1), 1e-30)
        multiples = factors[np.abs(factors[:, None] * rows - first).max(1) < 1e-5 * np.abs(first).max()]
        for factor in (1.0, *(multiples if len(values) > 2 else ())):
            off = np.abs(values.T[:, None] - factor * rows[None]).max(-1)
            if off.min(-1).max() < 1e-6:
                self.factor = float(factor)
                return np.asarray(off.argmin(-1), dtype=np.float64)
        return None

    def excludes(self, seen: Seen, model: Model) -> bool:
        """Return whether a visible table is multiplied by another number."""
        return bool(model["factor"] != self.factor)

    def same(self, seen: Seen, predicted: Array) -> bool:
        """Return whether the bias has the rows as they are."""
        return self.factor == 1

    def unlike(self, seen: Sequence[Seen]) -> str:
        """Return the factor of the rows."""
        return f"the bias is {self.factor:.5g} times the rows of the table, right if the scores are scaled likewise"

    def predict(self, model: Model, case: Case) -> Array:
        """Return the rows of a rule, or the bias that the square has for the distances of another call."""
        _, q_len, k_len = size = case.args[:3]
        if case.kind == "near":
            rel = np.arange(-k_len + 1.0, k_len)
            rows = self.rule.predict(model, Case("near", (rel,)))
            return rows if self.t5 else (model["ends"] or _limited)(rel, model["top"])
        of_window = case.kind in ("far", "beyond")  # only its mask is compared
        if of_window or model["place"] == "flat":
            return np.full(size, np.nan if of_window else 0.0)
        d = distance(size) - (k_len - q_len) * (model["place"] == "start")
        d = np.broadcast_to(d[-1:], d.shape) if model["place"] == "last" and q_len < k_len else d
        return np.asarray(self.values[:, (self.values.shape[1] // 2 - d).astype(int)])

    def off(self, seen: Seen, predicted: Array, model: Model) -> Array:
        """Return where distances share a row wrongly, except for edges that rounding moves."""
        if seen.case.kind != "near":  # distances that the square does not show are not compared
            return super().off(seen, np.where(np.isnan(predicted), seen.value, predicted), model)
        size, mask = seen.case.args, model["mask"]
        if not self.even or mask.wrong(distance(size), gone(seen)).any():
            return np.full(1, np.inf)
        rel = np.arange(-size[2] + 1.0, size[2])
        known = ~np.isnan(self.numbers) & mask.sees(-rel)
        for edges in (self.truth, self.truth if self.shown else model) if self.t5 else ():
            known = known & (self.rule.rows(edges, rel)[1] < 1)
        found, want = self.numbers[known], predicted[known]
        if not self.shown:
            found, want = indices.firsts(found), indices.firsts(want)
        return np.where(found == want, 0.0, np.inf)

    def free(self) -> Iterator[Choice]:
        """Yield the visible side if the specification declares none."""
        for mask in self.masks():
            yield Choice({"mask": mask})
            if self.open and self.t5:
                yield Choice({"mask": mask, "bidirectional": False})

    def faults(self) -> Iterator[Fault]:
        """Yield wrong buckets, and faults of calls with more keys than queries."""
        if self.factor != self.truth["factor"]:
            why = f", that is, divided by sqrt({self.factor**-2:.4g})" if 0 < self.factor < 1 else ""
            values = {"factor": f"{self.factor:.5g}", "why": why}
            yield Fault("t5.scale.applied_to_bias", {"factor": self.factor}, values)
        yield from self.windows()
        yield from self.rule.faults() if self.t5 else self._of_ends()
        for from_zero in False, True:
            mask = replace(self.truth["mask"], from_zero=from_zero)
            yield Fault(f"{self.word}.kv_cache.query_from_zero", {"place": "start", "mask": mask})
        words = "all queries of a call after a cache have the bias of the last one"
        yield Fault(f"{self.word}.kv_cache.query_from_zero", {"place": "last"}, {"message": words})
        yield Fault(f"{self.word}.decode.bias_dropped", {"place": "flat"})

    def _of_ends(self) -> Iterator[Fault]:
        """Yield signs that are lost, and distances that end, or start again, where the measured ones do."""
        yield Fault("relative_bias.sign_lost", {"ends": lambda rel, top: _limited(np.abs(rel), top)})
        line = self.numbers[len(self.numbers) // 2 :: -1]  # of keys behind, the query's own first
        new = indices.firsts(line) == np.arange(len(line))
        top = float(new.argmin())
        if not new.all():
            values = {"used": top - 1, "asked": self.truth["top"]}
            yield Fault("relative_bias.max_distance", {"top": top - 1}, values)
            yield Fault("relative_bias.wrapped", {"ends": lambda rel, _: rel % top}, {"end": top})
            yield Fault("relative_bias.wrapped", {"ends": lambda rel, _: np.fmod(rel, top)}, {"end": top})

    def read(self, seen: Sequence[Seen], wrong: Sequence[Seen], model: Model) -> Fault | None:
        """Return distances that have several biases, perhaps since heads are in the wrong places."""
        viewed = not self.even and _even(_viewed(seen[0].value), self.tolerance)
        return None if self.even else Fault(f"{self.word}.bias.{'heads_viewed' if viewed else 'not_by_distance'}")

    def measured(self, seen: Sequence[Seen], model: Model) -> dict[str, Any]:
        """Keep whether a decoder's mask was assumed for keys ahead."""
        self.decodes = self.open and model["mask"].causal and "ahead" not in self.hides
        return {}

    def not_judged(self, seen: Sequence[Seen]) -> list[str]:
        """Return the parts that were not judged."""
        left = [*super().not_judged(seen), *([] if self.tables and self.shown else [UNKNOWN])]
        left += [AHEAD] if self.decodes else []
        return left + ([ALIKE] if self.alike else [])


class Window(indices.Indices):
    """A bias over the tokens of a window of an image."""

    numbered = False

    def cases(self) -> Iterator[Case]:
        """Yield the one window."""
        if self.asked is None:
            raise CannotTellError("no window is declared; declare window")
        yield Case("near", self.asked, f"the bias of a window of {self.asked}")

    def observe(self, subject: Any, case: Case) -> Seen:
        """Return numbers for the pairs of tokens, equal where their biases are equal."""
        tokens = case.args[0] * case.args[1]
        heads = int(self.spec.get("heads") or count(fresh(subject), tokens, self.convention, (4,)))
        self.bias = ask(fresh(subject), (heads, tokens, tokens), self.convention)[0]
        seen = self._numbered(self.bias, case)
        if not seen.value.any():
            raise CannotTellError(EMPTY)
        return seen

    def _numbered(self, bias: Array, case: Case) -> Seen:
        numbers = _numbers(np.maximum(bias, HIDDEN).reshape(len(bias), -1))
        return Seen(case, numbers.reshape(bias.shape[1:]), 0.0)

    def read(self, seen: Sequence[Seen], wrong: Sequence[Seen], model: Model) -> Fault | None:
        """Return heads in the wrong places, or what is wrong with the rows."""
        viewed = self.is_right(self._numbered(_viewed(self.bias), wrong[0].case))
        return Fault("swin.bias.heads_viewed") if viewed else super().read(seen, wrong, model)

    def not_judged(self, seen: Sequence[Seen]) -> list[str]:
        """Return the parts that were not judged."""
        return [UNKNOWN]
