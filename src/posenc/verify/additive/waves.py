"""Sines and cosines under every known spelling, right or wrong: what a code would be if it were so."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Angles = Callable[[Array, Array, int, float], tuple[Array, Array]]


@dataclass(frozen=True)
class Rule:
    """How an angle is formed from a position and the number of a pair.

    Args:
        words: The formula, as a person writes it.
        angles: (positions (..., 1), pairs (K,), width, base) -> the angle of each sine and of each cosine (..., K).
        code: What is wrong with it, without the family ("frequency.inverted"); empty where it is a definition.
        mend: How to write it instead.
    """

    words: str
    angles: Angles
    code: str = ""
    mend: str = ""


def power(words: str, sine: Any, cosine: Any = None, *, code: str = "", mend: str = "") -> Rule:
    """Return the rule angle = position / base**exponent, with exponents (pairs, width, number of pairs) -> (K,)."""

    def angles(p: Array, k: Array, width: int, base: float) -> tuple[Array, Array]:
        exponents = [np.asarray(f(k, width, len(k)), dtype=np.float64) for f in (sine, cosine or sine)]
        with np.errstate(over="ignore"):
            return p * base ** -exponents[0], p * base ** -exponents[1]

    return Rule(words, angles, code, mend)


PAPER = power("position / base**(2k/d)", lambda k, d, n: 2 * k / d)
T2T = power("position / base**(k/(d/2 - 1))", lambda k, d, n: k / max(d // 2 - 1, 1))
# for odd widths some make all lanes of d + 1 and drop the last (PyPI positional-encodings)
ROUNDED_UP = power("position / base**(2k/(d + 1))", lambda k, d, n: 2 * k / (d + 1))
T2T_CEIL = power("position / base**(k/(ceil(d/2) - 1))", lambda k, d, n: k / max(n - 1, 1))


@dataclass(frozen=True)
class Layout:
    """Which wave and which pair each lane shows.

    Args:
        words: The order in words.
        lanes: (wave, pair) of each lane; wave "s", "c", "-s", "-c" or "0" (a lane of zeros).
        code: What is wrong with it, without the family; empty where it is a definition.
        by_row: Rows take turns between sine and cosine instead of lanes.
    """

    words: str
    lanes: tuple[tuple[str, int], ...]
    code: str = ""
    by_row: bool = False


def layouts(d: int) -> dict[str, Layout]:
    """Return the orders of d lanes that people write, by name."""
    n = math.ceil(d / 2)
    s, c = [("s", k) for k in range(n)], [("c", k) for k in range(n)]
    woven = [lane for pair in zip(s, c, strict=True) for lane in pair]
    back = [lane for pair in zip(c, s, strict=True) for lane in pair]
    floor = d // 2
    made = {
        "interleaved": ("sin, cos, sin, cos, ...", woven, ""),
        "half": ("all sines, then all cosines", s + c[:floor], ""),
        "interleaved_cos": ("cos, sin, cos, sin, ...", back, "layout.cos_first"),
        "half_cos": ("all cosines, then all sines", c + s[:floor], "layout.halves_swapped"),
        "all_sin": ("sines alone, each twice", [(w, k // 2) for k in range(2 * n) for w in "s"], "layout.one_wave"),
        "all_cos": ("cosines alone, each twice", [(w, k // 2) for k in range(2 * n) for w in "c"], "layout.one_wave"),
        "half_sin": ("the sines twice, no cosines", s + s, "layout.one_wave"),
        "half_cosines": ("the cosines twice, no sines", c + c, "layout.one_wave"),
        "only_sin": ("sines in the even lanes, zeros in the odd ones",
                     [lane for one in s for lane in (one, ("0", 0))], "layout.half_empty"),
        "only_cos": ("zeros in the even lanes, cosines in the odd ones",
                     [lane for one in c for lane in (("0", 0), one)], "layout.half_empty"),
        "first_half": ("sines in the first half, zeros in the second", s + [("0", 0)] * n, "layout.half_empty"),
        "second_half": ("zeros in the first half, cosines in the second", [("0", 0)] * n + c, "layout.half_empty"),
        "minus_sin": ("-sin, cos, -sin, cos, ...", [("-s", k) if w == "s" else (w, k) for w, k in woven], "sign"),
        "minus_sin_half": ("all sines negated, then all cosines", [("-s", k) for k in range(n)] + c, "sign"),
        "rows": ("sin in the even rows, cos in the odd rows", woven, "axis.rows_for_columns"),
        "rows_half": ("sin in the even rows, cos in the odd rows", s + c, "axis.rows_for_columns"),
    }  # fmt: skip
    if d % 2:
        made["half_zero"] = ("all sines, then all cosines, then a zero", s[:floor] + c[:floor] + [("0", 0)], "")
        made["half_floor"] = ("(d - 1)/2 sines, then the cosines", s[:floor] + c[:n], "layout.halves_odd")
        made["zero_last"] = ("sin, cos, ..., the last lane zero", [*woven[: d - 1], ("0", 0)], "width.odd")
    return {
        name: Layout(words, tuple(lanes[:d]), code, name.startswith("rows"))
        for name, (words, lanes, code) in made.items()
    }


def wave(p: Array, rule: Rule, layout: Layout, width: int, base: float) -> tuple[Array, Array]:
    """Return the code (..., d) of positions (...), d the lanes of the layout, and the size of its angles.

    Args:
        p: Positions, the last axis being that of the rows.
        rule: How angles are formed.
        layout: Which lane shows what.
        width: The d of the rule's exponents.
        base: The base of the powers.
    """
    kinds = np.array([w for w, _ in layout.lanes])
    pairs = np.array([k for _, k in layout.lanes])
    sines, cosines = rule.angles(p[..., None], np.arange(math.ceil(width / 2), dtype=np.float64), width, base)
    cosine = np.array([w[-1] == "c" for w in kinds.tolist()])
    angle = np.where(cosine, cosines[..., pairs], sines[..., pairs])
    if layout.by_row:
        even = np.arange(p.shape[-1])[:, None] % 2 == 0
        return np.asarray(np.where(even, np.sin(angle), np.cos(angle))), np.abs(angle)
    sign = np.array([{"-": -1.0, "0": 0.0}.get(w[0], 1.0) for w in kinds.tolist()])
    return np.asarray(np.where(cosine, np.cos(angle), np.sin(angle)) * sign), np.abs(angle)
