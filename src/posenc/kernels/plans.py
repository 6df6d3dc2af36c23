"""Plans: what is worked out once for each kind of call, and found again by all that it depends on."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from posenc.kernels import memory, pages
from posenc.kernels.job import Job, Pairing, Side, in_four
from posenc.kernels.norm import Norm
from posenc.kernels.pick import check_name, pick

Tables = tuple[Tensor, Tensor]
_new = tuple.__new__  # half the time of a named tuple's own
_MOST = 4096  # more shapes than that come from something that never repeats one


class Way(NamedTuple):
    """How lanes are paired, which of them turn, what computes it, and whether they turn the other way."""

    pairing: Pairing
    side: Side = "first"
    backend: str = "auto"
    back: bool = False


class Plan(NamedTuple):
    """What is worked out once for each kind of call."""

    spans: tuple[int, ...]  # bytes of what is read and written; none where the memory written to is fresh
    large: bool  # whether fresh memory is worth large pages
    run: Callable[[Sequence[Job]], None] | None  # None: the formula does it


_plans: dict[tuple[object, ...], Plan] = {}


def find(
    xs: Sequence[Tensor],
    tables: Sequence[Tables],
    way: Way,
    out: Sequence[Tensor] | None,
    norms: Sequence[Norm | None],
    who: str,
    check: Callable[[], None] | None,
) -> Plan:
    """Return the plan of a call on plain memory, made and checked if it is the first of its kind.

    Raises:
        ValueError: No backend has the name, or it refuses, or `out` overlaps itself.
    """
    key = _kind(xs, tables, way, out, norms)
    plan = _plans.get(key)  # not `in`: another thread may clear them in between
    if plan is None:
        check_name(way.backend)
        if check is not None:
            check()
        if len(_plans) >= _MOST:
            _plans.clear()
        given = jobs(xs, tables, [torch.empty_like(x) for x in xs] if out is None else out, norms)
        spans = () if out is None else memory.spans(who, given)
        plan = _plans[key] = Plan(spans, pages.are_worth_it(xs), _prepare(given, way))
    return plan


def _kind(
    xs: Sequence[Tensor],
    tables: Sequence[Tables],
    way: Way,
    out: Sequence[Tensor] | None,
    norms: Sequence[Norm | None],
) -> tuple[object, ...]:
    """Return all that a plan depends on, but addresses; spelled out, since each microsecond is one of decoding's."""
    (cos, sin), (k_cos, k_sin) = tables[0], tables[-1]
    found: tuple[object, ...] = (way, out is None, _facts(xs[0]), _facts(cos), _facts(sin))
    if len(xs) > 1:
        found += (_facts(xs[1]),)
        if k_cos is not cos or k_sin is not sin:
            found += _facts(k_cos), _facts(k_sin)
    if out is not None and (out[0] is not xs[0] or out[-1] is not xs[-1]):
        found += tuple([o is x or o.stride() for x, o in zip(xs, out, strict=True)])
    if norms[0] is not None or norms[-1] is not None:
        found += tuple([norm and norm.eps for norm in norms])
    return found


def _facts(t: Tensor) -> tuple[object, ...]:
    return t.shape, t.stride(), t.dtype, t.device


def jobs(
    xs: Sequence[Tensor], tables: Sequence[Tables], outs: Sequence[Tensor], norms: Sequence[Norm | None]
) -> list[Job]:
    """Return what a backend is given."""
    found = []
    for x, o, (cos, sin), norm in zip(xs, outs, tables, norms, strict=False):
        if norm is None:
            found.append(_new(Job, (x, o, cos, sin, None, 0.0)))
        else:
            wide = torch.promote_types(x.dtype, cos.dtype)
            found.append(Job(x, o, cos, sin, norm.factors(wide).contiguous(), norm.eps))
    return found


def _prepare(jobs: Sequence[Job], way: Way) -> Callable[[Sequence[Job]], None] | None:
    """Return what turns such jobs, or None: the formula does."""
    if way.backend == "formula":
        return None
    jobs = [
        Job(in_four(x), in_four(out), in_four(cos), in_four(sin), weight, eps) for x, out, cos, sin, weight, eps in jobs
    ]
    if not all(map(_is_plain, jobs)) or len({job.x.device for job in jobs}) > 1:
        if way.backend != "auto":
            raise ValueError(
                f"rotate: backend {way.backend!r} turns (batch, heads, seq, head_dim) whose lanes lie side by side; "
                f"got shape {tuple(jobs[0].x.shape)} with strides {jobs[0].x.stride()}. Leave the choice to 'auto'."
            )
        return None
    backend = pick(jobs, way.backend)
    return None if backend is None else backend.plan(jobs, way.pairing, way.side, way.back)


def _is_plain(job: Job) -> bool:
    """Whether a kernel can follow these strides and shapes."""
    x, cos = job.x, job.cos
    fits = x.ndim == 4 and cos.ndim == 4 and cos.shape[2] == x.shape[2] and cos.shape[0] in (1, x.shape[0])
    return (
        fits
        and cos.shape == job.sin.shape
        and cos.dtype == job.sin.dtype
        and x.device == job.out.device == cos.device == job.sin.device
        and cos.dtype in (torch.float32, torch.float64)
        and cos.shape[1] > 0
        and x.shape[1] % cos.shape[1] == 0
        and all(t.stride(-1) == 1 or t.shape[-1] == 1 for t in (x, job.out, cos, job.sin))
        and cos.stride() == job.sin.stride()
    )
