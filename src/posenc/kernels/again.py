"""Calls like one before: one look at all of their tensors knows them again, and their addresses are all that is new.

Decoding asks for the same turn in every layer and at every step, on so little memory that all that Python asks of each
tensor takes longer than the turn. torch has one function that asks it of all of them: the guard of compiled code.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from posenc.kernels import memory, pages, plain
from posenc.kernels.plans import Plan

try:
    from torch._C._dynamo import guards
except ImportError:  # it is torch's own affair, and without it every call is asked everything
    guards = None  # type: ignore[assignment]

Kind = tuple[object, ...]
_MOST = 4096


class Known(NamedTuple):
    """A call that was turned by addresses.

    Args:
        like: Whether tensors have the type, dtype, device, shape and strides of those, need no gradient, and are
            distinct.
        start: What turns, given (x, out, cos, sin, weight) of queries and then of keys.
        plan: Of such calls.
    """

    like: Callable[..., bool]
    start: Callable[[Sequence[int]], None]
    plan: Plan


_known: dict[Kind, Known] = {}


def turn(
    kind: Kind, q: Tensor, k: Tensor, tables: Sequence[Tensor], out: Sequence[Tensor] | None
) -> tuple[Tensor, Tensor] | None:
    """Turn queries and keys together if a call like this was kept and nothing but addresses is new, else None.

    Args:
        kind: What the turn depends on beside its tensors.
        q: Queries.
        k: Keys.
        tables: (cos, sin) of both, as they were kept.
        out: As `turning.turn_all` has it.
    """
    if torch.compiler.is_compiling() or plain.watched():
        return None
    if type(q) is not Tensor:  # a subclass may have shapes that are symbols
        return None
    within = out is not None and out[0] is q and out[1] is k
    known = _known.get((kind, None if out is None else within, q.shape))
    if known is None:
        return None
    like, start, (spans, large, _) = known
    if not like(q, k, *tables, *(() if out is None or within else out)):
        return None
    if out is None:
        outs = (pages.fresh(q), pages.fresh(k)) if large else (torch.empty_like(q), torch.empty_like(k))
    else:
        outs = out[0], out[1]
    x, x_out, y, y_out = q.data_ptr(), outs[0].data_ptr(), k.data_ptr(), outs[1].data_ptr()
    if out is not None:
        pieces = [(x_out, spans[1]), (y_out, spans[3])]
        if not memory.are_apart(pieces if within else [*pieces, (x, spans[0]), (y, spans[2])]):
            return None
    cos, sin = tables[0].data_ptr(), tables[1].data_ptr()
    start((x, x_out, cos, sin, 0, y, y_out, cos, sin, 0))
    if out is not None:
        torch._C._increment_version(outs)  # for those who kept them for a backward pass
    return outs


def keep(kind: Kind, xs: Sequence[Tensor], tables: Sequence[Tensor], out: Sequence[Tensor] | None, plan: Plan) -> None:
    """Keep a call for those like it, if it was turned by addresses and nobody needs gradients."""
    start = getattr(plan.run, "start", None)
    within = out is not None and out[0] is xs[0] and out[1] is xs[1]
    found = (*xs, *tables, *(() if out is None or within else out))
    if start is None or guards is None or any(t.requires_grad for t in found):
        return
    key = kind, None if out is None else within, xs[0].shape
    known = _known.get(key)
    if known is not None and known.like(*found):  # it went the long way for where it lies: parts of one projection
        return
    if len(_known) >= _MOST:
        _known.clear()
    seen: Any = {
        "dynamic_dims_sizes": [list(t.shape) for t in found],
        "dynamic_dims_strides": [list(t.stride()) for t in found],
    }
    like = guards.TensorGuards(*found, **seen).check
    _known[key] = Known(like, start, plan)
