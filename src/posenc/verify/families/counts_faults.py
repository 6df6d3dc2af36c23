"""Wrong ways to count tokens: in padded rows, in packed documents, and with numbers that are too large."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from posenc.verify.engine import Fault
from posenc.verify.engine.precision import SHORT, rounded
from posenc.verify.engine.records import Array
from posenc.verify.families.counts_calls import Call

Rule = Callable[[Call], Any]  # an array that broadcasts to all columns or to the requested ones
Ways = Sequence[tuple[str, Rule]]  # finding codes after "positions.", and how tokens are counted

BITS = ((-(1 << 7), 1 << 7), (-(1 << 15), 1 << 15))
KINDS = ("prefill", "decode", "chunk")
SOME = (("decode",), ("chunk",), ("decode", "chunk"), ("prefill",))

IN_ROWS = {  # codes with another name if they select rows
    "positions.left_padding": "learned.padding_not_masked",
    "positions.padded_width_in_decode": "learned.padding_not_masked",
    "positions.off_by_one": "learned.cls_row",
    "positions.clamped": "learned.table_too_short",
    "positions.wrapped": "learned.wrapped",
    "positions.axis.batch": "learned.axis.batch",
}


def _filled(call: Call, fill: float) -> Any:
    """Return the count with another number in padded slots, as many implementations do."""
    return np.where(call.mask > 0, call.count, fill)


def _goes_on(call: Call, fill: float) -> Any:
    """Continue from the last column of the prefill, in which padding has a number."""
    end = min(call.prompt, call.total)
    return _filled(call, fill)[:, end - 1 : end] + call.total - end


def _ordered(call: Call, order: Callable[[int], Array]) -> Array:
    """Return the order of each document's tokens as their positions."""
    found: Array = call.right.copy()
    for n in np.unique(call.length[call.mask > 0]).astype(int):
        at = (call.length == n) & (call.mask > 0)
        found[at] = order(n)[call.right[at].astype(int)]
    return found


def _alike(line: Array) -> Array:
    """Return how many columns before each one have the same document, or are padding as well."""
    found: Array = np.tril(line[:, None] == line, -1).sum(1, dtype=np.float64)[None]
    return found


def _late(call: Call) -> Array:
    """Return the position of the token before each one, as if documents began one token later."""
    return np.append(0.0 * call.right[:, :1], call.right[:, :-1], 1)


def _of_devices(n: int) -> Array:
    """Return the tokens of two devices, of which each has one quarter from the front and one from the back."""
    parts = [np.arange(n)[begin : begin + -(-n // 4)] for begin in range(0, n, -(-n // 4))]
    return np.concatenate([parts[i] for i in (0, 3, 1, 2) if i < len(parts)]).astype(np.float64)


SPLITS: Mapping[str, Callable[[int], Array]] = {  # of n tokens, as they are split over devices
    "the first, the last, the second, the last but one, ...": lambda n: np.where(
        np.arange(n) % 2, n - 1 - np.arange(n) // 2, np.arange(n) // 2
    ),
    "the first and the last quarter, then the second and the third": _of_devices,
    "all even ones, then all odd ones": lambda n: np.append(np.arange(0.0, n, 2), np.arange(1.0, n, 2)),
}
OF_MASKS: Ways = (  # if two explain everything, the earlier one is reported
    ("left_padding", lambda c: c.columns),
    ("past_ignored", lambda c: c.steps),
    ("past_ignored", lambda c: c.asked.cumsum(1) - 1),
    ("past_ignored", lambda c: c.count[:, : c.q_len]),
    *(("past_ignored", lambda c, fill=fill: _filled(c, fill)[:, : c.q_len]) for fill in (0, 1)),
    ("chunked_prefill.double_counted", lambda c: c.count + c.past),
    ("chunked_prefill.double_counted", lambda c: c.count + c.earlier),
    ("constant_in_chunk", lambda c: c.tokens - 1),
    ("right_padding.increment", lambda c: c.columns - (c.mask > 0).argmax(1)[:, None]),
    ("first_row_for_all", lambda c: c.count[:1]),
    ("last_row_for_all", lambda c: c.count[-1:]),
    ("shortest_row_for_all", lambda c: c.columns - (c.total - c.tokens).max()),
    ("padded_width_in_decode", lambda c: c.columns - (c.total - c.tokens).min()),
    ("axis.batch", lambda c: c.mask.cumsum(0) - 1),
    ("mask_inverted", lambda c: c.columns - c.count - 1),
    ("mask_inverted", lambda c: np.maximum(c.columns - c.count - 1, 0)),
    ("padding_twice", lambda c: c.columns - c.total + c.tokens),
    ("padding_twice", lambda c: c.count - c.total + c.tokens),
    ("off_by_one", lambda c: np.maximum(c.count - 1, 0)),  # the first two tokens share a position
    ("left_padding", lambda c: c.past + c.steps),
)
OF_STEPS: Ways = (
    ("right_padding.increment", lambda c: _goes_on(c, 0)),
    ("right_padding.increment", lambda c: _goes_on(c, 1)),
)
OF_DOCUMENTS: Ways = (
    ("packed_not_reset", lambda c: c.count),
    ("left_padding", lambda c: c.columns),
    ("first_row_for_all", lambda c: c.right[:1]),
    ("first_row_for_all", lambda c: _alike(c.mask[0])),
    ("last_row_for_all", lambda c: c.right[-1:]),
    ("packed_not_reset", lambda c: c.right + c.previous),
    ("packed_not_reset", lambda c: c.right + c.previous * (c.mask == c.last)),
    ("packed.previous_length", lambda c: c.count - c.previous),
    ("packed.modulo_wrap", lambda c: c.count % np.maximum(c.length[:, :1], 1)),
    ("packed.modulo_wrap", lambda c: c.count % c.length.max(1, keepdims=True)),
    ("packed.boundary", lambda c: np.where(c.right == 0, c.previous, c.right)),
    ("packed.boundary", lambda c: np.where((c.right == c.length - 1) & (c.mask < c.last), 0, c.right)),
    ("packed.boundary", lambda c: _late(c)),
    ("packed.boundary", lambda c: np.where(c.mask == 1, c.right, _late(c))),
    ("packed.off_by_one", lambda c: c.right + (c.mask > 1)),
    ("packed.off_by_one", lambda c: c.right - (c.mask > 1)),
    ("packed.document_index", lambda c: c.mask - 1),
    ("packed.document_index", lambda c: c.count - c.mask + 1),
    ("packed.first_only", lambda c: np.where(c.mask == 1, c.right, 0)),
    ("packed.first_only", lambda c: np.where(c.mask == 1, c.right, 1)),
    ("packed.first_only", lambda c: np.where(c.mask == 1, c.right, -1)),
)


def of_orders() -> Iterator[Fault]:
    """Yield positions in the order in which tokens are split over devices, and positions relative to the length."""
    for words, order in SPLITS.items():
        for rule in (partial(_ordered, order=order), lambda c, order=order: order(c.total)[None]):
            yield Fault("positions.zigzag", dict.fromkeys(KINDS, rule), {"words": words})
    for less in (0, 1):
        over = lambda c, less=less: c.right / np.maximum(c.total - less, 1)  # noqa: E731
        yield Fault("positions.normalised", dict.fromkeys(KINDS, over), {"less": " - 1" * less})


def of_steps(step: float, start: float) -> Iterator[Fault]:
    """Yield positions that advance by another number than 1, also rounded down."""
    if step <= 0 or step == 1:
        return
    wide = lambda n: (n - start) * step + start  # noqa: E731
    for number in (wide, lambda n: np.floor(wide(n))):
        yield Fault("positions.step", {"number": number}, {"step": step})


def moving(at: float) -> Iterator[Rule]:
    """Yield where counting starts if position 0 is the newest token, the last column or the longest row."""
    yield lambda c: at - c.tokens
    yield lambda c: at - c.total
    yield lambda c: at - c.tokens.max()


def of_masks(side: str, kinds: Sequence[str]) -> Iterator[Fault]:
    """Yield ways to count that some kinds of calls use, for rows that are padded on a side."""
    for code, rule in (*OF_MASKS, *(OF_STEPS if kinds != KINDS else ())):
        yield Fault(f"positions.{_code(code, side, kinds)}", dict.fromkeys(kinds, rule), {"by": -1})


def without_masks() -> Iterator[Fault]:
    """Yield ways to count the tokens of a call that has no mask."""
    yield from (f for f in of_masks("", ("prefill",)) if f.code in ("positions.axis.batch", "positions.off_by_one"))


def _code(code: str, side: str, kinds: Sequence[str]) -> str:
    """Return the code of a way that only some kinds of calls use."""
    if kinds == ("chunk",) and code in ("left_padding", "past_ignored"):
        return "chunked_prefill"
    if code == "left_padding" and side == "right":
        return "right_padding.increment"
    if code == "left_padding" and "prefill" not in kinds:
        return "padded_width_in_decode" if side == "both" else "left_padding.decode_lost"
    return "left_padding" if code == "padded_width_in_decode" and "prefill" in kinds else code


def of_documents(modulus: float) -> Iterator[Fault]:
    """Yield ways to count packed documents, also with the index and the starts in a short type."""
    for code, rule in (*OF_DOCUMENTS, ("packed.modulo_wrap", lambda c: c.count % modulus)):
        yield Fault(f"positions.{code}", {"prefill": rule})
    of_lengths: Ways = (
        ("packed.end_subtracted", lambda c: c.right - c.length),
        ("packed.own_length", lambda c: c.count - c.length),
    )
    yield from (Fault(f"positions.{code}", {"prefill": rule, "start": 0.0}) for code, rule in of_lengths)
    for fault in of_numbers(0.0, 0.0):
        short = fault.change["number"]
        yield Fault(fault.code, {"prefill": lambda c, s=short: s(c.count) - s(c.count - c.right)}, fault.values)


def _wrap(count: Array, first: float, end: float) -> Array:
    return (count - first) % (end - first) + first


def of_numbers(start: float, end: float) -> Iterator[Fault]:
    """Yield errors of a type or of a largest number; `end` is the smallest position that is not returned."""
    for dtype in SHORT:
        short = partial(rounded, dtype=dtype)
        yield Fault("positions.precision", {"number": short})
        for before in (
            lambda n, r=short: r(n - start + 1) + start - 1,
            lambda n, r=short: r(r(n - start + 1) + start - 1),
        ):
            yield Fault("positions.precision", {"number": before})  # the sum of the mask is rounded
    if end > start + 1:
        yield Fault("positions.clamped", {"number": partial(np.minimum, end - 1)}, {"end": end})
    for first, stop in (*BITS, *dict.fromkeys((first, end) for first in (start, 0.0) if first + 1 < end)):
        own = partial(_wrap, first=first, end=stop)
        summed = partial(_wrap, first=first, end=stop if (first, stop) in BITS else stop + 1)  # the sum of the mask
        for again in (own, lambda n, w=summed: w(n + 1) - 1, lambda n, w=summed: np.maximum(w(n + 1) - 1, 0)):
            yield Fault("positions.wrapped", {"number": again}, {"end": stop})


def first_row(spec: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """Return the row of position 0, if the specification declares it, and padding_idx."""
    padding = spec.get("padding") if spec.get("padding_idx") is None else spec["padding_idx"]
    padding_idx = padding if isinstance(padding, int) and not isinstance(padding, bool) else None
    said = [int(spec[name]) for name in ("offset", "start") if spec.get(name) is not None]
    return (sum(said) if said else None if padding_idx is None else padding_idx + 1), padding_idx


def described(line: Array, start: float) -> Fault | None:
    """Return what is wrong with the positions of a text without padding; None if they only start elsewhere."""
    steps = np.diff(line)
    if (steps == 1).all() or len(line) < 3:
        return None
    if (steps < 0).all():
        return Fault("positions.reversed")
    if not steps.any():
        return Fault("positions.constant_in_chunk")
    if (steps == steps[0]).all():
        return Fault("positions.step", {}, {"step": steps[0]})
    return Fault("positions.other", {}, {"n": len(line), "found": line[:12].tolist(), "start": start})


def row_code(found: float, asked: float, padding_idx: float | None) -> str:
    """Return the fault of a first row: 2 is the offset of OPT and BART, padding_idx + 1 that of RoBERTa's family."""
    if found == 0:
        return "offset_missing"
    if padding_idx is not None and found == padding_idx + 1:
        return "padding_idx_as_offset"
    return "offset_hardwired" if found == 2 and abs(found - asked) > 1 else "start"
