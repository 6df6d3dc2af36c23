"""Rows of a learned table: the position of each token and an offset, within the table."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from posenc.verify.engine import Choice, Fault, Seen
from posenc.verify.engine.records import Array, Model, kind
from posenc.verify.families.counts import Positions
from posenc.verify.families.counts_faults import of_masks, of_numbers

IN_ROWS = {  # codes that have another name where they choose rows
    "positions.left_padding": "learned.padding_not_masked",
    "positions.padded_width_in_decode": "learned.padding_not_masked",
    "positions.off_by_one": "learned.cls_row",
    "positions.clamped": "learned.table_too_short",
    "positions.wrapped": "learned.wrapped",
}


def first_row(spec: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """Return the row of position 0, where the specification says it, and padding_idx."""
    padding = spec.get("padding") if spec.get("padding_idx") is None else spec["padding_idx"]
    padding_idx = padding if isinstance(padding, int) and not isinstance(padding, bool) else None
    said = [int(spec[name]) for name in ("offset", "start") if spec.get(name) is not None]
    return (sum(said) if said else None if padding_idx is None else padding_idx + 1), padding_idx


def row_code(found: float, asked: float, padding_idx: float | None) -> str:
    """Return the fault of a first row: 2 is the offset of OPT and BART, padding_idx + 1 that of RoBERTa's kin."""
    if found == 0:
        return "offset_missing"
    if padding_idx is not None and found == padding_idx + 1:
        return "padding_idx_as_offset"
    return "offset_hardwired" if found == 2 and abs(found - asked) > 1 else "start"


class Rows(Positions):
    """Rows of a learned table: the position of each token and an offset, within the table."""

    definition, mismatch = "learned@count-of-tokens", "learned.mismatch"
    kinds = (kind("positions.state_kept", "again", "prefill"),)
    whole, sides = True, ("left", "right")

    def __init__(self, convention: str, spec: Mapping[str, Any]) -> None:
        first, self.padding_idx = first_row(spec)
        self.table, top = int(spec.get("table_rows") or 0), int(spec.get("max_positions") or 0)
        spare = max(0, self.table - top) if self.table and top else 0
        super().__init__(convention, {**spec, "start": spare if first is None else first})
        self.truth = {**self.truth, "padding_row": self.padding_idx, "ends": bool(self.table)}
        self.top = top or int(max(0, self.table - self.truth["start"]))
        self.open = [] if self.padding_idx is not None else ["the rows of padded slots: no padding_idx is given"]
        self.open += [] if self.table else ["the end of the table: no table_rows is given"]

    def off(self, seen: Seen, predicted: Array, model: Model) -> Array:
        """Return the differences; a row that the table does not have is as wrong as can be."""
        behind = (seen.value >= self.table) & model["ends"]
        return np.where(behind, np.inf, super().off(seen, predicted, model))

    def free(self) -> Iterator[Choice]:
        """Yield any first row, where the specification says that it is free."""
        if self.spec.get("origin") == "any" and "offset" not in self.spec:
            yield Choice({"start": self.first})

    def faults(self) -> Iterator[Fault]:
        """Yield other first rows, ways to count, large numbers, and rows of padding."""
        asked = self.truth["start"]
        for fault in self.constants():
            found = fault.change["start"]
            guessed = found - 1 if asked == 0 and found != 2 else self.padding_idx
            yield replace(fault, code=f"learned.{row_code(found, asked, guessed)}")
        for fault in (*of_masks("", ("prefill",)), *of_numbers(asked, self.end)):
            yield replace(fault, code=IN_ROWS.get(fault.code, fault.code))
        yield Fault("learned.table_too_short", {"ends": False}, {"end": self.table})
        if self.padding_idx is not None:
            yield Fault("learned.padding_not_masked", {"padding_row": None})
