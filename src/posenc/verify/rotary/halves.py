"""What half precision does to a rotation: which step is rounded, and what such a call leaves behind."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from posenc.verify.guard import SubjectError
from posenc.verify.report import Cause
from posenc.verify.rotary.angles import Turns, probe
from posenc.verify.rotary.bench import Bench
from posenc.verify.rotary.matrix import Array
from posenc.verify.rotary.rounding import KEEP, ways
from posenc.verify.rotary.scores import EPS, lanes

WRONG = 1e-3  # of a turned lane, beyond all rounding


def precision(bench: Bench) -> Cause | None:
    """Feed half precision: angles must stay those of the positions."""
    pairs, freq = tuple(lanes(bench.asked, bench.layout)), bench.asked.inv_freq(bench.seq_len)
    end = int(bench.matrices.pos[-1]) + 1
    listed = sorted({*bench.matrices.pos.tolist(), *(p for p in (255, 256, 257, 259, 511, 1023, 2049) if p < end)})
    if bench.turner.reach == "start":
        listed = list(range(end))
    pos = torch.tensor(listed)
    turner = bench.turner.fresh()
    declared = bench.asked.activation_dtype
    for dtype, name in ((torch.bfloat16, "bf16"), (torch.float16, "fp16")):
        if declared not in (None, str(dtype)[6:]):
            continue
        try:
            q, _ = probe(turner, bench.asked.head_dim, pairs, pos, dtype)
        except SubjectError:
            continue  # it does not take this dtype
        if not np.isfinite(q.first).all() or not np.abs(q.first).all():
            continue  # lengths that this dtype does not hold
        if (cause := _rounded(bench, q, freq, dtype, name)) is not None:
            return cause
    q, _ = probe(turner, bench.asked.head_dim, pairs, bench.matrices.pos)
    clean, _ = probe(bench.turner.fresh(), bench.asked.head_dim, pairs, bench.matrices.pos)
    if (off := float(np.abs(q.first - clean.first).max())) > WRONG:
        message = f"after a call in half precision float32 is off by up to {off:.3g}: a rounded table is kept"
        help_ = "Keep the table in float32, and cast what is taken from it."
        return Cause("rope.precision.table_kept_in_half", message, off, bench.case(), help_)
    return None


def _only_later(bench: Bench, dtype: torch.dtype) -> bool:
    """Whether a short call in half precision leaves right tables behind, and a long one does not."""
    pairs, near = tuple(lanes(bench.asked, bench.layout)), bench.matrices.pos[:4]
    clean, _ = probe(bench.turner.fresh(), bench.asked.head_dim, pairs, bench.matrices.pos)
    left = []
    for pos in (near, bench.matrices.pos):
        turner = bench.turner.fresh()
        probe(turner, bench.asked.head_dim, pairs, pos, dtype)
        found, _ = probe(turner, bench.asked.head_dim, pairs, bench.matrices.pos)
        left.append(float(np.abs(found.first - clean.first).max()) > WRONG)
    return left == [False, True]


@dataclass(frozen=True)
class _Seen:
    """Angles that were seen in half precision.

    Args:
        pos: (positions,).
        z: Turned lanes, complex (positions, pairs).
        signed: Frequencies, with the sign of the direction.
        dtype: The half precision.
    """

    pos: Array
    z: NDArray[np.complex128]
    signed: Array
    dtype: torch.dtype

    @classmethod
    def of(cls, turns: Turns, freq: Array, dtype: torch.dtype) -> "_Seen":
        """Take what was turned, and find its direction."""
        z, pos = turns.first, turns.pos
        start = z[0] / np.abs(z[0])
        ahead = np.abs(np.angle(z[1:4] / start * np.exp(-1j * np.outer(pos[1:4], freq)))).max() < 0.2
        return cls(pos, z / start, freq if ahead else -freq, dtype)

    def error(self, angles: Array) -> Array:
        """Return how far angles are from those that were seen."""
        found: Array = np.abs(np.angle(self.z * np.exp(-1j * angles)))
        return found

    @property
    def slack(self) -> Array:
        """What honest rounding makes, (positions, pairs)."""
        found: Array = 8 * torch.finfo(self.dtype).eps + 16 * EPS * np.outer(self.pos, np.abs(self.signed))
        return found


def _rounded(bench: Bench, turns: Turns, freq: Array, dtype: torch.dtype, name: str) -> Cause | None:
    """Tell angles that are formed in half precision, by the step whose rounding predicts them best."""
    seen = _Seen.of(turns, freq, dtype)
    right = seen.error(np.outer(seen.pos, seen.signed))
    if not (right > seen.slack).any():
        return None
    begin = int((right > seen.slack).any(1).argmax())
    guesses = list(ways(seen.pos, seen.signed, dtype))
    errors = [float((seen.error(angles) / seen.slack)[begin:].max()) for _, _, angles in guesses]
    best, first, off = int(np.argmin(errors)), int(seen.pos[begin]), float(right.max())
    case = {"dtype": str(dtype)[6:], "position": first}
    if errors[best] > 4:
        message = f"in {str(dtype)[6:]} angles are off by up to {off:.3g} rad, from position {first} on"
        return Cause(f"rope.precision.angle_{name}", message, float(first), case, KEEP["product"])
    what, says, _ = guesses[best]
    if what == "frequencies" and _only_later(bench, dtype):
        message = (
            f"{says} {str(dtype)[6:]}, but for positions below {first}: a table is formed anew from rounded numbers"
        )
        return Cause("rope.precision.cache_rebuilt_in_low_precision", message, float(first), case, KEEP[what])
    message = (
        f"{says} {str(dtype)[6:]} before the cosine is taken: wrong from position {first} on, by up to {off:.3g} rad"
    )
    return Cause(f"rope.precision.{what}_{name}", message, float(first), case, KEEP[what])
