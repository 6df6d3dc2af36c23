"""What an explanation is: sentences with the numbers put in, of which those of a definition are its own lines."""

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from posenc.definitions.steps import follow
from posenc.definitions.written import number, sum_sentences

Floats = NDArray[np.float64]
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
CLOSE = 1e-8  # of the larger number: the definition's and the picture's are the same


@dataclass
class Explanation:
    """Why one cell of a picture has its value.

    Args:
        formula: The mathematics in one line.
        value: The number of the picture.
        steps: Sentences, each with the numbers put in, ending in the value.
        result: The number that the last step arrives at; None where there is no definition.
    """

    formula: str
    value: float
    steps: list[str] = field(default_factory=list)
    result: float | None = None

    def say(self, *sentences: str) -> None:
        """Add steps."""
        self.steps += sentences

    def follow(self, define: partial[Any], cell: tuple[int, ...], *args: Any) -> float:
        """Add the lines of a definition that lead to one element of its result, and return that."""
        out, steps = follow(define.func, cell, *args, **define.keywords)
        self.say(*(sentence for step in steps for sentence in step.sentences()))
        self.result = float(np.asarray(out[0] if isinstance(out, tuple) else out)[cell])
        return self.result

    def add(self, terms: Floats, what: str, names: list[str]) -> float:
        """Add the sentences of a sum, and return it."""
        self.say(*sum_sentences(terms, what, names))
        self.result = float(terms.sum())
        return self.result

    def dot(self, a: Floats, b: Floats, what: str) -> float:
        """Add the sentences of a product of two vectors (n,), and return it."""
        names = [f"lane {i}, {number(x)} · {number(y)}" for i, (x, y) in enumerate(zip(a, b, strict=True))]
        return self.add(a * b, what, names)

    def end(self, result: float, sentence: str) -> None:
        """Add the step that arrives at a number."""
        self.result = result
        self.say(sentence)

    def rounded(self) -> "Explanation":
        """Add what becomes of the value in each precision."""
        parts = (f"{number(float(torch.tensor(self.value).double().to(d)))} in {name}" for name, d in DTYPES.items())
        self.say(f"Rounded: {', '.join(parts)}.")
        return self

    def or_code(self, name: str) -> "Explanation":
        """Replace the steps where they do not arrive at the value: there is no definition, or it has another number."""
        if self.result is None or abs(self.result - self.value) > CLOSE * max(1.0, abs(self.value)):
            self.result = None
            self.steps = [f"{name} computes it by the formula above: its own code gives {number(self.value)}."]
        return self

    def as_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {"formula": self.formula, "steps": self.steps, "value": self.value}
