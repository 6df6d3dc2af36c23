"""Seven ways to call a rotation as one: rotate queries and keys at positions, and keep what is asked for."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from posenc.verify import guard
from posenc.verify.engine.records import Array
from posenc.verify.guard import SubjectError
from posenc.verify.report import Cause

HEADS = 3
FAINT = 1e-5  # of float32: what may be off without meaning anything
REACH = {  # which positions one call may ask for: any, consecutive ones from any offset, or those from 0 on
    **dict.fromkeys(("hf_rope", "meta_complex", "rope_fn"), "any"),
    **dict.fromkeys(("rope_offset_fn", "lucidrains"), "run"),
    **dict.fromkeys(("bshd_module", "xpos_fn"), "start"),
}


@dataclass(frozen=True)
class Ask:
    """One question to a rotation."""

    pos: tuple[int, ...]  # whose answers are kept, ascending
    vectors: str = "two"  # what is fed at each: "basis" or "two"
    dtype: str = "float32"  # of what is fed
    whole: bool = False  # the whole text up to the last position in one call
    alone: bool = False  # each token by a call of its own
    rows: bool = False  # the second row of the batch has the positions in the other order
    heads: int = HEADS
    strided: bool = False  # views with heads and tokens exchanged in memory; vectors of different tokens differ in size
    before: tuple["Ask", ...] = ()  # what the same object is asked before


@dataclass(frozen=True)
class Places:
    """Where the tokens of an answer stood in their calls, (positions,) each."""

    pos: Array
    index: Array  # of the token in its call
    first: Array  # position of the call
    last: Array
    tokens: Array  # of the call


def calls(convention: str, ask: Ask) -> list[tuple[list[int], list[int]]]:
    """Return the positions of each call, and the numbers of those tokens that are kept.

    >>> calls("rope_offset_fn", Ask((1, 100)))
    [([0, 1, 2], [1]), ([98, 99, 100], [2])]
    """
    reach, listed = REACH[convention], list(ask.pos)
    if ask.alone:
        return [([p], [0]) for p in listed]
    if reach == "start" or ask.whole:
        return [(list(range(listed[-1] + 1)), listed)]
    if reach == "any":
        return [(listed, list(range(len(listed))))]
    firsts = [max(p - 2, 0) for p in listed]  # three tokens each: a single one may go another way
    return [([first, first + 1, first + 2], [p - first]) for first, p in zip(firsts, listed, strict=True)]


@cache
def places(convention: str, ask: Ask) -> Places:
    """Return where each token of an answer stood."""
    rows = [(call[i], i, call[0], max(call), len(call)) for call, wanted in calls(convention, ask) for i in wanted]
    return Places(*np.array(rows, dtype=np.float64).T)


def feed(convention: str, one: Callable[[], Any], x: Tensor, ask: Ask) -> Array:
    """Return what becomes of vectors x (vectors, head_dim) as queries and as keys: (2, vectors, positions, head_dim).

    Args:
        convention: How the subject is called.
        one: Returns the object of each call.
        x: What is fed at each position, to all heads alike.
        ask: The question.

    Raises:
        SubjectError: A call fails, or heads of one token come back unlike each other.
    """
    found = feed_heads(convention, one, x, ask)
    spread, by_token = (float(np.abs(found - t).max()) for t in (found[:, :, :1], found[:, :, :, :1]))
    if not ask.strided and spread >= FAINT * max(1.0, float(np.abs(found).max())):
        code, message = "rope.heads.differ", f"heads of one token are rotated differently, by up to {spread:.3g}"
        if by_token <= 1e-3:
            code = "rope.axis.heads"
            message += ", and tokens of one head are not: the angle follows the axis of heads, not that of tokens"
        raise SubjectError(Cause(code, message, spread, {"heads": ask.heads}))
    return np.ascontiguousarray(found[:, :, -1])


def feed_heads(convention: str, one: Callable[[], Any], x: Tensor, ask: Ask) -> Array:
    """Return the same for each head, (2, vectors, heads, positions, head_dim).

    Raises:
        SubjectError: A call fails, or numbers come back that are not finite.
    """
    parts = []
    for positions, wanted in calls(convention, ask):
        pos = torch.tensor(positions)
        given = x[:, None, None].to(getattr(torch, ask.dtype)).expand(-1, ask.heads, len(pos), -1)
        size = 2.0 ** (torch.arange(ask.heads * len(pos)) % 7 * ask.strided).view(-1, len(pos), 1).to(given.dtype)
        pos = torch.stack((pos, pos.flip(0))) if ask.rows else pos
        found = rotate(convention, one(), given * size, given * size, pos, strided=ask.strided)
        parts.append(torch.stack([(t.detach().double() / size)[:, :, wanted] for t in found]).numpy())
    whole = np.concatenate(parts, 3)
    if not np.isfinite(whole).all():
        message = f"{convention} returned numbers that are not finite, at positions up to {ask.pos[-1]:,}"
        raise SubjectError(Cause("subject.not_finite", message, 1.0, {"positions": list(ask.pos[-1:])}))
    return whole


def rotate(
    convention: str, subject: Any, q: Tensor, k: Tensor, pos: Tensor, *, grad: bool = False, strided: bool = False
) -> tuple[Tensor, Tensor]:
    """Return queries and keys (batch, heads, seq, head_dim) rotated at positions (seq,), for hf_rope also (batch, seq).

    Raises:
        SubjectError: The subject fails, or returns something else.
    """
    words = f"{convention} on x {tuple(q.shape)} of {str(q.dtype)[6:]} at positions {_short(pos)}"
    is_bshd = convention in ("meta_complex", "bshd_module")
    q, k = (t.transpose(1, 2).contiguous() if is_bshd else t for t in (q, k))
    q, k = (t.transpose(1, 2).contiguous().transpose(1, 2) if strided else t for t in (q, k))
    found = _called(convention, subject, q, k, pos, partial(guard.call, what=words, grad=grad))
    if not isinstance(found, tuple | list) or len(found) < 2:
        message = f"{words} must return queries and keys; got {type(found).__name__}"
        raise SubjectError(Cause("subject.shape", message, 1.0, {"call": words}))
    out = [guard.shaped(t, tuple(q.shape), words) for t in found[:2]]
    return (out[0].transpose(1, 2), out[1].transpose(1, 2)) if is_bshd else (out[0], out[1])


def _called(convention: str, subject: Any, q: Tensor, k: Tensor, pos: Tensor, call: Callable[..., Any]) -> Any:
    """Return what a subject gives that is called as its convention says."""
    if convention == "hf_rope":
        ids = (pos if pos.ndim == 2 else pos[None].expand(len(q), -1)).contiguous()
        tables = call(subject[0], q.detach(), ids)
        if not isinstance(tables, tuple | list) or len(tables) != 2:
            raise SubjectError(Cause("subject.shape", "the rotary module must return cos and sin", 1.0))
        return call(subject[1], q, k, *tables)
    if convention == "meta_complex":
        return call(subject[1], q, k, call(subject[0], end=int(pos.max()) + 1)[pos])
    if convention in ("bshd_module", "xpos_fn"):
        return call(subject, q, k)
    if convention == "rope_fn":
        return [call(subject, t, pos) for t in (q, k)]
    if convention == "rope_offset_fn":
        return [call(subject, t, int(pos[0])) for t in (q, k)]
    return [call(subject.rotate_queries_or_keys, t, offset=int(pos[0])) for t in (q, k)]


def _short(pos: Tensor) -> str:
    listed = pos.tolist()
    return str(listed) if pos.ndim == 2 or len(listed) <= 12 else f"{listed[0]}, {listed[1]}, .., {listed[-1]}"
