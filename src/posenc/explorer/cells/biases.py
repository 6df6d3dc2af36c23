"""Why a bias has its number: distance and slope, or the explanation of its table, its network or its contents."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from posenc.explorer.cells import contents, networks, tables
from posenc.explorer.cells.explanation import Explanation, braced, number, rounded, sum_of
from posenc.explorer.cells.pair import Pair


def explain_bias(pair: Pair, formula: str, value: float) -> Explanation:
    """Explain the bias of one query and one key in one head."""
    why = Explanation(formula, value)
    side = "looks back" if pair.distance > 0 else "looks ahead" if pair.distance < 0 else "is the token itself"
    why.say(
        f"Query at {number(pair.q_pos)}, key at {number(pair.k_pos)}: distance i - j = {number(pair.distance)}, which "
        f"{side}. Head h = {pair.head}."
    )
    say_bias(why, pair)
    why.say(rounded(value))
    return why


def say_bias(why: Explanation, pair: Pair) -> None:
    """Say how the bias comes about, of any encoding that has one."""
    handler = _HANDLERS.get(type(pair.encoding).__name__, _by_code)
    with torch.no_grad():
        handler(why, pair)


def _alibi(why: Explanation, pair: Pair) -> None:
    encoding, head, k_pos = pair.encoding, pair.head, pair.k_pos
    slope = float(encoding.slope(torch.tensor(head), torch.float64))
    if encoding.sides == "key":
        _say_slope(why, encoding, head, slope)
        if encoding.precision is not None:
            told = float(encoding.at(torch.tensor(head), torch.tensor(pair.q_pos), torch.tensor(k_pos)))
            m, j = (float(torch.tensor(t).bfloat16()) for t in (slope / encoding.scale, k_pos))
            why.say(f"Falcon rounds to bfloat16: m to {number(m)}, and j to {number(j)}.")
            times = f", times {number(encoding.scale)}" if encoding.scale != 1 else ""
            why.end(told, f"{number(m)} · {number(j)} = {number(m * j)}, which rounded{times} is {number(told)}.")
            return
        why.end(slope * k_pos, f"m·j = {number(slope)} · {number(k_pos)} = {number(slope * k_pos)}.")
        return
    far = abs(pair.distance) if encoding.sides == "symmetric" else max(pair.distance, 0.0)
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


def _kerple(why: Explanation, pair: Pair) -> None:
    encoding, head, far = pair.encoding, pair.head, abs(pair.distance)
    r1, r2 = (float(p.double()[head].exp()) for p in (encoding.log_r1, encoding.log_r2))
    why.say(f"Learned: r1 = {number(r1)} and r2 = {number(r2)}.")
    told = -r1 * math.log1p(r2 * far)
    why.end(told, f"-r1·log(1 + r2·|i - j|) = -{number(r1)} · log(1 + {number(r2)} · {number(far)}) = {number(told)}.")


def _kerple_power(why: Explanation, pair: Pair) -> None:
    encoding, head, far = pair.encoding, pair.head, abs(pair.distance)
    r1, r2 = float(encoding.log_r1.double()[head].exp()), 2 * float(encoding.logit_r2.double()[head].sigmoid())
    why.say(f"Learned: r1 = {number(r1)} and r2 = {number(r2)}.")
    told = -r1 * far**r2
    why.end(told, f"-r1·|i - j|^r2 = -{number(r1)} · {number(far)}^{number(r2)} = {number(told)}.")


def _sandwich(why: Explanation, pair: Pair) -> None:
    encoding, head, distance = pair.encoding, pair.head, pair.distance
    frequencies = encoding.base ** (-2 * np.arange(encoding.width // 2) / encoding.width)
    terms = np.cos(distance * frequencies)
    names = [f"cosine {i}, cos({number(distance)} · {number(float(f))})" for i, f in enumerate(frequencies)]
    total, said = sum_of(terms, names, "The sum of cosines")
    n = encoding.n_heads
    why.say(*said, f"The sum is {number(total)}.")
    told = n / (8 * (head + 1)) * total
    why.end(told, f"Times H / (8·(h + 1)): {n} / (8 · ({head} + 1)) · {braced(total)} = {number(told)}.")


def _by_code(why: Explanation, pair: Pair) -> None:
    """Say what there is to say of a class that is not known here."""
    encoding = pair.encoding
    if encoding.reads_qk and pair.q is None:
        why.say("This term looks at contents; queries and keys of ones are taken here.")
    learned = sum(p.numel() for p in encoding.parameters())
    with_them = f", with {learned:,} learned numbers" if learned else ""
    why.say(f"{encoding.name} forms it by the formula above{with_them}: its own code gives {number(why.value)}.")


_HANDLERS: dict[str, Callable[[Explanation, Pair], None]] = {
    "ALiBi": _alibi,
    "BEiT": tables.explain_swin,
    "DeBERTa": contents.explain_deberta,
    "Decomposed2D": contents.explain_decomposed,
    "DynamicPositionBias": networks.explain_dynamic,
    "FIRE": networks.explain_fire,
    "FoX": contents.explain_fox,
    "Graphormer": tables.explain_graphormer,
    "KERPLE": _kerple,
    "KERPLEPower": _kerple_power,
    "RelativeBias": tables.explain_relative,
    "Sandwich": _sandwich,
    "Shaw": contents.explain_shaw,
    "Swin": tables.explain_swin,
    "SwinV2": networks.explain_swin_v2,
    "T5": tables.explain_t5,
    "TUPE": tables.explain_tupe,
    "TransformerXL": contents.explain_xl,
}
