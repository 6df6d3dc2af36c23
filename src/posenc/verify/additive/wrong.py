"""Formulas of the frequencies that are no definition, as people write them by mistake."""

import math
from typing import Any

import numpy as np

from posenc.verify.additive.waves import Array, Rule, power

_DIVIDE = "Divide the number of the lane by the width that is encoded, once: base ** (-2 * k / d) for pair k."
_PAIR = "Give sine 2k and cosine 2k + 1 the same frequency: base ** (-2 * (lane // 2) / d)."
_BRACKETS = "Bracket the divisor: exp(arange(0, d, 2) * (-log(base) / d)); * and / and // run from left to right."


def _frequency(words: str, omega: Any, code: str, mend: str) -> Rule:
    def angles(p: Array, k: Array, width: int, base: float) -> tuple[Array, Array]:
        with np.errstate(all="ignore"):
            angle = p * np.nan_to_num(omega(k, width, base), posinf=0.0, neginf=0.0)
        return angle, angle

    return Rule(words, angles, code, mend)


def _floored(parts: int, pairs: int) -> Rule:
    step = f"(-log(base)/{'(d/2)' if parts == 2 else 'd'}) // {2 if parts == 1 else 1}"
    words = f"position * exp({'2k' if pairs == 2 else 'k'} * {step}), a step rounded down to a whole number"
    divisor = 2.0 if parts == 1 else 1.0
    return _frequency(
        words,
        lambda k, d, b: np.exp(pairs * k * ((-math.log(b) / d * parts) // divisor)),
        "frequency.precedence",
        _BRACKETS,
    )


WRONG = (
    power("position / base**(k/d)", lambda k, d, n: k / d, code="frequency.divisor", mend=_DIVIDE),
    power("position / base**(4k/d)", lambda k, d, n: 4 * k / d, code="frequency.divisor", mend=_DIVIDE),
    power("position / base**(2k/d)", lambda k, d, n: 2 * k / d, code="frequency.divisor", mend=_DIVIDE),
    power(
        "position / base**(k/(d/2 - 1))", lambda k, d, n: k / max(d // 2 - 1, 1), code="frequency.divisor", mend=_DIVIDE
    ),
    power(
        "position / base**(2k/(d - 1))", lambda k, d, n: 2 * k / max(d - 1, 1), code="frequency.divisor", mend=_DIVIDE
    ),
    power("position / base**(2k/(d + 1))", lambda k, d, n: 2 * k / (d + 1), code="frequency.divisor", mend=_DIVIDE),
    power("position / base**(k/(d - 1))", lambda k, d, n: k / max(d - 1, 1), code="frequency.divisor", mend=_DIVIDE),
    power("position / base**(8k/d)", lambda k, d, n: 8 * k / d, code="frequency.divisor", mend=_DIVIDE),
    power(
        "position / base**(2(k + 1)/d)", lambda k, d, n: 2 * (k + 1) / d, code="frequency.index_from_one", mend=_PAIR
    ),
    power(
        "position / base**(k//2 * 4/d)",
        lambda k, d, n: k // 2 * 4 / d,
        code="frequency.exponent_not_paired",
        mend=_PAIR,
    ),
    power(
        "position / base**(2(k//2)/d)",
        lambda k, d, n: 2 * (k // 2) / d,
        code="frequency.exponent_not_paired",
        mend=_PAIR,
    ),
    *(
        power(words, sine, cosine, code="frequency.exponent_not_paired", mend=_PAIR)
        for words, sine, cosine in (
            (
                "position / base**(lane/d), each lane a frequency of its own",
                lambda k, d, n: 2 * k / d,
                lambda k, d, n: (2 * k + 1) / d,
            ),
            (
                "position / base**(2 lane/d), each lane a frequency of its own",
                lambda k, d, n: 4 * k / d,
                lambda k, d, n: (4 * k + 2) / d,
            ),
            (
                "sin(position / base**(2k/d)) beside cos(position / base**(2(k + 1)/d))",
                lambda k, d, n: 2 * k / d,
                lambda k, d, n: 2 * (k + 1) / d,
            ),
            (
                "sin(position / base**(4k/d)) beside cos(position / base**(4(k + 1)/d))",
                lambda k, d, n: 4 * k / d,
                lambda k, d, n: 4 * (k + 1) / d,
            ),
            (
                "sin(position / base**(2k/d)) beside cos(position / base**(4k/d))",
                lambda k, d, n: 2 * k / d,
                lambda k, d, n: 4 * k / d,
            ),
            (
                "sin(position / base**(4k/d)) beside cos(position / base**(2k/d))",
                lambda k, d, n: 4 * k / d,
                lambda k, d, n: 2 * k / d,
            ),
            (
                "position / base**(2 lane/d), the cosines going on where the sines end",
                lambda k, d, n: 2 * k / d,
                lambda k, d, n: 2 * (k + n) / d,
            ),
            (
                "position / base**(lane/d), the cosines going on where the sines end",
                lambda k, d, n: k / d,
                lambda k, d, n: (k + n) / d,
            ),
            (
                "position / base**(lane/(d - 1)), each lane a frequency of its own",
                lambda k, d, n: 2 * k / max(d - 1, 1),
                lambda k, d, n: (2 * k + 1) / max(d - 1, 1),
            ),
        )
    ),
    power(
        "position / base**0, the exponent 2k/d having been rounded down to 0",
        lambda k, d, n: 0 * k,
        code="frequency.integer_division",
        mend="Divide as real numbers: 2 * k / d, not 2 * k // d.",
    ),
    power(
        "position / base**(2 lane//d), the exponent rounded down to 0 or 1",
        lambda k, d, n: 4 * k // d,
        lambda k, d, n: (4 * k + 2) // d,
        code="frequency.integer_division",
        mend="Divide as real numbers: 2 * k / d, not 2 * k // d.",
    ),
    *(
        power(
            words,
            exponent,
            code="frequency.inverted",
            mend="Multiply by base ** (-2 * k / d), or divide by base ** (2 * k / d); not the other way round.",
        )
        for words, exponent in (
            ("position * base**(2k/d)", lambda k, d, n: -2 * k / d),
            ("position * base**(k/(d/2 - 1))", lambda k, d, n: -k / max(d // 2 - 1, 1)),
        )
    ),
    power(
        "position / base**(1 - 2k/d), slowest first",
        lambda k, d, n: 2 * k[::-1] / d,
        code="frequency.order_reversed",
        mend="Start with frequency 1 in the first lanes and slow down.",
    ),
    _floored(1, 2),
    _floored(1, 1),
    _floored(2, 2),
    _floored(2, 1),
    *(
        _frequency(words, omega, "frequency.precedence", _BRACKETS)
        for words, omega in (
            ("position * exp(-k), a step rounded down to a whole number", lambda k, d, b: np.exp(-1.0 * k)),
            ("position * exp(-2k), a step rounded down to a whole number", lambda k, d, b: np.exp(-2.0 * k)),
            ("position * exp(-2k log(base)) / d", lambda k, d, b: b ** (-2.0 * k) / d),
            ("position / base**(2k) / d", lambda k, d, b: b ** (-2.0 * k) / d),
            ("position / (base**(2k) / d)", lambda k, d, b: d * b ** (-2.0 * k)),
            ("position / base**2 * k / d", lambda k, d, b: k / (d * b**2)),
            *(
                (f"position / (base**2 * {i} / d)", lambda k, d, b, f=f: d / (f(k) * b**2))
                for i, f in (("k", lambda k: k), ("(k + 1)", lambda k: k + 1), ("2k", lambda k: 2 * k))
            ),
            ("position / base * 2k / d", lambda k, d, b: 2 * k / (d * b)),
            ("position / (base * 2k / d)", lambda k, d, b: d / (2 * k * b)),
            ("position * exp(-2k) * log(base) / d", lambda k, d, b: np.exp(-2.0 * k) * math.log(b) / d),
            ("position * 2k * exp(-log(base) / d)", lambda k, d, b: 2 * k * b ** (-1.0 / d)),
            ("position * 2k * (-log(base) / d), no exp", lambda k, d, b: -2 * k * math.log(b) / d),
            ("position * base**-2 * k / d", lambda k, d, b: b**-2.0 * k / d),
        )
    ),
    Rule(
        "(position / base)**(2k/d)",
        lambda p, k, d, b: ((np.sign(p) * np.abs(p / b) ** (2 * k / d)),) * 2,
        "frequency.precedence",
        "Raise the base alone to the power: position / base ** (2 * k / d).",
    ),
    *(
        _frequency(
            f"{words} * position / base**(2k/d)",
            lambda k, d, b, f=factor: f * b ** (-2.0 * k / d),
            "frequency.factor",
            "Leave the factor out: the angle is position / base ** (2k/d), in radians.",
        )
        for words, factor in (
            ("2 pi", 2 * math.pi),
            ("pi", math.pi),
            ("1/(2 pi)", 0.5 / math.pi),
            ("pi/180", math.pi / 180),
            ("180/pi", 180 / math.pi),
            ("2", 2.0),
            ("1/2", 0.5),
        )
    ),
    *(
        _frequency(
            f"position * exp(-2k {words}(base)/d)",
            lambda k, d, b, f=log: np.exp(-2.0 * k * f(b) / d),
            "frequency.logarithm",
            "exp goes with the natural logarithm: math.log(base).",
        )
        for words, log in (("log10", math.log10), ("log2", math.log2))
    ),
    _frequency(
        "position * 2**(-2k log(base)/d)",
        lambda k, d, b: 2.0 ** (-2.0 * k * math.log(b) / d),
        "frequency.logarithm",
        "exp goes with the natural logarithm, exp2 with log2.",
    ),
    _frequency(
        "position * exp(+2k log(base)/d) / d",
        lambda k, d, b: b ** (2.0 * k / d) / d,
        "frequency.div_term",
        _BRACKETS,
    ),
)
