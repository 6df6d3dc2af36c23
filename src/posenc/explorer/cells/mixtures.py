"""Why a lane has its number where several waves make it, a network, or what stands beside a position."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from posenc import measure
from posenc.explorer.cells.explanation import Explanation, Floats, braced, dot_of, listed, number, rounded, sum_of
from posenc.explorer.cells.pair import Watch
from posenc.measure.asking import exact, pairs_of, read_positions


@dataclass(frozen=True)
class Cell:
    """One cell of the heat map.

    Args:
        pos: Of its row.
        lane: Of its column.
        head: Of the key heads.
        end: How many positions the picture has.
    """

    pos: float
    lane: int
    head: int
    end: int


def explain_mixture(why: Explanation, encoding: Any, at: Cell) -> bool:
    """Explain a lane of an encoding that is no plain wave; say whether it is one."""
    handler = _HANDLERS.get(type(encoding).__name__)
    if handler is None:
        return False
    with torch.no_grad():
        return handler(why, exact(encoding, read_positions("explore", encoding, int(at.pos))), at)


def explain_series(why: Explanation, encoding: Any, pos: float, pair: int, part: str, head: int) -> float | None:
    """Say the Fourier series of FoPE's pair, its cosine or its sine; None for other encodings."""
    if type(encoding).__name__ != "FoPE":
        return None
    if pair >= encoding.n_turning:
        why.say(
            f"Pair {pair} is too slow to turn once in {encoding.original_max_len:,} positions, so it stays still: its "
            "cosine is 1 and its sine 0."
        )
        return 1.0 if part == "cos" else 0.0
    with torch.no_grad():
        frequencies = encoding.frequencies()[0].numpy()
        mix = (encoding.cos_mix if part == "cos" else encoding.sin_mix).double()[head, :, pair].numpy()
    waves = np.cos(pos * frequencies) if part == "cos" else np.sin(pos * frequencies)
    names = [
        f"frequency {m}, {part}({number(pos)} · {number(float(f))}) · {number(float(w))}"
        for m, (f, w) in enumerate(zip(frequencies, mix, strict=True))
    ]
    total, said = sum_of(waves * mix, names, f"The {_named(part)} of pair {pair} is a learned mixture, which")
    why.say(*said, f"The sum is {number(total)}.")
    return total


def _fope(why: Explanation, encoding: Any, at: Cell) -> bool:
    pos, lane = at.pos, at.lane
    first, second = (lanes.tolist() for lanes in pairs_of(encoding))
    part = "cos" if lane in first else "sin"
    pair = (first if lane in first else second).index(lane)
    side = "first" if part == "cos" else "second"
    why.say(f"Lane {lane} is the {side} of pair {pair}, which turns (1, 0) into (cos, sin).")
    told = explain_series(why, encoding, pos, pair, part, at.head)
    assert told is not None
    why.end(told, f"The value is {number(told)}.")
    why.say(rounded(told))
    return True


def _grape(why: Explanation, encoding: Any, at: Cell) -> bool:
    pos, lane = at.pos, at.lane
    basis = encoding.basis()[at.head].numpy()
    if not basis[:, 1:].any() or np.array_equal(basis, np.eye(*basis.shape)):
        return False  # planes along pairs of lanes, where it starts: a wave as RoPE's
    query = np.zeros(encoding.head_dim)
    query[pairs_of(encoding)[0].numpy()] = 1.0
    angles = pos * encoding.frequencies()[at.head, 0].numpy()
    inside = (query @ basis).reshape(-1, 2)
    why.say(
        "The query that is shown has 1 in the first lane of each pair. Of each plane (u, v) it has the part "
        "(a, b), which turns by the plane's angle θ; what lies outside stays."
    )
    for m in range(min(2, len(angles))):
        why.say(
            f"Plane {m}: a = {number(inside[m, 0])} and b = {number(inside[m, 1])}; in lane {lane} u has "
            f"{number(basis[lane, 2 * m])} and v {number(basis[lane, 2 * m + 1])}; θ = p·ω = {number(angles[m])}."
        )
    planes = [_plane(m, inside[m], float(angles[m]), basis[lane, 2 * m : 2 * m + 2]) for m in range(len(angles))]
    terms = np.array([term for _, term in planes])
    total, said = sum_of(terms, [name for name, _ in planes], "Σ (a·cos θ - b·sin θ - a)·u + (a·sin θ + b·cos θ - b)·v")
    told = float(query[lane]) + total
    why.say(*said, f"The sum is {number(total)}.")
    why.end(
        told, f"With the query's own lane the value is {number(float(query[lane]))} + {braced(total)} = {number(told)}."
    )
    why.say(rounded(told))
    return True


def _plane(m: int, part: Floats, angle: float, axes: Floats) -> tuple[str, float]:
    """Write what one plane changes in a lane, and compute it."""
    a, b, u, v = (float(t) for t in (*part, *axes))
    cos, sin = f"cos({number(angle)})", f"sin({number(angle)})"
    first = f"({number(a)} · {cos} - {braced(b)} · {sin} - {braced(a)}) · {braced(u)}"
    second = f"({number(a)} · {sin} + {braced(b)} · {cos} - {braced(b)}) · {braced(v)}"
    change = (a * math.cos(angle) - b * math.sin(angle) - a) * u + (a * math.sin(angle) + b * math.cos(angle) - b) * v
    return f"plane {m}, {first} + {second}", change


def _fourier(why: Explanation, encoding: Any, at: Cell) -> bool:
    pos, lane = at.pos, at.lane
    with Watch("linear", "gelu") as seen:
        measure.heat_map(encoding, [int(pos)])
    first, gelu = seen.seen[:2]
    features, formed, hidden = (t.reshape(-1).numpy() for t in (first.given[0], first.out, gelu.out))
    w, n = float(encoding.weight_r[0, 0]), encoding.n_features
    others = " The other axes are at 0." if encoding.n_axes > 1 else ""
    why.say(
        f"Feature 0 of F = {n}: cos(w·p)/√F = cos({number(w)} · {number(pos)}) / √{n} = {number(float(features[0]))}."
        f"{others}"
    )
    why.say(f"All features, cosines before sines: {listed(features)}.")
    total, said = dot_of(encoding.weight_1[0].numpy(), features, "Hidden unit 0", "feature")
    shift = float(encoding.bias_1[0])
    why.say(*said, f"The sum is {number(total)}.")
    why.say(f"With its shift it is {number(total)} + {braced(shift)} = {number(total + shift)}.")
    z = float(formed[0])
    why.say(
        f"GELU(z) = z·(1 + erf(z / √2)) / 2 makes of it {number(z)} · (1 + erf({number(z)} / √2)) / 2 = "
        f"{number(float(hidden[0]))}.",
        f"All hidden units after GELU: {listed(hidden)}.",
    )
    total, said = dot_of(encoding.weight_2[lane].numpy(), hidden, f"Lane {lane}, Σ w·unit,", "unit")
    shift = float(encoding.bias_2[lane])
    why.say(*said, f"The sum is {number(total)}.")
    told = total + shift
    why.end(told, f"With its shift the value is {number(total)} + {braced(shift)} = {number(told)}.")
    why.say(rounded(told))
    return True


def _convolution(why: Explanation, encoding: Any, at: Cell) -> bool:
    pos, lane = at.pos, at.lane
    reach, end = encoding.kernel_size // 2, at.end
    near = [d for d in range(-reach, reach + 1) if 0 <= pos + d < end]
    weights: Floats = encoding.weight[lane, [d + reach for d in near], reach].numpy()
    why.say(
        f"Tokens of ones stand in rows 0 to {end - 1:,} of one column; the kernel of lane {lane} reaches {reach} each "
        "way, and beyond the border are zeros."
    )
    names = [f"row {int(pos) + d}, 1 · {number(float(w))}" for d, w in zip(near, weights, strict=True)]
    total, said = sum_of(weights, names, "The convolution")
    shift = float(encoding.shift[lane])
    why.say(*said, f"The sum is {number(total)}.")
    told = 1 + total + shift
    why.end(told, f"With the token itself and the shift: 1 + {braced(total)} + {braced(shift)} = {number(told)}.")
    why.say(rounded(told))
    return True


def _named(part: str) -> str:
    return {"cos": "cosine", "sin": "sine"}[part]


_HANDLERS: dict[str, Callable[[Explanation, Any, Cell], bool]] = {
    "CPVT": _convolution,
    "FoPE": _fope,
    "GRAPEM": _grape,
    "LearnableFourier": _fourier,
}
