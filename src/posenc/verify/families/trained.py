"""Trained tables that are added to texts: rows are numbered by what they hold, so that the sum says which was taken."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from posenc.verify.engine import CannotTellError, Case, Fault, Seen
from posenc.verify.engine.records import Array, Model, kind
from posenc.verify.families.added_calls import FLAGS, SAME, Added, Calls, Shape, finding, leaves, modules, ready
from posenc.verify.families.learned_rows import row_code
from posenc.verify.guard import SubjectError

LARGEST = 2**23  # numbers of a text that is asked for
PAST = 9  # tokens past the end of a table
NONE, ZERO = -1.0, -2.0  # numbers of what is no row of the table, and of zeros
DIGITS = 256  # which the coarsest type holds exactly


def trained(calls: Calls, subject: Any, shape: Shape) -> tuple[Any, list[Tensor], bool]:
    """Return a fresh copy, its tensors that train through a call, or all that it holds, and whether any train."""
    dry, called = ready(subject), ready(subject)
    held, twins = ([t for m in modules(made) for t in (*m.parameters(), *m.buffers())] for made in (dry, called))
    through = [t for t in leaves(calls.raw(dry, shape, grad=True)) if t.numel() > 1]
    same = {id(a): b for a, b in zip(held, twins, strict=True)}
    return called, [same.get(id(t), t) for t in through or held], bool(through)


@contextmanager
def written(values: Iterable[tuple[Tensor, Tensor]]) -> Iterator[None]:
    """Write other numbers into tensors for a while: a function's own cannot be copied."""
    pairs = [(tensor, tensor.detach().clone(), value) for tensor, value in values]
    with torch.no_grad():
        for tensor, _, value in pairs:
            tensor.copy_(value)
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, kept, _ in pairs:
                tensor.copy_(kept)


def _rows(code: Array) -> tuple[float, Array]:
    """Return the factor that rows of a numbered table come with, and their numbers, also between two of them."""
    gains, slack = code[:, 2:].mean(1), SAME * np.maximum(np.abs(code[:, 2:]).max(1), 1.0)
    even = np.ptp(code[:, 2:], 1) < slack
    gain = float(np.median(gains[even & (np.abs(gains) > SAME)])) if (even & (np.abs(gains) > SAME)).any() else 1.0
    rows = np.where(even & (np.abs(gains - gain) < slack), (code[:, 0] * DIGITS + code[:, 1]) / gain, NONE)
    near = np.round(rows)
    rows = np.where(np.abs(rows - near) < 0.02, near, rows)
    return gain, np.where(np.abs(code).max(1) < 1e-6, ZERO, rows)


class Trained(Added):
    """A trained table of a text's positions: row t + first is that of token t.

    Attributes:
        first: The row of the first token.
        top: The length that must work; 0 where none is asked for.
        table: The rows as they were.
    """

    word, definition, mismatch = "learned", "learned", "learned.mismatch"
    ignores = "base temperature layout variant order origin activation_dtype"
    shapes = ((2, 3), (2, 5), (3, 7))
    pairs = 0

    def __init__(self, convention: str, spec: Mapping[str, Any]) -> None:
        super().__init__(convention, spec)
        padding = spec.get("padding_idx", spec.get("padding"))
        behind = isinstance(padding, int) and not isinstance(padding, bool)
        said = [int(spec[name]) for name in ("offset", "start") if spec.get(name) is not None]
        self.first = sum(said) if said or not behind else int(padding) + 1  # type: ignore[arg-type]
        self.top = int(spec.get("max_positions") or 0)
        self.table = np.zeros((0, 0))
        self.truth = {"gain": 1.0, "keep": 1.0}
        ends = kind("learned.padding_row_zeroed", "learns"), kind("learned.table_too_short", "rows")
        self.kinds = (*self.kinds[:2], *ends)

    def cases(self) -> Iterator[Case]:
        """Yield calls of a few tokens, then those that show the ends of the table."""
        yield from self.flags("tokens")
        for shape in self.shapes:
            yield Case("near", (shape,), self.calls.words(shape), optional=shape[1] > 5)
        yield from self.flags("grad")
        n = max(len(self.table) - self.first, 0) or 5
        yield Case("learns", ((1, min(n, 5)),), "the gradient of the table")
        for lengths in ((5, 3, 8, 1, 5), (8, 5, 3)):
            yield Case("again", tuple((3, k) for k in lengths if k <= n), "calls of one object, one after another")
        if not self.top:  # a table that grows, or is stretched, is judged by its rows
            yield Case("rows", (), "the length of the table")
        past = self.top if self.top > n else n + PAST
        for name, tokens in (("far", min(n, self.top or n)), ("past", past)):
            if len(self.table) and 7 < tokens * self.calls.dim <= LARGEST:
                shape, asked = (1, tokens), tokens <= self.top
                yield Case(name, (shape,), self.calls.words(shape), optional=not asked)

    def added(self, subject: Any, case: Case) -> Seen:
        """Return the factor that rows come with, and the row of each token."""
        if case.kind == "rows":
            return Seen(case, np.array([float(len(self.table))]))
        called, found, trains = trained(self.calls, subject, self.shapes[0])
        wide = [t for t in found if t.ndim >= 2 and t.shape[-1] == self.calls.dim]
        if not wide:
            raise CannotTellError("no table was found among the parameters or in the graph of the result")
        table = max(wide, key=Tensor.numel)
        if case.kind == "learns":
            return self._learns(called, table if trains else None, case)
        self.table = table.detach().double().reshape(-1, self.calls.dim).numpy().copy()
        number = torch.arange(len(self.table))
        rows = torch.ones(len(self.table), self.calls.dim)
        rows[:, 0], rows[:, 1] = number // DIGITS, number % DIGITS
        with written([(table, rows.reshape(table.shape))]):
            codes = [self.calls.code(called, shape) for shape in case.args]
        if case.kind == "near" and not np.abs(codes[0]).max() > 1e-7:
            raise finding("learned.not_used", self.calls.case(case.args[0]))
        both = [_rows(code) for code in codes]
        found_rows = [self._new_ones(r) if case.kind == "past" else r for _, r in both]
        return Seen(case, np.concatenate([[both[0][0]], *found_rows]))

    def _learns(self, called: Any, table: Tensor | None, case: Case) -> Seen:
        """Return the number of rows in use that take no gradient, as a padding row does."""
        n = case.args[0][1]
        stuck = torch.ones(n, dtype=torch.bool)
        if table is not None:
            (grad,) = torch.autograd.grad(self.calls.raw(called, (1, n), grad=True).double().sum(), [table])
            stuck = grad.reshape(-1, self.calls.dim)[self.first : self.first + n].abs().sum(-1) == 0
        return Seen(case, np.array([float(stuck.sum())]), note=stuck.nonzero().flatten().tolist())

    def _new_ones(self, rows: Array) -> Array:
        """Return the rows of a text longer than the table as right where they are new, or all of it is stretched."""
        n, entries = len(rows), len(self.table) - self.first
        at, right = np.arange(n), self.first + np.arange(n)
        middles = np.clip((at + 0.5) * entries / n - 0.5, 0, entries - 1)
        for rule in (middles, at * (entries - 1) / max(n - 1, 1)):
            if np.abs(rows - self.first - rule).max() < 0.02:
                return right * 1.0
        return np.where((at >= entries) & (rows == NONE), right, rows)

    def refusal(self, subject: Any, case: Case, error: SubjectError) -> SubjectError:
        """Return the finding behind a call that fails: the batch taken for the text, or a table that ends too early."""
        shape = case.args[0]
        if case.kind in ("far", "past"):
            return finding("learned.table_too_short", self.calls.case(shape), message=error.cause.message)
        if shape[0] > 1 and self.calls.works(subject, (1, *shape[1:])):
            return finding("learned.axis.batch", self.calls.case(shape))
        return error

    def predict(self, model: Model, case: Case) -> Array:
        """Return the factor of the rows, and the row of each token."""
        if case.kind in FLAGS:
            return self.flag(model, case)
        if case.kind == "rows":
            return np.array([float(max(len(self.table), int(self.spec.get("table_rows") or 0)))])
        if case.kind == "learns":
            return np.zeros(1)
        rows = [np.broadcast_to(self.first + np.arange(shape[1]), shape).ravel() for shape in case.args]
        return np.concatenate([[model["gain"]], *rows])

    def faults(self) -> Iterator[Fault]:
        """Yield what comes of the input; rows are read."""
        yield from self.about_the_input()

    def read(self, seen: Sequence[Seen], wrong: Sequence[Seen], model: Model) -> Fault | None:
        """Return what the rows of the longest wrong text say."""
        near = [s for s in wrong if s.case.kind == "near"]
        s = near[-1] if near else next(s for s in wrong if s.case.kind in ("again", "far", "past"))
        gain, rows = float(s.value[0]), s.value[1:]
        if abs(gain - 1) > SAME:
            code = "added_twice" if abs(gain - 2) < SAME else "scaled"
            return Fault(f"learned.{code}", {}, {"factor": gain})
        n = s.case.args[0][1]
        at = int((rows != self.predict(self.truth, s.case)[1:]).argmax())
        t, found = at % n, rows[at]
        row = {ZERO: "zeros", NONE: "no row of the table"}.get(found, f"row {found:g} of the table")
        words = f"token {t} gets {row}, where row {self.first + t} is its own"
        case = {"x": [1, t + 1, self.calls.dim], "row": float(found), "right": self.first + t}
        values = {"message": words, "start": found, "asked": self.first}
        return Fault(f"learned.{self._named(s, t)}", {}, values, case)

    def _named(self, s: Seen, t: int) -> str:
        """Return the code of wrong rows; the first wrong one is that of token t."""
        if s.case.kind == "again":
            return "state_kept"
        rows = s.value[1:].reshape(s.case.args[0])
        line, steps = rows[0], np.diff(rows[0])
        if (rows != line).any():
            return "axis.batch"
        if not steps.any():
            return "slice.single_row"
        if (line % 1).any():
            return "grid.interpolated_wrong"
        if t and (line[t:] == (ZERO if line[t] == ZERO else line[t - 1])).all():
            return "table_too_short"
        if (steps == -1).all():
            return "position.reversed"
        if (steps == 1).all() and line[0] >= 0:
            first = int(line[0])
            before = self.table[first - 1] if 0 < first <= len(self.table) and self.table.any() else np.ones(1)
            return row_code(first, self.first, None if before.any() else first - 1)
        return "wrapped" if t and line[t] < line[t - 1] else "mismatch"

    def refine(self, fault: Fault, wrong: frozenset[str], right: frozenset[str], seen: Sequence[Seen]) -> Fault:
        """Return which rows do not learn, or how many there are."""
        stuck = next((s.note for s in seen if s.case.kind == "learns"), [])
        if fault.code == "learned.padding_row_zeroed" and len(stuck) > 1:
            return Fault("learned.frozen", values={"n": len(self.table)})
        values = {"row": self.first + min(stuck, default=0), "end": len(self.table)}
        refined = super().refine(fault, wrong, right, seen)
        return Fault(refined.code, refined.change, {**values, **refined.values}, refined.case)

    def measured(self, seen: Sequence[Seen], model: Model) -> dict[str, Any]:
        """Return the length of the table."""
        return {"table_rows": len(self.table)}

    def not_judged(self, seen: Sequence[Seen]) -> list[str]:
        """Return what was not looked at."""
        longest = max((s.case.args[0][1] for s in seen if s.case.kind in ("near", "far", "past")), default=0)
        return [f"texts of more than {longest} tokens", *self.ignored()]
