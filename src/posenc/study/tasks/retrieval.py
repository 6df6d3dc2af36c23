"""Retrieval tasks: find a symbol by its content, by its position, or by both."""

from string import ascii_letters, ascii_lowercase

import torch
from torch import Generator

from posenc.study.tasks.lines import COMMON, FIRST, IGNORED, START, Line, integers, padded, predicted, subsets
from posenc.study.tasks.task import register

N_KEYS = 256  # and 256 values; the source has 4096 of each
POWER = 0.01
KEYS, VALUES = range(1, N_KEYS + 1), range(N_KEYS + 1, 2 * N_KEYS + 1)
FARTHEST = 15
COMMA, MINUS, PLUS, ZERO = range(FIRST, FIRST + 4)
LETTER = ZERO + 10
N_COPIED, NOISE, MARK = 8, 1, 2
COPIED = range(3, 17)


@register(
    "recall",
    symbols=("pad", *(f"k{i}" for i in range(N_KEYS)), *(f"v{i}" for i in range(N_KEYS))),
    length="symbols, an eighth of them keys and an eighth values",
    lengths=range(8, 513, 8),
    train_lengths=range(32, 65, 8),
    test_lengths=(64, 128, 256),
    paper="Arora et al. 2023",
    arxiv="2312.04927",
    format="k1 v2 k3 v4 ... k3 [v4] ... k1 [v2] ... (gaps by a power law, filled with any symbol; [v] is not read)",
)
def recall(length: int, n: int, generator: Generator) -> Line:
    """Draw pairs of different keys and different values, and ask for each key once."""
    pairs = length // 8
    keys, values = (subsets(N_KEYS, n, generator)[:, :pairs] + of.start for of in (KEYS, VALUES))
    gaps = _gaps(length // 2 - pairs, pairs, n, generator)
    tokens = integers(KEYS.start, VALUES.stop - 1, (n, length), generator)
    tokens[:, : 2 * pairs] = torch.stack((keys, values), 2).flatten(1)
    asked_at = 2 * (pairs + gaps)
    targets = torch.full((n, length), IGNORED).scatter_(1, asked_at, values)
    return tokens.scatter_(1, asked_at, keys), targets


def _gaps(slots: int, pairs: int, n: int, generator: Generator) -> torch.Tensor:
    """Draw different slots for each pair, slot g with weight (g + 1)^(POWER - 1).

    Exponential waiting times with these rates end in the order of weighted draws without replacement.
    `torch.multinomial` does the same, but its numbers differ between machines.
    """
    rates = torch.arange(1, slots + 1, dtype=torch.float64) ** (POWER - 1)
    waits = -torch.rand(n, slots, generator=generator, dtype=torch.float64).log() / rates
    return waits.argsort(1)[:, :pairs]


@register(
    "indirect",
    symbols=(*COMMON, ",", "-", "+", *map(str, range(10)), *ascii_letters),
    length="letters of the string, all different",
    lengths=range(2, len(ascii_letters) + 1),
    train_lengths=range(10, 21),
    test_lengths=(20, 40, 52),
    paper="Gopalakrishnan et al. 2025",
    arxiv="2509.10534",
    format="^ N Z T U I , N , + 4 , I (the letter 4 to the right of N; steps of at most 15; source: 20 to 40 letters)",
)
def indirect(length: int, n: int, generator: Generator) -> Line:
    """Draw a string, one of its letters, and a step that stays inside it; ask for the letter reached."""
    strings = (subsets(len(ascii_letters), n, generator)[:, :length] + LETTER).tolist()
    sources = integers(0, length - 1, (n,), generator).tolist()
    draws = torch.rand(n, generator=generator, dtype=torch.float64).tolist()
    rows, counted = [], []
    for string, source, draw in zip(strings, sources, draws, strict=True):
        low, high = max(-FARTHEST, -source), min(FARTHEST, length - 1 - source)
        step = low + int(draw * (high - low + 1))
        digits = [int(digit) + ZERO for digit in str(abs(step))]
        sign = MINUS if step < 0 else PLUS
        rows.append([START, *string, COMMA, string[source], COMMA, sign, *digits, COMMA, string[source + step]])
        counted.append([0] * (len(rows[-1]) - 1) + [1])
    width = length + 9
    return predicted(padded(rows, width), padded(counted, width) == 1)


@register(
    "selective_copy",
    symbols=("pad", ".", "?", *ascii_lowercase[: len(COPIED)]),
    length=f"symbols before the marks, {N_COPIED} of them data",
    lengths=range(N_COPIED, 4097),
    train_lengths=range(16, 33),
    test_lengths=(32, 64, 128),
    paper="Gu and Dao 2023",
    arxiv="2312.00752",
    format="a . . b . ? [a] ? [b] (data among noise, repeated in order; [a] is not read; the source: 16 in 4096)",
)
def selective_copy(length: int, n: int, generator: Generator) -> Line:
    """Draw data at random places among noise, and ask for them in order, one at each mark."""
    data = integers(COPIED[0], COPIED[-1], (n, N_COPIED), generator)
    places = subsets(length, n, generator)[:, :N_COPIED].sort(1).values
    noise = torch.full((n, length), NOISE).scatter_(1, places, data)
    tokens = torch.cat((noise, torch.full((n, N_COPIED), MARK)), 1)
    return tokens, torch.cat((torch.full((n, length), IGNORED), data), 1)
