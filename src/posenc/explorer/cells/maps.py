"""Why an index map sees the distance that it sees."""

import math
from typing import Any

import torch

from posenc.encoding import Encoding
from posenc.explorer.cells.explanation import Explanation, number
from posenc.piecewise import Piecewise


def explain_distance(encoding: Encoding, formula: str, q_pos: float, k_pos: float, value: float) -> Explanation:
    """Explain the distance by which a query and a key are turned."""
    why = Explanation(formula, value)
    distance = q_pos - k_pos
    why.say(f"Query at {number(q_pos)}, key at {number(k_pos)}: distance i - j = {number(distance)}.")
    own = next((m for m in encoding.modules() if isinstance(m, Piecewise)), None)
    if own is not encoding or own is None:
        why.say(f"{encoding.name} maps it to {number(value)}.")
        return why
    options = {name: v for name, v in own.options().items() if name not in ("head_dim", "pairing", "base")}
    why.say(f"{own.name} has {', '.join(f'{name} = {number(float(v))}' for name, v in options.items())}.")
    placed, k_placed = (own.place(torch.tensor([int(p)]), dtype=torch.float64) for p in (q_pos, k_pos))
    apart = placed.parts[0][:, None] - k_placed.parts[0][None, :]
    for one in own.passes(placed, k_placed):
        if bool(one.holds(apart)):
            _say_pass(why, one, float(apart), distance)
            break
    return why


def _say_pass(why: Explanation, one: Any, apart: float, distance: float) -> None:
    unit = "distance" if apart == distance else "difference of chunks"
    high = "no end" if math.isinf(one.high) else number(one.high)
    where = {
        0: f"|{unit}| = {number(abs(apart))} is below {high}: this pair is near",
        1: f"the {unit} {number(apart)} lies from {number(one.low)} to {high}: this pair is far",
        -1: f"the {unit} ahead, {number(-apart)}, lies from {number(one.low)} to {high}: this pair is far ahead",
    }[one.side]
    q_at, k_at = float(one.q_placed.pos), float(one.k_placed.pos)
    told = q_at - k_at
    why.say(
        f"{where[0].upper()}{where[1:]}.", f"The query counts as position {number(q_at)}, the key as {number(k_at)}."
    )
    why.end(told, f"So they are turned by the distance {number(q_at)} - {number(k_at)} = {number(told)}.")
