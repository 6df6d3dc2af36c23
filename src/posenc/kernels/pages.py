"""Pages of fresh memory: on Linux those of 2 MiB cost a fraction of as many of 4 KiB.

Large tensors come in memory that the process never touched, and the system finds and zeroes each page when it is first
written to: most of what a clone takes. For arrays of 4 MiB and more numpy asks for large pages too, unless it is told
not to. What is asked for here is written at once, so that no more memory is taken than without.
"""

import ctypes
import mmap
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

LEAST = 2**22  # bytes of a tensor
_HUGE: int | None = getattr(mmap, "MADV_HUGEPAGE", None)  # Linux has it


def are_worth_it(xs: Sequence[Tensor]) -> bool:
    """Whether memory like that of `xs` is so large, and from a system that can be asked."""
    return _HUGE is not None and all(x.device.type == "cpu" for x in xs) and any(x.nbytes >= LEAST for x in xs)


def fresh(x: Tensor) -> Tensor:
    """Return `torch.empty_like` of a tensor of which `are_worth_it` said so."""
    out = torch.empty_like(x)
    enlarge(out)
    return out


def enlarged(out: Tensor) -> Tensor:
    """Return a tensor that is new and dense, after asking for large pages where they are worth it."""
    if are_worth_it([out]):
        enlarge(out)
    return out


def enlarge(out: Tensor) -> None:
    """Ask for large pages for all of a tensor that is new and dense; small ones are left as they are."""
    if out.nbytes >= LEAST:
        begin = -(-out.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
        end = (out.data_ptr() + out.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
        _madvise()(begin, end - begin, _HUGE)  # a system without large pages refuses, and nothing is lost


@cache
def _madvise() -> Any:
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return madvise
