"""Copy, reverse and sort (Kazemnejad et al. 2023, arXiv 2305.19466)."""

from functools import partial
from string import ascii_lowercase
from typing import Any

import torch
from torch import Generator

from posenc.study.tasks.lines import COMMON, END, FIRST, Line, asked, integers
from posenc.study.tasks.streams import coupling
from posenc.study.tasks.task import register

N_NUMBERS = 50  # numbers to sort: the source's alphabet of single symbols in a fixed order
LETTERS = range(FIRST, FIRST + len(ascii_lowercase))
NUMBERS = range(FIRST, FIRST + N_NUMBERS)
FACTS: dict[str, Any] = {
    "length": "words of the question",
    "lengths": range(1, 1025),
    "train_lengths": range(1, 21),
    "test_lengths": (20, 40, 80),
    "paper": "Kazemnejad et al. 2023",
    "arxiv": "2305.19466",
}


@register(
    "copy",
    options={"values": LETTERS, "order": "same"},
    symbols=(*COMMON, *ascii_lowercase),
    format="^ a b c ? a b c . (letters, uniform, for words)",
    kinds={"coupling": partial(coupling, values=LETTERS)},
    **FACTS,
)
@register(
    "reverse",
    options={"values": LETTERS, "order": "reversed"},
    symbols=(*COMMON, *ascii_lowercase),
    format="^ a b c ? c b a . (letters, uniform, for words)",
    kinds={"coupling": partial(coupling, values=LETTERS, answer_falls=True)},
    **FACTS,
)
@register(
    "sort",
    options={"values": NUMBERS, "order": "rising"},
    symbols=(*COMMON, *map(str, range(N_NUMBERS))),
    format="^ 31 4 15 4 ? 4 4 15 31 . (one symbol a number, 0 to 49, uniform)",
    **FACTS,
)
def words(length: int, n: int, generator: Generator, values: range, order: str) -> Line:
    """Draw words and write them again in some order."""
    question = integers(values[0], values[-1], (n, length), generator)
    orders = {"same": question, "reversed": question.flip(1), "rising": question.sort(1).values}
    return asked(question, torch.cat((orders[order], torch.full((n, 1), END)), 1))
