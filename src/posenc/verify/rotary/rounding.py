"""Angles that are formed in half precision whatever x comes in: which steps are rounded, by what they predict."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from posenc.verify.report import Cause
from posenc.verify.rotary.angles import Turns
from posenc.verify.rotary.bench import Bench
from posenc.verify.rotary.matrix import Array
from posenc.verify.rotary.scores import EPS

Complex = NDArray[np.complex128]
SHARE = 0.05  # of wrong lanes that a prediction may miss: float32 before it rounds a few to the neighbour
KEEP = {
    "positions": "Keep positions as integers or in float32 until cos and sin are taken.",
    "frequencies": "Keep inv_freq in float32 when the model is cast, or form it anew from the base.",
    "product": "Form angles in float32 from integer or float32 positions; round cos and sin, or the result.",
}


def near(t: Array, dtype: torch.dtype) -> Array:
    """Return numbers rounded to a half precision."""
    rounded: Array = torch.from_numpy(np.ascontiguousarray(t)).to(dtype).double().numpy()
    return rounded


def ways(pos: Array, freq: Array, dtype: torch.dtype) -> Iterator[tuple[str, str, Array]]:
    """Yield what may be rounded: a word of the code, words, and the angles that follow; fewer steps first."""

    def cut(t: Array) -> Array:
        return near(t, dtype)

    yield "positions", "positions are rounded to", np.outer(cut(pos), freq)
    yield "frequencies", "frequencies are rounded to", np.outer(pos, cut(freq))
    yield "product", "products of positions and frequencies are rounded to", cut(np.outer(pos, freq))
    yield "positions", "positions and frequencies are rounded to", np.outer(cut(pos), cut(freq))
    says = "frequencies and their products with positions are rounded to"
    yield "product", says, cut(np.outer(pos, cut(freq)))
    says = "positions and their products with frequencies are rounded to"
    yield "product", says, cut(np.outer(cut(pos), freq))
    says = "positions, frequencies and their products are rounded to"
    yield "product", says, cut(np.outer(cut(pos), cut(freq)))


@dataclass(frozen=True)
class _Guess:
    """Steps that are rounded, and the turned lanes that follow.

    Args:
        what: The word of the code.
        says: Words before the name of the type.
        dtype: The half precision.
        tables: Whether cosines and sines are rounded too.
        z: (positions, pairs).
    """

    what: str
    says: str
    dtype: torch.dtype
    tables: bool
    z: Complex

    def missed(self, z: Complex, slack: Array) -> int:
        """Return how many lanes are other than predicted, in either direction of the turn."""
        if not np.isfinite(self.z).all():
            return int(z.size)
        return int(min((np.abs(z - way) > slack).sum() for way in (self.z, self.z.conj())))


def formed(bench: Bench, q: Turns, k: Turns) -> Cause | None:
    """Tell angles that are formed in half precision before the cosine is taken."""
    pos, freq = bench.pos.double().numpy(), bench.asked.inv_freq(bench.seq_len)
    gain, slack = bench.asked.gain(bench.seq_len), 1e-4 + 16 * EPS * np.outer(pos, freq)
    right = gain * (np.cos(np.outer(pos, freq)) + 1j * np.sin(np.outer(pos, freq)))
    wrong = [int(min((np.abs(t.first - way) > slack).sum() for way in (right, right.conj()))) for t in (q, k)]
    if not any(wrong):
        return None
    turns, told, off = (q, "", wrong[0]) if wrong[0] else (k, " of keys alone", wrong[1])
    if wrong[0] and not wrong[1]:
        told = " of queries alone"
    guesses = list(_guesses(pos, freq, gain))
    counts = [g.missed(turns.first, slack) for g in guesses]
    best = guesses[int(np.argmin(counts))]
    if min(counts) > SHARE * off or (not told and best.missed(k.first, slack) > SHARE * wrong[1]):
        return None
    return _cause(bench, best, turns, told, right, slack)


def _guesses(pos: Array, freq: Array, gain: float) -> Iterator[_Guess]:
    for dtype in (torch.bfloat16, torch.float16):
        for what, says, angles in ways(pos, freq, dtype):
            if not np.isfinite(angles).all():
                continue  # positions that this type does not hold
            parts = gain * np.cos(angles), gain * np.sin(angles)
            yield _Guess(what, says, dtype, False, parts[0] + 1j * parts[1])
            yield _Guess(what, says, dtype, True, near(parts[0], dtype) + 1j * near(parts[1], dtype))


def _cause(bench: Bench, guess: _Guess, turns: Turns, told: str, right: Complex, slack: Array) -> Cause:
    off = np.minimum(np.abs(turns.first - right), np.abs(turns.first - right.conj()))
    what, name = guess.what, "bf16" if guess.dtype == torch.bfloat16 else "fp16"
    dtype, first = str(guess.dtype)[6:], int(turns.pos[int((off > slack).any(1).argmax())])
    more = ", and cosines and sines are rounded as well" if guess.tables else ""
    message = (
        f"{guess.says} {dtype} before the cosine is taken{told}{more}, though x is float32: wrong from position "
        f"{first} on, lanes by up to {float(off.max()):.3g}"
    )
    case = bench.case(position=first, dtype=dtype)
    return Cause(f"rope.precision.{what}_{name}", message, float(first), case, KEEP[what])
