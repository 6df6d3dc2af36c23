"""The one entry for rotations of queries and keys: plain memory goes to a backend, anything else to the formula."""

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
_SMALL = 2**16  # with fewer numbers, as of one token, the formula takes less time than the checks of memory


class Way(NamedTuple):
    """The pairing of head dimensions, the side that rotates, and the backend."""

    pairing: Pairing
    side: Side = "first"
    backend: str = "auto"


def rotate(x: Tensor, cos: Tensor, sin: Tensor, *, pairing: Pairing, side: Side = "first") -> Tensor:
    """Rotate pairs of head dimensions of one tensor, as defined by `eager.rotate`."""
    return rotate_all((x,), ((cos, sin),), Way(pairing, side))[0]


def rotate_all(
    xs: Sequence[Tensor],
    tables: Sequence[Tables],
    way: Way,
    out: Sequence[Tensor] | None = None,
    who: str = "rotate",
) -> tuple[Tensor, ...]:
    """Rotate queries and keys together.

    The products are formed in the tables' precision (float32 or wider) and rounded to the dtype of `xs` once.
    The backward pass is the transposed rotation, for which only the tables are saved.

    Args:
        xs: Queries and keys (..., heads, seq, head_dim), of one dtype on one device.
        tables: (cos, sin) of each, (seq, n_pairs) or (..., table_heads, seq, n_pairs), with any gain multiplied in;
            table_heads divides heads.
        way: Pairing, side and backend.
        out: Output tensors with the shapes and dtype of `xs`; each may be its own input.
        who: The name at the start of error messages.

    Raises:
        ValueError: `out` overlaps itself or other tensors, the backend's name is unknown, or the named backend
            refuses.
    """
    if way.backend not in _NAMES:
        raise ValueError(f"rotate: backend must be one of {', '.join(_NAMES)}; got {way.backend!r}.")
    if torch.compiler.is_compiling():  # before the calls of id(), which would force recompilations
        return _written(_formulas(xs, tables, way), out)
    learns = torch.is_grad_enabled() and any(x.requires_grad for x in xs)
    if way.backend == "auto" and out is None and not learns and _are_small(xs):
        return _small(xs, tables, way)
    of_tables = [t for pair in tables for t in pair]
    given = list({id(t): t for t in (*xs, *of_tables, *(out or ()))}.values())  # q and k usually share tables
    if not _are_memory(given):
        return _written(_formulas(xs, tables, way), out)
    if out is not None:
        refuse_overlap(who, xs, out)
    if not torch.is_grad_enabled() or not any(t.requires_grad for t in given):
        return _run(xs, tables, way, out)
    if any(t.requires_grad for t in of_tables):  # learned frequencies
        return _written(_formulas(xs, tables, way), out)
    return _written([_Rotation.apply(x, cos, sin, way) for x, (cos, sin) in zip(xs, tables, strict=True)], out)


def _are_small(xs: Sequence[Tensor]) -> bool:
    return xs[0].is_cpu and xs[0].numel() + xs[-1].numel() < _SMALL


def _are_memory(tensors: Sequence[Tensor]) -> bool:
    """Whether memory may be accessed without torch: no code traces, transforms or intercepts operations."""
    if private.is_watched() or private.within_transform() or torch.jit.is_tracing():
        return False
    return all(map(_is_memory, tensors))


def _is_memory(t: Tensor) -> bool:
    if type(t) not in KINDS or t.is_meta or t.is_neg() or forward_ad.unpack_dual(t).tangent is not None:
        return False
    try:
        t.data_ptr()
    except RuntimeError:  # sparse, or batched gradients
        return False
    return True


def _formulas(xs: Sequence[Tensor], tables: Sequence[Tables], way: Way) -> list[Tensor]:
    pairing, side, _ = way
    return [eager.rotate(x, cos, sin, pairing, side) for x, (cos, sin) in zip(xs, tables, strict=True)]


def _small(xs: Sequence[Tensor], tables: Sequence[Tables], way: Way) -> tuple[Tensor, ...]:
    """Rotate few numbers; q and k of one sequence in one go, since here the number of operations is what takes time."""
    q, k = xs[0], xs[-1]
    shape, k_shape, (cos, sin) = q.shape, k.shape, tables[0]
    shares = k is not q and tables[-1][0] is cos and cos.ndim == 2
    # with gradients enabled a caller may add to one of two views of one tensor, which autograd refuses
    if shares and not torch.is_grad_enabled() and type(q) in KINDS and len(shape) == 4 and shape[0] == k_shape[0] == 1:
        both = eager.rotate(torch.cat((q, k), 1), cos, sin, way.pairing, way.side)
        return tuple(torch.split(both, [shape[1], k_shape[1]], 1))
    return tuple(_formulas(xs, tables, way))


def _written(rotated: Sequence[Tensor], out: Sequence[Tensor] | None) -> tuple[Tensor, ...]:
    return tuple(rotated) if out is None else tuple(o.copy_(t) for o, t in zip(out, rotated, strict=True))


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
        for t in outs:  # autograd may have saved it
            increment_version(t)
    return outs


def _fitted(tables: Tables, x: Tensor) -> Tables:
    """Return tables in the precision of the arithmetic, with equal strides and contiguous pairs."""
    wide = torch.promote_types(x.dtype, tables[0].dtype)
    cos, sin = (in_four(t).to(wide) for t in tables)
    if cos.stride() == sin.stride() and cos.stride(-1) == 1:
        return cos, sin
    return cos.contiguous(), sin.contiguous()


def _choose(jobs: Sequence[Job], name: str) -> Any | None:
    """Return the named backend, or the fastest one that does not refuse; None for the formula.

    Raises:
        ValueError: The named backend refuses.
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
            f"rotate: backend {name!r} requires (batch, heads, seq_len, head_dim) with contiguous head dimensions; "
            f"got shape {tuple(x.shape)} with strides {x.stride()}. Pass backend='auto'."
        )
    module = _loaded(name)
    refusal = module if isinstance(module, str) else module.refuses(jobs)
    if refusal is not None:
        raise ValueError(f"rotate: backend {name!r} cannot be used here: {refusal}. Pass backend='auto'.")
    return module


def _candidates(jobs: Sequence[Job]) -> tuple[str, ...]:
    if jobs[0].x.is_cuda:
        return ("triton",)
    if jobs[0].x.device.type != "cpu" or _are_small([job.x for job in jobs]):
        return ()
    return "numba", "blocked"


def _fits(job: Job) -> bool:
    """Whether the backends support these strides and shapes."""
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
    except Exception as error:  # a broken installation can raise any error; other backends remain
        missing = (getattr(error, "name", None) or "").partition(".")[0]
        if name == "numba" and missing in ("numba", "llvmlite"):
            return "numba is not installed; run pip install 'posenc[fast]'"
        return f"its import failed ({' '.join(str(error).split()).rstrip('.')})"


class _Rotation(torch.autograd.Function):
    """The rotation and its transpose; only the tables are saved for the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor, way: Way) -> Tensor:
        """Rotate one tensor."""
        ctx.save_for_backward(cos, sin)
        ctx.way = way
        return _run((x,), ((cos, sin),), way, None)[0]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Rotate the gradient by the opposite angles."""
        cos, sin = ctx.saved_tensors
        grad = grad if grad.stride(-1) == 1 else grad.contiguous()  # the gradient of a sum is one expanded number
        return rotate_all((grad,), ((cos, -sin),), ctx.way)[0], None, None, None
