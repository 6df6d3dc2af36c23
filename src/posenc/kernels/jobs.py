"""The arguments of a backend, and the check of their memory for overlap, which only compares addresses."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from torch import Tensor

from posenc.kernels.eager import Side


class Job(NamedTuple):
    """Queries or keys, the output of their rotation, and the tables that rotate them.

    `x` and `out` are (batch, heads, seq, head_dim) with head dimensions next to each other in memory and any other
    strides; `out` may be `x`. `cos` and `sin` are (1 | batch, table_heads, seq, n_pairs) with equal strides, in the
    precision of the arithmetic, with any gain multiplied in; head h reads table head h // (heads // table_heads).
    """

    x: Tensor
    out: Tensor
    cos: Tensor
    sin: Tensor


def rotated_part(job: Job, side: Side) -> slice:
    """Return which head dimensions rotate."""
    head_dim, width = job.x.shape[-1], 2 * job.cos.shape[-1]
    return slice(0, width) if side == "first" else slice(head_dim - width, head_dim)


def in_four(t: Tensor) -> Tensor:
    """Return a view with four dimensions, by adding dimensions of size 1 in front."""
    return t.expand(*(1,) * (4 - t.ndim), *t.shape) if t.ndim < 4 else t


def refuse_overlap(who: str, xs: Sequence[Tensor], outs: Sequence[Tensor]) -> None:
    """Raise an error if an output shares memory with other tensors; it may be its own input.

    Raises:
        ValueError: Two numbers of an output share an address, or an output overlaps another tensor.
    """
    for name, out in zip("qk", outs, strict=False):
        if _overlaps_itself(out):
            raise ValueError(
                f"{who}: cannot write {name} into expanded or overlapping memory, where several elements share an "
                f"address; got shape {tuple(out.shape)} with strides {out.stride()}. Pass a contiguous tensor, or use "
                "rotate without out."
            )
    written = {f"out[{i}]": out for i, out in enumerate(outs)}
    everything = dict(zip("qk", xs, strict=False)) | written
    spans = {name: _span(t) for name, t in everything.items()}
    for own, (name, out) in zip("qk", written.items(), strict=False):
        begin, end = spans[name]
        for other, t in everything.items():
            if other == name or (other == own and _is_same(t, out)):
                continue
            apart = spans[other][1] <= begin or end <= spans[other][0]
            # the rows of q and k from one projection alternate in memory
            if not apart and np.shares_memory(_addresses(out), _addresses(t)):
                raise ValueError(
                    f"{who}: {name} overlaps {other} in memory, so values would be overwritten before they are read. "
                    "Pass a tensor with its own memory, or exactly the input tensor."
                )


def _is_same(x: Tensor, out: Tensor) -> bool:
    return x is out or (x.data_ptr() == out.data_ptr() and x.stride() == out.stride())


def _span(t: Tensor) -> tuple[int, int]:
    """Return the address of the first number, and one past the last."""
    last = sum(stride * (size - 1) for stride, size in zip(t.stride(), t.shape, strict=True))
    begin = t.data_ptr()
    return begin, begin + (last + 1) * t.element_size() if t.numel() else begin


def _overlaps_itself(t: Tensor) -> bool:
    """Whether two numbers of a tensor may share an address."""
    span = 1
    for stride, size in sorted((s, n) for s, n in zip(t.stride(), t.shape, strict=True) if n > 1):
        if stride < span:
            return True
        span += stride * (size - 1)
    return False


class _Memory:
    def __init__(self, t: Tensor) -> None:
        size = t.element_size()
        self.__array_interface__ = {
            "shape": tuple(t.shape),
            "strides": tuple(s * size for s in t.stride()),
            "typestr": f"|V{size}",
            "data": (t.data_ptr(), False),
            "version": 3,
        }


def _addresses(t: Tensor) -> "np.ndarray":
    return np.asarray(_Memory(t))
