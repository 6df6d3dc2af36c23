"""Rows of a table for distances in a window: every distance (dy, dx) must have exactly one row of its own."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from posenc.verify import guard
from posenc.verify.engine import Case, Choice, Family, Fault, Seen
from posenc.verify.engine.observe import fresh
from posenc.verify.engine.records import Array, Model
from posenc.verify.families.bias_calls import invoke

WINDOWS = ((3, 5), (5, 3), (2, 7), (4, 4), (1, 4), (4, 1))
RENUMBERED = (
    "every distance has one row of its own, in another order: right for a table trained this way, but rows of another "
    "implementation do not fit"
)
OTHERS = ((7, 7), (8, 8), (14, 14), (12, 12), (16, 16))  # windows whose index may be kept for all
COLUMNS = (
    "tokens run down the columns: in a square window every distance still has one row of its own; in windows that "
    "are not square the axes are exchanged"
)


def index_of(dy: Array, dx: Array, h: int, w: int) -> Array:
    """Return Swin's row for a step (dy, dx) in a window of h by w."""
    return np.asarray((dy + h - 1) * (2 * w - 1) + dx + w - 1)


INDICES: Mapping[str, Mapping[str, Callable[..., Array]]] = {  # rows of the table from (dy, dx) and (h, w)
    "index.axes": {
        "(dx + w - 1) (2 h - 1) + dy + h - 1": lambda y, x, h, w: index_of(x, y, w, h),
        "(dy + h - 1) (2 h - 1) + dx + w - 1": lambda y, x, h, w: (y + h - 1) * (2 * h - 1) + x + w - 1,
        "(dx + w - 1) (2 w - 1) + dy + h - 1": lambda y, x, h, w: (x + w - 1) * (2 * w - 1) + y + h - 1,
    },
    "index.sign": {
        "": lambda y, x, h, w: index_of(-y, -x, h, w),
        " in the rows": lambda y, x, h, w: index_of(-y, x, h, w),
        " in the columns": lambda y, x, h, w: index_of(y, -x, h, w),
    },
    "index.step": {
        "the step of a row is 2 w, not 2 w - 1": lambda y, x, h, w: index_of(y, x, h, w) + y + h - 1,
        "the step of a row is w, not 2 w - 1": lambda y, x, h, w: (y + h - 1) * w + x + w - 1,
        "w - 1 is not added to dx": lambda y, x, h, w: index_of(y, x, h, w) - w + 1,
        "h - 1 is not added to dy": lambda y, x, h, w: index_of(y, x, h, w) - (h - 1) * (2 * w - 1),
        "rows are one too high": lambda y, x, h, w: index_of(y, x, h, w) + 1,
        "rows are one too low": lambda y, x, h, w: index_of(y, x, h, w) - 1,
        "dy and dx are added without a step": lambda y, x, h, w: y + h - 1 + x + w - 1,
        "|dy| and |dx| are used": lambda y, x, h, w: index_of(abs(y), abs(x), h, w),
    },
}
# wrong rows that are still one for each distance
RENUMBERS = {"index.sign": "steps are counted as key - query", "index.axes": "row "}


def family(convention: str, spec: Mapping[str, Any]) -> Family:
    """Return the family of `index(h, w)` for a specification."""
    return Indices(convention, spec)


def offsets(h: int, w: int, by_columns: bool = False) -> tuple[Array, Array]:
    """Return dy and dx of each pair of tokens, (h w, h w)."""
    n = np.arange(float(h * w))
    y, x = (n % h, n // h) if by_columns else (n // w, n % w)
    return y[:, None] - y, x[:, None] - x


def firsts(rows: Array) -> Array:
    """Return the first index of each row number, which is the same for any renumbering."""
    _, first, inverse = np.unique(rows, return_index=True, return_inverse=True)
    return np.asarray(first[inverse].reshape(rows.shape))


class Indices(Family):
    """`index(h, w)`; any numbering of the distances within the table is right.

    Attributes:
        numbered: Whether the row numbers themselves are visible.
    """

    definition, mismatch = "swin", "swin.index.not_by_distance"
    numbered = True

    def __init__(self, convention: str, spec: Mapping[str, Any]) -> None:
        super().__init__(convention, spec)
        said = spec.get("window")
        said = (said, said) if isinstance(said, int) else said
        self.asked = said and (int(said[0]), int(said[1]))
        self.truth = {"by_columns": False}

    def cases(self) -> Iterator[Case]:
        """Yield the requested window and others, which a subject may refuse."""
        if self.asked:
            yield Case("near", self.asked, f"index{self.asked}")
        for size in WINDOWS:
            yield Case("other", size, f"index{size}", optional=bool(self.asked) or 1 in size)

    def observe(self, subject: Any, case: Case) -> Seen:
        """Return the row numbers."""
        n = case.args[0] * case.args[1]
        found = invoke(fresh(subject), *case.args, what=case.words)
        if isinstance(found, Tensor) and found.numel() == n * n:
            found = found.reshape(n, n)
        elif case.optional:
            raise guard.NotAnsweredError("the result has rows for another number of pairs")
        return Seen(case, guard.shaped(found, (n, n), case.words).detach().cpu().double().numpy(), 0.0)

    def limit(self, h: int, w: int) -> int:
        """Return how many rows the table of a window has; a smaller window may use a part of the requested one."""
        rows = self.spec.get("table_rows")
        if self.asked and h <= self.asked[0] and w <= self.asked[1]:
            h, w = self.asked
        elif self.asked:
            rows = None
        return int(rows or (2 * h - 1) * (2 * w - 1))

    def predict(self, model: Model, case: Case) -> Array:
        """Return Swin's row numbers."""
        h, w = case.args
        return index_of(*offsets(h, w, model["by_columns"]), h, w)

    def off(self, seen: Seen, predicted: Array, model: Model) -> Array:
        """Return where tokens share a row but not a distance, or the reverse; or where rows are outside the table."""
        outside = (seen.value < 0) | (seen.value >= self.limit(*seen.case.args)) | (seen.value % 1 != 0)
        return np.where((firsts(seen.value) != firsts(predicted)) | (outside & self.numbered), np.inf, 0.0)

    def same(self, seen: Seen, predicted: Array) -> bool:
        """Return whether the rows are numbered like Swin's."""
        return bool((seen.value == predicted).all()) or not self.numbered

    def unlike(self, seen: Sequence[Seen]) -> str:
        """Return how the rows are numbered."""
        for code, said in RENUMBERS.items():
            for words, rule in INDICES[code].items():
                if all((s.value == rule(*offsets(*s.case.args), *s.case.args)).all() for s in seen):
                    return f"{RENUMBERED} ({said}{words})"
        return RENUMBERED

    def free(self) -> Iterator[Choice]:
        """Yield tokens that run down the columns, which a square window does not show."""
        if self.asked and self.asked[0] == self.asked[1]:
            yield Choice({"by_columns": True}, COLUMNS)

    def faults(self) -> Iterator[Fault]:
        """Yield exchanged axes."""
        yield Fault("swin.index.axes_swapped", {"by_columns": True})

    def read(self, seen: Sequence[Seen], wrong: Sequence[Seen], model: Model) -> Fault | None:
        """Return rows that distances share, distances with several rows, or rows that are not in the table."""
        bad = sorted(wrong, key=lambda s: s.value.size)
        for window in (*(s.case.args for s in seen), *OTHERS):
            if all(self.is_part(s, window) for s in wrong):
                return self.of_window(bad[0], window)
        for s in bad:
            rows = self.predict(self.truth, s.case)
            for code, same, other in (("not_by_distance", rows, s.value), ("collision", s.value, rows)):
                differs = np.argwhere(other != other.ravel()[firsts(same)])
                if len(differs):
                    return _pair(f"swin.index.{code}", s, tuple(differs[0]), firsts(same))
        rows, limit = bad[0].value, self.limit(*bad[0].case.args)
        slots = {"call": bad[0].case.words, "low": rows.min(), "high": rows.max(), "rows": limit, "last": limit - 1}
        return Fault(f"swin.index.{'not_integer' if (rows % 1).any() else 'out_of_table'}", {}, slots)

    def is_part(self, seen: Seen, window: tuple[int, int]) -> bool:
        """Return whether row numbers are the first ones of another window."""
        n, (h, w) = len(seen.value), window
        part = self.predict(self.truth, Case("other", window))[:n, :n] if h * w >= n else seen.value[:0]
        return seen.case.args != window and np.array_equal(seen.value, part)

    def of_window(self, seen: Seen, window: tuple[int, int]) -> Fault:
        """Return the fault of another window's row numbers."""
        slots = {"call": seen.case.words, "window": "{} x {}".format(*window)}
        return Fault("swin.index.other_window", {}, slots, dict(zip("hw", seen.case.args, strict=True)))

    def refine(self, fault: Fault, wrong: frozenset[str], right: frozenset[str], seen: Sequence[Seen]) -> Fault:
        """Return another window's row numbers in place of exchanged axes, if only one of h x w and w x h is wrong."""
        for s in seen if fault.code == "swin.index.axes_swapped" else ():
            h, w = s.case.args
            if (
                not self.is_right(s)
                and self.is_part(s, (w, h))
                and any(self.is_right(other) for other in seen if other.case.args == (w, h))
            ):
                return self.of_window(s, (w, h))
        return fault

    def is_right(self, seen: Seen) -> bool:
        """Return whether the answer has one row for each distance."""
        return not self.off(seen, self.predict(self.truth, seen.case), self.truth).any()


def _pair(code: str, s: Seen, at: tuple[int, ...], first: Array) -> Fault:
    """Return a fault with two pairs of tokens that show it."""
    other = divmod(int(first[at]), len(first))
    dy, dx = offsets(*s.case.args)
    here, there = ((int(dy[pair]), int(dx[pair])) for pair in (at, other))
    slots = {"call": s.case.words, "here": here, "there": there, "row": int(s.value[at]), "other": int(s.value[other])}
    case = {"h": s.case.args[0], "w": s.case.args[1], "tokens": list(map(int, at)), "and": list(other)}
    return Fault(code, {}, slots, case)
