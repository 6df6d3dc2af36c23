"""Trained tables that are added to tokens: which row each token gets, read off the table itself."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from posenc.verify.engine import Case, Choice, Fault, Seen
from posenc.verify.engine.records import Array, Model, kind
from posenc.verify.families.added_calls import FLAGS, SAME, Shape
from posenc.verify.families.added_faults import ROWS
from posenc.verify.families.added_reading import growth
from posenc.verify.families.trained_rows import NONE, ZERO, Rows, stretched

OWN = ("learned.slice.single_row", "learned.position.reversed")  # rules whose message is the words


class Trained(Rows):
    """A trained table of a text's positions: row t + offset is that of token t."""

    definition, mismatch = "learned", "learned.mismatch"
    pairs = 0

    def __init__(self, convention: str, spec: Mapping[str, Any]) -> None:
        super().__init__(convention, spec)
        self.truth = {"first": float(self.first), "place": "", "gain": 1.0, "keep": 1.0}
        self.kinds = (
            self.kinds[0],
            self.kinds[1],
            kind("learned.frozen", "frozen"),
            kind("learned.padding_row_zeroed", "learns"),
            kind("learned.state_kept", "again"),
            kind("learned.wrapped", "far"),
            kind("learned.table_too_short", "past"),
            kind("learned.table_too_short", "rows"),
        )

    def cases(self) -> Iterator[Case]:
        """Yield calls of a few tokens, then those that show the ends of the table."""
        yield from self.flags("tokens")
        for shape in self.shapes:
            yield Case("near", (shape,), self.calls.words(shape), optional=shape[1] > 5)
        yield from self.flags("grad", "frozen", "learns")
        for lengths in ((5, 3, 8, 1, 5), (8, 5, 3)):
            yield Case("again", tuple((3, n) for n in lengths), "calls of one object, one after another")
        for name in ("far", "past", "rows"):
            yield Case(
                name, (), {"rows": "the length of the table", "past": "a text longer than the table"}.get(name, "")
            )

    def predict(self, model: Model, case: Case) -> Array:
        """Return the factor of the rows, and the row of each token."""
        if case.kind in FLAGS:
            return self.flag(model, case)
        if case.kind in ("frozen", "learns"):
            return np.array([float(case.kind == "frozen")])
        if case.kind == "rows":
            return np.array([float(self.needed)])
        rows = [self._rows(model, shape).reshape(-1) for shape in case.args]
        return np.concatenate([[model["gain"]], *rows])

    def _rows(self, model: Model, shape: Shape) -> Array:
        b, n = shape
        text, row = np.arange(b, dtype=np.float64)[:, None], np.arange(n, dtype=np.float64)[None]
        place = ROWS[model["place"]][0](text, row, b, n) if model["place"] else row
        rows: Array = np.broadcast_to(place + model["first"], shape)
        return rows

    def free(self) -> Iterator[Choice]:
        """Yield nothing: a table has one right row for each token."""
        return iter(())

    def faults(self) -> Iterator[Fault]:
        """Yield wrong rows: other first ones, and other ways to count."""
        yield from self.about_the_input()
        yield Fault("learned.added_twice", {"gain": 2.0})
        for first in (0, 1, 2, self.first + 1, self.first - 1, self.first + 2, 2 * self.first):
            if first != self.first and first >= 0:
                yield self._start(float(first))
        for words, (_, code) in ROWS.items():
            known = code in ("axis.batch", "slice.single_row", "position.reversed")
            name = f"learned.{code}" if known else self.mismatch
            yield Fault(name, {"place": words}, _said(name, words.replace("position", "row")))

    def _start(self, first: float) -> Fault:
        """Return the fault of another first row."""
        code = "start"
        if self.first and not first:
            code = "offset_missing"
        elif not self.first and first > 0 and len(self.table) and not self.table[int(first) - 1].any():
            code = "padding_idx_as_offset"
        elif not self.first and first == 2:
            code = "offset_hardwired"
        return Fault(f"learned.{code}", {"first": first}, {"start": first, "asked": self.first})

    def read(self, seen: Sequence[Seen], wrong: Sequence[Seen], model: Model) -> Fault | None:
        """Return what the rows of the first wrong answer say."""
        near = [s for s in wrong if s.case.kind == "near"]
        if not near:
            return None
        gain, rows = float(near[-1].value[0]), near[-1].value[1:].reshape(near[-1].case.args[0])
        if abs(gain - 1) > SAME:
            return Fault("learned.scaled", {"gain": gain}, {"factor": gain})
        listed = f"tokens 0, 1, 2, ... get rows {[int(row) for row in rows[0]]}"
        right = self._rows(self.truth, near[-1].case.args[0])
        if (rows == ZERO).any() and ((rows == right) | (rows == ZERO)).all():
            row = {"row": self.first + int((rows[0] == ZERO).argmax())}
            return Fault("learned.padding_row_zeroed", {}, row, row)
        if (rows != rows[:1]).any():
            return Fault(
                "learned.axis.batch", {}, _said("learned.axis.batch", f"rows differ from text to text: {rows.tolist()}")
            )
        if (np.diff(rows[0]) == 1).all() and rows[0, 0] >= 0:
            return self._start(float(rows[0, 0]))
        return self._grown(rows[0]) or Fault(self.mismatch, {}, _said(self.mismatch, listed))

    def _grown(self, rows: Array) -> Fault | None:
        """Return how the rows of a text go wrong after a number of tokens."""
        if (rows == NONE).any():
            return None
        code, words = growth(np.where(rows == ZERO, np.nan, rows - self.first))
        names = {
            "table.growth_ignores_past": "learned.table.restarts",
            "table.row_skipped": "learned.table.row_skipped",
            "table.row_repeated": "learned.table.row_repeated",
            "table.too_short": "learned.table_too_short",
            "position.wrapped": "learned.wrapped",
        }
        return Fault(names[code], {}, _said(names[code], words)) if code in names else None

    def refine(self, fault: Fault, wrong: frozenset[str], right: frozenset[str], seen: Sequence[Seen]) -> Fault:
        """Return what the ends of the table and later calls show."""
        kinds = {"learned.state_kept": "again", "learned.wrapped": "far", "learned.table_too_short": "past"}
        if fault.code == "learned.frozen":
            return Fault(fault.code, values={"n": len(self.table)})
        if fault.code == "learned.padding_row_zeroed" and not fault.values:
            zero = next(s.note for s in seen if s.case.kind == "learns") or [0]
            return Fault(fault.code, values={"row": self.first + zero[0], "words": ""})
        asked = kinds.get(fault.code)
        asked = "rows" if asked == "past" and "past" not in wrong else asked
        case = next((s for s in seen if s.case.kind == asked and asked in wrong), None)
        if case is None or fault.change:
            return super().refine(fault, wrong, right, seen)
        if asked == "rows":
            return Fault(
                fault.code, values={"message": f"the table has {case.value[0]:g} rows; {case.note} are needed"}
            )
        return self._at_the_end(case, fault)

    def _at_the_end(self, s: Seen, fault: Fault) -> Fault:
        """Return what a long, a later or a too long text shows."""
        rows, right = s.value[1:], self.predict(self.truth, s.case)[1:]
        t = int((rows != right).argmax())
        got = f"row {rows[t]:g} of the table" if rows[t] >= 0 else "no row of the table"
        words = f"token {t} gets {got}, where row {right[t]:g} is its own"
        if (rows[t:] == rows[t - 1]).all():
            words = f"tokens from {t} on all get row {rows[t]:g}, the last one again"
        if s.case.kind == "again":
            lengths = [shape[1] for shape in s.case.args]
            what = f"a call in the order of lengths {lengths}"
            return Fault(fault.code, values={"what": what, "words": words}, case={"lengths": lengths})
        case = {"x": [1, t + 1, self.calls.dim], "row": float(rows[t]), "expected": float(right[t])}
        if (rows % 1).any():
            rules = np.array(stretched(len(rows), len(self.table) - self.first)) + self.first
            t = int(np.abs(rules - rows).min(0).argmax())
            words = (
                f"token {t} of {len(rows)} lies at {rows[t]:.4g}, where {rules[0][t]:.4g} or {rules[1][t]:.4g} is right"
            )
            case = {"x": [1, len(rows), self.calls.dim], "token": t, "found": float(rows[t])}
            return Fault("learned.table.interpolated_wrong", values={"words": words}, case=case)
        grown = self._grown(rows)
        if grown is not None and grown.code != fault.code and (s.case.kind == "past" or "row_" in grown.code):
            return Fault(grown.code, {}, grown.values, case)
        if s.case.kind == "past":
            words = f"{words}: the table has {len(self.table)} rows, and nothing says so"
        return Fault(fault.code, {}, {"message": words}, case)

    def slack(self, seen: Seen, predicted: Array, model: Model) -> Array | float:
        """Return what rounding explains of a factor, and nothing of a row."""
        return SAME if seen.case.kind in ("near", "again", "far", "past") else super().slack(seen, predicted, model)

    def smallest(self, seen: Seen, predicted: Array, off: Array) -> dict[str, Any]:
        """Return the first wrong token with its row."""
        if seen.case.kind != "near" or not (off > 1).any():
            return {}
        n = seen.case.args[0][1]
        at = max(int((off > 1).argmax()) - 1, 0)
        case = {"x": [at // n + 1, at % n + 1, self.calls.dim]}
        return {
            **case,
            "rows": [int(row) for row in seen.value[1 : n + 1]],
            "right": [int(row) for row in predicted[1 : n + 1]],
        }

    def measured(self, seen: Sequence[Seen], model: Model) -> dict[str, Any]:
        """Return the length of the table and its first row in use."""
        return {"table_rows": len(self.table), "first_row": int(model["first"])}

    def not_judged(self, seen: Sequence[Seen]) -> list[str]:
        """Return what was not looked at."""
        asked = any(s.case.kind == "far" and s.case.args for s in seen)
        few = f"texts of more than {max(s[1] for s in self.shapes)} tokens"
        return self.ignored() if asked else [few, *self.ignored()]


def _said(code: str, words: str) -> dict[str, Any]:
    """Return the values of a fault; a rule that counts of positions share has no slot for these words."""
    return {"words": words} if code.startswith("learned.table.") or code in OWN else {"message": words}
