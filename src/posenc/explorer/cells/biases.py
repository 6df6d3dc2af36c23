"""Why a bias has its number: distance, slope, bucket, and what is looked up."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from posenc.encoding import Encoding
from posenc.explorer.cells.explanation import Explanation, number, rounded, sum_of


def explain_bias(encoding: Encoding, formula: str, q_pos: float, k_pos: float, head: int, value: float) -> Explanation:
    """Explain the bias of one query and one key in one head."""
    why = Explanation(formula, value)
    distance = q_pos - k_pos
    side = "looks back" if distance > 0 else "looks ahead" if distance < 0 else "is the token itself"
    why.say(
        f"Query at {number(q_pos)}, key at {number(k_pos)}: distance i - j = {number(distance)}, which {side}. "
        f"Head h = {head}."
    )
    handler = _HANDLERS.get(type(encoding).__name__)
    with torch.no_grad():
        if handler is None:
            _by_code(why, encoding)
        else:
            handler(why, encoding, q_pos, k_pos, head)
    why.say(rounded(value))
    return why


def _alibi(why: Explanation, encoding: Any, q_pos: float, k_pos: float, head: int) -> None:
    slope = float(encoding.slope(torch.tensor(head), torch.float64))
    if encoding.sides == "key":
        if encoding.precision is not None:
            _by_code(why, encoding)
            return
        _say_slope(why, encoding, head, slope)
        why.end(slope * k_pos, f"m·j = {number(slope)} · {number(k_pos)} = {number(slope * k_pos)}.")
        return
    far = abs(q_pos - k_pos) if encoding.sides == "symmetric" else max(q_pos - k_pos, 0.0)
    _say_slope(why, encoding, head, slope)
    said = "|i - j|" if encoding.sides == "symmetric" else "max(i - j, 0)"
    why.end(-slope * far, f"-m·{said} = -{number(slope)} · {number(far)} = {number(-slope * far)}.")


def _say_slope(why: Explanation, encoding: Any, head: int, slope: float) -> None:
    n, exponent = encoding.n_heads, -encoding.bias_max * (head + 1) / encoding.n_heads
    plain = isinstance(encoding.slopes, str) and encoding.slopes != "learned" and encoding.heads is None
    if plain and math.isclose(2.0**exponent, slope, rel_tol=1e-12):
        power = f"2^(-{number(encoding.bias_max)}·({head} + 1)/{n})"
        why.say(f"Slope of head {head}: m = {power} = {number(slope)}.")
    else:
        why.say(f"Slope of head {head}: m = {number(slope)}.")


def _t5(why: Explanation, encoding: Any, q_pos: float, k_pos: float, head: int) -> None:
    distance = torch.tensor(round(q_pos - k_pos))
    bucket = int(encoding.bucket(distance))
    n = encoding.n_buckets // 2 if encoding.bidirectional else encoding.n_buckets
    shared = [d for d in range(4 * encoding.max_distance) if int(encoding.bucket(torch.tensor(d))) == bucket]
    if not encoding.bidirectional and distance < 0:
        why.say("Keys ahead count as distance 0.")
    with_it = f", which {len(shared):,} distances from {shared[0]:,} on share" if len(shared) > 1 else ""
    why.say(
        f"{n // 2} distances have a bucket of their own, the others up to {encoding.max_distance:,} share logarithmic "
        f"ones: bucket({int(distance)}) = {bucket}{with_it}."
    )
    found = float(encoding.weight[bucket, head])
    why.end(found, f"W[{bucket}, {head}] = {number(found)}, which is learned.")


def _relative(why: Explanation, encoding: Any, q_pos: float, k_pos: float, head: int) -> None:
    most = encoding.max_distance
    clipped = max(-most, min(most, round(q_pos - k_pos)))
    why.say(f"Clipped to -{most}..{most}, the distance is {clipped}.")
    found = float(encoding.weight[head, clipped + most])
    why.end(found, f"W[{head}, {clipped}] = {number(found)}, which is learned.")


def _kerple(why: Explanation, encoding: Any, q_pos: float, k_pos: float, head: int) -> None:
    r1, r2 = (float(p.double()[head].exp()) for p in (encoding.log_r1, encoding.log_r2))
    far = abs(q_pos - k_pos)
    why.say(f"Learned: r1 = {number(r1)} and r2 = {number(r2)}.")
    told = -r1 * math.log1p(r2 * far)
    why.end(told, f"-r1·log(1 + r2·|i - j|) = -{number(r1)} · log(1 + {number(r2)} · {number(far)}) = {number(told)}.")


def _kerple_power(why: Explanation, encoding: Any, q_pos: float, k_pos: float, head: int) -> None:
    r1, r2 = float(encoding.log_r1.double()[head].exp()), 2 * float(encoding.logit_r2.double()[head].sigmoid())
    far = abs(q_pos - k_pos)
    why.say(f"Learned: r1 = {number(r1)} and r2 = {number(r2)}.")
    told = -r1 * far**r2
    why.end(told, f"-r1·|i - j|^r2 = -{number(r1)} · {number(far)}^{number(r2)} = {number(told)}.")


def _sandwich(why: Explanation, encoding: Any, q_pos: float, k_pos: float, head: int) -> None:
    frequencies = encoding.base ** (-2 * np.arange(encoding.width // 2) / encoding.width)
    distance = q_pos - k_pos
    terms = np.cos(distance * frequencies)
    names = [f"cosine {i}, cos({number(distance)} · {number(float(f), 4)})" for i, f in enumerate(frequencies)]
    total, said = sum_of(terms, names, "The sum of cosines")
    share = encoding.n_heads / (8 * (head + 1))
    why.say(*said, f"The sum is {number(total)}.")
    told = share * total
    why.end(told, f"Times H / (8·(h + 1)) = {encoding.n_heads} / (8 · {head + 1}): {number(told)}.")


def _fire(why: Explanation, encoding: Any, q_pos: float, k_pos: float, head: int) -> None:
    far = abs(q_pos - k_pos)
    c, threshold = float(encoding.log_c.double().exp()), _threshold(encoding)
    over = max(abs(q_pos), threshold)
    t = math.log1p(c * far) / (math.log1p(c * over) + encoding.eps)
    why.say(
        f"ψ(x) = log(c·x + 1) with c = {number(c)}; beyond L = {number(threshold)} the query's own position counts.",
        f"t = ψ({number(far)}) / (ψ({number(over)}) + {encoding.eps:g}) = {number(t)}.",
    )
    w1, b1 = encoding.w1.double().numpy(), encoding.b1.double().numpy()
    w2, b2 = encoding.w2.double().numpy()[head], float(encoding.b2.double()[head])
    units = w2 * np.maximum(w1 * t + b1, 0)
    total, said = sum_of(units, [f"unit {i}" for i in range(len(units))], "The network")
    why.say(*said)
    why.end(total + b2, f"With b2 = {number(b2)} the value is {number(total + b2)}.")


def _swin(why: Explanation, encoding: Any, q_pos: float, k_pos: float, head: int) -> None:
    rows, columns = encoding.window
    apart = round(q_pos - k_pos)
    row = (apart + rows - 1) * (2 * columns - 1) + columns - 1
    why.say("Positions run along the rows of the window; all columns are 0 here.")
    why.say(f"Row of the table = (Δrow + {rows} - 1)·(2·{columns} - 1) + Δcolumn + {columns} - 1 = {row}.")
    found = float(encoding.weight[row, head])
    why.end(found, f"W[{row}, {head}] = {number(found)}, which is learned.")


def _shaw(why: Explanation, encoding: Any, q_pos: float, k_pos: float, head: int) -> None:
    clipped = max(-encoding.max_ahead, min(encoding.max_distance, round(q_pos - k_pos)))
    why.say(f"Clipped to -{encoding.max_ahead}..{encoding.max_distance}, the distance is {clipped}.")
    why.say("This term looks at the query; one of ones is taken here.")
    terms = encoding.weight.double().numpy()[clipped + encoding.max_ahead]
    total, said = sum_of(terms, [f"lane {i}" for i in range(len(terms))], f"q · a[{clipped}]")
    why.say(*said, f"The sum is {number(total)}.")
    scale = encoding.score_scale(encoding.head_dim)
    why.end(scale * total, f"Over √d: {number(total)} / √{encoding.head_dim} = {number(scale * total)}.")


def _threshold(encoding: Any) -> float:
    share = abs(float(encoding.threshold_scale.double()))
    return share * float(encoding.init_threshold)


def _by_code(why: Explanation, encoding: Encoding) -> None:
    """Say what there is to say of a term that comes out of a network, or of contents."""
    if encoding.reads_qk:
        why.say("This term looks at contents; queries and keys of ones are taken here.")
    learned = sum(p.numel() for p in encoding.parameters())
    with_them = f", with {learned:,} learned numbers" if learned else ""
    why.say(f"{encoding.name} forms it by the formula above{with_them}: its own code gives {number(why.value)}.")


_HANDLERS: dict[str, Callable[[Explanation, Any, float, float, int], None]] = {
    "ALiBi": _alibi,
    "T5": _t5,
    "RelativeBias": _relative,
    "KERPLE": _kerple,
    "KERPLEPower": _kerple_power,
    "Sandwich": _sandwich,
    "FIRE": _fire,
    "Swin": _swin,
    "Shaw": _shaw,
}
