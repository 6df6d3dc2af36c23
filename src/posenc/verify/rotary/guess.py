"""A known fault of frequencies as a prediction."""

from dataclasses import dataclass

from posenc.verify.rotary.matrix import Array


@dataclass(frozen=True)
class Guess:
    """A fault and the frequencies that it would give."""

    code: str
    says: str
    inv_freq: Array
