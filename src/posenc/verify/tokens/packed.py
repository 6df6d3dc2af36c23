"""Positions of packed documents: each begins at 0, whatever its length and whatever stands before it."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from posenc.verify import guard
from posenc.verify.report import Cause, Findings
from posenc.verify.tokens.documents import FORMULAS, WRAP, bounds, not_reset, right

LENGTHS = ((5,), (1,), (3, 2), (2, 4), (1, 1, 1), (4, 1, 6, 2), (3, 3, 3), (2, 7, 1, 1, 5), (40, 300, 9000, 9))
FAR = 33_000  # tokens: int16 counts to 32767
EMPTY = ((3, 0, 4), (0, 4), (2, 0, 0, 3), (3, 4, 0), (4, 0, 0))
_MEND = "Subtract each document's start: arange(total) - repeat_interleave(cu_seqlens[:-1], cu_seqlens.diff())."


def check(subject: Any, spec: Mapping[str, Any]) -> Findings:
    """Hold positions(cu_seqlens) against a count that restarts at every document."""
    found = Findings(definitions=["positions@restart-by-document"])
    ask = _asker(subject, found)
    answers: list[tuple[Sequence[int], Tensor]] = [(lengths, ask(lengths)) for lengths in LENGTHS]
    wrong = [(n, got) for n, got in answers if not torch.equal(got, right(n))]
    if not wrong:
        answers += _far(ask, spec)
        wrong = [(n, got) for n, got in answers if not torch.equal(got, right(n))]
    start = float(spec.get("start") or 0)
    if not wrong and not start:
        found.causes = _empty(ask, found) or _again(ask)
        return found
    off = {float(t) for n, got in answers for t in (got - right(n) - start)}
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


def _far(ask: Callable[[Sequence[int]], Tensor], spec: Mapping[str, Any]) -> list[tuple[Sequence[int], Tensor]]:
    """Return the answer to documents that lie beyond what 16 bits can count, if there is one."""
    each = min(int(spec.get("max_positions") or FAR), FAR)
    lengths = (2, *[each] * -(-FAR // each), 9)
    try:
        return [(lengths, ask(lengths))] if len(lengths) < 40 else []
    except guard.SubjectError:
        return []


def _own_origins(lengths: Sequence[int], got: Tensor) -> bool:
    """Say whether each document is off by one number of its own."""
    return all(len(t.unique()) == 1 for t in (got - right(lengths)).split(list(lengths)))


def _asker(subject: Any, found: Findings) -> Callable[[Sequence[int]], Tensor]:
    def ask(lengths: Sequence[int]) -> Tensor:
        ends = bounds(lengths)
        what = f"positions(cu_seqlens={ends.tolist()})"
        for dtype in (torch.int32, torch.int64):
            try:
                got = guard.call(subject, ends.to(dtype), what=what)
                break
            except guard.SubjectError as error:
                if error.cause.code != "subject.raises" or dtype is torch.int64:
                    raise
                found.measured["cu_seqlens"] = "int64 only"
        if isinstance(got, list | tuple) and all(isinstance(t, int | float) for t in got):
            got = torch.tensor(got)
        if isinstance(got, Tensor) and got.ndim == 2 and 1 in got.shape:
            got = got.flatten()
        return guard.shaped(got, (int(ends[-1]),), what).double()

    return ask


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
            words = WRAP if of == "index" else "begins anew inside a document, after a fixed number of tokens"
            code, does = "positions.packed.modulo_wrap", f"{words} (modulo {modulus})"
        elif (held := _held(answers)) is not None:
            code, does = "positions.clamped", f"holds positions at {held}"
    worst = max(float((got - right(n) - start).abs().max()) for n, got in answers)
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
        for of, formula in (("index", not_reset), ("position", right)):
            if all(torch.equal(got, formula(n) % modulus) for n, got in answers):
                return modulus, of
    return None


def _held(answers: Sequence[tuple[Sequence[int], Tensor]]) -> int | None:
    top = int(max(float(got.max()) for _, got in answers))
    return top if all(torch.equal(got, right(n).clamp(max=top)) for n, got in answers) else None


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
        want = right(lengths) + start
        if not torch.equal(got, want):
            return _case(lengths, got, want)
    return {}


def _case(lengths: Sequence[int], got: Tensor, want: Tensor) -> dict[str, Any]:
    if len(got) <= 24:
        return {"cu_seqlens": bounds(lengths).tolist(), "got": got.tolist(), "want": want.tolist()}
    at = int((got != want).nonzero()[0])
    return {"cu_seqlens": bounds(lengths).tolist(), "index": at, "got": float(got[at]), "want": float(want[at])}


def _empty(ask: Callable[[Sequence[int]], Tensor], found: Findings) -> list[Cause]:
    """Look at documents of no tokens, which kernels allow: wrong numbers are a fault, a refusal is only told."""
    for lengths in EMPTY:
        try:
            got = ask(lengths)
        except guard.SubjectError:
            found.measured["empty_documents"] = f"refused: lengths {list(lengths)}"
            continue
        want = right(lengths)
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
        off = got - right(lengths)
        if float(off.min()) != float(off.max()):
            case, worst = _case(lengths, got, right(lengths)), float(off.abs().max())
            message = f"A second call with the same documents gives other positions, off by up to {worst:g}."
            return [Cause("positions.state_kept", message, worst, case, "Keep nothing from one call to the next.")]
    return []
