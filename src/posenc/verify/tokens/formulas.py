"""Ways to count the tokens of padded rows, right and wrong, and which of them explains what was returned."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from posenc.verify.tokens.counts import Answer, Call, Kind, counted, same

Formula = Callable[[Call], Tensor]


def _shared(call: Call) -> Tensor:
    total = call.mask.shape[1]
    return torch.arange(total - call.q_len, total).double().expand(len(call.mask), -1)


def _restarted(call: Call) -> Tensor:
    return torch.arange(call.q_len).double().expand(len(call.mask), -1)


def _restarted_count(call: Call) -> Tensor:
    return (call.mask[:, -call.q_len :].cumsum(-1) - 1).double()


def _table(call: Call, fill: float | None) -> Tensor:
    """Count the tokens of each row over the whole mask, and give padded slots a number of their own, as many do."""
    count = (call.mask.cumsum(-1) - 1).double()
    return count if fill is None else torch.where(call.mask.bool(), count, fill)


def _first_columns(fill: float | None) -> Formula:
    return lambda call: _table(call, fill)[:, : call.q_len]


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


def _first_row(fill: float | None) -> Formula:
    return lambda call: _table(call, fill)[:1, -call.q_len :].expand(len(call.mask), -1)


def _along_batch(call: Call) -> Tensor:
    return (call.mask.cumsum(0) - 1)[:, -call.q_len :].double()


def _padding_counted(less: int, least: float) -> Formula:
    return lambda call: ((1 - call.mask).cumsum(-1) - less)[:, -call.q_len :].clamp(min=least).double()


def _filled(number: float) -> Formula:
    """Give the tokens what padding should get."""
    return lambda call: torch.full(call.real.shape, number).double()


def _last_only(call: Call) -> Tensor:
    return counted(call)[:, -1:].expand(-1, call.q_len)


def _padding_twice(call: Call) -> Tensor:
    return counted(call) - (1 - call.mask).sum(-1, keepdim=True)


def _first_twice(call: Call) -> Tensor:
    """Let the second token begin at the first row again, as if a first one were put before the count."""
    return (counted(call) - 1).clamp(min=0)


def _past_columns(call: Call) -> Tensor:
    return _past(call) + _restarted(call)


def _reversed(last: int) -> Formula:
    """Count the tokens from the end of each row, where the last one has this position."""
    return lambda call: (call.mask.flip(-1).cumsum(-1) - 1 + last).flip(-1)[:, -call.q_len :].double()


def _turned(call: Call) -> Tensor:
    return _table(call, None).flip(-1)[:, -call.q_len :]


def _down(*, whole: bool, last: int) -> Formula:
    """Subtract the right position from the length of the row, or of the call."""
    return lambda call: (call.mask.shape[1] if whole else call.q_len) - 1 + last - counted(call)


def _from_the_end(last: int) -> Formula:
    """Count the columns from the last one, padding and all."""
    return lambda call: torch.arange(call.q_len - 1, -1, -1).double().expand(len(call.mask), -1) + last


def _negated(call: Call) -> Tensor:
    return -counted(call)


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


_FILLS = (None, 0.0, 1.0)
# name of the fault: how it counts, in each way that it is written; where two explain everything, the earlier one is
# named
FORMULAS: dict[str, tuple[Formula, ...]] = {
    "shared": (_shared,),
    "restarted": (_restarted,),
    "restarted_count": (_restarted_count,),
    "first_columns": tuple(map(_first_columns, _FILLS)),
    "twice": (_twice,),
    "twice_shared": (_twice_shared,),
    "last_only": (_last_only,),
    "first_row": tuple(map(_first_row, _FILLS)),
    "longest": (_longest,),
    "along_batch": (_along_batch,),
    "padding_counted": tuple(_padding_counted(n, least) for n in (1, 0) for least in (-1.0, 0.0)),
    "padding_twice": (_padding_twice,),
    "minus_row_length": (_minus_row_length,),
    "first_twice": (_first_twice,),
    "past_columns": (_past_columns,),
    "reversed": (_reversed(0), _reversed(1), _turned),
    "from_the_end": (_from_the_end(0), _from_the_end(1)),
    "from_a_length": tuple(_down(whole=whole, last=last) for last in (0, 1) for whole in (True, False)),
    "negated": (_negated,),
    "int8": (_rounded(torch.int8),),
    "int16": (_rounded(torch.int16),),
    "step_ahead": (_step_ahead,),
    "step_behind": (_step_behind,),
    "filled": (_filled(0.0), _filled(1.0)),
    "bfloat16": (_rounded(torch.bfloat16),),
    "float16": (_rounded(torch.float16),),
    "bfloat16_sum": (_summed(torch.bfloat16),),
    "float16_sum": (_summed(torch.float16),),
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
        bent = [a for a in answers if a.call.kind in kinds]
        if any(a.error for a in answers if a.call.kind not in kinds):
            continue
        for name, ways in FORMULAS.items():
            if any(all(same(a, f(a.call) + offset) for a in bent) for f in ways):
                return Explanation(name, tuple(sorted(wrong)))
    return None
