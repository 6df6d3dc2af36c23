"""What identification reads off a rotation: which lanes turn together, and by how much in texts of a length."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from posenc.verify.guard import SubjectError, call
from posenc.verify.identity.angles import Pairs, Turns, probe
from posenc.verify.identity.matrix import Matrices, Structure, read, structure
from posenc.verify.identity.turner import HFRope, Turner, Undone
from posenc.verify.report import Cause

SIZES = (64, 32, 128, 16, 8, 96, 80, 256, 72, 40, 48, 24, 112, 160, 192, 4, 512)
FAR = 2**17  # positions that are tried; halved until they work
DENSE = 8192  # tokens of a text that is fed whole
FAILS = ("subject.raises", "subject.shape", "subject.not_finite")  # what a nearer position may mend
NUMBERS = 2**24  # of one tensor of basis vectors
SAME = 1e-5  # of a turned lane: the same subject at the same position rounds alike
ODD = (3, 5, 7, 11, 100, 101, 257, 1001, 4099, 9973, 20011, 40009, 60013, 77777, 99991, 120011)


@dataclass(frozen=True)
class Reader:
    """Reads a rotation whose pairs are known.

    Args:
        turner: The subject.
        head_dim: Lanes that are fed.
        pairs: Which lanes turn together.
        top: Positions that work.
    """

    turner: Turner
    head_dim: int
    pairs: Pairs
    top: int

    def at(self, pos: Tensor, dtype: torch.dtype = torch.float32) -> tuple[Turns, Turns]:
        """Return what happens to queries and keys at rising positions."""
        return probe(self.turner.fresh(), self.head_dim, self.pairs, pos, dtype)

    def text(self, n: int, *, whole: bool | None = None) -> tuple[Turns, Turns]:
        """Return the same at 0, 1, 2, 4, .. and some odd positions of a text of n tokens.

        Args:
            n: Its length.
            whole: Feed all tokens; None does so where the subject cannot be asked otherwise.
        """
        if whole is None:
            whole = self.turner.reach != "any"
        kept = positions(n)
        if not whole:
            return self.at(kept)
        sides = self.at(torch.arange(n))
        q, k = (Turns(t.pos[kept], t.first[kept], t.second[kept], t.still[kept]) for t in sides)
        return q, k


def positions(end: int) -> Tensor:
    """Return 0, 1, 2, 4, .., odd ones and the last, below an end."""
    steps = {0, end - 1, *(2**i for i in range(30) if 2**i < end), *(p for p in ODD if p < end)}
    return torch.tensor(sorted(steps), dtype=torch.int64)


def reader(turner: Turner, head_dim: int) -> tuple[Reader, Structure, Structure, str]:
    """Find which lanes turn together, as far out as the subject goes.

    Returns:
        A reader, the structures of queries and keys, and what was taken back at position 0, "" if nothing.

    Raises:
        SubjectError: No length works, or heads are mixed up.
    """
    matrices = _farthest(turner, head_dim)
    q, k = (_with_faint(side, structure(side)) for side in (matrices.q, matrices.k))
    undone = ""
    if q.tangled or k.tangled:
        turner, matrices, undone = _from_zero(turner, matrices)
        q, k = (_with_faint(side, structure(side)) for side in (matrices.q, matrices.k))
    return Reader(turner, head_dim, q.pairs, int(matrices.pos[-1]) + 1), q, k, undone


def _farthest(turner: Turner, head_dim: int) -> Matrices:
    end = FAR
    if turner.reach == "start":
        end = min(end, max(16, NUMBERS // (3 * head_dim**2)))
    while True:
        try:
            return read(turner.fresh(), head_dim, positions(end))
        except SubjectError as error:
            if error.cause.code not in FAILS or end <= 8:
                raise
            end //= 2


def _with_faint(matrices: Any, found: Structure) -> Structure:
    """Add pairs too slow for a threshold: what grows with the position is no rounding."""
    n = len(matrices)
    if len(found.still) < 2 or n < 4:
        return found
    last, before = np.abs(matrices[-1]), np.abs(matrices[n // 2])
    lanes, pairs, still = list(found.still), list(found.pairs), set(found.still)
    for a in lanes:
        strength = last[a].copy()
        strength[[a, *(i for i in range(len(last)) if i not in still)]] = 0.0
        b = int(strength.argmax())
        grows = strength[b] > 1e-12 and last[b, a] > 1e-12 and before[a, b] < 0.7 * strength[b]
        if a in still and b > a and grows and abs(last[b, a] / strength[b] - 1) < 0.01:
            pairs.append((a, b))
            still -= {a, b}
    return Structure(tuple(sorted(pairs)), tuple(sorted(still)), found.tangled)


def _from_zero(turner: Turner, near: Matrices) -> tuple[Turner, Matrices, str]:
    """Take back what happens at position 0 to queries and keys alike."""
    left, _, right = np.linalg.svd(near.q[0])
    origin = left @ right
    if np.abs(near.q[0] - near.k[0]).max() > 1e-4 or np.abs(origin - np.eye(len(origin))).max() < 1e-4:
        return turner, near, ""
    undone = Matrices(near.pos, origin.T @ near.q, origin.T @ near.k)
    said = "position 0 already mixes lanes or puts them in another order, alike for queries and keys; it was taken back"
    return Undone(turner, torch.from_numpy(origin)), undone, said


def width_of(turner: Turner, given: int | None) -> tuple[int, bool]:
    """Return lanes of a head that the subject takes, and whether another number is taken as well.

    Raises:
        SubjectError: None of the usual sizes works.
    """
    if given is not None:
        return given, False
    heads, widths = _told(turner)
    failed: SubjectError | None = None
    for size in dict.fromkeys((*heads, *widths, *SIZES, *range(6, 257, 2))):
        try:
            _try(turner, size)
        except SubjectError as error:
            if error.cause.code not in FAILS:
                raise
            failed = failed or error
            continue
        return size, size not in heads and (_works(turner, size // 2) or _works(turner, 2 * size))
    assert failed is not None
    listed = ", ".join(map(str, SIZES))
    message = f"no head_dim of {listed} works; {failed.cause.message}"
    raise SubjectError(Cause(failed.cause.code, message, 1.0, failed.cause.smallest_case, "Pass head_dim."))


def _try(turner: Turner, size: int) -> None:
    """Turn a few tokens.

    Raises:
        SubjectError: It does not work.
    """
    x = torch.linspace(-1, 1, 2 * 3 * 5 * size).reshape(2, 3, 5, size)
    turner.fresh().turn(x, x.flip(0).clone(), torch.arange(5))


def _works(turner: Turner, size: int) -> bool:
    try:
        _try(turner, size)
    except SubjectError:
        return False
    return True


def _told(turner: Turner) -> tuple[list[int], list[int]]:
    """Return what a subject says of its heads, and what its tables say of lanes that turn."""
    parts = turner.subject if isinstance(turner.subject, tuple | list) else (turner.subject,)
    found = [[size for part in parts for size in _sizes(part, words)] for words in (_HEADS, _WIDTHS)]
    if isinstance(turner, HFRope):
        try:
            cos, _ = call(turner.fresh().subject[0], torch.zeros(1, 1, 3, 64), torch.arange(3)[None], what="the module")
            found[1] += [int(cos.shape[-1]), 2 * int(cos.shape[-1])]
        except (SubjectError, TypeError, ValueError, AttributeError):
            pass  # then the usual sizes are tried
    return found[0], found[1]


def _sizes(part: Any, words: tuple[Callable[[Any], Any], ...]) -> Iterator[int]:
    for read_from in words:
        try:
            size = read_from(part)
        except Exception:  # user code decides what it says of itself
            continue
        if isinstance(size, int) and not isinstance(size, bool) and 2 <= size <= 4096:
            yield size


_HEADS: tuple[Callable[[Any], Any], ...] = (
    lambda part: part.head_dim,
    lambda part: part.config.head_dim,
    lambda part: part.config.hidden_size // part.config.num_attention_heads,
)
_WIDTHS: tuple[Callable[[Any], Any], ...] = (
    lambda part: part.dim,
    lambda part: 2 * part.inv_freq.numel(),
    lambda part: 2 * part.freqs.numel(),
)
