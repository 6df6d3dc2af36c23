"""Position streams: positions of a line for any encoding, in place of 0, 1, 2, ...

In tests a number or a word list starts at its source's position; in training it starts at random, so that the
positions of longer tests are trained as well. `randomised` is random in both, since its model has learned gaps.
"""

from collections.abc import Callable, Mapping

import torch
from jaxtyping import Bool, Int64
from torch import Generator, Tensor

from posenc.study.tasks.lines import ASK, FIRST

Positions = Int64[Tensor, "n seq_len"]
Stream = Callable[[Int64[Tensor, "n seq_len"]], Positions]
# As in the sources, these streams have one offset per batch; `coupling` has one per line.
PER_BATCH = ("abacus",)


def abacus(tokens: Int64[Tensor, "n seq_len"], values: range) -> Positions:
    """Count the digits of each number, 1, 2, ...; 0 elsewhere (McLeish et al. 2024, arXiv 2405.17399).

    Args:
        tokens: A batch of lines.
        values: The ids of digits, or of words.
    """
    place = torch.arange(tokens.shape[1])
    return place - torch.where(_among(tokens, values), -1, place).cummax(1).values


def coupling(
    tokens: Int64[Tensor, "n seq_len"], values: range, *, question_falls: bool = False, answer_falls: bool = False
) -> Positions:
    """Give digits of equal significance, or the two copies of a word, one position (Cho et al. 2024, 2405.20671).

    The first position is 2; symbols between numbers have 1, and the rest 0. Before a falling answer, the mark has the
    position after that of the answer's first symbol, so steps are of size one there too.

    Args:
        tokens: A batch of lines.
        values: The ids of digits, or of words.
        question_falls: Positions fall along the question, as significance does in numbers written as usual.
        answer_falls: Positions fall along the answer, which must have as many symbols as the question.
    """
    own, rising, marks = _among(tokens, values), abacus(tokens, values), tokens == ASK
    answer = marks.cumsum(1) > 0
    place = torch.arange(tokens.shape[1])
    end = torch.where(own, len(place), place).flip(1).cummin(1).values.flip(1)
    asked = (own & ~answer).sum(1, keepdim=True)
    falling = torch.where(answer, asked + 1 - rising, end - place)
    significance = torch.where(answer & answer_falls | ~answer & question_falls, falling, rising)
    between = torch.where(marks & answer_falls, asked + 2, ((tokens >= FIRST) | marks).long())
    return torch.where(own, significance + 1, between)


def place(
    kinds: Mapping[str, Stream],
    tokens: Int64[Tensor, "n seq_len"],
    generator: Generator,
    *,
    training: bool,
    sizes: Mapping[str, int],
) -> dict[str, Positions]:
    """Return every stream's positions of a batch, all of them below the stream's size.

    Args:
        kinds: The streams with an offset, by name.
        tokens: A batch of lines.
        generator: The source of random positions.
        training: Draw offsets.
        sizes: How many positions each stream has.
    """
    n, seq_len = tokens.shape
    # one draw for the batch (Ruoss et al. 2023, arXiv 2305.16843)
    drawn = torch.randperm(sizes["randomised"], generator=generator)[:seq_len].sort().values
    placed = {"index": torch.arange(seq_len).expand(n, -1), "randomised": drawn.expand(n, -1)}
    for name, stream in kinds.items():
        positions = stream(tokens)
        if training:
            largest = positions.max().expand(n, 1) if name in PER_BATCH else positions.amax(1, keepdim=True)
            draws = torch.rand(1 if name in PER_BATCH else n, 1, generator=generator, dtype=torch.float64)
            offset = (draws * (sizes[name] - largest)).long()
            positions = torch.where(positions > 0, positions + offset, 0)
        placed[name] = positions
    return placed


def _among(tokens: Int64[Tensor, "n seq_len"], values: range) -> Bool[Tensor, "n seq_len"]:
    return (tokens >= values.start) & (tokens < values.stop)
