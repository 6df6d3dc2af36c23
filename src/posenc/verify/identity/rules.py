"""Find the rule behind measured frequencies: the first hypothesis that predicts them all."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import numpy as np

from posenc.verify.engine.precision import SHORT, rounded
from posenc.verify.engine.read import BASES
from posenc.verify.engine.records import Array

LEAST = 3  # pairs needed for a straight line
FAR = 2.0**14  # the position at which products in a half type are measured


@dataclass(frozen=True)
class Rule:
    """A rule and its parameters, as in an `Identification`, and its frequencies, fastest first."""

    kind: str
    base: float | None
    width: int  # exponents are counted over this width
    inv_freq: Array  # the measured ones if there is no rule
    parameters: dict[str, Any] = field(default_factory=dict)
    unknown: tuple[str, ...] = ()


def fit(freq: Array, noise: float, width: int) -> Rule:
    """Return the rule of frequencies, fastest first, with an error of noise beyond float32's rounding."""
    if len(freq) < 2 or (freq <= 0).any():
        why = "the rule of the frequencies: there are too few frequencies, or one is not positive"
        return Rule("other", None, width, freq, {}, (why,))
    slack = 6e-6 * freq + noise
    for hypothesis in (_straight, _short, _blended):
        if (found := hypothesis(freq, slack, width)) is not None:
            return found
    factors = (BASES[0] ** (-2 * np.arange(len(freq)) / width) / freq).tolist()
    why = "the base: frequencies follow no rule, as with a list of factors; the reported factors assume a base of 10000"
    return Rule("lists", None, width, freq, {"factors": factors}, (why,))


def _line(i: Array, freq: Array, slack: Array) -> tuple[float, float] | None:
    """Return offset and slope of the logarithms of frequencies; None if they are not on a straight line."""
    slope, offset = np.polyfit(i, np.log(freq), 1, w=np.minimum(freq / slack, 1e6))
    is_close = (np.abs(np.exp(offset + slope * i) - freq) <= slack).all()
    return (float(offset), float(slope)) if is_close and slope < -1e-6 else None


def _straight(freq: Array, slack: Array, width: int) -> Rule | None:
    """Return a base: plain, with a linear factor, with static NTK, or with fewer pairs than the exponents."""
    i, unknown = np.arange(float(len(freq))), []
    if (line := _line(i, freq, slack)) is None:
        return None
    known = (b for b in BASES if (np.abs(b ** (-2 * i / width) - freq) <= slack).all())
    base = next(known, snap(math.exp(min(-line[1] * width / 2, 700.0))))
    factor = snap(math.exp(-line[0]), 1e-4)
    kind, parameters = ("none", {}) if factor == 1 else ("linear", {"factor": factor})
    if factor == 1 and base not in BASES:
        why = f"whether {base:,.8g} is the base or one stretched by static NTK: the frequencies are the same"
        for plain in BASES if width > 2 and base != float(f"{base:.2e}") else ():
            stretch = snap((base / plain) ** ((width - 2) / width), 1e-4)
            if 1 < stretch < 1000 and stretch % 0.25 == 0:
                kind, parameters = "ntk", {"factor": stretch, "plain_base": plain}
                why = f"whether a base of {plain:,.8g} is stretched (static NTK, factor {stretch:g}) or is {base:,.8g}"
                break
        unknown.append(why)
    if width > 2 * len(freq):
        kind, parameters = "proportional", {"share": 2 * len(freq) / width, **parameters}
        unknown.append(f"whether a share of pairs rotates, or a narrower width with exponents over {width}")
    return Rule(kind, base, width, base ** (-2 * i / width) / factor, parameters, tuple(unknown))


def _short(freq: Array, slack: Array, width: int) -> Rule | None:
    """Return a rule whose frequencies, or their products with positions, are rounded to a half type."""
    i = np.arange(len(freq))
    slope, offset = np.polyfit(i, np.log(freq), 1)
    value, factor = math.exp(min(-slope * width / 2, 700.0)), snap(math.exp(-offset), 2.0**-7)
    rough = [float(f"{value:.{digits}e}") for digits in range(3)]
    for base, dtypes in product((*BASES, *rough), product((None, *SHORT), repeat=2)):
        exact = base ** (-2 * i / width) / factor
        if any(dtypes) and (np.abs(rounded(FAR * rounded(exact, dtypes[0]), dtypes[1]) / FAR - freq) <= slack).all():
            kind, parameters = ("none", {}) if factor == 1 else ("linear", {"factor": factor})
            why = f"the base to more digits than rounded frequencies show; {base:,.8g} gives these"
            return Rule(kind, base, width, exact, parameters, (why,))
    return None


def _blended(freq: Array, slack: Array, width: int) -> Rule | None:
    """Return a rule that keeps fast pairs, divides slow ones, and blends between: YaRN's ramp, Llama 3's bands."""
    i = np.arange(len(freq), dtype=float)
    for base, factor in _ends(freq, slack, width):
        plain, lost = base ** (-2 * i / width), 1 - 1 / factor
        t, off = (1 - freq / plain) / lost, 4 * slack / plain / lost + 3e-5  # 0 if a pair is kept, 1 if divided
        on, divided = np.flatnonzero((t > off) & (t < 1 - off)), int(np.argmax(t >= 1 - off))
        ramps = [("yarn", i, float((on[0] if len(on) else divided) - 1), float(divided))]
        for kind, x in (("yarn", i), ("llama3", plain)) if len(on) >= LEAST else ():
            slope, offset = np.polyfit(x[on], t[on], 1)
            ramps.append((kind, x, float(-offset / slope), float((1 - offset) / slope)))
        for kind, x, low, high in ramps:
            at = (x - low) / (high - low)
            if (np.abs(np.clip(at, 0, 1) - t) <= off + 1e-4).all():
                inv_freq = plain * (1 - np.clip(at, 0, 1) * lost)
                return _ramp(Rule(kind, base, width, inv_freq, {"factor": factor}), low, high, at[-1] < 1 + 1e-4)
    return None


def _ramp(rule: Rule, low: float, high: float, is_open: bool) -> Rule:
    """Return a rule with the ends of its ramp; the slow end may be beyond the last pair."""
    assert rule.base is not None
    if rule.kind == "yarn":
        first, found = {"low": low}, {"high": high, "truncate": low == round(low) and high == round(high)}
        length = 2 * math.pi * rule.base ** (2 * high / rule.width)
    else:
        kept, length = 2 * math.pi / low, 2 * math.pi / high  # wavelengths
        first = {"longest_kept": snap(kept)}
        found = {"shortest_divided": snap(length), "ratio": snap(length / kept, 1e-3)}
    if is_open:
        return replace(rule, parameters={**first, "factor": None}, unknown=("the factor: the ramp may not have ended",))
    unknown = [f"trained length and betas: only the ramp is visible, which ends at a wavelength of {length:,.6g}"]
    if rule.kind == "yarn" and high - low < LEAST:
        unknown.append("whether the ramp is YaRN's or Llama 3's: too few pairs are on it")
    return replace(rule, parameters={**rule.parameters, **first, **found}, unknown=tuple(unknown))


def _ends(freq: Array, slack: Array, width: int) -> Iterator[tuple[float, float]]:
    """Yield base and factor from the longest straight part at the slow end, then from that at the fast end."""
    i, n = np.arange(float(len(freq))), len(freq)
    for parts in ([slice(n - m, n) for m in range(n, LEAST - 1, -1)], [slice(m) for m in range(n, LEAST - 1, -1)]):
        line = next(filter(None, (_line(i[part], freq[part], slack[part]) for part in parts)), None)
        if line is not None:
            base = snap(math.exp(-line[1] * width / 2), 1e-4)
            factor = snap(float(base ** (-2 * (n - 1) / width) / freq[-1]), 1e-4)
            if factor > 1 + 1e-3:
                yield base, factor


def snap(value: float, close: float = 2e-5) -> float:
    """Return the roundest number within the tolerance of a measured one.

    >>> snap(9999.99), snap(82684.62)
    (10000.0, 82684.62)
    """
    for digits in range(3):
        near = float(f"{value:.{digits}e}")
        if abs(near / value - 1) < close:
            return near
    whole = float(round(value))
    return whole if value >= 4 and abs(whole / value - 1) < min(close, 2e-6) else value
