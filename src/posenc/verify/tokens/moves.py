"""Positions that hang on other calls: an origin that moves, steps that go on from a call before, what is kept."""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from posenc.verify import guard
from posenc.verify.report import Cause
from posenc.verify.tokens.counts import Answer, Call, counted, rows_shifted

_CODE = "positions.origin_moves"
_WHY = (
    "In each call all positions of a row are right but for one number, which is another in the next call: a key that "
    "was turned in an earlier call and kept stands elsewhere than this call counts it"
)


def moves(ask: Callable[[Call], Tensor], answers: Sequence[Answer]) -> bool:
    """Say whether positions depend on the mask alone, each row right but for a constant of its own.

    Then the last columns are those of a call over the whole mask, so that whoever places all keys anew sees right
    distances. A count that begins anew in every call does not have this.
    """
    for a in answers:
        if not rows_shifted([a]):
            return False
        if a.call.q_len == a.call.mask.shape[1]:
            continue
        whole = Call(a.call.mask, a.call.mask.shape[1])
        try:
            got = ask(whole)
        except guard.SubjectError:
            return False
        tail = got[:, -a.call.q_len :]
        if bool(((tail != a.got) & a.call.real).any()) or not rows_shifted([Answer(whole, got, counted(whole))]):
            return False
    return True


def moved(found: Cause, free: bool) -> tuple[list[Cause], str | None]:
    """Return the cause, or why it is none where the origin is free."""
    if free:
        why = f"{_WHY}. Whoever keeps keys unturned, or turns all of them in every call, sees right distances."
        return [], why
    tail = found.message[found.message.index("Smallest case") :]
    help_ = "Count from a place that stays: attention_mask.cumsum(-1) - 1, then its last q_len columns."
    return [Cause(_CODE, f"{_WHY}. {tail}", found.evidence, found.smallest_case, help_)], None


def steps(answers: Sequence[Answer], plans: Sequence[Sequence[Call]]) -> tuple[str, str] | None:
    """Return the code and words of decoding that goes on from what the prefill returned, right or not."""
    given = iter(answers)
    texts = [[next(given) for _ in plan] for plan in plans]
    texts = [t for t in texts if [a.call.kind for a in t[:2]] == ["prefill", "decode"]]
    if not texts or any(t[0].error for t in texts):
        return None
    if all(torch.equal(a.got, t[0].got[:, -1:] + i) for t in texts for i, a in enumerate(t[1:], 1)):
        words = "goes on from the last column of the prefill, which in a row padded on the right is no token"
        return "positions.right_padding.increment", words
    if all(torch.equal(a.got, t[1].want) for t in texts for a in t[1:]):
        return "positions.decode.not_advanced", "gives every generated token the position of the first one"
    return None


def unspoilt(subject: Any) -> Callable[[], Any] | None:
    """Return what makes objects that were never called, of one that was not yet called; None where none are made."""
    try:
        kept = copy.deepcopy(subject)
        return (lambda: copy.deepcopy(kept)) if kept is not subject else None
    except Exception:  # locks, generators, open files: whatever cannot be copied
        return None


def remembers(
    fresh: Callable[[], Any] | None, run: Callable[[Any, Sequence[Call]], list[Answer]], plans: Sequence[Sequence[Call]]
) -> bool:
    """Say whether an object that answers wrongly is right on every text for which it is a new one."""
    try:
        return fresh is not None and not any(a.error for plan in plans for a in run(fresh(), plan))
    except guard.SubjectError:
        return False
