"""Ways to count the tokens of padded rows, right and wrong, and which of them explains what was returned."""

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


Formula = Callable[[Call], Tensor]


def counted(call: Call) -> Tensor:
    """Count the tokens of each row from 0: what is right."""
    return (call.mask.cumsum(-1) - 1)[:, -call.q_len :].double()


def _shared(call: Call) -> Tensor:
    total = call.mask.shape[1]
    return torch.arange(total - call.q_len, total).double().expand(len(call.mask), -1)


def _restarted(call: Call) -> Tensor:
    return torch.arange(call.q_len).double().expand(len(call.mask), -1)


def _restarted_count(call: Call) -> Tensor:
    return (call.mask[:, -call.q_len :].cumsum(-1) - 1).double()


def _first_columns(call: Call) -> Tensor:
    return (call.mask.cumsum(-1) - 1)[:, : call.q_len].double()


def _past(call: Call) -> Tensor:
    """Count the tokens before the columns that are asked for."""
    return call.mask[:, : call.mask.shape[1] - call.q_len].sum(-1, keepdim=True).double()


def _twice(call: Call) -> Tensor:
    return counted(call) + _past(call)


def _twice_shared(call: Call) -> Tensor:
    return counted(call) + (call.mask.shape[1] - call.q_len)


def _longest(call: Call) -> Tensor:
    end = int(call.mask.sum(-1).max())
    return torch.arange(end - call.q_len, end).double().expand(len(call.mask), -1)


def _first_row(call: Call) -> Tensor:
    return counted(call)[:1].expand(len(call.mask), -1)


def _along_batch(call: Call) -> Tensor:
    return (call.mask.cumsum(0) - 1)[:, -call.q_len :].double()


def _padding_counted(call: Call) -> Tensor:
    return ((1 - call.mask).cumsum(-1) - 1)[:, -call.q_len :].double()


def _last_only(call: Call) -> Tensor:
    return counted(call)[:, -1:].expand(-1, call.q_len)


def _padding_twice(call: Call) -> Tensor:
    return counted(call) - (1 - call.mask).sum(-1, keepdim=True)


def _first_twice(call: Call) -> Tensor:
    """Let the second token begin at the first row again, as if a first one were put before the count."""
    return (counted(call) - 1).clamp(min=0)


def _past_columns(call: Call) -> Tensor:
    return _past(call) + _restarted(call)


def _reversed(call: Call) -> Tensor:
    return (call.mask.flip(-1).cumsum(-1) - 1).flip(-1)[:, -call.q_len :].double()


def _step_ahead(call: Call) -> Tensor:
    return counted(call) + 1


def _step_behind(call: Call) -> Tensor:
    return counted(call) - 1


def _minus_row_length(call: Call) -> Tensor:
    """Subtract the padding of the whole row where it stands on the left of none of its tokens."""
    return _shared(call) - (1 - call.mask).sum(-1, keepdim=True)


def _rounded(dtype: torch.dtype) -> Formula:
    return lambda call: counted(call).to(dtype).double()


def _summed(dtype: torch.dtype) -> Formula:
    return lambda call: (call.mask.to(dtype).cumsum(-1) - 1)[:, -call.q_len :].double()


# name of the fault: how it counts; where two explain everything, the earlier one is named
FORMULAS: dict[str, Formula] = {
    "shared": _shared,
    "restarted": _restarted,
    "restarted_count": _restarted_count,
    "first_columns": _first_columns,
    "twice": _twice,
    "twice_shared": _twice_shared,
    "last_only": _last_only,
    "first_row": _first_row,
    "longest": _longest,
    "along_batch": _along_batch,
    "padding_counted": _padding_counted,
    "padding_twice": _padding_twice,
    "minus_row_length": _minus_row_length,
    "first_twice": _first_twice,
    "past_columns": _past_columns,
    "reversed": _reversed,
    "int8": _rounded(torch.int8),
    "step_ahead": _step_ahead,
    "step_behind": _step_behind,
    "bfloat16": _rounded(torch.bfloat16),
    "float16": _rounded(torch.float16),
    "bfloat16_sum": _summed(torch.bfloat16),
    "float16_sum": _summed(torch.float16),
}


@dataclass(frozen=True)
class Explanation:
    """Which formula stands for the answers, and in which kinds of calls it takes the place of the right one."""

    fault: str
    kinds: tuple[Kind, ...]


def explain(answers: Sequence[Answer], offset: float = 0.0) -> Explanation | None:
    """Return the formula that gives every wrong answer to the last token, or None.

    One that holds in all calls goes before one that holds in some kinds of call only, with the right count in the
    others.
    """
    wrong = {a.call.kind for a in answers if a.error}
    everywhere = {a.call.kind for a in answers}
    for kinds in (everywhere, wrong):
        for name, formula in FORMULAS.items():
            bent = [a for a in answers if a.call.kind in kinds]
            straight = all(not a.error for a in answers if a.call.kind not in kinds)
            if straight and all(_same(a, formula(a.call) + offset) for a in bent):
                return Explanation(name, tuple(sorted(wrong)))
    return None


def _same(answer: Answer, predicted: Tensor) -> bool:
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
        if least > offset and all(_same(a, there(a.want)) for a in answers):
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
