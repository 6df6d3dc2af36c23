"""An explanation: sentences with the numbers substituted. The lines of a definition become steps unchanged."""

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from posenc.definitions.steps import follow
from posenc.definitions.written import number, sum_sentences
from posenc.languages import tr

Floats = NDArray[np.float64]
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
CLOSE = 1e-8  # relative difference up to which the definition and the picture agree


@dataclass
class Explanation:
    """The steps that lead to the value of one cell.

    Args:
        formula: The encoding's formula in one line.
        value: The number in the picture.
        steps: Sentences with the numbers substituted; the last one ends in the value.
        result: The result of the last step; None if there is no definition.
    """

    formula: str
    value: float
    steps: list[str] = field(default_factory=list)
    result: float | None = None

    def step(self, *sentences: str) -> None:
        """Add steps."""
        self.steps += sentences

    def follow(self, define: partial[Any], cell: tuple[int, ...], *args: Any) -> float:
        """Add the lines of a definition that lead to one element of its result; return that element."""
        out, steps = follow(define.func, cell, *args, **define.keywords)
        self.step(*(sentence for step in steps for sentence in step.sentences()))
        self.result = float(np.asarray(out[0] if isinstance(out, tuple) else out)[cell])
        return self.result

    def add(self, terms: Floats, what: str, names: list[str]) -> float:
        """Add the sentences of a sum; return the sum."""
        self.step(*sum_sentences(terms, what, names))
        self.result = float(terms.sum())
        return self.result

    def dot(self, a: Floats, b: Floats, what: str) -> float:
        """Add the sentences of the dot product of two vectors (n,); return the product."""
        names = [f"lane {i}, {number(x)} · {number(y)}" for i, (x, y) in enumerate(zip(a, b, strict=True))]
        return self.add(a * b, what, names)

    def end(self, result: float, sentence: str) -> None:
        """Add the step with the final result."""
        self.result = result
        self.step(sentence)

    def rounded(self) -> "Explanation":
        """Add the value rounded to each precision."""
        rounded = {name: number(float(torch.tensor(self.value).double().to(d))) for name, d in DTYPES.items()}
        self.step(tr("Rounded: {float32:s} in float32, {bfloat16:s} in bfloat16, {float16:s} in float16.", **rounded))
        return self

    def or_code(self, name: str) -> "Explanation":
        """Replace the steps if they do not lead to the value: there is no definition, or its result differs."""
        if self.result is None or abs(self.result - self.value) > CLOSE * max(1.0, abs(self.value)):
            self.result = None
            self.steps = [
                tr(
                    "{name:s} computes it by the formula above: its code returns {value:s}.",
                    name=name,
                    value=number(self.value),
                )
            ]
        return self

    def as_dict(self) -> dict[str, Any]:
        """Return the explanation as JSON values."""
        return {"formula": self.formula, "steps": self.steps, "value": self.value}
