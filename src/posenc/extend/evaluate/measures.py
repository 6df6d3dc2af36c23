"""The measures of a model: the loss of fixed tokens with growing context, and needles by depth and length."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor

from posenc.extend.evaluate.targets import Model, Target

POSITION, SLIDING = "position", "sliding"
DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)  # depths of a needle: shares of the text before the question
_NAMES = ("Cairo", "Delhi", "Perth", "Dakar", "Turin", "Osaka", "Paris", "Quito")
Row = dict[str, Any]


@dataclass(frozen=True)
class Needle:
    """A kind of needle; {a}, {b}, .. stand for names and {w}, {x}, .. for numbers; {x} is the answer.

    Args:
        sentence: The hidden sentence, at the tested depth.
        others: Other sentences in the text, at evenly spaced depths.
        question: The text that the model continues.
    """

    sentence: str
    others: tuple[str, ...]
    question: str


# after RULER (Hsieh 2024, 2404.06654), scored by the answer's probability, so that small models can be compared
NEEDLES = {
    "single": Needle("The pass key of {a} is {x}.", (), "The pass key of {a} is"),
    "multi-key": Needle(
        "The pass key of {a} is {x}.",
        ("The pass key of {b} is {y}.", "The pass key of {c} is {z}.", "The pass key of {d} is {w}."),
        "The pass key of {a} is",
    ),
    "multi-value": Needle(
        "One pass key of {a} is {x}.",
        ("One pass key of {a} is {y}.", "One pass key of {a} is {z}."),
        "The pass keys of {a} are {y}, {z} and",
    ),
    "chain": Needle("The pass key of {a} is {x}.", ("{b} has the pass key of {a}.",), "The pass key of {b} is"),
}


@dataclass(frozen=True)
class Text:
    """The tokens of a text, and the choice of those that are scored.

    Args:
        tokens: All tokens.
        longest: The longest context; every scored token has at least this many tokens before it.
        scored: How many tokens at the end of a piece are scored.
        pieces: How many pieces there are.
    """

    tokens: Int64[Tensor, " seq"]
    longest: int
    scored: int
    pieces: int

    def ends(self, measure: str) -> Int64[Tensor, " pieces"]:
        """Return the last token of each piece: spread over the whole text, or consecutive for SLIDING."""
        if measure == SLIDING:
            return self.longest + self.scored * torch.arange(self.pieces)
        return torch.linspace(self.longest, len(self.tokens) - 1, self.pieces, dtype=torch.float64).long()


def read(model: Model, target: Target, text: Text, measure: str, length: int) -> list[Row]:
    """Return the mean bits of the scored tokens of each piece, with `length` tokens of context.

    The context includes the scored tokens themselves; the same tokens are scored at every length.
    """
    start = torch.tensor(target.start, dtype=torch.int64)
    near = text.tokens[text.ends(measure)[:, None] + torch.arange(len(start) - length, 1)]
    windows = torch.cat((start.expand(text.pieces, -1), near), 1)
    bits = model.score(windows, text.scored).bits.mean(1)
    return [{"piece": i, "bits": value} for i, value in enumerate(bits.tolist())]


def find_needles(model: Model, target: Target, text: Text, kind: str, length: int, trials: int) -> list[Row]:
    """Return for each depth and trial the bits of a token of the answer, with and without the needle.

    Returns:
        Rows with `bits`, `without`, and `exact`: whether greedy decoding would give the whole answer.
    """
    rows: list[Row] = []
    for trial in range(trials):
        windows, last = hide(target, text, kind, length, trial)
        bits, right = model.score(windows, last)
        without, *given = bits.mean(1).tolist()
        rows += [
            {"depth": depth, "piece": trial, "bits": one, "without": without, "exact": int(exact)}
            for depth, one, exact in zip(DEPTHS, given, right[1:].all(1).tolist(), strict=True)
        ]
    return rows


def hide(target: Target, text: Text, kind: str, length: int, trial: int) -> tuple[Int64[Tensor, "n seq"], int]:
    """Return texts that end with the answer: one without the needle, then one for each depth.

    Returns:
        Windows (1 + depths, length + 1), and how many tokens at the end are the answer.

    Raises:
        ValueError: The sentences are longer than the text.
    """
    drawn = random.Random(f"{kind} {trial}")
    words = dict(zip("abcd", drawn.sample(_NAMES, 4), strict=True))
    words |= dict(zip("wxyz", map(str, drawn.sample(range(10_000, 100_000), 4)), strict=True))
    needle = NEEDLES[kind]

    def tokens(sentence: str) -> list[int]:
        return target.encode(sentence.format(**words).encode())

    question = tokens(f"\n{needle.question}")
    asked = tokens(f"\n{needle.question} {{x}}")
    shared = next((i for i, (a, b) in enumerate(zip(question, asked, strict=False)) if a != b), len(question))
    others = [tokens(f"\n{other}\n") for other in needle.others]
    spots = [((i + 1) / (len(others) + 1), other) for i, other in enumerate(others)]
    hidden = tokens(f"\n{needle.sentence}\n")
    n_hay = length + 1 - len(target.start) - len(asked) - sum(map(len, others))
    if n_hay < len(hidden):
        raise ValueError(f"evaluate: {kind} needles do not fit into {length} tokens.")
    begin = drawn.randrange(len(text.tokens) - n_hay)
    hay = text.tokens[begin : begin + n_hay].tolist()
    rows = [_insert(hay, spots)] + [_insert(hay[len(hidden) :], [*spots, (depth, hidden)]) for depth in DEPTHS]
    return torch.tensor([target.start + row + asked for row in rows]), len(asked) - shared


def fits(target: Target, text: Text, kind: str, length: int, trials: int) -> bool:
    """Return whether a kind's sentences fit into a length."""
    try:
        for trial in range(trials):
            hide(target, text, kind, length, trial)
    except ValueError:
        return False
    return True


def _insert(hay: Sequence[int], spots: Sequence[tuple[float, list[int]]]) -> list[int]:
    """Return tokens with others inserted at depths."""
    placed = sorted((round(depth * len(hay)), tokens) for depth, tokens in spots)
    cuts = [0, *(place for place, _ in placed), len(hay)]
    parts = [list(hay[a:b]) for a, b in pairwise(cuts)]
    found = list(parts[0])
    for (_, tokens), part in zip(placed, parts[1:], strict=True):
        found += tokens + part
    return found
