"""Calls of functions of masks: in any dtype, in the order of a generation, and what comes back."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from posenc.verify import guard
from posenc.verify.report import Cause
from posenc.verify.tokens.counts import Answer, Call, counted

SHARED = "takes the column's number, the same for all rows, so that padding counts as tokens"


def side_of(spec: Mapping[str, Any]) -> str:
    """Return "left", "right", "both" or "none" as declared; "left?" where nothing is said."""
    said = spec.get("padding")
    if isinstance(said, str) and said.lower() in ("left", "right", "both", "none"):
        return said.lower()
    return "left?"


def asker(subject: Any, *, takes_length: bool) -> Callable[[Call], Tensor]:
    """Return a function that calls the subject and gives float64 (batch, q_len), in whatever dtype it answers."""
    keyword = _keyword_only(subject)

    def ask(call: Call) -> Tensor:
        batch, total = call.mask.shape
        tail = f", q_len={call.q_len}" if takes_length else ""
        what = f"{'positions' if takes_length else 'rows'}(attention_mask of ({batch}, {total}){tail})"
        args: list[Any] = [call.mask, call.q_len] if takes_length else [call.mask]
        options = {name: args.pop() for name in reversed(keyword) if args}
        try:
            found = guard.call(subject, *args, what=what, **options)
        except guard.SubjectError as error:
            if error.cause.code != "subject.raises":
                raise
            bools = [t.bool() if isinstance(t, Tensor) else t for t in args]
            try:  # a mask of bool is as good
                found = guard.call(subject, *bools, what=what, **options)
            except guard.SubjectError:
                raise error from None
        return _flat(found, (batch, call.q_len), what)

    return ask


def _keyword_only(subject: Any) -> list[str]:
    try:
        parameters = inspect.signature(subject).parameters.values()
    except (TypeError, ValueError):
        return []
    return [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty]


def _flat(found: Any, shape: tuple[int, int], what: str) -> Tensor:
    """Accept (q_len,), (1, q_len) and dimensions of 1 between, which broadcast to (batch, q_len)."""
    if isinstance(found, list | tuple):
        try:
            found = torch.as_tensor(found)
        except (TypeError, ValueError, RuntimeError):
            guard.shaped(found, shape, what)
    if isinstance(found, Tensor) and found.ndim == 3 and 1 in found.shape[:2]:
        found = found.squeeze(0) if found.shape[0] == 1 else found.squeeze(1)
    if isinstance(found, Tensor) and found.shape in ((shape[1],), (1, shape[1])):
        found = found.expand(*shape)
    return guard.shaped(found, shape, what).double()


def run(ask: Callable[[Call], Tensor], plans: Sequence[Sequence[Call]], offset: float) -> list[Answer]:
    """Run plans of calls in order, as a generation does, so that what counts on by itself can."""
    return [Answer(call, ask(call), counted(call) + offset) for plan in plans for call in plan]


def run_softly(ask: Callable[[Call], Tensor], plans: Sequence[Sequence[Call]], offset: float) -> list[Answer] | None:
    """Run plans that nothing asks for; None where they are refused."""
    try:
        return run(ask, plans, offset)
    except guard.SubjectError:
        return None


def memory(ask: Callable[[Call], Tensor], plans: Sequence[Sequence[Call]], offset: float) -> list[Cause]:
    """Ask the short calls again after the long ones."""
    for a in run(ask, plans, offset):
        if a.error:
            return [state_cause(a)]
    return []


def state_cause(a: Answer) -> Cause:
    """Return the cause of an answer that is wrong only because of calls before it."""
    message = (
        f"After another sequence positions are other than on a new object, off by up to {a.error:g}: something is kept "
        "from one sequence to the next."
    )
    return Cause("positions.state_kept", message, a.error, case_of(a), "Start anew with every prefill.")


def case_of(a: Answer) -> dict[str, Any]:
    """Return a call with its worst row, as plain numbers."""
    row = int(((a.got - a.want).abs() * a.call.real).max(-1).values.argmax())
    n = a.call.mask.shape[1]
    shown = a.call.mask.tolist() if n <= 16 else f"{n} columns, {a.call.mask.sum(-1).tolist()} tokens"
    if n <= 16:
        return {
            "attention_mask": shown,
            "q_len": a.call.q_len,
            "row": row,
            "got": a.got[row].tolist(),
            "want": _blank(a.want[row], a.call.real[row]),
        }
    wrong = ((a.got - a.want) * a.call.real)[row].nonzero().flatten()[0]
    return {
        "attention_mask": shown,
        "q_len": a.call.q_len,
        "row": row,
        "column": int(wrong) + n - a.call.q_len,
        "got": float(a.got[row, wrong]),
        "want": float(a.want[row, wrong]),
    }


def _blank(want: Tensor, real: Tensor) -> list[float | None]:
    return [w if r else None for w, r in zip(want.tolist(), real.tolist(), strict=True)]
