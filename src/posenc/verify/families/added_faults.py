"""Formulas of sinusoids (angles, order of sines and cosines, positions): the definitions and common mistakes."""

import functools
import itertools
import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from posenc.verify.engine.precision import rounded
from posenc.verify.engine.records import FLOAT32, Array, Model
from posenc.verify.families.counts_faults import SPLITS

STAGES = ("positions", "frequencies", "product", "table", "sum")  # any of them may be rounded to half precision
Frequencies = Callable[[Array, int, float], Array]  # indices of the pairs, width, base -> radians per position
PAPER = 'position / base**(2k/d), the paper\'s (variant="paper")'
T2T = 'position / base**(k/(d/2 - 1)), Tensor2Tensor\'s (variant="tensor2tensor")'
ROUNDED_UP = "position / base**(2k/(d + 1))"  # for odd widths some code makes d + 1 and drops the last
T2T_CEIL = "position / base**(k/(ceil(d/2) - 1))"


def linear(times: float, plus: float = 0.0, wider: int = 0) -> Frequencies:
    """Return the frequencies base**-((times k + plus) / (width + wider))."""
    return lambda k, d, b: b ** (-(times * k + plus) / max(d + wider, 1))


# Finding code: formula of the angle: the frequencies, or those of the sines and those of the cosines.
_RULES: Mapping[str, Mapping[str, Frequencies | tuple[Frequencies, Frequencies]]] = {
    "frequency.divisor": {
        PAPER: linear(2),
        T2T: lambda k, d, b: b ** (-k / max(d // 2 - 1, 1)),
        ROUNDED_UP: linear(2, wider=1),
        T2T_CEIL: lambda k, d, b: b ** (-k / max(math.ceil(d / 2) - 1, 1)),
        "position / base**(k/d)": linear(1),
        "position / base**(4k/d)": linear(4),
    },
    "frequency.exponent_not_paired": {
        "position / base**(i/d) for dimension i": (linear(2), linear(2, 1)),
        "position / base**(2i/d) for dimension i": (linear(4), linear(4, 2)),
        "position / base**(i/(d - 1)) for dimension i": (linear(2, 0, -1), linear(2, 1, -1)),
        "sin(position / base**(2k/d)) and cos(position / base**(2(k + 1)/d))": (linear(2), linear(2, 2)),
        "sin(position / base**(4k/d)) and cos(position / base**(4(k + 1)/d))": (linear(4), linear(4, 4)),
        "sin(position / base**(2k/d)) and cos(position / base**(4k/d))": (linear(2), linear(4)),
        "sin(position / base**(4k/d)) and cos(position / base**(2k/d))": (linear(4), linear(2)),
        "position / base**(2(k // 2)/d), two pairs alike": lambda k, d, b: b ** (-(k // 2) * 2 / d),
        "position / base**(4(k // 2)/d), two pairs alike": lambda k, d, b: b ** (-(k // 2) * 4 / d),
    },
    "frequency.index_from_one": {
        "position / base**(2(k + 1)/d)": linear(2, 2),
        "position / base**((2k + 1)/d)": linear(2, 1),
    },
    "frequency.integer_division": {"position / base**0, the exponent 2k/d rounded down to 0": linear(0)},
    "frequency.inverted": {
        "position * base**(2k/d)": linear(-2),
        "position / base**(1 - 2k/d), the slowest first": lambda k, d, b: b ** (-2 * k[::-1] / d),
    },
    "frequency.precedence": {
        "position * exp(2k * ((-log(base) / d) // 2))": lambda k, d, b: np.exp(2 * k * (-math.log(b) / d // 2)),
        "position * exp(k * ((-log(base) / d) // 2))": lambda k, d, b: np.exp(k * (-math.log(b) / d // 2)),
        "position * exp(-2k log(base)) / d": lambda k, d, b: b ** (-2 * k) / d,
        "position / (base**(2k) / d)": lambda k, d, b: d * b ** (-2 * k),
        "position / base**2 * k / d": lambda k, d, b: k / (d * b**2),
        "position / (base**2 * k / d)": lambda k, d, b: d / (k * b**2),
        "position / (base**2 * (k + 1) / d)": lambda k, d, b: d / ((k + 1) * b**2),
        "position / (base * 2k / d)": lambda k, d, b: d / (2 * k * b),
        "position * 2k * (-log(base) / d), no exp": lambda k, d, b: -2 * k * math.log(b) / d,
        "position * exp(-2k log10(base)/d)": lambda k, d, b: np.exp(-2 * k * math.log10(b) / d),
        "position * 2**(-2k log(base)/d)": lambda k, d, b: 2 ** (-2 * k * math.log(b) / d),
        "position * exp(-2k log2(base)/d)": lambda k, d, b: np.exp(-2 * k * math.log2(b) / d),
    },
    "frequency.div_term": {"position * exp(+2k log(base)/d) / d": lambda k, d, b: b ** (2 * k / d) / d},
}
RULES = {  # by formula
    words: (code, *(rule if isinstance(rule, tuple) else (rule, rule)))
    for code, rules in _RULES.items()
    for words, rule in rules.items()
}
FACTORS = {
    "2 pi": 2 * math.pi,
    "pi": math.pi,
    "1/(2 pi)": 0.5 / math.pi,
    "2": 2.0,
    "1/2": 0.5,
    "1000": 1e3,
    "1/1000": 1e-3,
}  # of the frequencies


class Layout(NamedTuple):
    """For each dimension the wave ("s", "c", "-s", or "0" for zeros) and the pair; and the finding code, if any."""

    words: str
    lanes: list[tuple[str, int]]
    code: str


ORDERS = ("interleaved", "half", "interleaved_cos", "half_cos", "half_zero")  # each belongs to some definition
JOINS = ("yx", "xy", "woven_yx", "woven_xy")  # how two axes share the dimensions; "sum" if they do not


@functools.cache
def layouts(d: int) -> Mapping[str, Layout]:
    """Return the orders of d dimensions that occur in code, by name."""
    n, floor = math.ceil(d / 2), d // 2
    s, c, minus, zeros = ([(wave, k) for k in range(n)] for wave in ("s", "c", "-s", "0"))
    halves, one, empty = "layout.halves", "layout.one_wave", "layout.half_empty"
    made = {
        "interleaved": Layout("sin, cos, sin, cos, ...", _woven(s, c), "layout.interleaved"),
        "half": Layout("all sines, then all cosines", s + c[:floor], halves),
        "interleaved_cos": Layout("cos, sin, cos, sin, ...", _woven(c, s), "layout.cos_first"),
        "half_cos": Layout("all cosines, then all sines", c + s[:floor], "layout.halves_swapped"),
        "half_zero": Layout("all sines, then all cosines, then a zero", s[:floor] + c[:floor] + zeros[:1], halves),
        "all_sin": Layout("sines only, each twice", _woven(s, s), one),
        "all_cos": Layout("cosines only, each twice", _woven(c, c), one),
        "half_sin": Layout("the sines twice, no cosines", s + s, one),
        "only_sin": Layout("sin, 0, sin, 0, ...", _woven(s, zeros), empty),
        "only_cos": Layout("0, cos, 0, cos, ...", _woven(zeros, c), empty),
        "minus_sin": Layout("-sin, cos, -sin, cos, ...", _woven(minus, c), "sign"),
        "minus_sin_half": Layout("all sines negated, then all cosines", minus + c, "sign"),
        "rows": Layout("sin in the even rows, cos in the odd rows", _woven(s, c), "axis.rows_for_columns"),
    }
    if d % 2:
        made["half_floor"] = Layout("(d - 1)/2 sines, then the cosines", s[:floor] + c, "layout.halves_odd")
        made["zero_last"] = Layout("sin, cos, ..., then zero", _woven(s, c)[: d - 1] + zeros[:1], "width.odd")
    return made


def _woven(even: list[tuple[str, int]], odd: list[tuple[str, int]]) -> list[tuple[str, int]]:
    return [lane for pair in zip(even, odd, strict=True) for lane in pair]


@functools.lru_cache(maxsize=4096)
def waves(rule: str, order: str, d: int, base: float) -> tuple[Array, NDArray[np.bool_], Array]:
    """Return for each of d dimensions its radians per position, whether it is a cosine, and its sign or 0."""
    names, pairs = zip(*layouts(d)[order].lanes[:d], strict=True)
    k, (_, *rules) = np.arange(math.ceil(d / 2), dtype=np.float64), RULES[rule]
    with np.errstate(all="ignore"):
        sines, cosines = (np.nan_to_num(f(k, d, base), posinf=0.0, neginf=0.0)[list(pairs)] for f in rules)
    cosine = np.array([name[-1] == "c" for name in names])
    sign = np.array([{"-": -1.0, "0": 0.0}.get(name[0], 1.0) for name in names])
    return np.where(cosine, cosines, sines), cosine, sign


@functools.lru_cache(maxsize=64)
def _summed(omega: tuple[float, ...], dtype: str, n: int) -> Array:
    """Return the angles of n positions, if each adds the frequencies once to those before, in half precision."""
    step = torch.tensor(omega, dtype=torch.float64).to(getattr(torch, dtype))
    angles = list(itertools.accumulate([step] * (n - 1), initial=torch.zeros_like(step)))
    return torch.stack(angles).double().numpy()


def wave(model: Model, p: Array, d: int) -> tuple[Array, Array]:
    """Return sines and cosines (..., d) of positions, and their float32 error."""
    omega, cosine, sign = waves(model["rule"], model["order"], d, model["base"])
    if model["order"] == "rows":
        cosine = np.arange(p.shape[-1])[:, None] % 2 == 1

    def formed(nudge: float = 0.0) -> tuple[Array, Array]:
        """Return angles and their waves, with each rounded number moved by a small share of itself."""
        places = rounded(p[..., None] * (1 + nudge), model["round_positions"])
        freq = rounded(omega * model["factor"] * (1 + nudge), model["round_frequencies"])
        angle = rounded(places * freq * (1 + nudge), model["round_product"])
        if model["round_sum"]:
            angle = _summed(tuple(omega * model["factor"]), model["round_sum"], int(p.max()) + 1)[p.astype(int)]
        return angle, rounded(np.where(cosine, np.cos(angle), np.sin(angle)) * sign, model["round_table"])

    angle, code = formed()
    slack = np.minimum(np.abs(angle) * FLOAT32 * (4 + math.log(max(model["base"], 2))), 0.2)
    if any(model[f"round_{stage}"] for stage in STAGES):  # a number at the edge may be rounded either way
        slack = slack + np.abs(formed(1e-6)[1] - code) + np.abs(formed(-1e-6)[1] - code)
    return code, slack


def _split(order: Callable[[int], Array]) -> "Written":
    return lambda b, t, m, n: order(n)[t.astype(int)] + 0 * b


# Wrong positions of rows: (indices of the texts (b, 1), of the rows (1, n), how many of each) -> positions, NaN for
# no encoding, and the finding code without the family.
Written = Callable[[Array, Array, int, int], Array]
ROWS: Mapping[str, tuple[Written, str]] = {
    "every token has the index of its text in the batch as its position": (lambda b, t, m, n: b + 0 * t, "axis.batch"),
    "rows are counted through the whole batch, batch * tokens + t": (lambda b, t, m, n: b * n + t, "axis.batch"),
    "row t of text b has position t * batch + b": (lambda b, t, m, n: t * m + b, "axis.batch"),
    "every row has position n, the number of tokens": (lambda b, t, m, n: 0 * t + n, "slice.single_row"),
    "every row has the last position, n - 1": (lambda b, t, m, n: 0 * t + n - 1, "slice.single_row"),
    "every row has the first position": (lambda b, t, m, n: 0 * t, "slice.single_row"),
    "row t of n has position n - 1 - t, counted from the end": (lambda b, t, m, n: n - 1 - t, "position.reversed"),
    "row t of n has position n - t, counted from the end": (lambda b, t, m, n: n - t, "position.reversed"),
    "row t of n has position t + n, sliced from where it should end": (lambda b, t, m, n: t + n, "slice.tail"),
    "row t of n has position t / n": (lambda b, t, m, n: t / n, "position.normalised"),
    "row t of n has position t / (n - 1)": (lambda b, t, m, n: t / max(n - 1, 1), "position.normalised"),
    "the first token gets no encoding, and the next one that of position 0": (
        lambda b, t, m, n: np.where(t, t - 1, np.nan) + 0 * b,
        "position.missing",
    ),
    "the first token gets no encoding": (lambda b, t, m, n: np.where(t, t, np.nan) + 0 * b, "position.missing"),
    "the last token gets no encoding": (lambda b, t, m, n: np.where(t < n - 1, t, np.nan), "position.missing"),
    "only the first text of a batch gets an encoding": (lambda b, t, m, n: np.where(b, np.nan, t), "position.missing"),
    "row t has position 2t": (lambda b, t, m, n: 2 * t, "position.stride"),
    "row t has position 0 + 1 + ... + t, a sum of positions": (lambda b, t, m, n: t * (t + 1) / 2, "position.summed"),
    "rows have positions 0, 1, -1, 2, -2, ...": (
        lambda b, t, m, n: (t + 1) // 2 * (2 * (t % 2) - 1),
        "position.zigzag",
    ),
    "rows have positions 0, -1, 1, -2, 2, ...": (
        lambda b, t, m, n: (t + 1) // 2 * (1 - 2 * (t % 2)),
        "position.zigzag",
    ),
    **{
        f"rows have the positions of tokens that are split over devices: {words}": (_split(order), "position.zigzag")
        for words, order in SPLITS.items()
    },
}
