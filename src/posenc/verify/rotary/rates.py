"""Why pairs turn at other speeds than those asked for: the known fault that predicts the measured ones."""

from typing import Any

import numpy as np

from posenc.verify.report import Cause
from posenc.verify.rotary.angles import Turns, slopes
from posenc.verify.rotary.bench import Bench
from posenc.verify.rotary.guess import Guess
from posenc.verify.rotary.hypotheses import guesses
from posenc.verify.rotary.matrix import Array


def frequencies(bench: Bench, q: Turns, k: Turns) -> Cause | None:
    """Tell wrong frequencies, by the known fault that predicts them best."""
    at = {int(p) for p in q.pos}
    if 1 not in at or 0 not in at:
        return None
    measured, _, bent = slopes(q)
    right, top = bench.asked.inv_freq(bench.seq_len), float(max(p for p in at if p & (p - 1) == 0))
    if bent > 0.05 or _off(measured, right, top) < 1:
        return None
    shares = np.abs(measured - right) / np.where(right == 0, 1.0, np.abs(right))
    pair = int(np.argmax(shares))
    case = bench.case(pair=pair, frequency=float(measured[pair]), wanted=float(right[pair]))
    told = f"pair {pair} turns by {measured[pair]:.6g} a position where {right[pair]:.6g} is asked for"
    guess = _best(bench, measured, right, top)
    if guess is not None:
        return Cause(guess.code, f"{guess.says}; {told}", float(shares.max()), case)
    if (fitted := _of_one_number(bench, measured, right, told, case)) is not None:
        return fitted
    kind = bench.asked.scaling
    code = "rope.frequency.mismatch" if kind == "default" else f"rope.{kind}.mismatch"
    help_ = "Form frequencies in float64 or float32 as base^(-2i/rotary_dim), then scale them as configured."
    return Cause(code, f"{told}, by no rule that is known", float(shares.max()), case, help_)


def _off(measured: Array, freq: Array, top: float) -> float:
    """Return how far frequencies are from measured ones, over what was seen of them up to the position `top`."""
    if not np.isfinite(freq).all():
        return np.inf
    away = np.abs(np.angle(np.exp(1j * (measured - freq))))
    return float((away / (1e-5 * np.abs(freq) + 1e-5 / top)).max())


def _best(bench: Bench, measured: Array, right: Array, top: float) -> Guess | None:
    """Return the first known fault that gives the measured frequencies; None if none does."""
    away = [np.median(np.abs(np.angle(np.exp(1j * (measured - way * right))))) for way in (1, -1)]
    order = 1.0 if away[0] <= away[1] else -1.0
    known = guesses(bench.asked, bench.seq_len)
    return next((g for g in known if _off(measured, order * g.inv_freq, top) <= 1), None)


def _of_one_number(bench: Bench, measured: Array, right: Array, told: str, case: dict[str, Any]) -> Cause | None:
    """Tell another base, or one factor of all frequencies."""
    fitted, base = _fit(measured), bench.asked.base
    if fitted is not None:
        message = f"the base is {fitted:,.6g}, where {base:,.6g} is asked for ({fitted / base:.4g} times); {told}"
        return Cause("rope.frequency.base", message, fitted, case, "Read the base from the configuration.")
    ratios = measured / np.where(right == 0, np.nan, right)
    if not np.ptp(ratios) < 1e-4 * abs(ratios.mean()):
        return None
    message = f"all frequencies are {ratios.mean():.6g} times those asked for; {told}"
    help_ = "Leave positions and frequencies unscaled."
    return Cause("rope.frequency.factor", message, float(ratios.mean()), case, help_)


def _fit(freq: Array) -> float | None:
    """Return the base of frequencies that fall geometrically from 1; None if they do not."""
    n = len(freq)
    if n < 3 or (freq <= 0).any() or abs(freq[0] - 1) > 1e-4:
        return None
    steps = np.diff(np.log(freq))
    return float(np.exp(-steps.mean() * n)) if np.ptp(steps) < 1e-3 * abs(steps.mean()) else None
