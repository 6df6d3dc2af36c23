"""Candidates of a row: their shared inputs, how each is made, and the check that each must pass before it is timed."""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from posenc.bench.measure import Work
from posenc.bench.rows import Row

CHECKED = 64  # last tokens, whose numbers are compared
# differences that rounding explains, relative to the largest number; some peers compute angles in float32
TOLERANCES = {"float32": 5e-4, "bfloat16": 0.03, "float16": 0.005}


class Candidate(NamedTuple):
    """One way to compute the results of a row."""

    title: str  # for people; {0.taken} is the attribute `taken` of the row's inputs
    make: Callable[[Any], Callable[[], Any]]  # from the row's inputs, a call that returns one tensor or several
    learns: bool = True  # False: it never computes gradients


class Inputs:
    """The shared inputs of a row's candidates. Each kind of row has a subclass with the table of its candidates."""

    candidates: ClassVar[dict[str, Candidate]]
    q_bytes: int
    tokens: int | None = None  # of the input or the output of a call, for rows of whole models
    learned: Sequence[Tensor] = ()  # the tensors that receive gradients if the row trains
    slopes: Any = None  # the gradients of the results, from which all backward passes start

    def __init__(self, row: Row) -> None:
        self.row = row
        torch.manual_seed(0)

    @cached_property
    def expected(self) -> list[Tensor]:
        """The last `CHECKED` tokens that every candidate but the baseline must return."""
        raise NotImplementedError

    def make(self, name: str) -> Work:
        """Return a candidate's call.

        Raises:
            ImportError: A peer is not installed.
            ValueError: The candidate cannot run here.
        """
        candidate = self.candidates[name]
        forward = candidate.make(self)
        if self.row.mode != "train" or not candidate.learns:
            return torch.no_grad()(forward)
        return lambda: torch.autograd.grad(forward(), self.learned, self.slopes, allow_unused=True)


def fault(got: Any, want: Sequence[Tensor], dtype: str) -> str | None:
    """Return how far results are from the expected ones, or None if rounding explains the difference.

    >>> fault(torch.full((2, 3), 4.0), [torch.full((1, 3), 4.1)], "float32")
    'its numbers are wrong by up to 2.4% of the largest'
    """
    for mine, right in zip([got] if isinstance(got, Tensor) else got, want, strict=False):
        last = mine if mine.shape == right.shape else mine[..., -right.shape[-2] :, :]
        error = float((last.double() - right).abs().max() / right.abs().max())
        if not error <= TOLERANCES[dtype]:  # includes NaN
            return f"its numbers are wrong by up to {error:.1%} of the largest"
    return None
