"""One entry for every turn of queries and keys: what is plain memory goes to a kernel, all else to the formula."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._ops import _len_torch_dispatch_stack_pre_dispatch
from torch.autograd import forward_ad

from posenc.kernels import eager, memory
from posenc.kernels.job import Job, Pairing, Side, in_four
from posenc.kernels.norm import Norm
from posenc.kernels.pick import HAS_TRITON, check_name, pick
from posenc.positions.checks import all_plain

Tables = tuple[Tensor, Tensor]
_MOST_PLANS = 4096  # more shapes than that come from something that never repeats one
_plans: dict[tuple[object, ...], tuple[tuple[int, ...], Callable[[Sequence[Job]], None] | None]] = {}


class Way(NamedTuple):
    """How lanes are paired, which of them turn, and what computes it."""

    pairing: Pairing
    side: Side = "first"
    backend: str = "auto"


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

    Raises:
        ValueError: `out` shares memory that is read or written otherwise, or the backend that was named refuses.
    """
    check_name(way.backend)
    plain = not torch.compiler.is_compiling() and _is_memory(xs, tables, out, norms)
    if plain and not (torch.is_grad_enabled() and _needs_gradients(xs, tables, out, norms)):
        return _run(xs, tables, way, out, norms, who, check)
    if check is not None:
        check()
    if not plain or _learn(tables):
        turned = _traced(xs, tables, way, norms)
    else:
        # inside a transform of something else autograd wants operations that it knows
        inside = torch._C._functorch.maybe_current_level() is not None
        turned = (_traced if inside else _differentiable)(xs, tables, way, norms)
    if out is None:
        return turned
    if plain:
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
) -> tuple[Tensor, ...]:
    """Turn plain memory, without gradients."""
    outs = tuple(torch.empty_like(x) for x in xs) if out is None else tuple(out)
    jobs = [_job(*what) for what in zip(xs, outs, tables, norms, strict=False)]
    shared = len(jobs) == 2 and jobs[0].cos is jobs[1].cos and jobs[0].sin is jobs[1].sin
    key = (way, out is None, _kind(jobs[0]), *(_kind(job, shared) for job in jobs[1:]))
    found = _plans.get(key)  # not `in`: another thread may clear them in between
    if found is None:
        if check is not None:
            check()
        if len(_plans) >= _MOST_PLANS:
            _plans.clear()
        found = _plans[key] = () if out is None else memory.spans(who, jobs), _plan(jobs, way)
    spans, plan = found
    if out is not None:
        memory.refuse_overlap(who, jobs, spans)
    if plan is None:
        turned = _formulas(xs, tables, way, norms)
        return turned if out is None else _write(outs, turned)
    plan(jobs)
    if out is not None:
        torch.autograd.graph.increment_version(outs)  # for those who kept them for a backward pass
    return outs


def _kind(job: Job, same_tables: bool = False) -> tuple[object, ...]:
    """Return all that a plan depends on, but addresses, and but for tables that are those of the job before."""
    x, out, cos, sin, weight, eps = job
    own = x.shape, x.dtype, x.device, x.stride(), out is x or out.stride(), weight is None, eps
    if same_tables:
        return own
    return *own, cos.shape, sin.shape, cos.stride(), sin.stride(), cos.dtype, cos.device


def _plan(jobs: Sequence[Job], way: Way) -> Callable[[Sequence[Job]], None] | None:
    """Return what turns such jobs, or None: the formula does."""
    if way.backend == "formula":
        return None
    jobs = [job._replace(cos=in_four(job.cos), sin=in_four(job.sin)) for job in jobs]
    if not all(map(_is_plain, jobs)):
        if way.backend != "auto":
            raise ValueError(
                f"rotate: backend {way.backend!r} turns (batch, heads, seq, head_dim) whose lanes lie side by side; "
                f"got shape {tuple(jobs[0].x.shape)} with strides {jobs[0].x.stride()}. Leave the choice to 'auto'."
            )
        return None
    backend = pick(jobs, way.backend)
    return None if backend is None else backend.plan(jobs, way.pairing, way.side)


def _traced(
    xs: Sequence[Tensor], tables: Sequence[Tables], way: Way, norms: Sequence[Norm | None]
) -> tuple[Tensor, ...]:
    """Turn by plain torch, which compilers fuse and transforms understand; by our operator where that is faster."""
    both = len(xs) == 2 and all(x.ndim == 4 for x in xs) and not _weights(norms)
    wanted = way.backend == "triton" or (way.backend == "auto" and _beats_compilers(xs[0], way))
    compiled = torch.compiler.is_compiling() and not torch.compiler.is_exporting()  # a file must not need posenc
    if compiled and both and wanted and not _learn(tables):
        four = [in_four(t) for pair in tables for t in pair]
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
    if norm is None:
        return eager.turn(x, cos, sin, pairing=way.pairing, side=way.side)
    wide = norm.apply(x, torch.promote_types(x.dtype, cos.dtype))
    return eager.turn(wide, cos, sin, pairing=way.pairing, side=way.side).to(x.dtype)


def _job(x: Tensor, out: Tensor, tables: Tables, norm: Norm | None) -> Job:
    """Return one tensor in four dimensions, with its tables as they are."""
    cos, sin = tables
    if x.ndim < 4:
        x, out = in_four(x), in_four(out)
    if norm is None:
        return Job(x, out, cos, sin)
    wide = torch.promote_types(x.dtype, cos.dtype)
    return Job(x, out, cos, sin, norm.factors(wide).contiguous(), norm.eps)


def _is_plain(job: Job) -> bool:
    """Whether a kernel can follow these strides and shapes."""
    x, cos = job.x, job.cos
    fits = x.ndim == 4 and cos.ndim == 4 and cos.shape[2] == x.shape[2] and cos.shape[0] in (1, x.shape[0])
    return (
        fits
        and cos.shape == job.sin.shape
        and cos.dtype in (torch.float32, torch.float64)
        and cos.shape[1] > 0
        and x.shape[1] % cos.shape[1] == 0
        and all(t.stride(-1) == 1 or t.shape[-1] == 1 for t in (x, job.out, cos, job.sin))
        and cos.stride() == job.sin.stride()
    )


def _is_memory(
    xs: Sequence[Tensor], tables: Sequence[Tables], out: Sequence[Tensor] | None, norms: Sequence[Norm | None]
) -> bool:
    """Whether numbers may be read and written past torch: nobody traces, transforms or intercepts operations."""
    turned = xs if out is None or (out[0] is xs[0] and out[-1] is xs[-1]) else (*xs, *out)
    those = tables[:1] if tables[-1] is tables[0] else tables
    if not all_plain([*turned, *(t for pair in those for t in pair), *_weights(norms)]):
        return False
    if torch._C._len_torch_dispatch_stack() or torch._C._get_tracing_state() or forward_ad._current_level >= 0:
        return False
    if torch._C._len_torch_function_stack() and _len_torch_dispatch_stack_pre_dispatch():  # recorded before autograd
        return False
    for t in turned:  # spelled out: each microsecond here is one of decoding's forty
        if t.is_neg() or not torch._C._has_storage(t):  # sparse, or a batch of gradients
            return False
    return not xs[0].is_meta


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
        tables = [(saved[2 * i], -saved[2 * i + 1]) for i in given]
        turned = dict(zip(given, turn_all(side_by_side, tables, ctx.way), strict=True)) if given else {}
        return (None, None, *(None for _ in saved), *(turned.get(i) for i in range(len(grads))))
