"""Symbols that tasks share, and how a question and its answer become what a causal decoder reads and is asked for."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Int64
from torch import Generator, Tensor

# A start symbol, as in the prompts of arXiv 2305.19466: without one, a decoder without positions cannot find its
# place. An end symbol, where the model must know when to stop.
PAD, START, ASK, END = range(4)
COMMON = ("pad", "^", "?", ".")
FIRST = len(COMMON)  # the id of a task's first symbol of its own
IGNORED = -100  # a target that counts for nothing; what torch's cross entropy ignores

Line = tuple[Int64[Tensor, "n seq_len"], Int64[Tensor, "n seq_len"]]  # tokens and targets


def integers(low: int, high: int, shape: Sequence[int], generator: Generator) -> Int64[Tensor, "..."]:
    """Draw integers of low..high, both included, each as often as the others."""
    return torch.randint(low, high + 1, tuple(shape), generator=generator)


def subsets(size: int, n: int, generator: Generator) -> Int64[Tensor, "n size"]:
    """Return n orders of 0..size-1; the first k of a row are a draw of k without replacement."""
    return torch.rand(n, size, generator=generator, dtype=torch.float64).argsort(1)


def asked(question: Int64[Tensor, "n q"], answer: Int64[Tensor, "n a"]) -> Line:
    """Return tokens and targets of `^ question ? answer`; padding after the answer counts for nothing."""
    start, ask = (torch.full((len(question), 1), mark) for mark in (START, ASK))
    line = torch.cat((start, question, ask, answer), 1)
    return predicted(line, torch.arange(line.shape[1]) > question.shape[1] + 1)


def predicted(line: Int64[Tensor, "n longer"], counted: Bool[Tensor, "*n longer"]) -> Line:
    """Return the line without its last symbol, and for each of its symbols the next one, where that is counted."""
    following = line[:, 1:]
    return line[:, :-1], torch.where(counted[..., 1:] & (following != PAD), following, IGNORED)


def padded(rows: Sequence[Sequence[int]], width: int) -> Int64[Tensor, "n width"]:
    """Return rows of ids as a tensor, filled on the right."""
    return torch.tensor([[*row, *[PAD] * (width - len(row))] for row in rows])
