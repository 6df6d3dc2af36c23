"""One entry for each rotation of queries and keys: plain memory goes to a backend, all else to the formula."""

import importlib
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.graph import increment_version

from posenc import private
from posenc.kernels import eager
from posenc.kernels.eager import Pairing, Side
from posenc.kernels.jobs import Job, in_four, refuse_overlap
from posenc.positions.checks import KINDS

Tables = tuple[Tensor, Tensor]
_HOMES = {"numba": "cpu", "triton": "triton", "blocked": "blocked"}
_NAMES = ("auto", *_HOMES, "formula")
_SMALL = 2**16  # numbers in all, below which the formula's few calls cost less than blocks


class Way(NamedTuple):
    """How head dimensions are paired, which of them rotate, and what computes it."""

    pairing: Pairing
    side: Side = "first"
    backend: str = "auto"


def turn(x: Tensor, cos: Tensor, sin: Tensor, *, pairing: Pairing, side: Side = "first") -> Tensor:
    """Rotate pairs of head dimensions of one tensor; see `eager.turn`, whose definition it has."""
    return turn_all((x,), ((cos, sin),), Way(pairing, side))[0]


def turn_all(
    xs: Sequence[Tensor],
    tables: Sequence[Tables],
    way: Way,
    *,
    out: Sequence[Tensor] | None = None,
    who: str = "rotate",
) -> tuple[Tensor, ...]:
    """Rotate queries and keys together.

    The products are formed in the tables' precision (float32 or wider) and rounded to the dtype of `xs` once.
    The backward pass is the transposed rotation, which keeps nothing but the tables.

    Args:
        xs: Queries and keys (..., heads, seq, head_dim), of one dtype on one device.
        tables: (cos, sin) of each, (seq, n_pairs) or (..., table_heads, seq, n_pairs), any gain inside; table heads
            divide heads.
        way: How.
        out: Where to write, of the shapes and dtype of `xs`; each may be what is rotated.
        who: With what messages begin.

    Raises:
        ValueError: `out` shares memory that is read or written otherwise, no backend has the name, or the backend that
            was named refuses.
    """
    if way.backend not in _NAMES:
        raise ValueError(f"rotate: backend must be one of {', '.join(_NAMES)}; got {way.backend!r}.")
    if torch.compiler.is_compiling():  # before ids are asked for, on which compiled code would depend
        return _written(_formulas(xs, tables, way), out)
    of_tables = [t for pair in tables for t in pair]
    given = list({id(t): t for t in (*xs, *of_tables, *(out or ()))}.values())  # q and k mostly share tables
    if not _are_memory(given):
        return _written(_formulas(xs, tables, way), out)
    if out is not None:
        refuse_overlap(who, xs, out)
    if not torch.is_grad_enabled() or not any(t.requires_grad for t in given):
        return _run(xs, tables, way, out)
    if any(t.requires_grad for t in of_tables):  # learned frequencies
        return _written(_formulas(xs, tables, way), out)
    return _written([_Turn.apply(x, cos, sin, way) for x, (cos, sin) in zip(xs, tables, strict=True)], out)


def _are_memory(tensors: Sequence[Tensor]) -> bool:
    """Whether numbers may be read and written past torch: no code traces, transforms or intercepts operations."""
    if private.is_watched() or private.within_transform() or torch.jit.is_tracing():
        return False
    return all(map(_is_memory, tensors))


def _is_memory(t: Tensor) -> bool:
    if type(t) not in KINDS or t.is_meta or t.is_neg() or forward_ad.unpack_dual(t).tangent is not None:
        return False
    try:
        t.data_ptr()
    except RuntimeError:  # sparse, or a batch of gradients
        return False
    return True


def _formulas(xs: Sequence[Tensor], tables: Sequence[Tables], way: Way) -> list[Tensor]:
    return [
        eager.turn(x, cos, sin, pairing=way.pairing, side=way.side) for x, (cos, sin) in zip(xs, tables, strict=True)
    ]


def _written(turned: Sequence[Tensor], out: Sequence[Tensor] | None) -> tuple[Tensor, ...]:
    return tuple(turned) if out is None else tuple(o.copy_(t) for o, t in zip(out, turned, strict=True))


def _run(xs: Sequence[Tensor], tables: Sequence[Tables], way: Way, out: Sequence[Tensor] | None) -> tuple[Tensor, ...]:
    """Rotate plain memory, without gradients."""
    outs = tuple(map(torch.empty_like, xs) if out is None else out)
    fitted = [_fitted(tables[0], xs[0])]
    fitted += [fitted[0] if pair is tables[0] else _fitted(pair, x) for x, pair in zip(xs[1:], tables[1:], strict=True)]
    jobs = [Job(in_four(x), in_four(o), *pair) for x, o, pair in zip(xs, outs, fitted, strict=True)]
    backend = _choose(jobs, way.backend)
    if backend is None:
        return _written(_formulas(xs, tables, way), out)
    backend.run(jobs, way.pairing, way.side)
    if out is not None:
        for t in outs:  # autograd may have kept it
            increment_version(t)
    return outs


def _fitted(tables: Tables, x: Tensor) -> Tables:
    """Return tables in the precision of the arithmetic, whose strides are equal and whose pairs lie in a row."""
    wide = torch.promote_types(x.dtype, tables[0].dtype)
    cos, sin = (in_four(t).to(wide) for t in tables)
    if cos.stride() == sin.stride() and cos.stride(-1) == 1:
        return cos, sin
    return cos.contiguous(), sin.contiguous()


def _choose(jobs: Sequence[Job], name: str) -> Any | None:
    """Return the fastest backend that does not refuse, or the one that is named; None is the formula.

    Raises:
        ValueError: The one that is named refuses; the sentence says why.
    """
    if name == "formula":
        return None
    fit = all(map(_fits, jobs))
    if name == "auto":
        found = (module for each in _candidates(jobs) if not isinstance(module := _loaded(each), str))
        return next((module for module in found if module.refuses(jobs) is None), None) if fit else None
    if not fit:
        x = jobs[0].x
        raise ValueError(
            f"rotate: backend {name!r} turns (batch, heads, seq, head_dim) whose lanes lie side by side; "
            f"got shape {tuple(x.shape)} with strides {x.stride()}. Leave the choice to 'auto'."
        )
    module = _loaded(name)
    refusal = module if isinstance(module, str) else module.refuses(jobs)
    if refusal is not None:
        raise ValueError(f"rotate: backend {name!r} cannot be used here: {refusal}. Leave the choice to 'auto'.")
    return module


def _candidates(jobs: Sequence[Job]) -> tuple[str, ...]:
    if jobs[0].x.is_cuda:
        return ("triton",)
    if jobs[0].x.device.type != "cpu":
        return ()
    return ("numba", "blocked") if sum(job.x.numel() for job in jobs) >= _SMALL else ("numba",)


def _fits(job: Job) -> bool:
    """Whether a backend can follow these strides and shapes."""
    x, out, cos, sin = job
    return (
        x.ndim == cos.ndim == 4
        and cos.shape == sin.shape
        and cos.shape[2] == x.shape[2]
        and cos.shape[0] in (1, x.shape[0])
        and cos.shape[1] > 0
        and x.shape[1] % cos.shape[1] == 0
        and x.dtype == out.dtype
        and cos.dtype in (torch.float32, torch.float64)
        and x.device == out.device == cos.device == sin.device
        and all(t.stride(-1) == 1 or t.shape[-1] == 1 for t in (x, out))
    )


@cache
def _loaded(name: str) -> Any:
    """Return a backend's module, or why it cannot be loaded."""
    try:
        return importlib.import_module(f"posenc.kernels.{_HOMES[name]}")
    except Exception as error:  # a broken installation raises anything; there are other backends
        missing = (getattr(error, "name", None) or "").partition(".")[0]
        if name == "numba" and missing in ("numba", "llvmlite"):
            return "numba is not installed; pip install 'posenc[fast]' brings it"
        return f"it does not load ({' '.join(str(error).split()).rstrip('.')})"


class _Turn(torch.autograd.Function):
    """The rotation and its transpose; of the forward pass it keeps the tables alone."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor, way: Way) -> Tensor:
        """Rotate one tensor."""
        ctx.save_for_backward(cos, sin)
        ctx.way = way
        return _run((x,), ((cos, sin),), way, None)[0]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Rotate the gradient the other way."""
        cos, sin = ctx.saved_tensors
        grad = grad if grad.stride(-1) == 1 else grad.contiguous()  # of a sum it is one number, expanded
        return turn_all((grad,), ((cos, -sin),), ctx.way)[0], None, None, None
