"""Rows of a learned table: the position of each token and an offset, within the table."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from posenc.verify.report import Cause, Findings
from posenc.verify.tokens.calls import SHARED, asker, case_of, memory, run, side_of
from posenc.verify.tokens.counts import Answer, Call, bound, halved, mask_of, same, shift
from posenc.verify.tokens.formulas import explain


def check(subject: Any, spec: Mapping[str, Any]) -> Findings:
    """Hold rows of a learned table against position + offset."""
    ask = asker(subject, takes_length=False)
    found = Findings(definitions=["learned@count-of-tokens"])
    offset, padding_idx = _offset(spec)
    side = side_of(spec)
    table = spec.get("table_rows")
    longest = _longest(spec, offset)
    plain = [Call(mask_of(n, [0] * b), n) for n, b in ((1, 1), (6, 2), (longest, 1))]
    sides = {"left?": ("left", "right"), "both": ("left", "right"), "none": ()}.get(side, (side,))
    padded = [Call(mask_of(7, pads, s), 7) for s in sides for pads in ((1, 4, 0), (3, 1))]
    answers = run(ask, [plain, padded], offset)
    bare = answers[: len(plain)]
    shifted = shift(bare[:2])
    found.measured["first_row"] = None if shifted is None else shifted + offset
    causes: list[Cause] = []
    if shifted and not (spec.get("origin") == "any" and "offset" not in spec):
        causes.append(_offset_cause(bare, offset, shifted, padding_idx))
    here = offset + (shifted or 0.0)
    moved = [Answer(a.call, a.got, a.want + (shifted or 0.0)) for a in answers]
    if any(a.error for a in moved):
        causes.append(_rows_cause(moved, here))
    elif padding_idx is not None:
        causes += _padding_row(moved, padding_idx)
    causes += _table_cause(answers[2], table, longest)
    again = [] if causes else memory(ask, [plain, padded], here)
    found.causes = causes[:1] or again
    if causes[1:]:
        head = causes[0]
        rest = tuple(dict.fromkeys(c.code for c in causes[1:]))
        found.causes = [Cause(head.code, head.message, head.evidence, head.smallest_case, head.help, rest)]
    return found


def _offset(spec: Mapping[str, Any]) -> tuple[float, int | None]:
    """Return the row of position 0 and, where it is told, the row of padding."""
    padding = spec.get("padding") if spec.get("padding_idx") is None else spec["padding_idx"]
    padding_idx = padding if isinstance(padding, int) and not isinstance(padding, bool) else None
    for name in ("offset", "start"):
        if spec.get(name) is not None:
            return float(spec[name]), padding_idx
    if padding_idx is not None:
        return padding_idx + 1.0, padding_idx
    if spec.get("table_rows") and spec.get("max_positions"):
        return float(max(0, spec["table_rows"] - spec["max_positions"])), None
    return 0.0, None


def _longest(spec: Mapping[str, Any], offset: float) -> int:
    """Return how long a text must be taken: as the table is, where it is told."""
    if spec.get("max_positions"):
        return max(1, min(int(spec["max_positions"]), 1 << 17))
    if spec.get("table_rows"):
        return max(1, min(int(spec["table_rows"] - offset), 1 << 17))
    return 700


def _offset_cause(bare: Sequence[Answer], offset: float, shifted: float, padding_idx: int | None) -> Cause:
    got = offset + shifted
    code = "learned.start"
    if got == 0:
        code = "learned.offset_missing"
    elif padding_idx is not None and got == padding_idx + 1:
        code = "learned.padding_idx_as_offset"
    elif offset == 0 and got > 0:  # 2 is the offset of OPT and BART; padding_idx + 1 of RoBERTa's kin may be it too
        code = "learned.offset_hardwired" if got == 2 else "learned.padding_idx_as_offset"
    elif got == 2 * offset:
        code = "learned.offset_twice"
    elif got == 2 and abs(shifted) > 1:
        code = "learned.offset_hardwired"
    message = (
        f"Position 0 takes row {got:g} of the table, where the table was trained with row {offset:g}: every token "
        f"reads the vector of the one {abs(shifted):g} {'behind' if shifted < 0 else 'ahead'}. Smallest case: one "
        f"token, attention_mask [[1]]: got row {got:g}, should be {offset:g}."
    )
    case = {"attention_mask": [[1]], "got": [got], "want": [offset]}
    return Cause(code, message, max(a.error for a in bare), case, f"row = position + {offset:g}.")


def _rows_cause(answers: Sequence[Answer], offset: float) -> Cause:
    worst = max(a.error for a in answers)
    bad = min((a for a in answers if a.error), key=lambda a: a.call.mask.numel())
    case = case_of(bad)
    del case["q_len"]
    where, held = explain(answers, offset), bound(answers, offset)
    mend = f"row = attention_mask.cumsum(-1) * attention_mask + {offset - 1:g}."
    words = {
        "shared": ("learned.padding_not_masked", SHARED),
        "first_row": ("learned.first_row_for_all", "gives all rows what the first row of the batch has"),
        "along_batch": ("learned.axis.batch", "sums the mask along the batch"),
        "first_twice": (
            "learned.cls_row",
            "gives the second token the first one's row, and all later ones the row before",
        ),
        "padding_counted": ("learned.mask_inverted", "counts the padded slots instead of the tokens"),
    }
    code, does = "learned.mismatch", "counts in no way that is known here"
    if where is not None and where.fault in words:
        code, does = words[where.fault]
    elif where is not None and "float16" in where.fault:
        code, does = "learned.precision", "forms row numbers in half precision, in which neighbours become equal"
    elif where is not None and where.fault in ("padding_twice", "minus_row_length"):
        code, does = "learned.padding_twice", "takes padding off that was not counted"
    elif all(same(a, a.want.to(torch.int16).double()) for a in answers):
        code, does = "learned.wrapped", "forms row numbers in int16, in which 32767 is followed by -32768"
    elif held is not None:
        code = "learned.table_too_short" if held[0] == "clamped" else "learned.wrapped"
        does = f"{'holds rows below' if held[0] == 'clamped' else 'begins anew at row'} {held[1]}"
    elif halved(answers) is not None:
        code, does = "learned.precision", "forms row numbers in half precision, in which neighbours become equal"
    text = f"row {case['row']} of attention_mask {case['attention_mask']}: got {case['got']}, should be {case['want']}"
    message = f"The function {does}: off by up to {worst:g} rows on tokens. Smallest case: {text} (None: padding)."
    return Cause(code, message, worst, case, mend)


def _padding_row(answers: Sequence[Answer], padding_idx: int) -> list[Cause]:
    """Where the row of padding is declared, padded slots must take it."""
    for a in answers:
        off = (a.got - padding_idx).abs() * ~a.call.real
        if bool(off.any()):
            row = int(off.max(-1).values.argmax())
            message = (
                f"Padded slots take rows up to {float(off.max()):g} away from row {padding_idx}, which is theirs: "
                f"attention_mask {a.call.mask[row].tolist()} gives rows {a.got[row].tolist()}."
            )
            case = {"attention_mask": a.call.mask[row : row + 1].tolist(), "got": a.got[row].tolist()}
            help_ = f"row = attention_mask.cumsum(-1) * attention_mask + {padding_idx}."
            return [Cause("learned.padding_not_masked", message, float(off.max()), case, help_)]
    return []


def _table_cause(longest: Answer, table: int | None, n: int) -> list[Cause]:
    highest = int(longest.got.max())
    if table is None or highest < table:
        return []
    message = (
        f"{n} tokens reach row {highest} of a table of {table} rows (the last is {table - 1}): an index error, or "
        "whatever lies behind the table."
    )
    case = {"attention_mask": f"{n} tokens", "got": highest, "want": f"< {table}"}
    help_ = f"Give the table {highest + 1} rows, or refuse texts of more than {n - (highest - table + 1)} tokens."
    return [Cause("learned.table_too_short", message, float(highest - table + 1), case, help_)]
