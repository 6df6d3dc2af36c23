"""Four tasks of the Chomsky hierarchy (Delétang et al. 2022, arXiv 2207.02098).

The predicates are those of google-deepmind/neural_networks_chomsky_hierarchy, which later copies changed.
"""

from typing import Any

import torch
from torch import Generator

from posenc.study.tasks.lines import COMMON, END, FIRST, Line, asked, integers, padded
from posenc.study.tasks.task import register

BITS = (*COMMON, "0", "1")
CYCLE = 5
MOVE, POP, HOLE = FIRST + CYCLE, FIRST + 2, FIRST + 2
FACTS: dict[str, Any] = {
    "lengths": range(1, 1025),
    "train_lengths": range(1, 21),  # the source: 1 to 40, tested at 41 to 500
    "test_lengths": (20, 40, 80),
    "paper": "Delétang et al. 2022",
    "arxiv": "2207.02098",
}


@register("even_pairs", symbols=BITS, length="bits", format="^ 0 0 1 1 1 0 ? 0 (0: 01 and 10 occur evenly)", **FACTS)
def even_pairs(length: int, n: int, generator: Generator) -> Line:
    """Draw bits and ask whether neighbours differ an odd number of times."""
    bits = integers(0, 1, (n, length), generator)
    return asked(bits + FIRST, bits.diff(dim=1).abs().sum(1, keepdim=True) % 2 + FIRST)


@register(
    "cycle",
    symbols=(*COMMON, *map(str, range(CYCLE)), "-1", "+0", "+1"),
    length="moves",
    format="^ +1 -1 +0 -1 -1 ? 3 (where moves on a circle of five end)",
    **FACTS,
)
def cycle(length: int, n: int, generator: Generator) -> Line:
    """Draw moves of -1, 0 and 1, and ask for their sum modulo five."""
    moves = integers(0, 2, (n, length), generator)
    return asked(moves + MOVE, (moves - 1).sum(1, keepdim=True) % CYCLE + FIRST)


@register(
    "stack",
    symbols=(*BITS, "pop", "push0", "push1"),
    length="bits of the stack and actions",
    format="^ 0 1 1 0 push1 pop pop ? 1 1 0 . (the stack from bottom to top, actions, the stack from top to bottom)",
    **FACTS,
)
def stack(length: int, n: int, generator: Generator) -> Line:
    """Draw a stack and at least one action, and ask for the stack; popping an empty one does nothing."""
    heights = integers(1, max(1, length - 1), (n, 1), generator)
    bits, actions = (integers(low, low + most, (n, length), generator) for low, most in ((FIRST, 1), (POP, 2)))
    question = torch.where(torch.arange(length) < heights, bits, actions)
    answers = []
    for row, height in zip(question.tolist(), heights[:, 0].tolist(), strict=True):
        left = row[:height]
        for action in row[height:]:
            if action != POP:
                left.append(action - POP - 1 + FIRST)
            elif left:
                left.pop()
        answers.append([*left[::-1], END])
    return asked(question, padded(answers, length + 1))


@register(
    "missing_duplicate",
    symbols=(*BITS, "_", "#"),
    length="symbols of the question",
    format="^ 0 1 1 0 0 _ 1 0 ? 1 (a string twice, with a hole; # fills up an odd length)",
    **FACTS | {"lengths": range(2, 1025), "train_lengths": range(2, 21)},
)
def missing_duplicate(length: int, n: int, generator: Generator) -> Line:
    """Draw bits, write them twice, hide one, and ask for it."""
    twice = integers(FIRST, FIRST + 1, (n, length // 2), generator).repeat(1, 2)
    hole = integers(0, twice.shape[1] - 1, (n, 1), generator)
    answer = twice.gather(1, hole)
    fill = torch.full((n, length % 2), HOLE + 1)
    return asked(torch.cat((twice.scatter(1, hole, HOLE), fill), 1), answer)
