"""Whether memory may be written to while other memory is read: asked of addresses alone, which are never followed."""

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from posenc.kernels.job import Job


def spans(who: str, jobs: Sequence[Job]) -> tuple[int, ...]:
    """Return how many bytes each job's x and out reach over, from the first number to behind the last.

    Raises:
        ValueError: Two numbers of an out may share an address.
    """
    found = []
    for name, job in zip("qk", jobs, strict=False):
        if _overlaps(job.out):
            raise ValueError(
                f"{who}: cannot write {name} into expanded or overlapping memory, where one number stands for several; "
                f"got shape {tuple(job.out.shape)} with strides {job.out.stride()}. Give it memory of its own, or use "
                "rotate without out."
            )
        for t in job[:2]:
            last = sum(stride * (size - 1) for stride, size in zip(t.stride(), t.shape, strict=True))
            found.append((last + 1) * t.element_size() if t.numel() else 0)
    return tuple(found)


def refuse_overlap(who: str, jobs: Sequence[Job], spans: tuple[int, ...]) -> None:
    """Raise where an out lies on memory that is read or written otherwise; it may be what is turned itself.

    Raises:
        ValueError: Two tensors share some of their memory.
    """
    begins = [t.data_ptr() for job in jobs for t in job[:2]]
    within = [job[0] is job[1] for job in jobs]  # what is written where it is read is one piece
    if are_apart([(begins[i], spans[i]) for i in range(len(begins)) if i % 2 or not within[i // 2]]):
        return
    for i in range(1, len(begins), 2):
        for j in range(len(begins)):
            if j == i or begins[j] >= begins[i] + spans[i] or begins[i] >= begins[j] + spans[j]:
                continue
            out, other = jobs[i // 2].out, jobs[j // 2][:2][j % 2]
            if j == i - 1 and (other is out or (begins[i] == begins[j] and other.stride() == out.stride())):
                continue
            # parts of one projection lie between each other, row by row
            if np.shares_memory(_addresses(out), _addresses(other)):
                names = ("q", "out[0]", "k", "out[1]")
                raise ValueError(
                    f"{who}: {names[i]} overlaps {names[j]} in memory, so numbers would be overwritten before they are "
                    "read. Give it memory of its own, or exactly what is turned."
                )


def are_apart(pieces: list[tuple[int, int]]) -> bool:
    """Whether pieces of memory, (address, bytes) each, lie one behind the other; sorts them."""
    pieces.sort()
    end = 0
    for begin, span in pieces:
        if begin < end:
            return False
        end = begin + span
    return True


def _overlaps(t: Tensor) -> bool:
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
