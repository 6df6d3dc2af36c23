"""Why scores are not those asked for: one tested statement after the other, the first that explains them."""

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from posenc.verify.report import Cause
from posenc.verify.rotary.angles import Turns, probe, slopes
from posenc.verify.rotary.bench import CLOSE, Bench
from posenc.verify.rotary.blocks import blocks_of, structure_of
from posenc.verify.rotary.hypotheses import guesses
from posenc.verify.rotary.matrix import Array, runs, structure
from posenc.verify.rotary.scores import EPS, lanes


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
    for ask in (_table, _sides, _gain, _positions, _frequencies):
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


def _gain(bench: Bench, q: Turns, k: Turns) -> Cause | None:
    """Tell lanes that are made longer or shorter than asked for."""
    want = bench.asked.gain(bench.seq_len)
    size = np.abs(q.first) * np.abs(k.first)
    got = float(np.sqrt(np.median(size)))
    if np.abs(np.sqrt(size) - want).max() < CLOSE * max(1.0, want):
        return _still(bench, q, k)
    case = bench.case(gain=got, wanted=want)
    if np.ptp(np.sqrt(size)) > CLOSE * got:
        message = (
            f"turned lanes change their length by factors from {np.sqrt(size).min():.4g} to {np.sqrt(size).max():.4g}"
        )
        return Cause(
            "rope.gain.varies", message, float(np.ptp(np.sqrt(size))), case, "A turn keeps lengths: cos² + sin² = 1."
        )
    factor = (bench.asked.rotary.factor if bench.asked.rotary is not None else None) or 1.0
    formula = 0.1 * np.log(factor) + 1 if factor > 1 else 1.0
    scaling = bench.asked.scaling if bench.asked.scaling != "default" else "rope"
    known = {
        "attention_factor": (formula, "0.1 ln(factor) + 1, where it should be"),
        "gain_squared": (want**2, "the square of"),
        "gain_squared ": (want * formula, "the given gain times 0.1 ln(factor) + 1, where it should be"),
        "mscale_of_mscale": (
            0.1 * want * np.log(factor) + 1 if factor > 1 else 1.0,
            "0.1 gain ln(factor) + 1, where it should be",
        ),
        "gain_lost": (1.0, "missing: it should be"),
        "gain_inverted": (1 / want, "the inverse of"),
        "gain_root": (want**0.5, "the root of"),
        "gain_is_factor": (factor, "the factor of the length, where it should be"),
    }
    for name, (value, words) in known.items():
        if abs(got - value) < CLOSE * value and abs(value - want) > CLOSE:
            code = f"{'rope.' if scaling != 'rope' else ''}{scaling}.{name.strip()}"
            if (
                name == "gain_lost"
                and bench.asked.rotary is not None
                and "attention_factor" in bench.asked.rotary.parameters
            ):
                code = f"rope.{scaling}.attention_factor"
            message = f"turned lanes are multiplied by {got:.5g}, which is {words} {want:.5g}"
            return Cause(code, message, got, case, "Multiply cos and sin by the attention factor once, as configured.")
    message = f"turned lanes are multiplied by {got:.5g}; it should be {want:.5g}"
    code = (
        "rope.yarn.attention_factor" if scaling == "yarn" else f"{'rope.' if scaling != 'rope' else ''}{scaling}.gain"
    )
    return Cause(code, message, got, case, "Multiply cos and sin by the attention factor once, as configured.")


def _still(bench: Bench, q: Turns, k: Turns) -> Cause | None:
    if q.still.size and np.abs(q.still * k.still - 1).max() > CLOSE:
        value = float(np.sqrt(np.abs(q.still * k.still)).max())
        message = f"lanes that do not turn are multiplied by {value:.5g}; they should be passed through"
        return Cause(
            "rope.partial.still_lanes_scaled", message, value, bench.case(), "Pass lanes beyond rotary_dim through."
        )
    return None


def _positions(bench: Bench, q: Turns, k: Turns) -> Cause | None:
    """Tell right frequencies at wrong positions."""
    freq, pos = bench.asked.inv_freq(bench.seq_len), bench.pos.double().numpy()
    z = q.first / np.abs(q.first)
    for code, says, other in _maps(pos, bench.turner.reach):
        if not np.isfinite(other).all():
            continue  # beyond what half precision holds
        if np.abs(z - np.exp(1j * np.outer(other, freq))).max() < CLOSE + 16 * EPS * np.abs(other).max() * freq.max():
            wrong = np.flatnonzero(other != pos)
            at = int(pos[wrong[0]]) if len(wrong) else 0
            message = (
                f"{says}: the token at position {at} is turned as if it stood at {other[wrong[0]]:g}"
                if len(wrong)
                else says
            )
            help_ = "Turn each token by the position that it is given, in float32 or as an integer."
            return Cause(code, message, float(at), bench.case(position=at), help_)
    return None


def _maps(pos: Array, reach: str) -> list[tuple[str, str, Array]]:
    n = np.arange(len(pos), dtype=float)
    calls = runs([int(p) for p in pos])
    starts = np.array([first for first, _, wanted in calls for _ in wanted], dtype=float)  # of the calls that asked
    found = []
    if reach == "run":
        found.append(("rope.offset.ignored", "the offset is not used", pos - starts))
        found.append(("rope.window.positions_constant", "all tokens of a call get the position of its first", starts))
        after = np.where(starts > 0, starts, pos)
        found.append(
            ("rope.window.positions_constant", "all tokens behind an offset get the position of the first", after)
        )
    found += [
        ("positions.given_ignored", "the positions that are given are not used, tokens are counted instead", n),
        ("positions.given_ignored", "tokens are counted from 1, whatever positions are given", n + 1),
        ("rope.window.positions_constant", "all tokens get the position of the first", np.full_like(pos, pos[0])),
        ("rope.window.positions_constant", "all tokens get the position of the last", np.full_like(pos, pos[-1])),
        ("rope.positions.reversed", "positions run backwards", pos.max() - pos),
    ]
    for dtype, name in ((torch.bfloat16, "bf16"), (torch.float16, "fp16")):
        rounded = torch.from_numpy(pos).to(dtype).double().numpy()
        found.append((f"rope.precision.positions_{name}", f"positions are rounded to {str(dtype)[6:]}", rounded))
    for end in (512, 1024, 2048, 4096, 8192, 16384, 32768):
        found.append(
            ("rope.table.too_short", f"positions from {end:,} on are those of {end - 1:,}", np.minimum(pos, end - 1))
        )
        found.append(("rope.table.wraps", f"positions begin again at {end:,}", pos % end))
    return found


def _frequencies(bench: Bench, q: Turns, k: Turns) -> Cause | None:
    """Tell wrong frequencies, by the known fault that predicts them best."""
    at = {int(p) for p in q.pos}
    if 1 not in at or 0 not in at:
        return None
    measured, _, bent = slopes(q)
    right, top = bench.asked.inv_freq(bench.seq_len), float(max(p for p in at if p & (p - 1) == 0))
    if bent > 0.05:
        return None

    def error(freq: Array) -> float:
        away = np.abs(np.angle(np.exp(1j * (measured - freq))))
        return float((away / (1e-5 * np.abs(freq) + 1e-5 / top)).max()) if np.isfinite(freq).all() else np.inf

    if error(right) < 1:
        return None
    away = [np.median(np.abs(np.angle(np.exp(1j * (measured - way * right))))) for way in (1, -1)]
    order = 1.0 if away[0] <= away[1] else -1.0
    ranked = sorted(
        ((error(order * g.inv_freq), i, g) for i, g in enumerate(guesses(bench.asked, bench.seq_len))),
        key=lambda r: (r[0] > 1, r[1] if r[0] <= 1 else r[0]),
    )
    shares = np.abs(measured - right) / np.where(right == 0, 1.0, np.abs(right))
    pair = int(np.argmax(shares))
    case = bench.case(pair=pair, frequency=float(measured[pair]), wanted=float(right[pair]))
    told = f"pair {pair} turns by {measured[pair]:.6g} a position where {right[pair]:.6g} is asked for"
    share = float(shares.max())
    if ranked and ranked[0][0] <= 1:
        guess = ranked[0][2]
        return Cause(guess.code, f"{guess.says}; {told}", share, case)
    help_ = "Form frequencies in float64 or float32 as base^(-2i/rotary_dim), then scale them as configured."
    fitted = _fit(measured)
    if fitted is not None:
        ratio = fitted / bench.asked.base
        message = f"the base is {fitted:,.6g}, where {bench.asked.base:,.6g} is asked for ({ratio:.4g} times); {told}"
        return Cause("rope.frequency.base", message, fitted, case, "Read the base from the configuration.")
    ratios = measured / np.where(right == 0, np.nan, right)
    if np.ptp(ratios) < 1e-4 * abs(ratios.mean()):
        message = f"all frequencies are {ratios.mean():.6g} times those asked for; {told}"
        return Cause(
            "rope.frequency.factor", message, float(ratios.mean()), case, "Leave positions and frequencies unscaled."
        )
    kind = bench.asked.scaling
    code = "rope.frequency.mismatch" if kind == "default" else f"rope.{kind}.mismatch"
    return Cause(code, f"{told}, by no rule that is known", share, case, help_)


def _fit(freq: Array) -> float | None:
    """Return the base of frequencies that fall geometrically from 1; None if they do not."""
    n = len(freq)
    if n < 3 or (freq <= 0).any() or abs(freq[0] - 1) > 1e-4:
        return None
    steps = np.diff(np.log(freq))
    return float(np.exp(-steps.mean() * n)) if np.ptp(steps) < 1e-3 * abs(steps.mean()) else None
