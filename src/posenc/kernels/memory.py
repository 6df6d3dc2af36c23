"""Whether memory may be written to while other memory is read: asked of addresses alone, which are never followed."""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from torch import Tensor


def refuse_overlap(who: str, xs: Sequence[Tensor], outs: Sequence[Tensor]) -> None:
    """Raise unless each number of `outs` has memory of its own; `outs[i]` may be `xs[i]` itself.

    Raises:
        ValueError: A tensor is expanded or overlaps itself, or two share some of their memory.
    """
    for name, out in zip("qk", outs, strict=False):
        if _layout(out.shape, out.stride())[0]:
            raise ValueError(
                f"{who}: cannot write {name} into expanded or overlapping memory, where one number stands for several; "
                f"got shape {tuple(out.shape)} with strides {out.stride()}. Give it memory of its own, or use rotate "
                "without out."
            )
    named = [(f"out[{i}]", out, i) for i, out in enumerate(outs)]
    for i, (name, out, _) in enumerate(named):
        others = [(n, x, j) for j, (n, x) in enumerate(zip("qk", xs, strict=False)) if x is not outs[j]]
        for other, t, j in (*others, *named[i + 1 :]):
            if shared(out, t) and not (other in "qk" and j == i and same(out, t)):
                raise ValueError(
                    f"{who}: {name} overlaps {other} in memory, so numbers would be overwritten before they are read. "
                    "Give it memory of its own, or exactly what is turned."
                )


@lru_cache(maxsize=1024)
def _layout(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[bool, int]:
    """Return whether two numbers may share an address, and how far the last is from the first."""
    span, overlaps = 1, False
    for stride, size in sorted((s, n) for s, n in zip(strides, shape, strict=True) if n > 1):
        overlaps = overlaps or stride < span
        span += stride * (size - 1)
    return overlaps, span if 0 not in shape else 0


def same(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are the same numbers in the same memory."""
    return a is b or (a.data_ptr() == b.data_ptr() and a.stride() == b.stride() and a.shape == b.shape)


def shared(a: Tensor, b: Tensor) -> bool:
    """Whether any number of one lies where one of the other does."""
    (a_begin, a_end), (b_begin, b_end) = _range(a), _range(b)
    if a_end <= b_begin or b_end <= a_begin:
        return False
    # parts of one projection lie between each other, row by row
    return bool(np.shares_memory(_addresses(a), _addresses(b)))


def _range(t: Tensor) -> tuple[int, int]:
    begin = t.data_ptr()
    return begin, begin + _layout(t.shape, t.stride())[1] * t.element_size()


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
