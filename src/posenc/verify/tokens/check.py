"""Positions of padded rows, and the rows of a learned table: counts, held against the count of real tokens."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from posenc.verify import guard
from posenc.verify.report import Cause, Findings
from posenc.verify.tokens import packed, rows
from posenc.verify.tokens.calls import SHARED, asker, case_of, memory, run, run_softly, side_of, state_cause
from posenc.verify.tokens.counts import (
    Answer,
    Call,
    bound,
    chunked,
    generation,
    halved,
    mask_of,
    rows_shifted,
    shift,
)
from posenc.verify.tokens.formulas import Explanation, explain
from posenc.verify.tokens.moves import moved, moves, remembers, steps, unspoilt

LONG = 4200  # tokens: bfloat16 counts to 256, float16 to 2048
FAR, FARTHEST = 33_000, 1 << 17  # tokens: int16 counts to 32767
ABSOLUTE = ("learned", "sinusoidal", "additive")

# (formula, or several; kinds of call that must be among the wrong ones): code, what it does, how to mend it
_MASK = "Count the tokens of each row: attention_mask.cumsum(-1) - 1, then its last q_len columns."
_SLICE = "Count over the whole mask and slice afterwards: (attention_mask.cumsum(-1) - 1)[:, -q_len:]."
_WORDS: dict[str, tuple[str, str, str]] = {
    "shared": ("positions.left_padding", SHARED, _MASK),
    "shared/later": (
        "positions.left_padding.decode_lost",
        "counts the tokens of each row in the prefill, but goes on from the padded width afterwards",
        _SLICE,
    ),
    "shared/both": (
        "positions.padded_width_in_decode",
        "goes on from the padded width of the batch, whatever a row's own number of tokens",
        _SLICE,
    ),
    "shared/chunk": ("positions.chunked_prefill", "takes the column's number in a chunk, padding and all", _SLICE),
    "shared/right": (
        "positions.right_padding.increment",
        "goes on from the padded end of a row, where its own last token should be continued",
        _MASK,
    ),
    "restarted": ("positions.past_ignored", "begins at 0 again in every call, whatever stands before", _SLICE),
    "restarted/chunk": ("positions.chunked_prefill", "begins at 0 again in every chunk", _SLICE),
    "restarted/decode": ("positions.past_ignored", "gives every generated token position 0", _SLICE),
    "first_columns": ("positions.past_ignored", "returns the first q_len columns, where the last are asked", _SLICE),
    "twice": (
        "positions.chunked_prefill.double_counted",
        "adds the past twice: the count has it already",
        "Leave out the offset where the count runs over the whole mask.",
    ),
    "last_only": (
        "positions.constant_in_chunk",
        "gives all tokens of a call the position of the last one",
        _SLICE,
    ),
    "first_row": ("positions.first_row_for_all", "gives all rows what the first row has", _MASK),
    "longest": (
        "positions.padded_width_in_decode",
        "goes on from the longest row of the batch in all rows",
        _MASK,
    ),
    "longest/prefill": (
        "positions.left_padding",
        "gives all rows the positions of the longest one, so that padding counts as tokens in the others",
        _MASK,
    ),
    "past_columns": (
        "positions.left_padding",
        "counts the tokens of earlier calls, and in its own call all columns, padding and all",
        _SLICE,
    ),
    "reversed": ("positions.reversed", "counts from the end of each row towards its beginning", _MASK),
    "from_the_end": ("positions.reversed", "counts the columns from the last one towards the first", _MASK),
    "from_a_length": ("positions.reversed", "subtracts positions from the length of the call or of the row", _MASK),
    "negated": ("positions.negated", "gives every position the opposite sign", _MASK),
    "filled": (
        "positions.mask_inverted",
        "gives all tokens the number that padding should get, as where the mask is compared the wrong way round",
        _MASK,
    ),
    "int8": ("positions.wrapped", "forms positions in int8, which ends at 127", "Keep positions int64."),
    "int16": ("positions.wrapped", "forms positions in int16, which ends at 32767", "Keep positions int64."),
    "along_batch": ("positions.axis.batch", "sums the mask along the batch instead of along the row", _MASK),
    "padding_counted": ("positions.mask_inverted", "counts the padded slots instead of the tokens", _MASK),
    "padding_twice": ("positions.padding_twice", "takes the padding off twice", _MASK),
    "minus_row_length": (
        "positions.right_padding",
        "takes the padding off as if it stood on the left, so that right-padded rows begin below 0",
        _MASK,
    ),
    "first_twice": (
        "positions.off_by_one",
        "gives the first two tokens one position, and all later ones the position before theirs",
        _MASK,
    ),
    "step": (
        "positions.off_by_one",
        "is one off in some kinds of call and right in others, so that the distance across the seam is wrong",
        "Let the first new token have the number of tokens before it, in every kind of call.",
    ),
    "rounded": (
        "positions.precision",
        "forms positions in half precision, in which neighbours become equal",
        "Keep positions int64 (or float32) and cast nothing before the angles are formed.",
    ),
    "clamped": ("positions.clamped", "holds positions at a largest number", "Do not clamp, or refuse longer texts."),
    "wrapped": ("positions.wrapped", "begins at 0 again after a number of tokens", "Take the modulo away."),
}


def check(subject: Any, convention: str, spec: Mapping[str, Any]) -> Findings:
    """Hold a function of positions, of packed positions or of table rows against the count of tokens."""
    if convention == "packed_position_fn":
        return packed.check(subject, spec)
    return rows.check(subject, spec) if convention == "learned_rows_fn" else _positions(subject, spec)


def _positions(subject: Any, spec: Mapping[str, Any]) -> Findings:
    declared = side_of(spec)
    start = float(spec.get("start") or 0)
    ask, fresh = asker(subject, takes_length=True), unspoilt(subject)
    found = Findings(definitions=["positions@count-of-tokens"])
    long = max(1, min(LONG, int(spec.get("max_positions") or LONG) - 3))
    padded = _padded(declared) if declared != "none" else []
    required = [*_plans("left", (0, 0)), *padded, generation(long, (0,), "left")]  # the long one last: it may be kept
    answers = run(ask, required, start)
    optional = run_softly(ask, _padded("right"), start) if declared == "left?" else []
    found.measured["right_padding"] = _said(optional)
    wrong = [a for a in answers if a.error]
    if not wrong and (far := _far(ask, spec, start)):
        answers, wrong = [*answers, *far], far
        required = [*required, [a.call for a in far]]
    if not wrong:
        found.causes = memory(ask, required, start)
        return found
    off = shift(answers)
    absolute = bool(start) or "start" in spec or str(spec.get("encoding", "")) in ABSOLUTE
    if (off and not absolute) or (spec.get("origin") == "any" and off):
        found.equivalent = (
            f"Every position is {off:+g} off, in all rows and all calls alike: what sees distances only (rotation, "
            "biases) does not see it. A table of learned rows would."
        )
        found.measured["start"] = off + start
        return found
    free = spec.get("origin") == "any"
    plans = iter(answers)
    if free and all(rows_shifted([next(plans) for _ in plan]) for plan in required):
        found.equivalent = (
            "Every row of a batch begins at a place of its own, the same in all calls of one text: what sees distances "
            "only (rotation, biases) does not see it. A table of learned rows would."
        )
        return found
    if remembers(fresh, lambda one, plan: run(asker(one, takes_length=True), [plan], start), required):
        found.causes = [state_cause(max(wrong, key=lambda a: a.error))]
        return found
    found.causes = [_cause(ask, answers, declared, start, off, steps(answers, required))]
    if found.causes[0].code == "positions.mismatch" and moves(ask, answers):
        found.causes, found.equivalent = moved(found.causes[0], free)
    return found


def _far(ask: Callable[[Call], Tensor], spec: Mapping[str, Any], start: float) -> list[Answer]:
    """Return the wrong answers to texts of tens of thousands of tokens, of those that are answered."""
    top = int(spec.get("max_positions") or FAR)
    lengths = sorted({min(top, FAR), min(top, FARTHEST)} - set(range(LONG)))
    plans = [[Call(mask_of(n, (0,)), n)] for n in lengths]
    answers = [a for plan in plans for a in run_softly(ask, [plan], start) or []]
    return [a for a in answers if a.error]


def _padded(side: str) -> list[list[Call]]:
    """Return plans of calls on padded rows: batches with an unpadded row and without, the first row not the longest."""
    sides = {"left?": ("left",), "both": ("left", "right")}.get(side, (side,))
    return [plan for s in sides for pads in ((1, 4, 0), (3, 1)) for plan in _plans(s, pads)]


def _plans(side: str, pads: Sequence[int]) -> list[list[Call]]:
    return [generation(7, pads, side), chunked(8, pads, side, 3)]


def _said(answers: list[Answer] | None) -> str:
    if answers is None:
        return "refused"
    if not answers:
        return "not asked"
    return "counted" if not any(a.error for a in answers) else "not counted; declare padding='right' to hold it"


def _cause(
    ask: Callable[[Call], Tensor],
    answers: list[Answer],
    side: str,
    start: float,
    off: float | None,
    stepped: tuple[str, str] | None,
) -> Cause:
    """Say which way of counting explains the answers."""
    worst = max(a.error for a in answers)
    case = _smallest(ask, answers, start, side)
    text = _told(case)
    if off:
        message = f"Counts from {off + start:g}, where {start:g} is asked: every position is {off:+g} off. {text}"
        return Cause("positions.off_by_one", message, worst, case, f"Add {-off:g}.")
    where = explain(answers, start)
    held = bound(answers, start)
    code, does, mend = "positions.mismatch", "counts in no way that is known here", _MASK
    if where is not None:
        code, does, mend = _WORDS[_word(where, side)]
    elif stepped is not None:
        code, does = stepped
    elif held is not None:
        code, does, mend = _WORDS[held[0]]
        does += f" ({held[1]})"
    elif halved(answers) is not None:
        code, does, mend = _WORDS["rounded"]
    kinds = sorted({a.call.kind for a in answers if a.error})
    message = f"The function {does}: off by up to {worst:g} on tokens, in calls of kind {', '.join(kinds)}. {text}"
    return Cause(code, message, worst, case, mend)


def _word(found: Explanation, side: str) -> str:
    """Return which words fit a formula in the kinds of call where it was seen."""
    fault, kinds = found.fault, set(found.kinds)
    if fault == "shared":
        if side == "right":
            return "shared/right"
        later = "shared/both" if side == "both" else "shared/later"
        return "shared" if "prefill" in kinds else "shared/chunk" if kinds == {"chunk"} else later
    if fault in ("restarted", "restarted_count", "first_columns"):
        if kinds == {"chunk"}:
            return "restarted/chunk"
        if kinds == {"decode"}:
            return "restarted/decode"
        return "first_columns" if fault == "first_columns" else "restarted"
    if fault == "longest" and "prefill" in kinds:
        return "longest/prefill"
    if fault == "past_columns" and kinds == {"chunk"}:
        return "shared/chunk"
    plain = {"twice_shared": "twice", "step_ahead": "step", "step_behind": "step"}
    return plain.get(fault, "rounded" if "float16" in fault else fault)


def _smallest(ask: Callable[[Call], Tensor], answers: Sequence[Answer], offset: float, side: str) -> dict[str, Any]:
    """Return the smallest call that is answered wrongly, found by trying small ones; else the smallest that was."""
    measured = min((a for a in answers if a.error), key=lambda a: a.call.mask.numel())
    if measured.call.mask.shape[1] > 64:
        return case_of(measured)
    sides = ("left",) if side in ("left?", "left", "none") else ("right",) if side == "right" else ("left", "right")
    for total in range(1, 5):
        for pads in [(n,) for n in range(total)] + [(n, 0) for n in range(total)]:
            if side == "none" and any(pads):
                continue
            for s in sides:
                tried = generation(total, pads, s, 1) + chunked(total, pads, s, 2)[:-1]
                try:
                    found = next((a for a in run(ask, [tried], offset) if a.error), None)
                except guard.SubjectError:
                    return case_of(measured)
                if found:
                    return case_of(found)
    return case_of(measured)


def _told(case: dict[str, Any]) -> str:
    row = f"row {case['row']} of attention_mask {case['attention_mask']}, q_len {case['q_len']}"
    at = f", column {case['column']}" if "column" in case else ""
    return f"Smallest case: {row}{at}: got {case['got']}, should be {case['want']} (None: padding, free)."
