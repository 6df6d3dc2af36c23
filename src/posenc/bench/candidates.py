"""Candidates of a row: what they share, how each is made, and the check without which none is timed."""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from posenc.bench.measure import Work
from posenc.bench.rows import Row

CHECKED = 64  # tokens at the end, whose numbers are compared
# differences that are rounding, in parts of the largest number; some peers form angles in float32
TOLERANCES = {"float32": 5e-4, "bfloat16": 0.03, "float16": 0.005}


class Candidate(NamedTuple):
    """One way to the results of a row."""

    title: str  # for people; {0.taken} is the attribute `taken` of the row's inputs
    make: Callable[[Any], Callable[[], Any]]  # from the row's inputs, a call that returns one tensor or several
    learns: bool = True  # False: gradients are never asked of it


class Inputs:
    """What all candidates of a row share. Each kind of row has a subclass with the table of its candidates."""

    candidates: ClassVar[dict[str, Candidate]]
    q_bytes: int
    tokens: int | None = None  # that a call takes in or makes, where the row is of whole models
    learned: Sequence[Tensor] = ()  # what gets gradients where the row trains
    slopes: Any = None  # and the gradients of the results, which all go back from

    def __init__(self, row: Row) -> None:
        self.row = row
        torch.manual_seed(0)

    @cached_property
    def expected(self) -> list[Tensor]:
        """What every candidate but the baseline must return, of the last `CHECKED` tokens."""
        raise NotImplementedError

    def make(self, name: str) -> Work:
        """Return a candidate's call.

        Raises:
            ImportError: It is a peer that is not installed.
            ValueError: It cannot run here.
        """
        candidate = self.candidates[name]
        forward = candidate.make(self)
        if self.row.mode != "train" or not candidate.learns:
            return torch.no_grad()(forward)
        return lambda: torch.autograd.grad(forward(), self.learned, self.slopes, allow_unused=True)


def fault(got: Any, want: Sequence[Tensor], dtype: str) -> str | None:
    """Return how far results are from the expected ones, or None where the difference is rounding.

    >>> fault(torch.full((2, 3), 4.0), [torch.full((1, 3), 4.1)], "float32")
    'its numbers are wrong by up to 2.4% of the largest'
    """
    for mine, right in zip([got] if isinstance(got, Tensor) else got, want, strict=False):
        last = mine if mine.shape == right.shape else mine[..., -right.shape[-2] :, :]
        error = float((last.double() - right).abs().max() / right.abs().max())
        if not error <= TOLERANCES[dtype]:  # nor is NaN
            return f"its numbers are wrong by up to {error:.1%} of the largest"
    return None
