"""Positions of packed documents: each begins at 0, whatever its length and whatever stands before it."""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from posenc.verify import guard
from posenc.verify.report import Cause, Findings

LENGTHS = ((5,), (1,), (3, 2), (2, 4), (1, 1, 1), (4, 1, 6, 2), (3, 3, 3), (2, 7, 1, 1, 5), (40, 300, 9000, 9))
EMPTY = ((3, 0, 4), (0, 4), (2, 0, 0, 3), (3, 4, 0), (4, 0, 0))
_MEND = "Subtract each document's start: arange(total) - repeat_interleave(cu_seqlens[:-1], cu_seqlens.diff())."

Formula = Callable[[Sequence[int]], Tensor]


def check(subject: Any, spec: Mapping[str, Any]) -> Findings:
    """Hold positions(cu_seqlens) against a count that restarts at every document."""
    found = Findings(definitions=["positions@restart-by-document"])
    ask = _asker(subject, found)
    answers = [(lengths, ask(lengths)) for lengths in LENGTHS]
    wrong = [(n, got) for n, got in answers if not torch.equal(got, _right(n))]
    start = float(spec.get("start") or 0)
    if not wrong and not start:
        found.causes = _empty(ask, found) or _again(ask)
        return found
    off = {float(t) for n, got in answers for t in (got - _right(n) - start)}
    if off == {0.0}:
        found.causes = _again(ask)
    elif len(off) == 1 and (spec.get("origin") == "any" or "start" not in spec):
        found.equivalent = (
            f"Every document begins at {next(iter(off)) + start:g} instead of {start:g}: what sees distances only "
            "does not see it. A table of learned rows would."
        )
    elif spec.get("origin") == "any" and all(_own_origins(n, got) for n, got in answers):
        found.equivalent = (
            "Every document begins at a place of its own: what sees distances only, and only in its own document, does "
            "not see it. A table of learned rows would."
        )
    else:
        found.causes = [_cause(ask, answers, start)]
    return found


def _own_origins(lengths: Sequence[int], got: Tensor) -> bool:
    """Say whether each document is off by one number of its own."""
    return all(len(t.unique()) == 1 for t in (got - _right(lengths)).split(list(lengths)))


def _asker(subject: Any, found: Findings) -> Callable[[Sequence[int]], Tensor]:
    def ask(lengths: Sequence[int]) -> Tensor:
        bounds = _bounds(lengths)
        what = f"positions(cu_seqlens={bounds.tolist()})"
        for dtype in (torch.int32, torch.int64):
            try:
                got = guard.call(subject, bounds.to(dtype), what=what)
                break
            except guard.SubjectError as error:
                if error.cause.code != "subject.raises" or dtype is torch.int64:
                    raise
                found.measured["cu_seqlens"] = "int64 only"
        if isinstance(got, list | tuple) and all(isinstance(t, int | float) for t in got):
            got = torch.tensor(got)
        if isinstance(got, Tensor) and got.ndim == 2 and 1 in got.shape:
            got = got.flatten()
        return guard.shaped(got, (int(bounds[-1]),), what).double()

    return ask


def _bounds(lengths: Sequence[int]) -> Tensor:
    return torch.tensor([0, *lengths]).cumsum(0)


def _right(lengths: Sequence[int]) -> Tensor:
    return torch.cat([torch.arange(n) for n in lengths]).double()


def _not_reset(lengths: Sequence[int]) -> Tensor:
    return torch.arange(sum(lengths)).double()


def _previous_length(lengths: Sequence[int]) -> Tensor:
    index, before = _not_reset(lengths), (0, *lengths[:-1])
    return index - torch.repeat_interleave(torch.tensor(before), torch.tensor(lengths))


def _late(lengths: Sequence[int]) -> Tensor:
    """Let the first token of a document be counted to the one before it."""
    out, begin = _right(lengths), 0
    for before, n in pairwise(lengths):
        begin += before
        out[begin] = before if n else out[begin]
    return out


def _early(lengths: Sequence[int]) -> Tensor:
    """Let the last token of a document be counted to the one after it, as its position 0."""
    out, end = _right(lengths), 0
    for n in lengths[:-1]:
        end += n
        out[end - 1] = 0
    return out


def _from_one(lengths: Sequence[int]) -> Tensor:
    """Begin at 0 in the first document, at 1 in all others."""
    right = _right(lengths)
    right[lengths[0] :] += 1
    return right


def _second_late(lengths: Sequence[int]) -> Tensor:
    right = _right(lengths)
    right[lengths[0] :] -= 1
    return right


def _ids(lengths: Sequence[int]) -> Tensor:
    return torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths)).double()


def _by_first(lengths: Sequence[int]) -> Tensor:
    return _not_reset(lengths) % lengths[0]


def _by_longest(lengths: Sequence[int]) -> Tensor:
    return _not_reset(lengths) % max(lengths)


def _first_only(lengths: Sequence[int]) -> Tensor:
    """Reset after the first document only."""
    index = _not_reset(lengths)
    index[lengths[0] :] -= lengths[0]
    return index


def _last_lost(lengths: Sequence[int]) -> Tensor:
    """Give the last document no reset."""
    out = _right(lengths)
    if len(lengths) > 1:
        out[-lengths[-1] :] += lengths[-2]
    return out


def _last_absolute(lengths: Sequence[int]) -> Tensor:
    out, n = _right(lengths), lengths[-1]
    out[-n:] = _not_reset(lengths)[-n:]
    return out


def _last_zero(lengths: Sequence[int]) -> Tensor:
    out = _right(lengths)
    out[-lengths[-1] :] = 0
    return out


def _backwards(lengths: Sequence[int]) -> Tensor:
    return torch.cat([torch.arange(n - 1, -1, -1) for n in lengths]).double()


def _half(dtype: torch.dtype, right: Formula) -> Formula:
    return lambda lengths: right(lengths).to(dtype).double()


def _difference_in_half(dtype: torch.dtype) -> Formula:
    """Round the running index and the starts before they are subtracted."""

    def formula(lengths: Sequence[int]) -> Tensor:
        starts = torch.repeat_interleave(_bounds(lengths)[:-1], torch.tensor(lengths))
        return (_not_reset(lengths).to(dtype) - starts.to(dtype)).double()

    return formula


_WRAP = "takes the running index modulo a length, so that documents restart in the middle and not where they begin"
_PRECISION = "forms positions in half precision, in which neighbours become equal"
FORMULAS: list[tuple[Formula, str, str]] = [
    (_not_reset, "positions.packed_not_reset", "counts on through all documents"),
    (_first_only, "positions.packed.first_reset_only", "begins anew at the second document only"),
    (_previous_length, "positions.packed.previous_length", "subtracts the length of the document before, not its end"),
    (_by_first, "positions.packed.modulo_wrap", _WRAP + " (that of the first document)"),
    (_by_longest, "positions.packed.modulo_wrap", _WRAP + " (that of the longest document)"),
    (_late, "positions.packed.boundary", "counts the first token of a document to the document before it"),
    (_early, "positions.packed.boundary", "gives the last token of a document to the one after it"),
    (_from_one, "positions.packed.off_by_one", "begins at 0 in the first document and at 1 in all others"),
    (_second_late, "positions.packed.off_by_one", "begins at 0 in the first document and at -1 in all others"),
    (_last_lost, "positions.packed.last_document", "does not restart at the last document"),
    (_last_absolute, "positions.packed.last_document", "gives the last document the running index"),
    (_last_zero, "positions.packed.last_document", "gives all tokens of the last document position 0"),
    (_ids, "positions.packed.document_index", "returns the number of the document instead of the position in it"),
    (_backwards, "positions.packed.reversed", "counts from the end of each document"),
    (_half(torch.bfloat16, _right), "positions.precision", _PRECISION),
    (_half(torch.float16, _right), "positions.precision", _PRECISION),
    (_difference_in_half(torch.bfloat16), "positions.precision", _PRECISION),
    (_difference_in_half(torch.float16), "positions.precision", _PRECISION),
]


def _cause(
    ask: Callable[[Sequence[int]], Tensor], answers: Sequence[tuple[Sequence[int], Tensor]], start: float
) -> Cause:
    """Say which way of counting explains all answers."""
    code, does = "positions.mismatch", "counts in no way that is known here"
    for formula, name, words in FORMULAS:
        if all(torch.equal(got, formula(n) + start) for n, got in answers):
            code, does = name, words
            break
    else:
        wrap = _modulus(answers)
        if wrap is not None:
            modulus, of = wrap
            words = _WRAP if of == "index" else "begins anew inside a document, after a fixed number of tokens"
            code, does = "positions.packed.modulo_wrap", f"{words} (modulo {modulus})"
        elif (held := _held(answers)) is not None:
            code, does = "positions.clamped", f"holds positions at {held}"
    worst = max(float((got - _right(n) - start).abs().max()) for n, got in answers)
    case = _smallest(ask, answers, start)
    message = (
        f"The function {does}: off by up to {worst:g}. Smallest case: cu_seqlens {case['cu_seqlens']}: "
        f"got {case['got']}, should be {case['want']}."
    )
    return Cause(code, message, worst, case, _MEND)


def _modulus(answers: Sequence[tuple[Sequence[int], Tensor]]) -> tuple[int, str] | None:
    """Return a modulus that explains all answers, of the running index or of the right position."""
    top = int(max(float(got.max()) for _, got in answers)) + 1
    for modulus in range(1, top + 1) if top <= 64 else (top,):
        for of, formula in (("index", _not_reset), ("position", _right)):
            if all(torch.equal(got, formula(n) % modulus) for n, got in answers):
                return modulus, of
    return None


def _held(answers: Sequence[tuple[Sequence[int], Tensor]]) -> int | None:
    top = int(max(float(got.max()) for _, got in answers))
    return top if all(torch.equal(got, _right(n).clamp(max=top)) for n, got in answers) else None


def _smallest(
    ask: Callable[[Sequence[int]], Tensor], answers: Sequence[tuple[Sequence[int], Tensor]], start: float
) -> dict[str, Any]:
    """Return the shortest packing that is answered wrongly."""
    small = [(1,), (2,), (1, 1), (1, 2), (2, 1), (2, 2), (1, 1, 1), (1, 2, 1), (2, 1, 1), (2, 2, 2), (3, 2)]
    tried = [*((n, None) for n in small), *sorted(answers, key=lambda a: sum(a[0]))]
    for lengths, known in tried:
        try:
            got = ask(lengths) if known is None else known
        except guard.SubjectError:
            continue
        want = _right(lengths) + start
        if not torch.equal(got, want):
            return _case(lengths, got, want)
    return {}


def _case(lengths: Sequence[int], got: Tensor, want: Tensor) -> dict[str, Any]:
    if len(got) <= 24:
        return {"cu_seqlens": _bounds(lengths).tolist(), "got": got.tolist(), "want": want.tolist()}
    at = int((got != want).nonzero()[0])
    return {"cu_seqlens": _bounds(lengths).tolist(), "index": at, "got": float(got[at]), "want": float(want[at])}


def _empty(ask: Callable[[Sequence[int]], Tensor], found: Findings) -> list[Cause]:
    """Look at documents of no tokens, which kernels allow: wrong numbers are a fault, a refusal is only told."""
    for lengths in EMPTY:
        try:
            got = ask(lengths)
        except guard.SubjectError:
            found.measured["empty_documents"] = f"refused: lengths {list(lengths)}"
            continue
        want = _right(lengths)
        if not torch.equal(got, want):
            case, worst = _case(lengths, got, want), float((got - want).abs().max())
            message = (
                f"A document of no tokens spoils those after it: cu_seqlens {case['cu_seqlens']} gives {case['got']}, "
                f"should be {case['want']}."
            )
            help_ = "Do not write at a start twice: two documents may begin at one place. " + _MEND
            return [Cause("positions.packed.empty_document", message, worst, case, help_)]
    return []


def _again(ask: Callable[[Sequence[int]], Tensor]) -> list[Cause]:
    """Ask shorter packings after the long one, and every one a second time."""
    for lengths in (*LENGTHS[:4], *LENGTHS[::-1]):
        got = ask(lengths)
        off = got - _right(lengths)
        if float(off.min()) != float(off.max()):
            case, worst = _case(lengths, got, _right(lengths)), float(off.abs().max())
            message = f"A second call with the same documents gives other positions, off by up to {worst:g}."
            return [Cause("positions.state_kept", message, worst, case, "Keep nothing from one call to the next.")]
    return []
