"""Which row of a trained table each token of a text gets, read off the table itself."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from posenc.verify.engine import CannotTellError, Case, Seen
from posenc.verify.engine.observe import fresh
from posenc.verify.engine.records import Array
from posenc.verify.families.added_calls import Added, Shape, finding, leaves, modules, ready
from posenc.verify.guard import SubjectError

LARGEST = 2**23  # numbers of a text that is asked for
PAST = 9  # tokens past the end of a table
NONE, ZERO = -1.0, -2.0  # numbers of what is no row of the table, and of a row of zeros


def filled(subject: Any) -> Any:
    """Return a copy whose tables hold random numbers, all rows different: fresh tables are often zeros."""
    made = fresh(subject)
    if not isinstance(made, nn.Module) or made is subject:
        return subject
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for t in made.parameters():
            if t.ndim >= 2 and t.is_floating_point():
                noise = torch.randn(t.shape, generator=generator, dtype=torch.float64).to(t.dtype)
                zero = (t == 0).all(-1, keepdim=True) & bool(t.any())  # rows of padding stay zero
                t.copy_(torch.where(zero, t, noise))
    return made


def match(code: Array, table: Array) -> Array:
    """Return the row of the table that each vector is, NONE where it is none, ZERO where it is zero."""
    found = np.full(len(code), NONE)
    for i, vector in enumerate(code):
        off = np.abs(table - vector).max(-1)
        best = int(off.argmin())
        if off[best] <= 2e-5 * max(1.0, float(np.abs(vector).max())):
            found[i] = best
        elif np.abs(vector).max() <= 1e-6:
            found[i] = ZERO
    return found


def between(code: Array, table: Array) -> Array:
    """Return where between two neighbouring rows of the table each vector lies, NONE where it lies nowhere."""
    found = np.full(len(code), NONE)
    steps = np.diff(table, axis=0)
    for i, vector in enumerate(code):
        share = ((vector - table[:-1]) * steps).sum(-1) / np.maximum((steps**2).sum(-1), 1e-30)
        off = np.abs(table[:-1] + np.clip(share, 0, 1)[:, None] * steps - vector).max(-1)
        best = int(off.argmin())
        if off[best] <= 1e-4 * max(1.0, float(np.abs(vector).max())):
            found[i] = best + float(np.clip(share[best], 0, 1))
    return found


def stretched(n: int, entries: int) -> list[Array]:
    """Return where n tokens lie in a table that is stretched, by middles and by ends upon one another."""
    at = np.arange(n)
    return [np.clip((at + 0.5) * entries / n - 0.5, 0, entries - 1), at * (entries - 1) / max(n - 1, 1)]


class Rows(Added):
    """The calls of a module that adds rows of a trained table.

    Attributes:
        first: The row of the first token.
        top: The length that must work; 0 where none is asked for.
        needed: How many rows there must be.
        table: The rows; those of a table that grows with the text are asked for anew.
    """

    word = "learned"
    ignores = "base temperature layout variant order origin activation_dtype"
    shapes = ((2, 3), (2, 5), (3, 7))

    def __init__(self, convention: str, spec: Mapping[str, Any]) -> None:
        super().__init__(convention, spec)
        self.top = int(spec.get("max_positions") or 0)
        padding = spec.get("padding_idx", spec.get("padding"))
        numbered = isinstance(padding, int) and not isinstance(padding, bool)
        offset, start = spec.get("offset"), spec.get("start")
        behind = padding + 1 if numbered and offset is None and start is None else 0
        self.first = int(offset or 0) + int(start or 0) + behind
        said = spec.get("table_rows")
        self.needed = max(int(said) if isinstance(said, int) else 0, self.top + self.first if self.top else 0)
        self.table = np.zeros((0, 0))

    def observe(self, subject: Any, case: Case) -> Seen:
        """Return the answer to one question, of a subject whose tables are filled."""
        if not self.heard:
            self.subject = filled(subject)
            self.heard.append(Seen(case, np.zeros(0)))
        return super().observe(self.subject, case)

    def added(self, subject: Any, case: Case) -> Seen:
        """Return the row of each token, after the factor that the rows come with."""
        ask = {"again": self._again, "rows": self._length, "far": self._far, "past": self._past}
        ask |= {"frozen": self._frozen, "learns": self._learns}
        if case.kind in ask:
            return ask[case.kind](subject, case)
        code = self.calls.code(ready(subject), case.args[0])
        if not np.abs(code).max() > 1e-7:
            raise finding("learned.not_used", self.calls.case(case.args[0]))
        self.table = self._table(subject, case.args[0])
        gain, rows = self._scaled(code)
        return Seen(case, np.concatenate([[gain], rows]))

    def _scaled(self, code: Array) -> tuple[float, Array]:
        """Return the factor under which vectors are rows of the table, and the rows."""
        rows = match(code, self.table)
        if (rows != NONE).all():
            return 1.0, rows
        vector, norms = code[-1], np.linalg.norm(self.table, axis=-1)
        cosines = self.table @ vector / np.maximum(norms * np.linalg.norm(vector), 1e-30)
        best = int(np.abs(cosines).argmax())
        gain = float(vector @ self.table[best] / max(norms[best] ** 2, 1e-30))
        again = match(code / gain, self.table) if abs(cosines[best]) > 1 - 1e-6 else rows
        return (gain, again) if (again != NONE).all() else (1.0, rows)

    def _tables(self, subject: Any, shape: Shape) -> list[Tensor]:
        """Return what may be the table in the graph of a call: trained, and as wide as the code."""
        out = self.calls.raw(subject, shape, grad=True)
        return [t for t in leaves(out) if t.ndim >= 2 and t.shape[-1] == self.calls.dim]

    def _table(self, subject: Any, shape: Shape) -> Array:
        """Return the rows of the table, also where it does not train.

        Raises:
            CannotTellError: None was found.
        """
        called = ready(subject)
        found = self._tables(called, shape)
        if not found:
            held = [t for m in modules(called) for t in (*m.parameters(), *m.buffers())]
            found = [t for t in held if t.ndim >= 2 and t.shape[-1] == self.calls.dim]
        if not found:
            raise CannotTellError(
                "no table was found among the parameters or in the graph of the result: its rows cannot be read"
            )
        table = max(found, key=lambda t: t.numel())
        rows: Array = table.detach().double().reshape(-1, self.calls.dim).numpy()
        return rows

    def _frozen(self, subject: Any, case: Case) -> Seen:
        """Return 1 where the table takes a gradient."""
        shape = case.args[0]
        tables = self._tables(ready(subject), shape)
        return Seen(case, np.array([float(any(t.numel() == self.table.size for t in tables))]))

    def _learns(self, subject: Any, case: Case) -> Seen:
        """Return the number of rows in use that take no gradient, as a padding row does."""
        n = max(min(5, len(self.table) - self.first), 1)
        called = ready(subject)
        out = self.calls.raw(called, (1, n), grad=True)
        free = [t for t in leaves(out) if t.numel() == self.table.size]
        if not free:
            return Seen(case, np.zeros(1))
        (grad,) = torch.autograd.grad(out.double().sum(), free[:1])
        used = grad.reshape(-1, self.calls.dim)[self.first : self.first + n].abs().sum(-1)
        return Seen(case, np.array([float((used == 0).sum())]), note=(used == 0).nonzero().flatten().tolist())

    def _again(self, subject: Any, case: Case) -> Seen:
        """Return the rows of one object, call after call."""
        called = ready(subject)
        shapes = tuple(s for s in case.args if self.first + s[1] <= len(self.table))
        rows = [match(self.calls.code(called, shape), self.table) for shape in shapes]
        return Seen(Case(case.kind, shapes, case.words), np.concatenate([np.ones(1), *rows]))

    def _length(self, subject: Any, case: Case) -> Seen:
        """Return how many of the rows that are asked for there are."""
        needed = self.needed
        n = self.top or len(self.table) - self.first
        rows = len(self.table)
        if rows < needed and 0 < n * self.calls.dim <= LARGEST:
            try:
                self.calls.raw(ready(subject), (1, n))
            except SubjectError as error:
                said = f"{needed} rows are needed, and a text of {n} tokens fails: {error.cause.message[:160]}"
                raise finding("learned.table_too_short", self.calls.case((1, n)), float(rows), message=said) from error
            rows = needed if self.top else rows  # a table that grows, or is stretched, is judged by its rows
        return Seen(case, np.array([float(min(rows, needed))]), note=needed)

    def _far(self, subject: Any, case: Case) -> Seen:
        """Return the rows of the longest text that the table has rows for."""
        n = len(self.table) - self.first
        n = min(n, self.top or n)
        if n <= max(s[1] for s in self.shapes) or n * self.calls.dim > LARGEST:
            return Seen(Case(case.kind, ()), np.ones(1))
        shape = (1, n)
        try:
            code = self.calls.code(ready(subject), shape)
        except SubjectError as error:  # what ends before its table does may say so
            if not self.top:
                return Seen(Case(case.kind, ()), np.ones(1))
            said = f"{self.top} positions were asked for, and {n} tokens fail: {error.cause.message[:160]}"
            raise finding("learned.table_too_short", self.calls.case(shape), float(n), message=said) from error
        off = np.abs(code - self.table[self.first : self.first + n]).max(-1)
        wrong = np.flatnonzero(off > 1e-4 * max(np.abs(self.table).max(), 1e-6))[:64]
        n = int(wrong[-1]) + 1 if len(wrong) == 64 else n
        rows = self.first + np.arange(n, dtype=np.float64)
        rows[wrong] = match(code[wrong], self.table)
        return Seen(Case(case.kind, ((1, n),), self.calls.words(shape)), np.concatenate([np.ones(1), rows]))

    def _past(self, subject: Any, case: Case) -> Seen:
        """Return the rows that a text longer than the table gets, where it is not refused."""
        rows = len(self.table) - self.first
        n = self.top or rows + PAST
        shape, nothing = (1, n), Seen(Case(case.kind, ()), np.ones(1))
        if rows <= 0 or n <= rows or n > 4096 or n * self.calls.dim > LARGEST:
            return nothing
        called = ready(subject)
        try:
            code = self.calls.code(called, shape)
            grown = self._table(called, shape)
        except SubjectError:
            return nothing
        found = self._places(code, grown if self._grew_well(grown, n) else self.table)
        return Seen(Case(case.kind, (shape,), case.words), np.concatenate([np.ones(1), found]))

    def _places(self, code: Array, table: Array) -> Array:
        """Return the row of each token of a text that is longer than the table was, also of one that is stretched."""
        rows, right = match(code, table), self.first + np.arange(len(code), dtype=np.float64)
        if len(table) >= self.first + len(code) or (rows[:3] == right[:3]).all():
            return rows
        rows = between(code, self.table)
        rules = stretched(len(rows), len(table) - self.first)
        off = min(np.abs(rows - self.first - rule).max() for rule in rules)
        return right if off < 0.02 else rows

    def _grew_well(self, grown: Array, n: int) -> bool:
        """Return whether a table that grew keeps its old rows, and gives each new one numbers of its own."""
        old = len(self.table)
        return (
            len(grown) >= self.first + n
            and bool(np.abs(grown[:old] - self.table).max() <= 1e-6)
            and bool((match(grown[old:], self.table) < 0).all())
        )

    def refusal(self, subject: Any, case: Case, error: SubjectError) -> SubjectError:
        """Return the finding behind a call that fails: the batch taken for the text."""
        shape = case.args[0] if case.args else ()
        if shape and shape[0] > 1 and self.calls.works(subject, (1, *shape[1:])):
            return finding("learned.axis.batch", self.calls.case(shape))
        return error
