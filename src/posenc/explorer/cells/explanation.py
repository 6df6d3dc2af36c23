"""What an explanation is, and how its numbers are written."""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

Floats = NDArray[np.float64]
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
SHOWN = 6  # terms of a sum


@dataclass
class Explanation:
    """Why one cell of a picture has its value.

    Args:
        formula: The mathematics in one line.
        value: The number of the picture.
        steps: Sentences, each with the numbers put in, ending in the value.
        told: The number that the last step arrives at; None where the steps are no arithmetic.
    """

    formula: str
    value: float
    steps: list[str] = field(default_factory=list)
    told: float | None = None

    def say(self, *sentences: str) -> None:
        """Add steps."""
        self.steps += sentences

    def end(self, told: float, sentence: str) -> None:
        """Add the step that arrives at a number."""
        self.told = told
        self.steps.append(sentence)

    def as_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {"formula": self.formula, "steps": self.steps, "value": self.value}


def number(value: float, digits: int = 7) -> str:
    """Write a number: whole ones as they are, others with some digits.

    >>> number(4096.0), number(2 / 3), number(1e-9), number(1e6 / 3)
    ('4,096', '0.6666667', '1e-09', '333,333.33')
    """
    if not math.isfinite(value):
        return str(value)
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:,.2f}" if 1e5 <= abs(value) < 1e15 else f"{value:.{digits}g}"


def braced(value: float) -> str:
    """Write a number that stands behind an operator."""
    return f"({number(value)})" if value < 0 else number(value)


def rounded(value: float) -> str:
    """Say what becomes of a value in each precision."""
    parts = (f"{number(float(torch.tensor(value).double().to(dtype)))} in {name}" for name, dtype in DTYPES.items())
    return f"Rounded: {', '.join(parts)}."


def sum_of(terms: Floats, names: list[str], what: str) -> tuple[float, list[str]]:
    """Return a sum, and the sentences that say what it is made of, the largest terms first.

    Args:
        terms: (n,).
        names: What each term is called.
        what: What they are terms of, for the sentence.
    """
    order = np.argsort(-np.abs(terms), kind="stable")
    largest = [f"{names[i]}: {number(float(terms[i]))}" for i in order[:SHOWN]]
    total, rest = float(terms.sum()), float(terms[order[SHOWN:]].sum())
    others = len(terms) - len(largest)
    sentences = [f"{what} has {len(terms):,} terms; the largest are {'; '.join(largest)}."]
    if others:
        sentences.append(
            f"The other {others:,} add up to {number(rest)}." if others > 1 else f"The other one is {number(rest)}."
        )
    return total, sentences


def dot_of(a: Floats, b: Floats, what: str, unit: str = "lane") -> tuple[float, list[str]]:
    """Return the sum of products of two vectors (n,), and the sentences that say what it is made of."""
    names = [f"{unit} {i}, {number(float(x))} · {number(float(y))}" for i, (x, y) in enumerate(zip(a, b, strict=True))]
    return sum_of(a * b, names, what)


def listed(values: Floats) -> str:
    """Write the first numbers of a vector, and what all of them add up to.

    >>> listed(np.array([1.0, 2.5])), listed(np.arange(8.0))
    ('1, 2.5', '0, 1, 2, 3, 4, 5 and 2 more, 28 together')
    """
    first, others = ", ".join(number(float(v)) for v in values[:SHOWN]), len(values) - SHOWN
    return f"{first} and {others:,} more, {number(float(values.sum()))} together" if others > 0 else first
