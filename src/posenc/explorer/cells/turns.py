"""Why a lane of a turned query or key, or of a token with position in it, has its number."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from posenc.encoding import Placed
from posenc.encodings import GRAPEM, FoPE, LieRE, PoPE, QueryTemperature
from posenc.explorer.cells.explanation import Explanation, Floats, braced, listed, number, sum_of
from posenc.explorer.cells.mixtures import explain_series
from posenc.explorer.cells.pair import Pair
from posenc.families import Rotary
from posenc.measure.asking import pairs_of

_NEAR = 1e-9
_ONE = 1e-12
_FEW = 3  # numbers of a row that are written as a sum
Turn = Callable[[Float64[Tensor, "n lanes"]], Float64[Tensor, "n out"]]


def say_turned(why: Explanation, who: str, turn: Turn, content: Floats, lane: int) -> None:
    """Say how position makes one lane of a query, a key or a token, by asking its own code for unit vectors.

    Args:
        why: Is told.
        who: "the query" or "the key".
        turn: What position does to vectors, one a row.
        content: (lanes,) before it.
        lane: Of what comes out.
    """
    n = len(content)
    rows = torch.cat((torch.zeros(1, n), torch.eye(n), torch.from_numpy(content)[None])).double()
    out = turn(rows)[:, lane].numpy()
    shift, value, weights = float(out[0]), float(out[-1]), out[1:-1] - out[0]
    there = np.flatnonzero(np.abs(weights) > 1e-15)
    if abs(shift + weights @ content - value) > _NEAR * max(1.0, abs(value)):
        return  # no sum of lanes; say_length tells of it
    names = [f"{braced(float(content[i]))} · {braced(float(weights[i]))}" for i in there]
    if len(there) <= _FEW:
        alone = [abs(weights[i] - 1.0) < _ONE and bool(shift) for i in there]  # what is added to a token
        terms = [braced(float(content[i])) if a else name for i, a, name in zip(there, alone, names, strict=True)]
        said = " + ".join([*terms, *([braced(shift)] if shift else [])])
        why.say(f"Lane {lane} of {who} is {said} = {number(value)}." if said else f"Lane {lane} of {who} is 0.")
        size = float(np.hypot(*weights[there])) if len(there) == 2 else 1.0
        if abs(size - 1.0) > _NEAR:
            why.say(f"So cosine and sine are multiplied by {number(size)} here.")
        return
    total, sentences = sum_of(
        weights[there] * content[there],
        [f"lane {i}, {name}" for i, name in zip(there, names, strict=True)],
        f"Lane {lane} of {who}",
    )
    why.say(*sentences, f"The sum is {number(total)}.")


def say_rotation(why: Explanation, who: str, encoding: Any, pair: Pair, placed: Placed, lane: int) -> None:
    """Say which angle or which generator stands behind the numbers of one lane."""
    pos = float(placed.pos.reshape(-1)[0])
    if isinstance(encoding, LieRE):
        _say_generator(why, who, encoding, placed, lane)
    elif isinstance(encoding, QueryTemperature) and who == "the query":
        why.say(f"Queries at {number(pos)} are multiplied by {number(float(placed.parts[0]))}{_law(encoding, pos)}.")
    elif isinstance(encoding, GRAPEM):
        angles = (pos * encoding.frequencies()[pair.head, 0]).numpy()
        why.say(f"The planes of this head turn {who} by the angles p·ω: {listed(angles)}.")
    elif isinstance(encoding, PoPE):
        frequency = float(encoding.frequencies()[0, lane % encoding.head_dim])
        phase = _phase(encoding, who, pair, lane)
        why.say(f"Its angle is p·ω = {number(pos)} · {number(frequency)} = {number(pos * frequency)}{phase}.")
    elif isinstance(encoding, Rotary):
        _say_angle(why, who, encoding, pair, pos, lane)


def _phase(encoding: PoPE, who: str, pair: Pair, lane: int) -> str:
    phase = float(encoding.phase[pair.head, lane % encoding.head_dim].double().clamp(-2 * math.pi, 0))
    return f", and the phase {number(phase)} is learned" if who == "the key" else ""


def _law(encoding: QueryTemperature, pos: float) -> str:
    """Write the law by which queries grow, with the numbers put in."""
    p, length, weight = number(pos), encoding.original_max_len, number(encoding.weight)
    if encoding.law == "log_n":
        return f", the larger of 1 and log({p} + 1) / log({length})"
    if encoding.law == "beam":
        return f" = (1 + ({p} + 1) / {length})^{weight}"
    beyond = math.floor((pos + (encoding.law == "llama4")) / length)
    return f", 1 + w·log(1 + n) with n = {beyond} whole lengths of {length}: 1 + {weight} · log(1 + {beyond})"


def say_length(why: Explanation, who: str, encoding: Any, content: Floats, turned: Floats, lane: int) -> None:
    """Say what PoPE makes of one lane: its softplus, turned."""
    if not isinstance(encoding, PoPE):
        return
    own, n = lane % encoding.head_dim, encoding.head_dim
    x = float(content[own])
    length = float(np.hypot(turned[own], turned[own + n]))
    angle = float(np.arctan2(turned[own + n], turned[own]))
    part, written = ("cos", "real") if lane < n else ("sin", "imaginary")
    why.say(
        f"Lane {own} of {who} has the length log(1 + exp({number(x)})) = {number(length)}, and with its phase and "
        f"without whole turns the angle {number(angle)}.",
        f"Its {written} part is {number(length)} · {part}({number(angle)}) = {number(float(turned[lane]))}.",
    )


def _say_generator(why: Explanation, who: str, encoding: LieRE, placed: Placed, lane: int) -> None:
    """Say the generator of a lane's block and its exponential's row."""
    block, row = divmod(lane, encoding.block)
    pos = placed.pos.reshape(-1, encoding.n_axes)[0].double()
    generator = torch.einsum("a,aij->ij", pos, encoding.generators()[:, block])
    upper = generator[tuple(torch.triu_indices(encoding.block, encoding.block, offset=1))].numpy()
    turned = placed.parts[0].reshape(-1, *generator.shape)
    written = ", ".join(number(float(v)) for v in upper)
    why.say(
        f"Block {block} of {who} turns by exp(G), G = Σ p_a·A_a with p = {', '.join(number(float(p)) for p in pos)}; "
        f"G is skew-symmetric, and above its diagonal it has, row by row, {written}.",
        f"Row {row} of exp(G) is {', '.join(number(float(v)) for v in turned[block, row])}.",
    )


def _say_angle(why: Explanation, who: str, encoding: Any, pair: Pair, pos: float, lane: int) -> None:
    """Say the angle of a lane's pair; positions run along axis 0, and the other axes are at 0."""
    first, second = (lanes.tolist() for lanes in pairs_of(encoding))
    if lane not in first and lane not in second:
        why.say(f"Lane {lane} of {who} does not turn.")
        return
    place = (first if lane in first else second).index(lane)
    if isinstance(encoding, FoPE):
        for part in ("cos",) if place >= encoding.n_turning else ("cos", "sin"):
            explain_series(why, encoding, pos, place, part, pair.head)
        return
    own = encoding.frequencies().detach()
    flat = own.reshape(-1, *own.shape[-2:])
    frequency = float(flat[min(pair.head, len(flat) - 1), 0, place])
    angle = pos * frequency
    why.say(
        f"Pair {place} of {who} turns by p·ω = {number(pos)} · {number(frequency)} = {number(angle)}: "
        f"cos({number(angle)}) = {number(math.cos(angle))} and sin({number(angle)}) = {number(math.sin(angle))}."
    )
