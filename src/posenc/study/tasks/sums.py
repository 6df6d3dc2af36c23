"""Addition in four formats, parity, and sums modulo ten."""

from functools import partial
from typing import Any

import torch
from torch import Generator

from posenc.study.tasks.lines import COMMON, END, FIRST, Line, asked, integers, padded
from posenc.study.tasks.streams import abacus, coupling
from posenc.study.tasks.task import register

PLUS, ZERO = FIRST, FIRST + 1
DIGITS = range(ZERO, ZERO + 10)
N_HINTS = 102  # as many as in arXiv 2402.09371
SYMBOLS = (*COMMON, "+", *map(str, range(10)))
HINTS = tuple(f"i{i}" for i in range(N_HINTS))
FACTS: dict[str, Any] = {
    "length": "digits of each of the two numbers",
    "lengths": range(1, 1025),
    "train_lengths": range(1, 17),
    "test_lengths": (16, 32, 64),
}
ROWS: dict[str, Any] = {
    "lengths": range(1, 1025),
    "train_lengths": range(1, 21),
    "test_lengths": (20, 40, 80),
    "paper": "Kazemnejad et al. 2023",
    "arxiv": "2305.19466",
}


@register(
    "addition",
    options={"format": "plain"},
    symbols=SYMBOLS,
    paper="Kazemnejad et al. 2023",
    arxiv="2305.19466",
    format="^ 5 8 + 9 6 ? 1 5 4 . (as usually written; both numbers of equal length, in the source of any lengths)",
    **FACTS,
)
@register(
    "addition:reversed",
    options={"format": "reversed"},
    symbols=SYMBOLS,
    paper="Cho et al. 2024",
    arxiv="2405.20671",
    format="^ 5 8 + 2 6 ? 4 8 0 . (the sum reversed and padded with a zero; both numbers of equal length)",
    kinds={"coupling": partial(coupling, values=DIGITS, question_falls=True)},
    **FACTS,
)
@register(
    "addition:all_reversed",
    options={"format": "all_reversed"},
    symbols=SYMBOLS,
    paper="McLeish et al. 2024",
    arxiv="2405.17399",
    format="^ 8 5 + 6 9 ? 4 5 1 . (all numbers reversed; both of equal length)",
    kinds={"abacus": partial(abacus, values=DIGITS), "coupling": partial(coupling, values=DIGITS)},
    **FACTS,
)
@register(
    "addition:hints",
    options={"format": "hints"},
    symbols=(*SYMBOLS, *HINTS),
    paper="Zhou et al. 2024",
    arxiv="2402.09371",
    format="^ i7 8 i8 5 + i7 6 i8 9 ? i7 4 i8 5 i9 1 . (all reversed; consecutive hints, from a random one)",
    **FACTS | {"lengths": range(1, N_HINTS)},
)
def addition(length: int, n: int, generator: Generator, format: str) -> Line:
    """Draw two numbers and write them and their sum."""
    numbers = integers(0, 9, (n, 2, length), generator)
    if length > 1:
        numbers[..., 0] = integers(1, 9, (n, 2), generator)
    starts = integers(0, max(0, N_HINTS - length - 1), (n,), generator).tolist()
    lines = [_added(pair, format, start) for pair, start in zip(numbers.tolist(), starts, strict=True)]
    questions, answers = zip(*lines, strict=True)
    width = (length + 1) * (2 if format == "hints" else 1) + 1
    return asked(padded(questions, len(questions[0])), padded(answers, width))


def _added(pair: list[list[int]], format: str, start: int) -> tuple[list[int], list[int]]:
    first, second = ("".join(map(str, digits)) for digits in pair)
    total = str(int(first) + int(second))
    if format == "reversed":
        total = total.zfill(len(first) + 1)
    if format != "plain":
        total = total[::-1]
    if format in ("all_reversed", "hints"):
        first, second = first[::-1], second[::-1]
    rows = [[ZERO + int(digit) for digit in text] for text in (first, second, total)]
    if format == "hints":
        rows = [[symbol for i, digit in enumerate(row, DIGITS.stop + start) for symbol in (i, digit)] for row in rows]
    return [*rows[0], PLUS, *rows[1]], [*rows[2], END]


@register(
    "parity",
    length="bits",
    symbols=(*COMMON, "0", "1", "No", "Yes"),
    format="^ 1 0 0 1 1 ? No (is the number of ones even?)",
    **ROWS,
)
def parity(length: int, n: int, generator: Generator) -> Line:
    """Draw bits and ask whether the number of ones is even."""
    bits = integers(0, 1, (n, length), generator)
    return asked(bits + FIRST, (1 - bits.sum(1, keepdim=True) % 2) + FIRST + 2)


@register(
    "modular_sum",
    length="numbers",
    symbols=SYMBOLS,
    format="^ 1 + 2 + 3 + 4 + 7 ? 7 (modulo 10; digits 1 to 9, uniform)",
    **ROWS,
)
def modular_sum(length: int, n: int, generator: Generator) -> Line:
    """Draw digits and ask for the last digit of their sum."""
    digits = integers(1, 9, (n, length), generator)
    line = torch.stack((digits + ZERO, torch.full((n, length), PLUS)), 2).flatten(1)[:, :-1]
    return asked(line, digits.sum(1, keepdim=True) % 10 + ZERO)
