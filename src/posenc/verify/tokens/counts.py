"""The tokens of padded rows, counted: calls, what they return and should, and what is off about the numbers alone."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Kind = str  # "prefill": the whole mask; "chunk": its last columns, after others; "decode": its last column


@dataclass(frozen=True)
class Call:
    """One call: a mask (batch, total), and of how many of its last columns the numbers are asked."""

    mask: Tensor
    q_len: int

    @property
    def kind(self) -> Kind:
        """The kind of call."""
        if self.q_len == self.mask.shape[1]:
            return "prefill"
        return "decode" if self.q_len == 1 else "chunk"

    @property
    def real(self) -> Tensor:
        """Where the columns that are asked for hold tokens: what padded slots get is free."""
        return self.mask[:, -self.q_len :].bool()


@dataclass(frozen=True)
class Answer:
    """What a call returned, as float64, beside what it should."""

    call: Call
    got: Tensor
    want: Tensor

    @property
    def error(self) -> float:
        """The largest difference on tokens."""
        return float(((self.got - self.want).abs() * self.call.real).max())


def counted(call: Call) -> Tensor:
    """Count the tokens of each row from 0: what is right."""
    return (call.mask.cumsum(-1) - 1)[:, -call.q_len :].double()


def same(answer: Answer, predicted: Tensor) -> bool:
    """Say whether an answer is what was predicted, on tokens."""
    return not bool(((answer.got - predicted).abs() * answer.call.real).max() > 0)


def bound(answers: Sequence[Answer], offset: float = 0.0) -> tuple[str, int] | None:
    """Return ("clamped" | "wrapped", where) if counts are right up to a number and held there, or begin anew."""
    off = [a for a in answers if a.error]
    if not off:
        return None
    # the least right number that is not returned: held or wrapped counts are right below it
    least = min(int(a.want[(a.got != a.want) & a.call.real].min()) for a in off)
    ways: tuple[tuple[str, Callable[[Tensor], Tensor]], ...] = (
        ("clamped", lambda t: t.clamp(max=least - 1)),
        ("wrapped", lambda t: _wrap(t, least, offset)),
        ("wrapped", lambda t: t % least),
    )
    for name, there in ways:
        if least > offset and all(same(a, there(a.want)) for a in answers):
            return name, least
    return None


def halved(answers: Sequence[Answer]) -> str | None:
    """Return the half precision in which numbers were formed: right while they are small, and all of them in it."""
    for name, dtype, end in (("bfloat16", torch.bfloat16, 256), ("float16", torch.float16, 2048)):
        got = torch.cat([a.got[a.call.real] for a in answers])
        want = torch.cat([a.want[a.call.real] for a in answers])
        wrong = got != want
        if bool((want[wrong] >= end - 1).all()) and bool((got == got.to(dtype).double()).all()):
            return name
    return None


def _wrap(t: Tensor, least: int, offset: float) -> Tensor:
    return (t - offset) % (least - offset) + offset


def shift(answers: Sequence[Answer]) -> float | None:
    """Return the one number that all answers are off by on tokens, or None."""
    off = torch.cat([(a.got - a.want)[a.call.real] for a in answers])
    return float(off[0]) if bool((off == off[0]).all()) else None


def rows_shifted(answers: Sequence[Answer]) -> bool:
    """Say whether each row of a text is off by one number, the same in all of its calls."""
    off = [torch.where(a.call.real, a.got - a.want, torch.nan) for a in answers]
    rows = torch.cat(off, 1)
    return bool((rows.isnan() | (rows == rows.nanmedian(-1, keepdim=True).values)).all())


def mask_of(total: int, pads: Sequence[int], side: str = "left", more: int = 0) -> Tensor:
    """Return the mask of rows with so many padded slots each, and `more` tokens generated after it."""
    columns = torch.arange(total)
    rows = [columns >= n if side == "left" else columns < total - n for n in pads]
    mask = torch.stack(rows).long()
    return torch.cat((mask, torch.ones(len(pads), more, dtype=torch.long)), 1)


def generation(total: int, pads: Sequence[int], side: str, steps: int = 2) -> list[Call]:
    """Return the calls of a prefill and a few steps after it."""
    calls = [Call(mask_of(total, pads, side), total)]
    return calls + [Call(mask_of(total, pads, side, more), 1) for more in range(1, steps + 1)]


def chunked(total: int, pads: Sequence[int], side: str, chunk: int) -> list[Call]:
    """Return the calls of a prefill in chunks, and a step after it."""
    whole = mask_of(total, pads, side)
    ends = [*range(chunk, total, chunk), total]
    calls = [Call(whole[:, :end], end - begin) for begin, end in zip([0, *ends], ends, strict=False)]
    return [*calls, Call(mask_of(total, pads, side, 1), 1)]
