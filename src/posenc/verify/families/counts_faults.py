"""Ways to count tokens that are wrong: those of padded rows, of packed documents, and numbers that are too large."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from posenc.verify.engine import Fault
from posenc.verify.engine.precision import SHORT, rounded
from posenc.verify.engine.records import Array
from posenc.verify.families.counts_calls import Call

Rule = Callable[[Call], Any]  # an array of all columns or of those that are asked for, or what broadcasts to them
Ways = Sequence[tuple[str, Rule]]  # codes after "positions.", and how is counted
Number = tuple[str, Any]  # what becomes of a number: "round", "sum", "wrap" or "clamp", and by what

BITS = ((-(1 << 7), 1 << 7), (-(1 << 15), 1 << 15))
KINDS = ("prefill", "decode", "chunk")
SOME = (("decode",), ("chunk",), ("decode", "chunk"), ("prefill",))


def _filled(call: Call, fill: float) -> Any:
    """Return the count with another number in padded slots, as many give one."""
    return np.where(call.mask > 0, call.count, fill)


def _goes_on(call: Call, fill: float) -> Any:
    """Go on from the last column of the prefill, in which padding has a number."""
    end = min(call.prompt, call.total)
    return _filled(call, fill)[:, end - 1 : end] + call.total - end


OF_MASKS: Ways = (  # where two explain everything, the earlier one is named
    ("left_padding", lambda c: c.columns),
    ("past_ignored", lambda c: c.steps),
    ("past_ignored", lambda c: c.asked.cumsum(1) - 1),
    ("past_ignored", lambda c: c.count[:, : c.q_len]),
    ("past_ignored", lambda c: _filled(c, 1)[:, : c.q_len]),
    ("chunked_prefill.double_counted", lambda c: c.count + c.past),
    ("chunked_prefill.double_counted", lambda c: c.count + c.earlier),
    ("constant_in_chunk", lambda c: c.count[:, -1:]),
    ("first_row_for_all", lambda c: c.count[:1]),
    ("first_row_for_all", lambda c: _filled(c, 1)[:1]),
    ("padded_width_in_decode", lambda c: c.columns - c.padding.min()),
    ("axis.batch", lambda c: c.mask.cumsum(0) - 1),
    ("mask_inverted", lambda c: c.columns - c.count - 1),
    ("mask_inverted", lambda c: np.maximum(c.columns - c.count - 1, 0)),
    ("mask_inverted", lambda c: c.columns - c.count),
    ("padding_twice", lambda c: c.count - c.padding),
    ("padding_twice", lambda c: c.columns - c.padding),
    ("off_by_one", lambda c: np.maximum(c.count - 1, 0)),  # the first two tokens share a position
    ("left_padding", lambda c: c.past + c.steps),
    ("reversed", lambda c: c.tokens - 1 - c.count),
    ("reversed", lambda c: c.tokens - c.count),
    ("reversed", lambda c: c.count[:, ::-1]),
    ("reversed", lambda c: c.steps[:, ::-1]),
    ("reversed", lambda c: c.steps[:, ::-1] + 1),
    ("reversed", lambda c: c.total - 1 - c.count),
    ("reversed", lambda c: c.total - c.count),
    ("reversed", lambda c: c.q_len - 1 - c.count),
    ("reversed", lambda c: -c.count),
    ("mask_inverted", lambda c: 0 * c.steps),
    ("mask_inverted", lambda c: 0 * c.steps + 1),
)
OF_STEPS: Ways = (
    ("right_padding.increment", lambda c: _goes_on(c, 0)),
    ("right_padding.increment", lambda c: _goes_on(c, 1)),
    ("decode.not_advanced", lambda c: c.mask[:, : c.prompt].sum(1, keepdims=True)),
)
MOVING: Sequence[Rule] = (  # counted from the newest token, the last column, the end of the longest row
    lambda c: c.count - c.tokens,
    lambda c: c.count - c.total,
    lambda c: c.count - c.tokens.max(),
)
OF_DOCUMENTS: Ways = (
    ("packed_not_reset", lambda c: c.count),
    ("left_padding", lambda c: c.columns),
    ("packed.previous_length", lambda c: c.count - c.previous),
    ("packed.modulo_wrap", lambda c: c.count % np.maximum(c.length[:, :1], 1)),
    ("packed.modulo_wrap", lambda c: c.count % c.length.max(1, keepdims=True)),
    ("first_row_for_all", lambda c: c.right[:1]),
    ("packed.boundary", lambda c: np.where(c.right == 0, c.previous, c.right)),
    ("packed.boundary", lambda c: np.where((c.right == c.length - 1) & (c.mask < c.last), 0, c.right)),
    ("packed.off_by_one", lambda c: c.right + (c.mask > 1)),
    ("packed.off_by_one", lambda c: c.right - (c.mask > 1)),
    ("packed.document_index", lambda c: c.mask - 1),
    ("packed.numbers_added", lambda c: c.mask.cumsum(1) - 1),
    ("packed.reversed", lambda c: c.length - 1 - c.right),
    ("packed.reversed", lambda c: c.length - c.right),
    ("packed.reversed", lambda c: c.tokens - 1 - c.count),
    ("packed.reversed", lambda c: c.tokens - c.count),
    ("wrapped", lambda c: _difference(c, ("wrap", BITS[1]))),
    ("precision", lambda c: _difference(c, ("round", "bfloat16"))),
    ("precision", lambda c: _difference(c, ("round", "float16"))),
    ("packed.first_only", lambda c: np.where(c.mask == 1, c.right, 0)),
    ("packed.first_only", lambda c: np.where(c.mask == 1, c.right, 1)),
    ("packed.first_only", lambda c: np.where(c.mask == 1, c.right, -1)),
    ("packed.last_document", lambda c: np.where(c.mask < c.last, c.right, 0)),
    ("packed.last_document", lambda c: np.where(c.mask < c.last, c.right, c.count)),
    ("packed.last_document", lambda c: c.right + c.previous * (c.mask == c.last)),
)


def of_masks(side: str, kinds: Sequence[str]) -> Iterator[Fault]:
    """Yield ways to count that some kinds of calls have, of rows that are padded on a side."""
    for code, rule in (*OF_MASKS, *(OF_STEPS if kinds != KINDS else ())):
        yield Fault(f"positions.{_code(code, side, kinds)}", dict.fromkeys(kinds, rule), {"by": -1})


def _code(code: str, side: str, kinds: Sequence[str]) -> str:
    """Return the code of a way that only some kinds of calls have."""
    if kinds == ("chunk",) and code in ("left_padding", "past_ignored"):
        return "chunked_prefill"
    if code == "left_padding" and side == "right":
        return "right_padding.increment"
    if code == "left_padding" and "prefill" not in kinds:
        return "padded_width_in_decode" if side == "both" else "left_padding.decode_lost"
    return "left_padding" if code == "padded_width_in_decode" and "prefill" in kinds else code


def of_documents(all_end: float, each_end: float) -> Iterator[Fault]:
    """Yield ways to count packed documents; the ends are of what is counted in all documents, and in each."""
    again: Ways = (
        ("packed.modulo_wrap", lambda c: c.count % all_end),
        ("packed.modulo_wrap", lambda c: c.right % each_end),
    )
    return (Fault(f"positions.{code}", {"prefill": rule}, {"end": 1 << 15}) for code, rule in (*OF_DOCUMENTS, *again))


def _difference(call: Call, number: Number) -> Array:
    """Form the running index and the starts in a short type, and subtract afterwards."""
    return held(call.count, number) - held(call.count - call.right, number)


def held(count: Array, number: Number | None) -> Array:
    """Return counts as a type or a rule holds them.

    >>> held(np.array([126.0, 128.0]), ("wrap", (-128, 128))).tolist()
    [126.0, -128.0]
    """
    if number is None:
        return count
    how, by = number
    if how == "round":
        return rounded(count, by)
    if how == "sum":  # the sum of the mask is rounded, then that with the start
        dtype, start = by
        return rounded(rounded(count - start + 1, dtype) + start - 1, dtype)
    if how == "clamp":
        return np.minimum(count, float(by))
    first, end = map(float, by)
    return (count - first) % (end - first) + first


def of_numbers(start: float, end: float) -> Iterator[Fault]:
    """Yield what a type or a largest number does to positions from a start; `end` is the least that is not returned."""
    for dtype in SHORT:
        yield Fault("positions.precision", {"number": ("round", dtype)})
        yield Fault("positions.precision", {"number": ("sum", (dtype, start))})
    if end > start:
        yield Fault("positions.clamped", {"number": ("clamp", end - 1)}, {"end": end})
    for span in (*BITS, *dict.fromkeys((first, end) for first in (start, 0.0) if first < end)):
        yield Fault("positions.wrapped", {"number": ("wrap", span)}, {"end": span[1]})
