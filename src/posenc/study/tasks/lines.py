"""Symbols that tasks share, and the conversion of a question and its answer to a decoder's tokens and targets."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Int64
from torch import Generator, Tensor

# The start symbol, as in the prompts of arXiv 2305.19466: without it, a decoder without positions cannot locate
# tokens. The end symbol is for tasks in which the model must stop by itself.
PAD, START, ASK, END = range(4)
COMMON = ("pad", "^", "?", ".")
FIRST = len(COMMON)  # the id of the first symbol that is specific to a task
IGNORED = -100  # a target that is not counted; torch's cross entropy ignores it

Line = tuple[Int64[Tensor, "n seq_len"], Int64[Tensor, "n seq_len"]]  # tokens and targets


def integers(low: int, high: int, shape: Sequence[int], generator: Generator) -> Int64[Tensor, "..."]:
    """Draw integers uniformly from low to high, both included."""
    return torch.randint(low, high + 1, tuple(shape), generator=generator)


def subsets(size: int, n: int, generator: Generator) -> Int64[Tensor, "n size"]:
    """Return n permutations of 0..size-1; the first k of a row are a draw of k without replacement."""
    return torch.rand(n, size, generator=generator, dtype=torch.float64).argsort(1)


def asked(question: Int64[Tensor, "n q"], answer: Int64[Tensor, "n a"]) -> Line:
    """Return tokens and targets of `^ question ? answer`; padding after the answer is not counted."""
    start, ask = (torch.full((len(question), 1), mark) for mark in (START, ASK))
    line = torch.cat((start, question, ask, answer), 1)
    return predicted(line, torch.arange(line.shape[1]) > question.shape[1] + 1)


def predicted(line: Int64[Tensor, "n longer"], counted: Bool[Tensor, "*n longer"]) -> Line:
    """Return the line without its last symbol, and for each symbol the next one if that is counted, else IGNORED."""
    following = line[:, 1:]
    return line[:, :-1], torch.where(counted[..., 1:] & (following != PAD), following, IGNORED)


def padded(rows: Sequence[Sequence[int]], width: int) -> Int64[Tensor, "n width"]:
    """Return rows of ids as a tensor, padded on the right."""
    return torch.tensor([[*row, *[PAD] * (width - len(row))] for row in rows])
