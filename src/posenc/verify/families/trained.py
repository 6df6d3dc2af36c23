"""Trained tables that are added to texts: rows are numbered by what they hold, so that the sum says which was taken."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from posenc.verify.engine import CannotTellError, Case, Fault, Seen
from posenc.verify.engine.records import Array, Model
from posenc.verify.families.added_calls import FLAGS, SAME, Added, Calls, Shape, finding, leaves, modules, ready
from posenc.verify.families.counts_faults import first_row, row_code
from posenc.verify.guard import SubjectError

LARGEST = 2**23  # numbers of a text that is asked for
PAST = 9  # tokens past the end of a table
NONE, ZERO = -1.0, -2.0  # numbers of what is no row of the table, and of zeros
DIGITS = 256  # which the coarsest type holds exactly


def trained(calls: Calls, subject: Any, shape: Shape) -> tuple[Any, list[Tensor]]:
    """Return a fresh copy of a subject, and its tensors that train through a call; all that it holds if none do."""
    dry, called = ready(subject), ready(subject)
    held, twins = ([t for m in modules(made) for t in (*m.parameters(), *m.buffers())] for made in (dry, called))
    through = leaves(calls.raw(dry, shape, grad=True))
    same = {id(a): b for a, b in zip(held, twins, strict=True)}
    return called, [same.get(id(t), t) for t in through or held]


def coded(calls: Calls, called: Any, shapes: Sequence[Shape], values: Sequence[tuple[Tensor, Tensor]]) -> list[Array]:
    """Return the codes of calls while tensors hold other numbers: those of a function are its own."""
    kept = [(tensor, tensor.detach().clone()) for tensor, _ in values]
    try:
        _write(values)
        return [calls.code(called, shape) for shape in shapes]
    finally:
        _write(kept)


@torch.no_grad()
def _write(values: Sequence[tuple[Tensor, Tensor]]) -> None:
    for tensor, value in values:
        tensor.copy_(value)


def _rows(code: Array) -> tuple[float, Array]:
    """Return the factor that rows of a numbered table come with, and their numbers, also between two of them."""
    gains, slack = code[:, 2:].mean(1), SAME * np.maximum(np.abs(code[:, 2:]).max(1), 1.0)
    even = np.ptp(code[:, 2:], 1) < slack
    gain = float(np.median([*gains[even & (np.abs(gains) > SAME)]] or 1.0))
    rows = np.where(even & (np.abs(gains - gain) < slack), (code[:, 0] * DIGITS + code[:, 1]) / gain, NONE)
    rows = np.where(np.abs(rows - np.round(rows)) < 0.02, np.round(rows), rows)
    return gain, np.where(np.abs(code).max(1) < 1e-6, ZERO, rows)


class Table(Added):
    """What tables of texts and of images share."""

    word, definition, mismatch = "learned", "learned", "learned.mismatch"
    ignores = "base temperature layout variant order origin activation_dtype"
    pairs = 0

    def __init__(self, convention: str, spec: Mapping[str, Any]) -> None:
        super().__init__(convention, spec)
        self.truth = {"gain": 1.0, "keep": 1.0}
        self.kinds = self.kinds[:2]

    def faults(self) -> Iterator[Fault]:
        """Yield what comes of the input; others are found on the way, or read."""
        yield from self.about_the_input()


class Trained(Table):
    """A trained table of a text's positions: row t + first is that of token t.

    Attributes:
        first: The row of the first token.
        top: The length that must work; 0 where none is asked for.
        table: The rows as they were.
    """

    shapes = ((2, 3), (2, 5), (3, 7))

    def __init__(self, convention: str, spec: Mapping[str, Any]) -> None:
        super().__init__(convention, spec)
        self.first, self.top = first_row(spec)[0] or 0, int(spec.get("max_positions") or 0)
        self.table: Array = np.zeros((0, 0))

    def cases(self) -> Iterator[Case]:
        """Yield calls of a few tokens, then those that show the ends of the table."""
        yield from self.flags("tokens")
        for shape in self.shapes:
            yield Case("near", (shape,), self.calls.words(shape), optional=shape[1] > 5)
        yield from self.flags("grad")
        n = max(len(self.table) - self.first, 0) or 5
        for lengths in ((5, 3, 8, 1, 5), (8, 5, 3, 1)):
            yield Case("again", tuple((3, k) for k in lengths if k <= n), "calls of one object, one after another")
        for name, tokens in (("far", min(n, self.top or n)), ("past", max(self.top, n + PAST * (not self.top)))):
            if len(self.table) and 7 < tokens * self.calls.dim <= LARGEST and (name == "far" or tokens > n):
                yield Case(name, ((1, tokens),), f"a text of {tokens} tokens", optional=not self.top)
        yield Case("table", ((1, min(n, 5)),), "its gradient and its length")

    def added(self, subject: Any, case: Case) -> Seen:
        """Return the factor that rows come with, and the row of each token."""
        called, found = trained(self.calls, subject, self.shapes[0])
        wide = [t for t in found if t.ndim >= 2 and t.shape[-1] == self.calls.dim]
        if not wide or self.calls.dim < 3:
            raise CannotTellError(
                "no table of three dimensions or more was found among the parameters or in the graph of the result"
            )
        table = max(wide, key=Tensor.numel)
        if case.kind == "table":
            self._whole(called, table, case.args[0])
            return Seen(case, np.zeros(1))
        self.table = table.detach().double().reshape(-1, self.calls.dim).numpy().copy()
        number = torch.arange(len(self.table))
        rows = torch.ones(len(self.table), self.calls.dim)
        rows[:, 0], rows[:, 1] = number // DIGITS, number % DIGITS
        codes = coded(self.calls, called, case.args, [(table, rows.reshape(table.shape))])
        if case.kind == "near" and not np.abs(codes[0]).max() > 1e-7:
            raise finding("learned.not_used", self.calls.case(case.args[0]))
        gain, first = _rows(codes[0])
        if case.kind == "near" and len(found) > 1 and (abs(gain - 1) > SAME or (first % 1).any() or NONE in first):
            raise CannotTellError("other trained numbers come between the table and the sum, so that no row is seen")
        taken = [_rows(code)[1] for code in codes]
        return Seen(case, np.concatenate([[gain], *(map(self._grown, taken) if case.kind == "past" else taken)]))

    def _whole(self, called: Any, table: Tensor, shape: Shape) -> None:
        """Look for rows in use that take no gradient, as a padding row does, and for rows that are missing."""
        out, n, case = self.calls.raw(called, shape, grad=True), len(self.table), self.calls.case(shape)
        if not any(t is table for t in leaves(out)):
            raise finding("learned.frozen", case, n=n)
        (grad,) = torch.autograd.grad(out.double().sum(), [table])
        stuck = grad.reshape(n, -1)[self.first : self.first + shape[1]].abs().sum(-1) == 0
        if stuck.any():
            raise finding("learned.padding_row_zeroed", case, row=self.first + int(stuck.int().argmax()))
        if n < int(self.spec.get("table_rows") or 0) and not self.top:  # one that grows is judged by its rows
            raise finding("learned.table_too_short", case, float(n), end=n)

    def _grown(self, rows: Array) -> Array:
        """Return the rows of a text longer than the table, as right where they are new, or all of it is stretched."""
        n, entries, at = len(rows), len(self.table) - self.first, np.arange(len(rows), dtype=np.float64)
        middles, ends = np.clip((at + 0.5) * entries / n - 0.5, 0, entries - 1), at * (entries - 1) / (n - 1)
        stretched = min(np.abs(rows - self.first - rule).max() for rule in (middles, ends)) < 0.02
        return np.where(stretched | ((at >= entries) & (rows == NONE)), self.first + at, rows)

    def refusal(self, subject: Any, case: Case, error: SubjectError) -> SubjectError:
        """Return the finding behind a call that fails: a table that ends too early, or the batch taken for the text."""
        shape = case.args[0]
        if case.kind in ("far", "past"):
            return finding("learned.table_too_short", self.calls.case(shape), message=error.cause.message)
        if shape[0] > 1 and self.calls.works(subject, (1, *shape[1:])):
            return finding("learned.axis.batch", self.calls.case(shape))
        return error

    def predict(self, model: Model, case: Case) -> Array:
        """Return the factor of the rows, and the row of each token."""
        if case.kind in FLAGS or case.kind == "table":
            return self.flag(model, case) if case.kind in FLAGS else np.zeros(1)
        rows = [np.broadcast_to(self.first + np.arange(shape[1]), shape).ravel() for shape in case.args]
        return np.concatenate([[model["gain"]], *rows])

    def read(self, seen: Sequence[Seen], wrong: Sequence[Seen], model: Model) -> Fault | None:
        """Return what the rows of the longest wrong text say."""
        near = [s for s in wrong if s.case.kind == "near"]
        s = near[-1] if near else next(s for s in wrong if s.case.kind in ("again", "far", "past"))
        gain, rows = float(s.value[0]), s.value[1:]
        if abs(gain - 1) > SAME:
            return Fault(f"learned.{'added_twice' if abs(gain - 2) < SAME else 'scaled'}", {}, {"factor": gain})
        t = int((rows != self.predict(self.truth, s.case)[1:]).argmax()) % s.case.args[0][1]
        row = {ZERO: "zeros", NONE: "no row of the table"}.get(rows[t], f"row {rows[t]:g} of the table")
        words = f"token {t} gets {row}, where row {self.first + t} is its own"
        case = {"x": [1, t + 1, self.calls.dim], "row": float(rows[t]), "right": self.first + t}
        code = "state_kept" if s.case.kind == "again" else self._named(rows.reshape(s.case.args[0]), t)
        tail = code == "start" and len({float(s.value[1]) for s in near}) > 1  # another one in each text
        return Fault(f"learned.{'slice.tail' if tail else code}", {}, {"message": words}, case)

    def _named(self, rows: Array, t: int) -> str:
        """Return the code of wrong rows; the first wrong one is that of token t."""
        line, first = rows[0], int(rows[0, 0])
        if (rows != line).any():
            return "axis.batch"
        if t and (line[t:] == (ZERO if line[t] == ZERO else line[t - 1])).all():
            return "table_too_short"
        if (np.diff(line) == 1).all() and first >= 0:
            padded = 0 < first <= len(self.table) and self.table.any() and not self.table[first - 1].any()
            return row_code(first, self.first, first - 1 if padded else None)
        return "wrapped" if t and line[t] < line[t - 1] and not (line % 1).any() else "mismatch"

    def not_judged(self, seen: Sequence[Seen]) -> list[str]:
        """Return what was not looked at."""
        longest = max((s.case.args[0][1] for s in seen if s.case.kind in ("near", "far", "past")), default=0)
        return [f"texts of more than {longest} tokens", *self.ignored()]
