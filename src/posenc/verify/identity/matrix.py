"""What a rotation does to each lane: the matrix R(p), read by basis vectors, and which lanes turn together."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from posenc.verify.engine.read import Structure, structure
from posenc.verify.guard import SubjectError
from posenc.verify.identity.turner import Turner
from posenc.verify.report import Cause

Array = NDArray[np.float64]
HEADS = 3
UNLIKE = ("rope.axis.heads", "rope.heads.differ")  # of heads of one token that come back unlike each other
FAINT = 1e-5  # of float32: what an element of R may be off without meaning anything


@dataclass(frozen=True)
class Matrices:
    """R of queries and of keys at some positions, (positions, out lane, in lane)."""

    pos: Tensor
    q: Array
    k: Array


def at(turner: Turner, x: Tensor, pos: Tensor, *, fresh: bool = False) -> list[Array]:
    """Return what becomes of vectors x (batch, heads, head_dim) at rising positions: (batch, heads, seq, head_dim).

    In as few calls as the subject's convention needs, each of a fresh copy if so asked; runs have three tokens at
    least, since one may go another way.
    """
    listed, parts = pos.tolist(), []
    if turner.reach == "any":
        parts = [(pos, list(range(len(listed))))]
    elif turner.reach == "start":
        parts = [(torch.arange(listed[-1] + 1), listed)]
    else:
        for first, end, wanted in runs(listed):
            parts.append((torch.arange(first, end), [p - first for p in wanted]))
    found: list[list[Array]] = [[], []]
    for run, wanted in parts:
        given = x[:, :, None].expand(-1, -1, len(run), -1).contiguous()
        for side, t in zip(found, (turner.fresh() if fresh else turner).turn(given, given.clone(), run), strict=True):
            side.append(t.detach()[:, :, wanted].double().numpy())
    joined = [np.concatenate(side, 2) for side in found]
    if x.dtype.itemsize > 2 and not all(np.isfinite(side).all() for side in joined):  # half holds no large numbers
        message = f"x of {str(x.dtype)[6:]} comes back infinite at positions up to {listed[-1]:,}"
        raise SubjectError(Cause("subject.not_finite", message, 1.0, {"positions": [listed[-1]]}))
    return joined


def runs(listed: list[int]) -> list[tuple[int, int, list[int]]]:
    """Return (first, end, wanted) of the runs of at least three tokens in which rising positions are asked for."""
    found, begin = [], 0
    for i in range(1, len(listed) + 1):
        if i == len(listed) or listed[i] > listed[i - 1] + 2:
            first = max(0, min(listed[begin], listed[i - 1] - 2))
            found.append((first, max(listed[i - 1] + 1, 3), listed[begin:i]))
            begin = i
    return found


def read(turner: Turner, head_dim: int, pos: Tensor, *, fresh: bool = False) -> Matrices:
    """Feed every basis vector at rising positions, and return the matrices.

    Raises:
        SubjectError: The subject fails, or heads, batch and positions are mixed up.
    """
    sides = at(turner, torch.eye(head_dim)[:, None].expand(-1, HEADS, -1), pos, fresh=fresh)
    for side in sides:
        _check_heads(side)
    q, k = (np.ascontiguousarray(side[:, 0].transpose(1, 2, 0)) for side in sides)
    return Matrices(pos, q, k)


def _check_heads(side: Array) -> None:
    """Raise if heads of one token are turned by different angles."""
    spread = float(np.abs(side - side[:, :1]).max())
    if spread < FAINT:
        return
    by_token = float(np.abs(side - side[:, :, :1]).max())
    message = f"heads of one token are turned differently, by up to {spread:.3g}"
    case = {"heads": HEADS}
    if by_token > 1e-3:
        help_ = (
            "Turn all heads of a token alike: form angles over the lanes of one head, and broadcast them over heads."
        )
        raise SubjectError(Cause("rope.heads.differ", message, spread, case, help_))
    message += (
        f", and tokens of one head by up to {by_token:.3g}: the angle follows the axis of heads instead of that of "
        "tokens"
    )
    help_ = "Index cos and sin by the axis of tokens, and broadcast over heads."
    raise SubjectError(Cause("rope.axis.heads", message, spread, case, help_))


__all__ = ["Array", "Matrices", "Structure", "at", "read", "structure"]
