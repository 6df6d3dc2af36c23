"""Rules that keep fast pairs, divide slow ones, and blend between: YaRN's ramp, Llama 3's bands."""

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from posenc.verify.identity.lines import BASES, LEAST, Fit, Line, line_of, slack, snap
from posenc.verify.identity.matrix import Array

FEW = 8  # pairs, none of them on a straight line, that a base is guessed for
Which = NDArray[np.bool_]
Places = NDArray[np.intp]


def blended(i: Array, freq: Array, resolution: float | Array, width: int) -> Fit | None:
    """Return the rule that keeps fast pairs, divides slow ones, and blends between."""
    if (freq <= 0).any():
        return None
    h, fast, m, slow = _ends(i, freq, resolution)
    for base, factor in _candidates(fast, h, slow, m, freq, width):
        if h + m == 0 and len(i) < FEW:
            return None  # four numbers explain any so few
        plain = base ** (-2 * i / width)
        share = freq / plain  # 1 where a pair is kept, 1/factor where it is divided
        t, off = (1 - share) / (1 - 1 / factor), 4 * slack(freq, resolution) / plain / abs(1 - 1 / factor) + 3e-5
        if (t < -off).any() or (t > 1 + off).any() or (np.diff(t) < -2 * off[1:]).any():
            continue
        inside = (t > off) & (t < 1 - off)
        if (found := _blend(i, plain, t, inside, off, base, factor, width)) is not None:
            return found
    return None


def _ends(i: Array, freq: Array, resolution: float | Array) -> tuple[int, Line | None, int, Line | None]:
    """Return how many pairs lie on the line of the first ones, and of the last ones, and these lines."""
    off, n = slack(freq, resolution), len(freq)
    found: list[tuple[int, Line | None]] = []
    for first in (True, False):
        best: tuple[int, Line | None] = (0, None)
        for m in range(LEAST, n):
            part = slice(0, m) if first else slice(n - m, n)
            line = line_of(i[part], freq[part], off[part], first and bool(abs(freq[0] - 1) < 1e-5))
            if line is None:
                break
            best = (m, line)
        found.append(best)
    return *found[0], *found[1]


def _candidates(
    fast: Line | None, h: int, slow: Line | None, m: int, freq: Array, width: int
) -> Iterator[tuple[float, float]]:
    """Yield (base, factor), from the straight part that is longer first."""
    lines = [(m, slow), (h, fast)] if m >= h else [(h, fast), (m, slow)]
    for _, line in lines:
        if line is None:
            continue
        base = snap(line.base(width), 1e-4)
        last = base ** (-2 * (len(freq) - 1) / width) / freq[-1]
        if last > 1 + 1e-3 or last < 1 - 1e-3:
            yield base, snap(float(last), 1e-4)
    for base in BASES:
        last = base ** (-2 * (len(freq) - 1) / width) / freq[-1]
        if abs(freq[0] - 1) < 1e-5 and last > 1 + 1e-3:
            yield base, snap(float(last), 1e-4)


def _blend(
    i: Array, plain: Array, t: Array, inside: Which, off: Array, base: float, factor: float, width: int
) -> Fit | None:
    """Return what the ramp between the kept and the divided pairs is linear in."""
    at = np.flatnonzero(inside)
    kept, divided = (np.flatnonzero(t <= off), np.flatnonzero(t >= 1 - off))
    if len(divided) < 2:  # the factor was taken from that pair
        beyond = _open(i, plain, t * (1 - 1 / factor), off, base)
        if beyond is not None or len(at) < LEAST:
            return beyond
    if len(at) == 0:
        edge = int(divided[0])
        why = f"whether pairs are divided from pair {edge} on by YaRN's ramp or by bands: there is no pair between"
        inv_freq = np.where(t >= 1 - off, plain / factor, plain)
        return Fit("step", base, inv_freq, {"factor": factor, "from_pair": edge}, (why,))
    by_pair, by_freq = (_ramp(x, t, at, off) for x in (i, plain))
    whole = by_pair is not None and all(abs(e - round(e)) < 2e-3 for e in by_pair)
    if by_pair is not None and (len(at) >= LEAST or whole or by_freq is None):
        return _yarn(i, plain, by_pair, base, factor, whole=whole, width=width)
    if by_freq is not None and len(at) >= 2:
        found = _bands(plain, by_freq, base, factor)
        if by_pair is None:
            return found
        if found.parameters["ratio"] not in (4.0, 32.0):  # Llama 3's and the paper's
            found = _yarn(i, plain, by_pair, base, factor, whole=whole, width=width)
        why = "whether the ramp is linear in the pair's number or in the frequency: two pairs lie on either"
        return Fit(found.kind, base, found.inv_freq, found.parameters, (why, *found.unknown))
    if len(at) == 1 and len(kept):
        why = f"what the ramp is linear in: pair {int(at[0])} alone lies on it"
        inv_freq = plain * (1 - np.clip(t, 0, 1) * (1 - 1 / factor))
        return Fit("step", base, inv_freq, {"factor": factor, "from_pair": int(divided[0])}, (why,))
    return None


def _open(i: Array, plain: Array, lost: Array, off: Array, base: float) -> Fit | None:
    """Return a ramp whose slow end is beyond the last pair, so that the factor cannot be told.

    Args:
        i: Numbers of pairs.
        plain: Frequencies before.
        lost: Which share of them is taken away.
        off: What a share may be off.
        base: Of the frequencies before.
    """
    on, inv_freq = np.flatnonzero(lost > off), plain * (1 - lost)
    if len(on) == 0 or len(i) - on[0] > len(on):
        return None  # a kept pair beyond a slower one
    why = f"the factor: only pairs from {int(on[0])} to the last are slower, and none shows that the ramp has ended"
    if len(on) >= LEAST:
        for kind, x in (("yarn", i), ("llama3", plain)):
            slope, offset = np.polyfit(x[on], lost[on], 1)
            if slope and (np.abs(np.maximum(offset + slope * x, 0) - lost) <= 2 * off + 1e-4).all():
                begin = float(-offset / slope)
                parameters = {"low": begin} if kind == "yarn" else {"longest_kept": snap(2 * math.pi / begin)}
                return Fit(kind, base, inv_freq, parameters | {"factor": None}, (why,))
        return None
    return Fit("step", base, inv_freq, {"factor": None, "from_pair": int(on[0])}, (why,))


def _ramp(x: Array, t: Array, at: Places, off: Array) -> tuple[float, float] | None:
    """Return where a straight line through the ramp is 0 and 1; None if pairs lie beside it."""
    if len(at) == 1:
        before, after = at[0] - 1, at[0] + 1
        if before < 0 or after >= len(t) or abs(t[at[0]] - (x[at[0]] - x[before]) / (x[after] - x[before])) > 1e-3:
            return None
        return float(x[before]), float(x[after])
    slope, offset = np.polyfit(x[at], t[at], 1)
    if slope == 0:
        return None
    want = np.clip(offset + slope * x, 0, 1)
    if (np.abs(want - t) > 2 * off + 1e-4).any():
        return None
    return float(-offset / slope), float((1 - offset) / slope)


def _yarn(
    i: Array, plain: Array, ends: tuple[float, float], base: float, factor: float, *, whole: bool, width: int
) -> Fit:
    low, high = (float(round(e)) if whole else e for e in ends)
    t = np.clip((i - low) / (high - low), 0, 1)
    lengths = [2 * math.pi * base ** (2 * e / width) for e in (high - whole, high)]
    why = "trained length and betas of YaRN apart: they only show in the ends of the ramp; with beta_slow = 1 the "
    why += f"length is from {lengths[0]:,.0f} to {lengths[1]:,.0f}" if whole else f"length is {lengths[1]:,.6g}"
    parameters = {"factor": factor, "low": low, "high": high, "truncate": whole}
    return Fit("yarn", base, plain * (1 - t) + plain / factor * t, parameters, (why,))


def _bands(plain: Array, ends: tuple[float, float], base: float, factor: float) -> Fit:
    keep, divide = 2 * math.pi / ends[0], 2 * math.pi / ends[1]  # wavelengths
    t = np.clip((plain - ends[0]) / (ends[1] - ends[0]), 0, 1)
    parameters = {
        "factor": factor,
        "longest_kept": snap(keep),
        "shortest_divided": snap(divide),
        "ratio": snap(divide / keep, 1e-3),
    }
    why = f"trained length and low_freq_factor apart; with low_freq_factor = 1 the length is {divide:,.6g}"
    return Fit("llama3", base, plain * (1 - t) + plain / factor * t, parameters, (why,))
