"""How sinusoids are formed: angles, order of sines and cosines, positions; the definitions and what people write."""

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from posenc.verify.engine.precision import rounded
from posenc.verify.engine.records import FLOAT32, Array, Model

STAGES = ("positions", "frequencies", "product", "table")  # that may be rounded to half precision
Frequencies = Callable[[Array, int, float], Array]  # numbers of the pairs, width, base -> radians per position
PAPER = "position / base**(2k/d)"
T2T = "position / base**(k/(d/2 - 1))"
ROUNDED_UP = "position / base**(2k/(d + 1))"  # of odd widths some make d + 1 and drop the last
T2T_CEIL = "position / base**(k/(ceil(d/2) - 1))"
ROOT = "(position / base)**(2k/d)"
WIDTHS: Mapping[str, Callable[[int], int]] = {  # over which exponents 2k/width count
    PAPER: lambda d: d,
    T2T: lambda d: max(2 * (d // 2) - 2, 2),
    ROUNDED_UP: lambda d: d + 1,
    T2T_CEIL: lambda d: max(2 * math.ceil(d / 2) - 2, 2),
}


@dataclass(frozen=True)
class Rule:
    """How angles are formed.

    Args:
        sines: Frequencies of the sines.
        code: What is wrong with it, without the family; empty where it is a definition.
        cosines: Frequencies of the cosines, where they differ.
    """

    sines: Frequencies
    code: str = ""
    cosines: Frequencies | None = None


def linear(times: float, plus: float = 0.0, wider: int = 0) -> Frequencies:
    """Return the frequencies base**-((times k + plus) / (width + wider))."""
    return lambda k, d, b: b ** (-(times * k + plus) / max(d + wider, 1))


def _floored(times: int, parts: int, floor: int) -> Frequencies:
    return lambda k, d, b: np.exp(times * k * ((-math.log(b) / d * parts) // floor))


_DIVISOR: dict[str, Frequencies] = {
    PAPER: linear(2),
    T2T: lambda k, d, b: b ** (-k / max(d // 2 - 1, 1)),
    ROUNDED_UP: linear(2, wider=1),
    T2T_CEIL: lambda k, d, b: b ** (-k / max(math.ceil(d / 2) - 1, 1)),
    "position / base**(k/d)": linear(1),
    "position / base**(4k/d)": linear(4),
    "position / base**(2k/(d - 1))": linear(2, wider=-1),
    "position / base**(k/(d - 1))": linear(1, wider=-1),
    "position / base**(8k/d)": linear(8),
}
_UNPAIRED: dict[str, tuple[Frequencies, Frequencies]] = {
    "position / base**(lane/d), each lane a frequency of its own": (linear(2), linear(2, 1)),
    "position / base**(2 lane/d), each lane a frequency of its own": (linear(4), linear(4, 2)),
    "sin(position / base**(2k/d)) and cos(position / base**(2(k + 1)/d))": (linear(2), linear(2, 2)),
    "sin(position / base**(4k/d)) and cos(position / base**(4(k + 1)/d))": (linear(4), linear(4, 4)),
    "sin(position / base**(2k/d)) and cos(position / base**(4k/d))": (linear(2), linear(4)),
    "sin(position / base**(4k/d)) and cos(position / base**(2k/d))": (linear(4), linear(2)),
    "position / base**(lane/(d - 1)), each lane a frequency of its own": (linear(2, 0, -1), linear(2, 1, -1)),
    "position / base**(k//2 * 4/d)": (lambda k, d, b: b ** (-(k // 2) * 4 / d),) * 2,
    "position / base**(2(k//2)/d)": (lambda k, d, b: b ** (-(k // 2) * 2 / d),) * 2,
    "position / base**(2 lane/d), the cosines going on where the sines end": (
        linear(2),
        lambda k, d, b: b ** (-2 * (k + len(k)) / d),
    ),
    "position / base**(lane/d), the cosines going on where the sines end": (
        linear(1),
        lambda k, d, b: b ** (-(k + len(k)) / d),
    ),
}
_MISREAD: dict[str, Frequencies] = {
    "position * exp(2k * ((-log(base) / d) // 2)), a step rounded down": _floored(2, 1, 2),
    "position * exp(k * ((-log(base) / d) // 2)), a step rounded down": _floored(1, 1, 2),
    "position * exp(2k * (-log(base) / (d/2) // 1)), a step rounded down": _floored(2, 2, 1),
    "position * exp(k * (-log(base) / (d/2) // 1)), a step rounded down": _floored(1, 2, 1),
    "position * exp(-k), a step rounded down to a whole number": lambda k, d, b: np.exp(-k),
    "position * exp(-2k), a step rounded down to a whole number": lambda k, d, b: np.exp(-2 * k),
    "position * exp(-2k log(base)) / d": lambda k, d, b: b ** (-2 * k) / d,
    "position / (base**(2k) / d)": lambda k, d, b: d * b ** (-2 * k),
    "position / base**2 * k / d": lambda k, d, b: k / (d * b**2),
    "position / (base**2 * k / d)": lambda k, d, b: d / (k * b**2),
    "position / (base**2 * (k + 1) / d)": lambda k, d, b: d / ((k + 1) * b**2),
    "position / (base**2 * 2k / d)": lambda k, d, b: d / (2 * k * b**2),
    "position / base * 2k / d": lambda k, d, b: 2 * k / (d * b),
    "position / (base * 2k / d)": lambda k, d, b: d / (2 * k * b),
    "position * exp(-2k) * log(base) / d": lambda k, d, b: np.exp(-2 * k) * math.log(b) / d,
    "position * 2k * exp(-log(base) / d)": lambda k, d, b: 2 * k * b ** (-1 / d),
    "position * 2k * (-log(base) / d), no exp": lambda k, d, b: -2 * k * math.log(b) / d,
    ROOT: linear(2),
}
FACTORS: Mapping[str, float] = {  # before the frequencies
    "2 pi": 2 * math.pi,
    "pi": math.pi,
    "1/(2 pi)": 0.5 / math.pi,
    "pi/180": math.pi / 180,
    "180/pi": 180 / math.pi,
    "2": 2.0,
    "1/2": 0.5,
}
_LOGARITHMS: dict[str, Frequencies] = {
    "position * exp(-2k log10(base)/d)": lambda k, d, b: np.exp(-2 * k * math.log10(b) / d),
    "position * exp(-2k log2(base)/d)": lambda k, d, b: np.exp(-2 * k * math.log2(b) / d),
    "position * 2**(-2k log(base)/d)": lambda k, d, b: 2.0 ** (-2 * k * math.log(b) / d),
}
RULES: Mapping[str, Rule] = {
    **{words: Rule(f, "frequency.divisor") for words, f in _DIVISOR.items()},
    **{words: Rule(s, "frequency.exponent_not_paired", c) for words, (s, c) in _UNPAIRED.items()},
    "position / base**(2(k + 1)/d)": Rule(linear(2, 2), "frequency.index_from_one"),
    "position / base**0, the exponent 2k/d rounded down to 0": Rule(linear(0), "frequency.integer_division"),
    "position / base**(2 lane//d), the exponent rounded down to 0 or 1": Rule(
        lambda k, d, b: b ** -(4 * k // d), "frequency.integer_division", lambda k, d, b: b ** -((4 * k + 2) // d)
    ),
    "position * base**(2k/d)": Rule(linear(-2), "frequency.inverted"),
    "position * base**(k/(d/2 - 1))": Rule(lambda k, d, b: b ** (k / max(d // 2 - 1, 1)), "frequency.inverted"),
    "position / base**(1 - 2k/d), slowest first": Rule(
        lambda k, d, b: b ** (-2 * k[::-1] / d), "frequency.order_reversed"
    ),
    **{words: Rule(f, "frequency.precedence") for words, f in _MISREAD.items()},
    **{words: Rule(f, "frequency.logarithm") for words, f in _LOGARITHMS.items()},
    "position * exp(+2k log(base)/d) / d": Rule(lambda k, d, b: b ** (2 * k / d) / d, "frequency.div_term"),
}


@dataclass(frozen=True)
class Layout:
    """Which wave of which pair each dimension shows.

    Args:
        words: The order in words.
        lanes: (wave, pair) of each dimension; the wave is "s", "c", "-s", or "0" for zeros.
        code: What is wrong with it, without the family; empty where it is a definition.
    """

    words: str
    lanes: tuple[tuple[str, int], ...]
    code: str = ""


@dataclass(frozen=True)
class Waves:
    """What each dimension shows.

    Args:
        omega: Radians per position; of the rule ROOT the exponents.
        cosine: Where it is a cosine.
        sign: 1, -1 or 0.
        by_row: Whether rows take turns between sine and cosine, instead of dimensions.
    """

    omega: Array
    cosine: NDArray[np.bool_]
    sign: Array
    by_row: bool


@functools.lru_cache(maxsize=4096)
def waves(rule: str, order: str, d: int, base: float) -> Waves:
    """Return what each of d dimensions shows by a rule and an order."""
    layout, k = layouts(d)[order], np.arange(math.ceil(d / 2), dtype=np.float64)
    sines, cosines = RULES[rule].sines, RULES[rule].cosines or RULES[rule].sines
    with np.errstate(all="ignore"):
        both = [2 * k / d] * 2 if rule == ROOT else [f(k, d, base) for f in (sines, cosines)]
    names, pairs = [wave for wave, _ in layout.lanes], np.array([pair for _, pair in layout.lanes])
    cosine = np.array([name[-1] == "c" for name in names])
    omega = np.nan_to_num(np.where(cosine, both[1][pairs], both[0][pairs]), posinf=0.0, neginf=0.0)
    sign = np.array([{"-": -1.0, "0": 0.0}.get(name[0], 1.0) for name in names])
    return Waves(omega, cosine, sign, layout.code == "axis.rows_for_columns")


ORDERS = ("interleaved", "half", "interleaved_cos", "half_cos", "half_zero")  # that some definition has


@functools.cache
def layouts(d: int) -> Mapping[str, Layout]:
    """Return the orders of d dimensions that people write, by name."""
    n, floor = math.ceil(d / 2), d // 2
    s, c, zeros = [("s", k) for k in range(n)], [("c", k) for k in range(n)], [("0", 0)] * n
    minus = [("-s", k) for k in range(n)]
    made = {
        "interleaved": ("sin, cos, sin, cos, ...", _woven(s, c), ""),
        "half": ("all sines, then all cosines", s + c[:floor], ""),
        "interleaved_cos": ("cos, sin, cos, sin, ...", _woven(c, s), ""),
        "half_cos": ("all cosines, then all sines", c + s[:floor], ""),
        "all_sin": ("sines only, each twice", _woven(s, s), "layout.one_wave"),
        "all_cos": ("cosines only, each twice", _woven(c, c), "layout.one_wave"),
        "half_sin": ("the sines twice, no cosines", s + s, "layout.one_wave"),
        "half_cosines": ("the cosines twice, no sines", c + c, "layout.one_wave"),
        "only_sin": ("sines in the even dimensions, zeros in the odd ones", _woven(s, zeros), "layout.half_empty"),
        "only_cos": ("zeros in the even dimensions, cosines in the odd ones", _woven(zeros, c), "layout.half_empty"),
        "first_half": ("sines in the first half, zeros in the second", s + zeros, "layout.half_empty"),
        "second_half": ("zeros in the first half, cosines in the second", zeros + c, "layout.half_empty"),
        "minus_sin": ("-sin, cos, -sin, cos, ...", _woven(minus, c), "sign"),
        "minus_sin_half": ("all sines negated, then all cosines", minus + c, "sign"),
        "rows": ("sin in the even rows, cos in the odd rows", _woven(s, c), "axis.rows_for_columns"),
        "rows_half": ("sin in the even rows, cos in the odd rows", s + c, "axis.rows_for_columns"),
    }
    if d % 2:
        made["half_zero"] = ("all sines, then all cosines, then a zero", s[:floor] + c[:floor] + [("0", 0)], "")
        made["half_floor"] = ("(d - 1)/2 sines, then the cosines", s[:floor] + c[:n], "layout.halves_odd")
        made["zero_last"] = ("sin, cos, ..., the last dimension zero", [*_woven(s, c)[: d - 1], ("0", 0)], "width.odd")
    return {name: Layout(words, tuple(lanes[:d]), code) for name, (words, lanes, code) in made.items()}


def _woven(even: list[tuple[str, int]], odd: list[tuple[str, int]]) -> list[tuple[str, int]]:
    return [lane for pair in zip(even, odd, strict=True) for lane in pair]


def order_code(found: str, right: str) -> str:
    """Return the code of an order that some definition has, where another one was declared.

    >>> order_code("half", "interleaved"), order_code("half_cos", "half")
    ('layout.halves', 'layout.halves_swapped')
    """
    blocks, flipped = found.startswith("half"), found.endswith("_cos") and not right.endswith("_cos")
    if flipped:
        return "layout.halves_swapped" if blocks else "layout.cos_first"
    return "layout.halves" if blocks else "layout.interleaved"


def wave(model: Model, p: Array, order: str, d: int, nudge: float) -> tuple[Array, Array]:
    """Return sines and cosines (..., d) of positions, and how far float32 may be off.

    Args:
        model: The parameters.
        p: Positions; the last axis is that of the rows.
        order: A name in `layouts`.
        d: Dimensions.
        nudge: A relative change of what is rounded, to see what stands at the edge.
    """
    shown = waves(model["rule"], order, d, model["base"])
    places, omega = p[..., None], shown.omega * model["factor"]
    if any(model[f"round_{stage}"] for stage in STAGES[:3]):
        places = rounded(places * (1 + nudge), model["round_positions"])
        omega = rounded(omega * (1 + nudge), model["round_frequencies"])
        angle = rounded(places * omega * (1 + nudge), model["round_product"])
    elif model["rule"] == ROOT:
        angle = np.sign(places) * np.abs(places / model["base"]) ** omega
    else:
        angle = places * omega * (1 + nudge)
    cosine = np.arange(p.shape[-1])[:, None] % 2 == 1 if shown.by_row else shown.cosine
    code = rounded(np.where(cosine, np.cos(angle), np.sin(angle)) * shown.sign, model["round_table"])
    return code, np.minimum(np.abs(angle) * FLOAT32 * (4 + math.log(max(model["base"], 2))), 0.2)


# Positions of rows by mistake: (numbers of the texts (b, 1), of the rows (1, n), how many of each) -> positions, and
# the code without the family.
Written = Callable[[Array, Array, int, int], Array]
ROWS: Mapping[str, tuple[Written, str]] = {
    "every token has the number of its text in the batch as position": (lambda b, t, m, n: b + 0 * t, "axis.batch"),
    "rows are counted through the whole batch, batch * tokens + t": (lambda b, t, m, n: b * n + t, "axis.batch"),
    "row t of text b has position t * batch + b": (lambda b, t, m, n: t * m + b, "axis.batch"),
    "every row has position n, one row of the table for all n tokens": (
        lambda b, t, m, n: 0 * t + n,
        "slice.single_row",
    ),
    "every row has the last position, n - 1": (lambda b, t, m, n: 0 * t + n - 1, "slice.single_row"),
    "every row has the first position": (lambda b, t, m, n: 0 * t, "slice.single_row"),
    "every row has position 1": (lambda b, t, m, n: 0 * t + 1, "slice.single_row"),
    "row t of n has position n - 1 - t, counted from the end": (lambda b, t, m, n: n - 1 - t, "position.reversed"),
    "row t of n has position n - t, counted from the end": (lambda b, t, m, n: n - t, "position.reversed"),
    "row t has position -t": (lambda b, t, m, n: -t, "position.reversed"),
    "row t of n has position t + n, cut from where it should end": (lambda b, t, m, n: t + n, "slice.tail"),
    "row t of n has position t / n": (lambda b, t, m, n: t / n, "position.normalised"),
    "row t of n has position t / (n - 1)": (lambda b, t, m, n: t / max(n - 1, 1), "position.normalised"),
    "row t has position t // 2": (lambda b, t, m, n: t // 2, "position.stride"),
    "row t has position 2t": (lambda b, t, m, n: 2 * t, "position.stride"),
}
# Distances of a table by mistake, of row r of 2n - 1.
DISTANCES: Mapping[str, tuple[Callable[[Array, int], Array], str]] = {
    "row r has distance |(n - 1) - r|, so that both sides look alike": (lambda r, n: abs(n - 1 - r), "sign_lost"),
    "row r has distance -|(n - 1) - r|, so that both sides look alike": (lambda r, n: -abs(n - 1 - r), "sign_lost"),
    "row r has distance r - (n - 1), the other way round": (lambda r, n: r - n + 1, "direction"),
    "row r has position r, an absolute one": (lambda r, n: r, "absolute_used"),
    "row r has position 2n - 2 - r, an absolute one": (lambda r, n: 2 * n - 2 - r, "absolute_used"),
    "row r has distance max((n - 1) - r, 0)": (lambda r, n: np.maximum(n - 1 - r, 0), "future_clamped"),
    "row r has distance min((n - 1) - r, 0)": (lambda r, n: np.minimum(n - 1 - r, 0), "past_clamped"),
    "row r has distance n - r": (lambda r, n: n - r, "off_by_one"),
    "row r has distance n - 2 - r": (lambda r, n: n - 2 - r, "off_by_one"),
    "the two sides run on from each other: n - 1, ..., 0, then 0, -1, ...": (
        lambda r, n: np.where(r < n, n - 1 - r, n - r),
        "off_by_one",
    ),
    "each side runs outwards from its own end: 0, ..., n - 1, then -1, -2, ...": (
        lambda r, n: np.where(r < n, r, n - 1 - r),
        "side_reversed",
    ),
    "the past is right and the future runs backwards: -(n - 1), ..., -1": (
        lambda r, n: np.where(r < n, n - 1 - r, r - 2 * n + 1),
        "side_reversed",
    ),
}
