"""The character of an encoding: what is said of it in prose, measured by the code that runs in models.

`measure` looks at one encoding; `check` holds what a card declares against it. Whatever is learned is drawn
from N(0, 1), several times where a trait must hold for every draw, on a copy in evaluation mode.
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
