"""How numbers, lists and sums of a worked example are written."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from posenc.languages import tr

Array = NDArray[np.float64]
SHOWN = 6  # the most numbers of a list, and terms of a sum, to write


def is_number(value: Any) -> bool:
    """Return whether a value is one real number."""
    return isinstance(value, Real) and not isinstance(value, (bool, np.bool_))


def number(value: Any, digits: int = 7) -> str:
    """Write a number: integers in full, others with some digits.

    >>> number(4096.0), number(2 / 3), number(1e-9), number(1e6 / 3)
    ('4,096', '0.6666667', '1e-09', '333,333.33')
    """
    value = float(value)
    if not math.isfinite(value):
        return str(value)
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:,.2f}" if 1e5 <= abs(value) < 1e15 else f"{value:.{digits}g}"


def braced(value: float) -> str:
    """Write a number that stands after an operator."""
    return f"({number(value)})" if value < 0 else number(value)


def written(value: Any) -> str:
    """Write a number, or the first numbers of a list; "" for anything else.

    >>> written((3, 7)), written(np.arange(8.0)), written("half")
    ('(3, 7)', '(0, 1, 2, 3, 4, 5 and 2 more)', '')
    """
    if is_number(value):
        return number(value)
    if isinstance(value, np.ndarray):
        value = list(value) if value.ndim == 1 else None
    if not isinstance(value, (list, tuple)) or not all(map(is_number, value)):
        return ""
    rest = f" and {len(value) - SHOWN:,} more" if len(value) > SHOWN else ""
    return f"({', '.join(map(number, value[:SHOWN]))}{rest})"


def sum_sentences(terms: Array, what: str, names: list[str] | None = None) -> list[str]:
    """Return sentences that describe a sum, the largest terms first.

    Args:
        terms: (n,).
        what: The name of the sum, for the sentence.
        names: The names of the terms; their index if left out.
    """
    called = names or [f"term {i}" for i in range(len(terms))]
    order = np.argsort(-np.abs(terms), kind="stable")
    largest = [f"{called[i]}: {number(terms[i])}" for i in order[:SHOWN]]
    sentences = [
        tr(
            "{what:s} has {n:,} terms; the largest are {largest:s}.",
            what=what,
            n=len(terms),
            largest="; ".join(largest),
        )
    ]
    if others := len(terms) - len(largest):
        rest = number(terms[order[SHOWN:]].sum())
        others_add = tr("The other {n:,} add up to {sum:s}.", n=others, sum=rest)
        sentences.append(others_add if others > 1 else tr("The other one is {rest:s}.", rest=rest))
    return [*sentences, tr("The sum is {sum:s}.", sum=number(terms.sum()))]
