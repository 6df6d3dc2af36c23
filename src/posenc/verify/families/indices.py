"""Rows of a table for distances in a window: every distance (dy, dx) must have one row, of its own."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from posenc.verify.engine import Case, Choice, Family, Fault, Seen
from posenc.verify.engine.observe import fresh
from posenc.verify.engine.records import Array, Model
from posenc.verify.families.bias_calls import Places, invoke
from posenc.verify.guard import SubjectError
from posenc.verify.report import Cause

WINDOWS = ((3, 5), (5, 3), (2, 7), (4, 4), (1, 4), (4, 1))
Size = tuple[int, int]


def family(convention: str, spec: Mapping[str, Any]) -> Family:
    """Return the family of `index(h, w)` for a specification."""
    return Indices(convention, spec)


def asked(spec: Mapping[str, Any]) -> Size | None:
    """Return the window of a specification, rows and columns."""
    said = spec.get("window")
    if said is None:
        return None
    return (int(said), int(said)) if isinstance(said, int) else (int(said[0]), int(said[1]))


def offsets(h: int, w: int, by_columns: bool = False) -> tuple[Array, Array]:
    """Return dy and dx of each pair of tokens, (h w, h w)."""
    n = np.arange(float(h * w))
    y, x = (n % h, n // h) if by_columns else (n // w, n % w)
    return y[:, None] - y, x[:, None] - x


def labels(rows: Array) -> Array:
    """Number rows by their first place: what is left of them where any renumbering is right."""
    _, first, inverse = np.unique(rows, return_index=True, return_inverse=True)
    numbers: Array = np.argsort(np.argsort(first))[inverse].reshape(rows.shape).astype(np.float64)
    return numbers


class Indices(Family):
    """`index(h, w)`; any numbering of the distances is right that keeps to the table."""

    definition, mismatch = "swin", "swin.index.not_by_distance"

    def __init__(self, convention: str, spec: Mapping[str, Any]) -> None:
        super().__init__(convention, spec)
        self.asked = asked(spec)
        self.truth = {"by_columns": False}
        self.limits: dict[Size, int] = {}

    def cases(self) -> Iterator[Case]:
        """Yield the window that is asked for and others."""
        for size in [*([self.asked] if self.asked else []), *(s for s in WINDOWS if s != self.asked)]:
            optional = size != self.asked and (self.asked is not None or 1 in size)
            yield Case("near" if size == self.asked else "other", size, f"index{size}", optional)

    def observe(self, subject: Any, case: Case) -> Seen:
        """Return the row numbers."""
        n = case.args[0] * case.args[1]
        try:
            found = invoke(fresh(subject), *case.args, what=case.words)
            if not isinstance(found, Tensor) or found.numel() != n * n:
                got = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
                message = f"{case.words} must return a tensor of shape {(n, n)}; got {got}"
                raise SubjectError(Cause("subject.shape", message, 1.0, {"call": case.words}, "Return one row a pair."))
        except SubjectError as error:
            if case.optional:  # a subject may be for one window only
                return Seen(case, np.zeros(0))
            raise error
        rows = found.detach().cpu().reshape(n, n).double().numpy()
        if (rows != np.round(rows)).any():
            raise SubjectError(Cause("swin.index.not_integer", "", 1.0, {"call": case.words}))
        return Seen(case, rows, 0.0)

    def raised(self, cause: Cause, case: Case) -> Fault | None:
        """Return a fault of ours under its own words."""
        return Fault(cause.code, {}, {"message": "", "fix": ""}) if cause.code.startswith("swin.") else None

    def look(self, seen: Sequence[Seen]) -> None:
        """Find how many rows the table of each window has; smaller windows may be parts of one table."""
        sizes = [s.case.args for s in seen if s.value.size]
        told = int(self.spec.get("table_rows") or 0)
        self.limits = {(h, w): (2 * h - 1) * (2 * w - 1) for h, w in sizes}
        if told and self.asked:
            self.limits[self.asked] = told
        if not told and not self.asked:
            return
        most = self.asked or (max(map(max, sizes)),) * 2
        parts = [s for s in seen if s.value.size and s.case.args[0] <= most[0] and s.case.args[1] <= most[1]]
        rows: dict[tuple[float, float], float] = {}
        for s in parts:
            for row, *d in zip(*(t.ravel() for t in (s.value, *offsets(*s.case.args))), strict=True):
                if rows.setdefault((d[0], d[1]), row) != row:
                    return
        self.limits |= {s.case.args: self.limits[self.asked] if self.asked else told for s in parts}

    def predict(self, model: Model, case: Case) -> Array:
        """Return Swin's row numbers."""
        h, w = case.args
        dy, dx = offsets(h, w, model["by_columns"])
        rows: Array = (dy + h - 1) * (2 * w - 1) + dx + w - 1
        return rows

    def off(self, seen: Seen, predicted: Array, model: Model) -> Array:
        """Return where tokens share a row, and others do not, otherwise than their distances; or rows of no table."""
        if not seen.value.size:
            return np.zeros(1)
        differs = labels(seen.value) != labels(predicted)
        return np.where(differs | self._outside(seen), np.inf, 0.0)

    def _outside(self, seen: Seen) -> Places:
        outside: Places = (seen.value < 0) | (seen.value >= self.limits.get(seen.case.args, np.inf))
        return outside

    def same(self, seen: Seen, predicted: Array) -> bool:
        """Return whether the rows are numbered as Swin's."""
        return not seen.value.size or bool((seen.value == predicted).all())

    def unlike(self, seen: Sequence[Seen]) -> str:
        """Return how the rows are numbered."""
        s = next(s for s in seen if s.value.size and not self.same(s, self.predict(self.truth, s.case)))
        words = _line(s) or "a renumbering"
        return (
            f"every distance has one row of its own, in another order ({words} for a window of {s.case.args}): a table "
            "that is trained so is as good, one from elsewhere has its rows moved"
        )

    def free(self) -> Iterator[Choice]:
        """Yield tokens that run down the columns, which a square window does not show."""
        if self.asked and self.asked[0] == self.asked[1]:
            words = "tokens run down the columns: in a square window every distance still has one row of its own"
            yield Choice({"by_columns": True}, f"{words}; for windows that are not square the axes are exchanged")

    def faults(self) -> Iterator[Fault]:
        """Yield exchanged axes."""
        yield Fault("swin.index.axes_swapped", {"by_columns": True})

    def read(self, seen: Sequence[Seen], wrong: Sequence[Seen], model: Model) -> Fault | None:
        """Return rows that distances share, distances with several rows, or rows that are not in the table."""
        bad = sorted(wrong, key=lambda s: s.case.args[0] * s.case.args[1])
        for code, differs in (("not_by_distance", _splits), ("collision", _collisions)):
            for s in bad:
                rows = self.predict(self.truth, s.case)
                if (places := differs(s.value, rows)).any():
                    return _pair(code, s, rows, places)
        for s in bad:
            if self._outside(s).any():
                h, w = s.case.args
                low, high, limit = int(s.value.min()), int(s.value.max()), self.limits[h, w]
                slots = {"call": s.case.words, "low": low, "high": high, "rows": limit, "last": limit - 1}
                line = f" ({_line(s)})" if _line(s) else ""
                return Fault("swin.index.out_of_table", {}, {**slots, "line": line}, {"h": h, "w": w})
        return None

    def smallest(self, seen: Seen, predicted: Array, off: Array) -> dict[str, Any]:
        """Return the window."""
        return {"h": seen.case.args[0], "w": seen.case.args[1]}


def _splits(found: Array, rows: Array) -> Places:
    """Return the pairs of tokens whose distance has another row elsewhere."""
    _, first, inverse = np.unique(rows, return_index=True, return_inverse=True)
    other: Places = found != found.ravel()[first][inverse].reshape(rows.shape)
    return other


def _collisions(found: Array, rows: Array) -> Places:
    """Return the pairs of tokens whose row belongs to another distance too."""
    return _splits(rows, found)


def _pair(code: str, s: Seen, rows: Array, wrong: Places) -> Fault:
    """Return a fault with two pairs of tokens that show it."""
    same, other = (rows, s.value) if code == "not_by_distance" else (s.value, rows)
    i, j = (int(v) for v in np.argwhere(wrong)[0])
    a, b = (int(v) for v in np.argwhere((same == same[i, j]) & (other != other[i, j]))[0])
    dy, dx = offsets(*s.case.args)
    here, there = ((int(dy[p]), int(dx[p])) for p in ((i, j), (a, b)))
    row, step = int(s.value[i, j]), 2 * s.case.args[1] - 1
    line = f"; it is {_line(s)}, where a step of {step} rows per dy keeps them apart" if _line(s) else ""
    slots = {"call": s.case.words, "here": here, "there": there, "row": row, "other": int(s.value[a, b]), "line": line}
    case = {"h": s.case.args[0], "w": s.case.args[1], "tokens": [i, j], "and": [a, b]}
    return Fault(f"swin.index.{code}", {}, {**slots, "evidence": float(wrong.mean())}, case)


def _line(s: Seen) -> str:
    """Return row numbers as a straight line in dy and dx, in words; empty if they are none."""
    x = np.stack([*offsets(*s.case.args), np.ones_like(s.value)], -1).reshape(-1, 3)
    found = np.round(np.linalg.lstsq(x, s.value.ravel(), rcond=None)[0])
    if np.abs(x @ found - s.value.ravel()).max() > 1e-6:
        return ""
    terms = [(v, name) for v, name in zip(found, ("dy", "dx", ""), strict=True) if v]
    parts = [name if name and v == 1 else f"{v:g} {name}".strip() for v, name in terms] or ["0"]
    return " + ".join(parts).replace("+ -", "- ")
