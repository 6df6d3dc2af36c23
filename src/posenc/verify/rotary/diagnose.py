"""Why scores are not those asked for: one tested statement after the other, the first that explains them."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from posenc.verify.report import Cause
from posenc.verify.rotary import places
from posenc.verify.rotary.angles import Turns, probe, slopes
from posenc.verify.rotary.bench import CLOSE, Bench
from posenc.verify.rotary.blocks import blocks_of, structure_of
from posenc.verify.rotary.guess import Guess
from posenc.verify.rotary.hypotheses import guesses
from posenc.verify.rotary.matrix import Array, structure
from posenc.verify.rotary.scores import lanes


def explain(bench: Bench) -> Cause:
    """Return the first cause of scores that differ."""
    sides = structure(bench.matrices.q), structure(bench.matrices.k)
    for tell in (structure_of, blocks_of):
        if (cause := tell(bench, *sides)) is not None:
            return cause
    pairs = tuple(lanes(bench.asked, bench.layout))
    return of_angles(bench, pairs)


def of_angles(bench: Bench, pairs: tuple[tuple[int, int], ...]) -> Cause:
    """Return the first cause of angles that differ, where the right lanes turn together."""
    q, k = probe(bench.turner.fresh(), bench.asked.head_dim, pairs, bench.pos)
    for ask in (_table, _sides, _gain, places.positions, _frequencies, places.elsewhere):
        if (cause := ask(bench, q, k)) is not None:
            return _unscaled(bench, q, k, cause) or cause
    off = float(np.abs(q.first - _right(bench)).max())
    return Cause(
        "rope.mismatch", f"turned lanes are off by up to {off:.3g}, in no way that is known", off, bench.case()
    )


def _unscaled(bench: Bench, q: Turns, k: Turns, cause: Cause) -> Cause | None:
    """Tell a gain that is lost with the whole scaling, whose frequencies are lost too."""
    if not cause.code.endswith((".gain_lost", ".attention_factor")) or abs(cause.evidence - 1) > CLOSE:
        return None
    whole = _frequencies(bench, q, k)
    if whole is None or whole.code != "rope.config.scaling_ignored":
        return None
    return replace(whole, message=f"{whole.message}; and {cause.message}", consequences=(cause.code,))


def _right(bench: Bench) -> NDArray[np.complex128]:
    """Return gain * exp(i angle) as it should be."""
    where, freq = bench.pos.double().numpy(), bench.asked.inv_freq(bench.seq_len)
    angles = np.outer(where, freq)
    return bench.asked.gain(bench.seq_len) * (np.cos(angles) + 1j * np.sin(angles))


def _table(bench: Bench, q: Turns, k: Turns) -> Cause | None:
    """Tell cosines and sines that are rounded, though the vectors are not."""
    right = _right(bench)
    for dtype, name in ((torch.bfloat16, "bf16"), (torch.float16, "fp16")):
        parts = [torch.from_numpy(np.ascontiguousarray(t)).to(dtype).double().numpy() for t in (right.real, right.imag)]
        off = np.abs(q.first - (parts[0] + 1j * parts[1]))
        if (off < 1e-6).mean() > 0.9 and np.abs(q.first - right).max() < 4 * torch.finfo(dtype).eps:
            error = float(np.abs(q.first - right).max())
            message = f"cosines and sines are rounded to {str(dtype)[6:]}, and vectors are float32: off by {error:.3g}"
            help_ = "Keep the table in float32; round the result, if at all."
            return Cause(f"rope.precision.table_{name}", message, error, bench.case(), help_)
    return None


def _sides(bench: Bench, q: Turns, k: Turns) -> Cause | None:
    """Tell queries and keys that are not turned alike."""
    zq, zk = q.first / np.abs(q.first), k.first / np.abs(k.first)
    if np.abs(zq - zk).max() < CLOSE:
        return None
    if np.abs(zq - zk.conj()).max() < CLOSE:
        message = "queries and keys turn in opposite directions: scores depend on the sum of positions"
        return Cause(
            "rope.sign.one_side", message, float(np.abs(zq - zk).max()), bench.case(), "Turn both the same way."
        )
    moved = np.angle(zq / zk)
    if np.abs(np.angle(np.exp(1j * (moved - moved[:1])))).max() < CLOSE:
        freq = bench.asked.inv_freq(bench.seq_len)
        shift = float(moved[0, 0] / freq[0])
        message = f"queries and keys of one position differ by a turn of {shift:.4g} positions, whatever the position"
        return Cause(
            "rope.offset.sides_differ", message, shift, bench.case(), "Count queries and keys from the same place."
        )
    first = int(np.argmax(np.abs(zq - zk).max(1) > CLOSE))
    message = f"queries and keys are turned by different angles, first at position {int(q.pos[first])}"
    return Cause("rope.side.differ", message, float(np.abs(zq - zk).max()), bench.case(), "Turn both by one table.")


_GAIN_HELP = "Multiply cos and sin by the attention factor once, as configured."


def _gain(bench: Bench, q: Turns, k: Turns) -> Cause | None:
    """Tell lanes that are made longer or shorter than asked for."""
    want = bench.asked.gain(bench.seq_len)
    sizes = np.sqrt(np.abs(q.first) * np.abs(k.first))
    got = float(np.sqrt(np.median(np.abs(q.first) * np.abs(k.first))))
    if np.abs(sizes - want).max() < CLOSE * max(1.0, want):
        return _still(bench, q, k)
    case = bench.case(gain=got, wanted=want)
    if np.ptp(sizes) > CLOSE * got:
        message = f"turned lanes change their length by factors from {sizes.min():.4g} to {sizes.max():.4g}"
        help_ = "A turn keeps lengths: cos² + sin² = 1."
        return Cause("rope.gain.varies", message, float(np.ptp(sizes)), case, help_)
    for name, value, words in _known_gains(bench, want):
        if abs(got - value) < CLOSE * value and abs(value - want) > CLOSE:
            message = f"turned lanes are multiplied by {got:.5g}, which is {words} {want:.5g}"
            return Cause(_gain_code(bench, name), message, got, case, _GAIN_HELP)
    message = f"turned lanes are multiplied by {got:.5g}; it should be {want:.5g}"
    return Cause(_gain_code(bench, "gain"), message, got, case, _GAIN_HELP)


def _known_gains(bench: Bench, want: float) -> Iterator[tuple[str, float, str]]:
    """Yield the end of a code, the gain that such a fault makes, and words before the right one."""
    factor = (bench.asked.rotary.factor if bench.asked.rotary is not None else None) or 1.0
    log = float(np.log(factor)) if factor > 1 else 0.0
    formula = 0.1 * log + 1
    yield "attention_factor", formula, "0.1 ln(factor) + 1, where it should be"
    yield "gain_squared", want**2, "the square of"
    yield "gain_squared", want * formula, "the given gain times 0.1 ln(factor) + 1, where it should be"
    yield "mscale_of_mscale", 0.1 * want * log + 1, "0.1 gain ln(factor) + 1, where it should be"
    yield "gain_lost", 1.0, "missing: it should be"
    yield "gain_inverted", 1 / want, "the inverse of"
    yield "gain_root", want**0.5, "the root of"
    yield "gain_is_factor", factor, "the factor of the length, where it should be"


def _gain_code(bench: Bench, name: str) -> str:
    """Return the code of a gain; "gain" for one that nothing explains."""
    asked = bench.asked
    if asked.scaling == "default":
        return f"rope.{name}"
    told = asked.rotary is not None and "attention_factor" in asked.rotary.parameters
    if (name == "gain_lost" and told) or (name == "gain" and asked.scaling == "yarn"):
        return f"rope.{asked.scaling}.attention_factor"
    return f"rope.{asked.scaling}.{name}"


def _still(bench: Bench, q: Turns, k: Turns) -> Cause | None:
    if q.still.size and np.abs(q.still * k.still - 1).max() > CLOSE:
        value = float(np.sqrt(np.abs(q.still * k.still)).max())
        message = f"lanes that do not turn are multiplied by {value:.5g}; they should be passed through"
        return Cause(
            "rope.partial.still_lanes_scaled", message, value, bench.case(), "Pass lanes beyond rotary_dim through."
        )
    return None


def _frequencies(bench: Bench, q: Turns, k: Turns) -> Cause | None:
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
