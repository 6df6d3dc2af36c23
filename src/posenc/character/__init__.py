"""The measured properties (character) of an encoding, by the code that models run.

`measure` measures one encoding; `check` compares a card's declarations with the measurement. Parameters are drawn from
N(0, 1) on a copy in evaluation mode, several times if a property must hold for every draw.
"""

from posenc.character.measuring import Character, check, measure
from posenc.character.scores import shift_change
from posenc.character.signatures import CAP, DTYPES, accepts_real, first_repetition, silence

__all__ = [
    "CAP",
    "DTYPES",
    "Character",
    "accepts_real",
    "check",
    "first_repetition",
    "measure",
    "shift_change",
    "silence",
]
