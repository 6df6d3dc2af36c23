"""Which rule gives measured frequencies: a straight line in their logarithms, a ramp, bands, or a list."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from posenc.verify.identity.lines import BASES, LEAST, Fit, Line, is_likely, is_round, line_of, slack, snap
from posenc.verify.identity.matrix import Array
from posenc.verify.identity.ramps import blended


def fit(freq: Array, resolution: float | Array, width: int, other: int) -> Fit:
    """Return the rule of frequencies, fastest pair first.

    Args:
        freq: Radians a position of the pairs that turn, modulo 2 pi.
        resolution: What they may be off, besides the rounding of float32.
        width: Lanes over which the exponents are taken to count: twice the pairs, those that stand still included.
        other: Another width that they might count over; the same where there is none.
    """
    i = np.arange(len(freq), dtype=float)
    if len(freq) < LEAST or not (np.abs(freq) > 0).all():
        return _few(freq, width)
    if (line := line_of(i, freq, slack(freq, resolution))) is not None:
        return _straight(line, i, freq, slack(freq, resolution), (width, other))
    for found in (_rounded(i, freq, resolution, width), blended(i, freq, resolution, width)):
        if found is not None:
            return found
    if (line := _aliased(i, freq, resolution)) is not None:
        found = _straight(line, i, freq, slack(freq, resolution), (width, other))
        why = (
            "pairs that turn more than half a turn a position are known modulo 2 pi alone; the slow ones give the rule"
        )
        return Fit(found.kind, found.base, found.inv_freq, found.parameters, (*found.unknown, why))
    return _list(i, freq, width)


def proportional(found: Fit, freq: Array, width: int) -> Fit:
    """Say that slow pairs stand still, where exponents count over more lanes than turn."""
    counted = int(found.parameters.get("exponent_width", width))
    share = 2 * len(freq) / counted
    parameters = {"share": share} | {key: v for key, v in found.parameters.items() if key != "exponent_width"}
    why = (
        f"whether a share of {share:.6g} of {counted // 2} pairs turns, or a narrower width with exponents that count "
        f"over {counted} lanes: the turns are the same"
    )
    kind = "proportional" if found.kind in ("none", "linear", "ntk") else found.kind
    return replace(found, kind=kind, parameters=parameters, unknown=(*found.unknown, why))


def _few(freq: Array, width: int) -> Fit:
    if len(freq) == 2 and (freq > 0).all() and abs(freq[0] - 1) < 1e-5:
        base = snap(float(freq[1]) ** (-width / 2))
        why = "two pairs lie on a straight line whatever the rule; the base holds where nothing is scaled"
        return Fit("none", base, base ** (-2 * np.arange(2) / width), {}, (why,))
    return Fit("other", None, freq, {}, (f"{len(freq)} pairs are too few to tell a rule by",))


def _straight(line: Line, i: Array, freq: Array, off: Array, widths: tuple[int, int]) -> Fit:
    """Return base and linear factor of a straight line, and what else they might be."""
    counted, other = widths
    unknown: list[str] = []
    parameters: dict[str, Any] = {}

    def base(width: int) -> float:
        known = (b for b in BASES if not line.offset and bool((np.abs(b ** (-2 * i / width) - freq) <= off).all()))
        return next(known, snap(line.base(width)))

    own = base(counted)
    if other != counted:
        theirs = base(other)
        if is_likely(theirs) and not is_likely(own):
            own, counted = theirs, other
            parameters["exponent_width"] = other
        elif is_likely(own) == is_likely(theirs) and 50 < theirs < 1e9:  # others are nobody's base
            unknown.append(
                f"whether exponents count over {counted} lanes (base {own:,.8g}) or {other} (base {theirs:,.8g})"
            )
    factor = snap(math.exp(-line.offset), 1e-4) if line.offset else 1.0
    inv_freq = own ** (-2 * i / counted) / factor
    if abs(factor - 1) > 1e-4:
        shift = line.offset / -line.slope
        if abs(shift - round(shift)) < 1e-3 and not is_round(factor) and round(shift) != 0:
            unknown.append(f"whether positions are divided by {factor:.6g} or pairs are counted from {round(shift)} on")
        return Fit("linear", own, inv_freq, parameters | {"factor": factor}, tuple(unknown))
    if not is_round(own) and counted > 2:
        for plain in BASES:
            stretch = snap((own / plain) ** ((counted - 2) / counted), 1e-4)
            if stretch > 1 and abs(stretch * 4 - round(stretch * 4)) < 1e-9 and stretch < 1000:
                unknown.append(
                    f"whether a base of {plain:,.8g} is stretched (static NTK, factor {stretch:g}) or the base is "
                    f"{own:,.8g}: the frequencies are the same"
                )
                stretched = {"factor": stretch, "plain_base": plain}
                return Fit("ntk", own, inv_freq, parameters | stretched, tuple(unknown))
    if own not in BASES:
        unknown.append(f"whether {own:,.8g} is the base or one stretched by static NTK: the frequencies are the same")
    return Fit("none", own, inv_freq, parameters, tuple(unknown))


def _rounded(i: Array, freq: Array, resolution: float | Array, width: int) -> Fit | None:
    """Return a plain rule that holds once its frequencies are rounded to half precision."""
    if (freq <= 0).any():
        return None
    rough = _rough(i, freq).base(width)
    for base in (*BASES, *(float(f"{rough:.{d}e}") for d in range(3))):
        plain = base ** (-2 * i / width)
        for dtype in (torch.bfloat16, torch.float16):
            near = torch.from_numpy(plain).to(dtype).double().numpy()
            if base > 1 and bool((np.abs(near - freq) <= 1e-5 * freq + resolution).all()):
                name = str(dtype)[6:]
                why = f"the base to more digits than frequencies in {name} have; {base:,.8g} gives these"
                return Fit("none", base, plain, {}, (why,), name)
    return None


def _rough(i: Array, freq: Array) -> Line:
    slope, offset = np.polyfit(i, np.log(freq), 1)
    return Line(float(offset), -float(slope))


def _aliased(i: Array, freq: Array, resolution: float | Array) -> Line | None:
    """Return a line through the slow half that gives the fast ones modulo 2 pi; None if none does."""
    half = len(freq) // 2
    part = slice(half, None)
    close = slack(freq, resolution)
    if half < LEAST or (line := line_of(i[part], freq[part], close[part])) is None:
        return None
    want = line.at(i)
    away = np.abs(np.angle(np.exp(1j * (want - freq))))
    fine = away <= 4 * slack(want, resolution) * (1 + i[::-1])
    return line if bool(fine.all()) and bool((want > np.pi).any()) else None


def _list(i: Array, freq: Array, width: int) -> Fit:
    base = BASES[0]
    factors = (base ** (-2 * i / width) / freq).tolist()
    why = "the base: frequencies follow no rule, as those of a list of factors do; `factors` are for a base of 10000"
    return Fit("lists", None, freq, {"factors": factors}, (why,))
