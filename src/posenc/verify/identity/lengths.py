"""Frequencies that depend on the length of the text: where they change, and by which rule."""

import time
from dataclasses import replace
from typing import Any

import numpy as np

from posenc.verify.guard import SubjectError
from posenc.verify.identity.angles import Turns, slopes
from posenc.verify.identity.fit import fit
from posenc.verify.identity.lines import Fit, snap
from posenc.verify.identity.matrix import Array
from posenc.verify.identity.reading import DENSE, SAME, Reader

FIRST = 4  # tokens of the shortest text
SECONDS = 1.0  # for one long text


def switch(read: Reader) -> tuple[int | None, bool | None]:
    """Return the longest text that is turned as the shortest one, None if all are; and whether to feed all tokens.

    Some look at the last position, some count tokens: where positions can be given, both are tried.
    """
    ways: tuple[bool | None, ...] = (None,) if read.turner.reach != "any" else (None, True)
    for whole in ways:
        # positions far out in one call, or in a text that is fed whole
        top = read.top if whole is None and read.turner.reach == "any" else min(read.top, DENSE)
        try:
            found = _doubling(read, top, whole) if whole is None else _ends(read, top)
        except SubjectError:
            continue
        if found is not None:
            return found, whole
    return None, None


def _doubling(read: Reader, top: int, whole: bool | None) -> int | None:
    before, n = read.text(FIRST, whole=whole), FIRST
    while n < top:
        n = min(2 * n, top)
        now = read.text(n, whole=whole)
        if _differ(before, now):
            return _between(read, before, n, whole)
        before = now
    return None


def _ends(read: Reader, top: int) -> int | None:
    """Compare the shortest text with a long one alone, all tokens fed; of slow code one that is not so long."""
    begin = time.perf_counter()
    before = read.text(64, whole=True)
    top = min(top, max(64, int(64 * SECONDS / (time.perf_counter() - begin))))
    return _doubling(read, top, True) if _differ(before, read.text(top, whole=True)) else None


def _between(read: Reader, before: tuple[Turns, Turns], changed: int, whole: bool | None) -> int:
    alike = int(before[0].pos[-1]) + 1
    while changed - alike > 1:
        middle = (alike + changed) // 2
        if _differ(before, read.text(middle, whole=whole)):
            changed = middle
        else:
            alike = middle
    return alike


def _differ(a: tuple[Turns, Turns], b: tuple[Turns, Turns]) -> bool:
    _, i, j = np.intersect1d(a[0].pos, b[0].pos, return_indices=True)
    return any(bool(np.abs(s.first[i] - t.first[j]).max() > SAME) for s, t in zip(a, b, strict=True))


def scaled(
    read: Reader, short: Fit, end: int, width: int, *, whole: bool | None, gain: float | None
) -> tuple[Fit, dict[str, Any]]:
    """Return the rule of frequencies that change beyond a length, and what was measured.

    Args:
        read: The subject.
        short: The rule of short texts.
        end: The longest of them.
        width: Lanes over which exponents count.
        whole: Whether all tokens must be fed.
        gain: That of short texts.
    """
    top = read.top if whole is None and read.turner.reach == "any" else min(read.top, DENSE)
    lengths = sorted({min(n, top) for n in (end + 1, end + end // 2, 2 * end, 4 * end, 8 * end) if n > end})
    found, gains = {}, {}
    for n in lengths:
        q, _ = read.text(n, whole=whole)
        freq, _, bent = slopes(q)
        if bent < 0.05:
            found[n] = np.abs(freq)
            gains[n] = float(np.median(np.abs(q.first)))
    measured: dict[str, Any] = {"switch": end, "frequencies_by_length": {n: f.tolist() for n, f in found.items()}}
    if not found:
        why = f"what texts of more than {end} tokens are turned by: angles are not proportional to the position"
        return replace(short, kind="other", unknown=(*short.unknown, why)), measured
    first, last = found[min(found)], found[max(found)]
    if len(found) > 1 and (np.abs(last / first - 1) > 1e-3).any():
        return _growing(short, found, end, width), measured
    long_gain = round(snap(gains[max(found)], 2e-6), 6)
    return _lists(short, last, end, width, max(found), gain, long_gain), measured


def _growing(short: Fit, found: dict[int, Array], end: int, width: int) -> Fit:
    """Fit dynamic NTK: the base grows with the length, beyond the trained one."""
    by_length = {n: fit(f, 5e-7 / n, width, width) for n, f in found.items()}
    bases = {n: f.base for n, f in by_length.items() if f.base is not None and f.kind in ("none", "ntk")}
    parameters: dict[str, Any] = {"original_max_len": end}
    if short.base is None or width <= 2 or len(bases) < 2:
        why = f"how frequencies grow with texts of more than {end} tokens: by no base"
        return replace(short, kind="dynamic", parameters=parameters, unknown=(*short.unknown, why))
    grown = {n: (b / short.base) ** ((width - 2) / width) - 1 for n, b in bases.items()}
    n = np.array(list(grown), dtype=float)
    g = np.array(list(grown.values()))
    x = (n - end) / end
    factor = snap(float((x * g).sum() / (x * x).sum()), 1e-3)
    if (np.abs(g - factor * x) < 2e-3 * (1 + g)).all():
        return replace(short, kind="dynamic", parameters=parameters | {"factor": factor})
    listed = ", ".join(f"{b:,.6g} at {n}" for n, b in bases.items())
    why = f"by which rule the base grows beyond {end} tokens: it is {listed}"
    return replace(short, kind="dynamic", parameters=parameters, unknown=(*short.unknown, why))


def _lists(short: Fit, long: Array, end: int, width: int, longest: int, gain: float | None, long_gain: float) -> Fit:
    """Say which factors switch at a length, and what else may be."""
    base, unknown, i = short.base, list(short.unknown), np.arange(len(long))
    fitted = fit(long, 5e-7 / longest, width, width)
    if base is None and fitted.base is not None and fitted.kind == "none":
        base = fitted.base
    if np.abs(long / short.inv_freq - 1).max() < 1e-4:
        parameters = short.parameters | {"switch": end, "long_gain": long_gain}
        return replace(short, parameters=parameters, unknown=(*unknown, f"why the gain alone changes beyond {end}"))
    assumed = base or 10000.0
    plain = assumed ** (-2.0 * i / width)
    unknown = [why for why in unknown if not why.startswith("the base:")]
    if base is None:
        unknown.append("the base: both lists of factors are free; those told are for a base of 10000")
    parameters = {
        "original_max_len": end,
        "short_factor": [snap(float(f), 1e-5) for f in plain / short.inv_freq],
        "long_factor": [snap(float(f), 1e-5) for f in plain / long],
    }
    if gain is not None and abs(gain - long_gain) > 1e-4:
        parameters["long_gain"] = long_gain
    return replace(short, kind="longrope", base=base, parameters=parameters, unknown=tuple(unknown))
