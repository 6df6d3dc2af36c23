"""Why a lane has its number where no wave makes it: the position itself, its digits, a row of a table."""

import math
from collections.abc import Callable
from typing import Any

from posenc.explorer.cells.explanation import Explanation, braced, number, rounded


def _integer(why: Explanation, encoding: Any, pos: float, lane: int) -> None:
    why.end(pos, f"Every lane holds the position itself: {number(pos)}.")
    why.say(rounded(pos))


def _binary(why: Explanation, encoding: Any, pos: float, lane: int) -> None:
    digit = encoding.d_model - 1 - lane
    bit = (int(pos) >> digit) & 1
    why.say(f"p = {int(pos)} is {int(pos):b} in binary.")
    why.say(f"Lane {lane} of {encoding.d_model} holds digit {digit}, which is worth 2^{digit} = {2**digit:,}.")
    why.end(float(bit), f"That digit of p is {bit}.")


def _normalised(why: Explanation, encoding: Any, pos: float, lane: int) -> None:
    whole = encoding.given_length() if encoding.over == "length" else max(encoding.given_length() - 1, 1)
    said = "L" if encoding.over == "length" else "L - 1"
    why.say(f"The text has L = {encoding.given_length():,} positions.")
    why.end(pos / whole, f"Every lane holds p / ({said}) = {number(pos)} / {whole:,} = {number(pos / whole)}.")
    why.say(rounded(pos / whole))


def _learned(why: Explanation, encoding: Any, pos: float, lane: int) -> None:
    row = int(pos) + encoding.offset
    found = float(encoding.weight.detach()[row, lane])
    why.say(f"Row of the table = p + offset = {int(pos)} + {encoding.offset} = {row}.")
    why.end(found, f"W[{row}, {lane}] = {number(found)}, which is learned.")
    why.say(rounded(found))


def _learned_2d(why: Explanation, encoding: Any, pos: float, lane: int) -> None:
    row = encoding.n_prefix + int(pos) * encoding.width
    found = float(encoding.weight.detach()[row, lane])
    why.say("The position runs along the rows of the image; its column is 0.")
    why.say(
        f"Row of the table = n_prefix + row·width + column = {encoding.n_prefix} + {int(pos)}·{encoding.width} = {row}."
    )
    why.end(found, f"W[{row}, {lane}] = {number(found)}, which is learned.")
    why.say(rounded(found))


def _time2vec(why: Explanation, encoding: Any, pos: float, lane: int) -> None:
    frequency, phase = (float(learned.detach()[lane]) for learned in (encoding.inv_freq, encoding.phase))
    angle = frequency * pos + phase
    why.say(f"Learned: frequency {number(frequency)} and phase {number(phase)}.")
    written = f"{number(frequency)} · {number(pos)} + {braced(phase)}"
    if lane == 0:
        why.end(angle, f"Lane 0 holds the line ω·p + φ = {written} = {number(angle)}.")
    else:
        why.say(f"Angle = ω·p + φ = {written} = {number(angle)}.")
        why.end(math.sin(angle), f"The lane holds its sine: sin({number(angle)}) = {number(math.sin(angle))}.")
    why.say(rounded(angle if lane == 0 else math.sin(angle)))


SPECIAL: dict[str, Callable[[Explanation, Any, float, int], None]] = {
    "Learned2D": _learned_2d,
    "Integer": _integer,
    "Binary": _binary,
    "Normalised": _normalised,
    "Learned": _learned,
    "Time2Vec": _time2vec,
}
