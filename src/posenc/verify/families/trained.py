"""Trained tables added to texts: rows hold their own indices, so the sum shows which row was used."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from posenc.verify.engine import CannotTellError, Case, Family, Fault, Seen
from posenc.verify.engine.records import Array
from posenc.verify.families.added_calls import SAME, Added, Calls, Shape, finding, leaves, modules, ready
from posenc.verify.families.counts import Rows
from posenc.verify.families.counts_calls import Call, text_of
from posenc.verify.families.counts_faults import first_row
from posenc.verify.guard import NotAnsweredError, SubjectError
from posenc.verify.report import Cause

LARGEST = 2**23  # entries of the largest text
PAST = 9  # tokens past the end of a table
NONE, ZERO = -1.0, -2.0  # stand for a vector that is no row of the table, and for zeros
STRETCHED = ("cells", "ends")  # rules of `Learned.resized` by which a table may be stretched to a text
OPEN = "the rule of interpolation: a longer text is stretched by the rule {}; declare interpolation ({})"
DIGITS = 256  # the coarsest dtype represents smaller digits exactly


def trained(calls: Calls, subject: Any, shape: Shape) -> tuple[Any, list[Tensor]]:
    """Return a fresh copy of a subject, and its trainable tensors in a call; all its tensors if none are trainable."""
    dry, called = ready(subject), ready(subject)
    held, twins = ([t for m in modules(made) for t in (*m.parameters(), *m.buffers())] for made in (dry, called))
    through = leaves(calls.raw(dry, shape, grad=True))
    same = {id(a): b for a, b in zip(held, twins, strict=True)}
    return called, [same.get(id(t), t) for t in through or held]


def coded(calls: Calls, called: Any, shapes: Sequence[Shape], values: Sequence[tuple[Tensor, Tensor]]) -> list[Array]:
    """Return the encodings of calls while tensors hold other numbers; a function reads its own tensors."""
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


def found_table(calls: Calls, subject: Any) -> tuple[Any, Tensor, bool]:
    """Return a fresh copy of a subject, its table, and whether other numbers are trainable too."""
    called, found = trained(calls, subject, (2, 3))
    wide = [t for t in found if t.ndim >= 2 and t.shape[-1] == calls.dim]
    if not wide or calls.dim < 3:
        raise CannotTellError(
            "no table of three dimensions or more was found among the parameters or in the graph of the result"
        )
    return called, max(wide, key=Tensor.numel), len(found) > 1


def rows_of(calls: Calls, called: Any, table: Tensor, shape: Shape) -> tuple[float, Array]:
    """Return the factor of a table's rows in a call, and their indices, also between two rows."""
    number = torch.arange(table.numel() // calls.dim)
    rows = torch.ones(len(number), calls.dim)
    rows[:, 0], rows[:, 1] = number // DIGITS, number % DIGITS
    (code,) = coded(calls, called, [shape], [(table, rows.reshape(table.shape))])
    gains, slack = code[:, 2:].mean(1), SAME * np.maximum(np.abs(code[:, 2:]).max(1), 1.0)
    even = np.ptp(code[:, 2:], 1) < slack
    gain = float(np.median([*gains[even & (np.abs(gains) > SAME)]] or 1.0))
    taken = np.where(even & (np.abs(gains - gain) < slack), (code[:, 0] * DIGITS + code[:, 1]) / gain, NONE)
    taken = np.where(np.abs(taken - np.round(taken)) < 0.02, np.round(taken), taken)
    return gain, np.where(np.abs(code).max(1) < 1e-6, ZERO, taken).reshape(shape)


class RowsOf:
    """A module as a function of rows: the table row that each token of a text gets."""

    def __init__(self, calls: Calls, subject: Any, first: float, rule: Any, used: set[str]) -> None:
        self.calls, self.subject, self.first, self.rule, self.used = calls, subject, first, rule, used
        self.found: tuple[Any, Tensor, bool] | None = None

    def __call__(self, attention_mask: Tensor) -> Tensor:
        """Return rows; those beyond the table are right if they are new, and so is a text that is stretched to it."""
        if attention_mask.numel() * self.calls.dim > LARGEST:
            raise NotAnsweredError("the text is too large for a check")
        called, table, _ = self.found = self.found or found_table(self.calls, self.subject)
        rows = rows_of(self.calls, called, table, tuple(attention_mask.shape))[1]
        n, entries, at = rows.shape[1], table.numel() // self.calls.dim - self.first, np.arange(rows.shape[1])
        if n > entries > 0:
            rules = {
                "cells": np.clip((at + 0.5) * entries / n - 0.5, 0, entries - 1),
                "ends": at * (entries - 1) / (n - 1),
            }
            used = {name for name, rule in rules.items() if np.abs(rows - self.first - rule).max() < 0.02}
            self.used |= used
            if used and self.rule not in (None, *used):
                words = {
                    "used": " or ".join(used),
                    "asked": self.rule,
                    "table": f"{entries:.0f}",
                    "image": f"{n} tokens",
                }
                raise finding("learned.interpolation.rule", self.calls.case(tuple(attention_mask.shape)), **words)
            rows = np.where(bool(used) | ((at >= entries) & (rows == NONE)), self.first + at, rows)
        return torch.from_numpy(rows)


class Trained(Rows, Added):
    """A trained table of a text's positions: the added rows are read and judged like those of a function."""

    word, shapes, guesses, masked = "learned", ((2, 3),), False, False
    ignores = "base temperature layout variant order origin activation_dtype"
    slack = Family.slack

    def __init__(self, convention: str, spec: Mapping[str, Any]) -> None:
        own = {"offset": first_row(spec)[0] or 0, "start": None, "padding": "none", "padding_idx": None}
        super().__init__("learned_rows_fn", {**spec, **own, "table_rows": None})
        self.open, self.entries, self.declared = [], 1, int(spec.get("table_rows") or 0)
        self.rule, self.used = spec.get("interpolation"), set[str]()
        if self.rule not in (None, *STRETCHED):
            raise ValueError(f"verify: interpolation must be one of {', '.join(STRETCHED)}; got {self.rule!r:.60}.")

    def _short(self) -> list[list[Call]]:
        """Return the texts that a small table has rows for."""
        return [text for text in super()._short() if text[-1].total <= max(self.entries, 2)]

    def cases(self) -> Iterator[Case]:
        """Yield the input, texts as for a function of rows, one as long as the table, and the table."""
        call = Call(np.ones(self.shapes[0]), 3, "a text of 3 tokens")
        yield Case("input", (call,), call.text)
        yield from super().cases()
        n = self.top or self.entries
        yield Case("far", tuple(text_of(n)), f"{n} columns", optional=not self.top)
        yield Case("table", (call,), call.text)

    def observe(self, subject: Any, case: Case) -> Seen:
        """Return the rows of a text."""
        if case.kind == "input":
            return self.added(subject, case)
        if case.kind == "table":
            return self._whole(subject, case)
        return super().observe(RowsOf(self.calls, subject, self.truth["start"], self.rule, self.used), case)

    def added(self, subject: Any, case: Case) -> Seen:
        """Look for an input that is returned changed, and a table whose rows are added another number of times."""
        (shape,), calls = self.shapes, self.calls
        if not calls.dim:
            calls.find(subject, shape)
        asked = calls.case(shape)
        try:
            keep = self._tokens(subject, shape)
        except SubjectError as error:
            raised = error.cause.code in {"subject.raises", "subject.shape"}
            raise finding("learned.axis.batch", asked) if raised and calls.works(subject, (1, 3)) else error from error
        if keep != 1:
            raise finding(f"learned.input.{'lost' if abs(keep) < SAME else 'scaled'}", asked, factor=keep)
        called, table, others = found_table(calls, subject)
        gain, rows = rows_of(calls, called, table, shape)
        if (rows == ZERO).all():
            raise finding("learned.not_used", asked)
        if len(empty := np.argwhere(rows == ZERO)):
            text, token = empty[0]
            raise finding("learned.position.missing", asked, words=f"token {token} of text {text} gets no row")
        if others and (abs(gain - 1) > SAME or (rows % 1).any() or NONE in rows):
            raise CannotTellError("other trained numbers are between the table and the sum, so no row is visible")
        if abs(gain - 1) > SAME:
            raise finding(f"learned.{'added_twice' if abs(gain - 2) < SAME else 'scaled'}", asked, factor=gain)
        if self._grad(subject, shape) != 1:
            raise finding("learned.grad.severed", asked)
        held = table.detach().reshape(-1, calls.dim)
        zeros = (~held.any(1)).nonzero().flatten().tolist()
        self.padding_idx = zeros[0] if len(zeros) == 1 else None
        self.entries = max(len(held) - int(self.truth["start"]), 1)
        self.least, self.long, self.far = min(self.entries, 5), min(self.entries + PAST, LARGEST // calls.dim), 0
        return Seen(case, self.predict(self.truth, case), 0.0)

    def _whole(self, subject: Any, case: Case) -> Seen:
        """Look for rows in use that receive no gradient, as a padding row does."""
        called, table, _ = found_table(self.calls, subject)
        shape, first = (1, self.least), int(self.truth["start"])
        out, asked = self.calls.raw(called, shape, grad=True), self.calls.case(shape)
        if not any(t is table for t in leaves(out)):
            raise finding("learned.frozen", asked, n=len(table))
        (grad,) = torch.autograd.grad(out.double().sum(), [table])
        stuck = grad.reshape(-1, self.calls.dim)[first : first + shape[1]].abs().sum(-1) == 0
        if stuck.any():
            raise finding("learned.padding_row_zeroed", asked, row=first + int(stuck.int().argmax()))
        if (n := self.entries + first) < self.declared and not self.top:  # a growing table is judged by its rows
            raise finding("learned.table_too_short", asked, float(n), end=n)
        return Seen(case, self.predict(self.truth, case), 0.0)

    def raised(self, cause: Cause, case: Case) -> Fault | None:
        """Return a table that ends too early."""
        if cause.code != "subject.raises" or case.kind == "input":
            return None
        shape = [1, case.args[0].total, self.calls.dim]
        return Fault("learned.table_too_short", {}, {"message": cause.message, "fix": ""}, {"x": shape})

    def faults(self) -> Iterator[Fault]:
        """Yield faults of rows, and rows from the end of the table."""
        yield from super().faults()
        yield Fault("learned.slice.tail", {"start": lambda c: self.entries + self.truth["start"] - c.total})

    def asked(self, call: Call) -> dict[str, Any]:
        """Return a text as the smallest case shows it."""
        return {"x": [*call.mask.shape, self.calls.dim]}

    def not_judged(self, seen: Sequence[Seen]) -> list[str]:
        """Return the parts that were not judged."""
        left = (
            [OPEN.format(" or ".join(sorted(self.used)), ", ".join(STRETCHED))] if self.used and not self.rule else []
        )
        return [*super().not_judged(seen), *left, *self.ignored()]
