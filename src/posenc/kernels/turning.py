"""One entry for every turn of queries and keys: what is plain memory goes to a kernel, all else to the formula."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from posenc.kernels import again, eager, memory, pages, plain, plans
from posenc.kernels.job import Job, Pairing, Side, in_four
from posenc.kernels.norm import Norm
from posenc.kernels.pick import HAS_TRITON, check_name
from posenc.kernels.plans import Tables, Way
from posenc.versions import is_exporting


def turn(x: Tensor, cos: Tensor, sin: Tensor, *, pairing: Pairing, side: Side = "first") -> Tensor:
    """Turn pairs of lanes of one tensor; see `eager.turn`, whose definition it has."""
    return turn_all((x,), ((cos, sin),), Way(pairing, side))[0]


def turn_all(
    xs: Sequence[Tensor],
    tables: Sequence[Tables],
    way: Way,
    *,
    out: Sequence[Tensor] | None = None,
    norms: Sequence[Norm | None] = (None, None),
    who: str = "rotate",
    check: Callable[[], None] | None = None,
    known_by: tuple[again.Kind, Sequence[Tensor]] | None = None,
) -> tuple[Tensor, ...]:
    """Turn queries and keys together.

    The products are formed in the tables' precision (float32 or wider) and rounded to the dtype of `xs` once.
    Backwards is the transposed turn, which keeps nothing but the tables.

    Args:
        xs: Queries and keys (..., heads, seq, head_dim), of one dtype on one device.
        tables: (cos, sin) of each, (seq, n_pairs) or (..., table_heads, seq, n_pairs), any gain inside; table heads
            divide heads.
        way: How.
        out: Where to write; each may be what is turned.
        norms: What normalises each head before it turns.
        who: With what messages begin.
        check: Raises if shapes, dtypes or devices do not fit; called once for each kind of call.
        known_by: By what `again.turn` shall know such a call.

    Raises:
        ValueError: `out` shares memory that is read or written otherwise, or the backend that was named refuses.
    """
    memory_alone = not torch.compiler.is_compiling() and _is_memory(xs, tables, out, norms)
    if memory_alone and not (torch.is_grad_enabled() and _needs_gradients(xs, tables, out, norms)):
        return _run(xs, tables, way, out, norms, who, check, known_by)
    check_name(way.backend)
    if check is not None:
        check()
    if not memory_alone or _learn(tables):
        turned = _traced(xs, tables, way, norms)
    else:
        # inside a transform of something else autograd wants operations that it knows
        inside = plain.transform_level() is not None
        turned = (_traced if inside else _differentiable)(xs, tables, way, norms)
    if out is None:
        return turned
    if memory_alone:
        jobs = [Job(x, o, *pair) for x, o, pair in zip(xs, out, tables, strict=True)]
        memory.refuse_overlap(who, jobs, memory.spans(who, jobs))
    return _write(out, turned)


def _write(out: Sequence[Tensor], turned: Sequence[Tensor]) -> tuple[Tensor, ...]:
    return tuple(o.copy_(t) for o, t in zip(out, turned, strict=True))


def _run(
    xs: Sequence[Tensor],
    tables: Sequence[Tables],
    way: Way,
    out: Sequence[Tensor] | None,
    norms: Sequence[Norm | None],
    who: str = "rotate",
    check: Callable[[], None] | None = None,
    known_by: tuple[again.Kind, Sequence[Tensor]] | None = None,
) -> tuple[Tensor, ...]:
    """Turn plain memory, without gradients."""
    plan = plans.find(xs, tables, way, out, norms, who, check)
    if known_by is not None:
        again.keep(known_by[0], xs, known_by[1], out, plan)
    if out is None:
        if plan.run is None:
            return _formulas(xs, tables, way, norms)
        outs = tuple(map(pages.fresh if plan.large else torch.empty_like, xs))
        plan.run(plans.jobs(xs, tables, outs, norms))
        return outs
    given, outs = plans.jobs(xs, tables, out, norms), tuple(out)
    memory.refuse_overlap(who, given, plan.spans)
    if plan.run is None:
        return _write(outs, _formulas(xs, tables, way, norms))
    plan.run(given)
    torch._C._increment_version(outs)  # for those who kept them for a backward pass
    return outs


def _traced(
    xs: Sequence[Tensor], tables: Sequence[Tables], way: Way, norms: Sequence[Norm | None]
) -> tuple[Tensor, ...]:
    """Turn by plain torch, which compilers fuse and transforms understand; by our operator where that is faster."""
    both = len(xs) == 2 and all(x.ndim == 4 for x in xs) and not _weights(norms)
    wanted = way.backend == "triton" or (way.backend == "auto" and _beats_compilers(xs[0], way))
    compiled = torch.compiler.is_compiling() and not is_exporting()  # a file must not need posenc
    if compiled and both and wanted and not _learn(tables):
        four = [in_four(t) for cos, sin in tables for t in (cos, -sin if way.back else sin)]
        turned: tuple[Tensor, Tensor] = torch.ops.posenc.turn(*xs, *four, way.pairing, way.side)
        return turned
    return _formulas(xs, tables, way, norms)


def _beats_compilers(x: Tensor, way: Way) -> bool:
    """Whether our operator is faster than a compiled formula: on CPUs they make no vectors of every second lane."""
    return HAS_TRITON if x.is_cuda else x.device.type == "cpu" and way.pairing == "interleaved"


def _formulas(
    xs: Sequence[Tensor], tables: Sequence[Tables], way: Way, norms: Sequence[Norm | None]
) -> tuple[Tensor, ...]:
    return tuple(_formula(x, *pair, way, norm) for x, pair, norm in zip(xs, tables, norms, strict=False))


def _formula(x: Tensor, cos: Tensor, sin: Tensor, way: Way, norm: Norm | None) -> Tensor:
    sin = -sin if way.back else sin
    if norm is None:
        return eager.turn(x, cos, sin, pairing=way.pairing, side=way.side)
    wide = norm.apply(x, torch.promote_types(x.dtype, cos.dtype))
    return eager.turn(wide, cos, sin, pairing=way.pairing, side=way.side).to(x.dtype)


def _is_memory(
    xs: Sequence[Tensor], tables: Sequence[Tables], out: Sequence[Tensor] | None, norms: Sequence[Norm | None]
) -> bool:
    """Whether numbers may be read and written past torch: nobody traces, transforms or intercepts operations."""
    turned = xs if out is None or (out[0] is xs[0] and out[-1] is xs[-1]) else (*xs, *out)
    others = tables[0] if tables[-1] is tables[0] else [t for pair in tables for t in pair]
    if norms[0] is not None or norms[-1] is not None:
        others = [*others, *_weights(norms)]
    return plain.is_memory(turned, others)


def _needs_gradients(
    xs: Sequence[Tensor], tables: Sequence[Tables], out: Sequence[Tensor] | None, norms: Sequence[Norm | None]
) -> bool:
    return _learn(tables) or any(t.requires_grad for t in (*xs, *(out or ()), *_weights(norms)))


def _learn(tables: Sequence[Tables]) -> bool:
    return torch.is_grad_enabled() and any(t.requires_grad for pair in tables for t in pair)


def _weights(norms: Sequence[Norm | None]) -> list[Tensor]:
    return [norm.weight for norm in norms if norm is not None]


def _differentiable(
    xs: Sequence[Tensor], tables: Sequence[Tables], way: Way, norms: Sequence[Norm | None]
) -> tuple[Tensor, ...]:
    """Turn with gradients for what is turned and for the norms' factors; norms are then formed on their own."""
    wide = [
        x if norm is None else norm.apply(x, torch.promote_types(x.dtype, cos.dtype))
        for x, (cos, _), norm in zip(xs, tables, norms, strict=False)
    ]
    if len({t.dtype for t in wide}) > 1:  # of which one alone has a norm
        turned = [_Turn.apply(way, 1, *pair, x)[0] for x, pair in zip(wide, tables, strict=True)]
    else:
        turned = _Turn.apply(way, len(wide), *(t for pair in tables for t in pair), *wide)
    return tuple(t.to(x.dtype) for t, x in zip(turned, xs, strict=True))


class _Turn(torch.autograd.Function):
    """The turn and its transpose; of the forward pass it keeps the tables alone."""

    @staticmethod
    def forward(ctx: Any, way: Way, n: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Turn n tensors, the last ones, by the tables before them."""
        tables, xs = tensors[: 2 * n], tensors[2 * n :]
        ctx.save_for_backward(*tables)
        ctx.way = way
        ctx.set_materialize_grads(False)
        turned = _run(xs, list(zip(tables[::2], tables[1::2], strict=True)), way, None, (None,) * n)
        ctx.mark_non_differentiable(*(t for t, x in zip(turned, xs, strict=True) if not x.requires_grad))
        return turned

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        """Turn the gradients the other way."""
        saved = ctx.saved_tensors
        given = {i: g for i, g in enumerate(grads) if g is not None}
        # those of a sum are one number expanded
        side_by_side = [g if g.stride(-1) == 1 else g.contiguous() for g in given.values()]
        tables = [(saved[2 * i], saved[2 * i + 1]) for i in given]
        way = ctx.way._replace(back=not ctx.way.back)
        turned = dict(zip(given, turn_all(side_by_side, tables, way), strict=True)) if given else {}
        return (None, None, *(None for _ in saved), *(turned.get(i) for i in range(len(grads))))
