"""Why scores are not those asked for: one tested statement after the other, the first that explains them."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from posenc.verify.report import Cause
from posenc.verify.rotary import places
from posenc.verify.rotary.angles import Turns, probe
from posenc.verify.rotary.bench import CLOSE, Bench
from posenc.verify.rotary.blocks import blocks_of, structure_of
from posenc.verify.rotary.matrix import structure
from posenc.verify.rotary.rates import frequencies
from posenc.verify.rotary.rounding import formed
from posenc.verify.rotary.scores import EPS, lanes
from posenc.verify.rotary.sides import apart


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
    for ask in (_lost, _table, formed, apart, _gain, places.positions, frequencies, _by_token, places.elsewhere):
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
    whole = frequencies(bench, q, k)
    if whole is None or whole.code != "rope.config.scaling_ignored":
        return None
    return replace(whole, message=f"{whole.message}; and {cause.message}", consequences=(cause.code,))


def _right(bench: Bench) -> NDArray[np.complex128]:
    """Return gain * exp(i angle) as it should be."""
    where, freq = bench.pos.double().numpy(), bench.asked.inv_freq(bench.seq_len)
    angles = np.outer(where, freq)
    return bench.asked.gain(bench.seq_len) * (np.cos(angles) + 1j * np.sin(angles))


def _lost(bench: Bench, q: Turns, k: Turns) -> Cause | None:
    """Tell lanes that come back as zeros from some position on."""
    for name, turns in (("queries", q), ("keys", k)):
        gone = np.abs(turns.first) < CLOSE
        if not gone.any():
            continue
        row = int(gone.any(1).argmax())
        first, share = int(turns.pos[row]), "all turned lanes" if gone[row].all() else f"{gone[row].sum()} turned pairs"
        message = f"{share} of {name} come back as zeros at position {first:,}"
        if row and gone[row:].all() and not gone[:row].any():
            message = (
                f"{share} of {name} come back as zeros from position {first:,} on; {int(turns.pos[row - 1]):,} is not"
            )
        help_ = "Make the table as long as the longest text, or raise an error where it ends; zeros hide a token."
        return Cause("rope.table.zeros", message, float(first), bench.case(position=first), help_)
    return None


def _by_token(bench: Bench, q: Turns, k: Turns) -> Cause | None:
    """Tell LongRoPE whose list of factors is chosen for each token by its position, not for the text."""
    trained, pos = bench.asked.trained, bench.pos.double().numpy()
    if bench.asked.scaling != "longrope" or trained is None or bench.seq_len <= trained:
        return None
    short, long = bench.asked.inv_freq(trained), bench.asked.inv_freq(bench.seq_len)
    slack = CLOSE + 16 * EPS * float(pos.max())
    for first in (trained, trained + 1):
        each = np.where(pos[:, None] >= first, long, short)
        z, way = q.first / np.abs(q.first), np.exp(1j * pos[:, None] * each)
        if min(np.abs(z - way).max(), np.abs(z - way.conj()).max()) < slack:
            message = (
                f"in a text of {bench.seq_len:,} tokens those before position {first:,} are turned by the short list "
                "and the others by the long one; the text as a whole is long"
            )
            help_ = "Choose one list for all tokens of a text, by its last position."
            return Cause("rope.longrope.list_by_token", message, float(first), bench.case(position=first), help_)
    return None


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
