"""Seven ways to call a rotation as one: rotate queries and keys at positions, and keep what is asked for."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
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
Call = Callable[..., Any]


@dataclass(frozen=True)
class Ask:
    """One question to a rotation.

    Args:
        pos: The positions whose answers are kept, ascending.
        vectors: What is fed at each: "basis" or "two".
        dtype: The dtype of what is fed.
        whole: Feed the whole text up to the last position in one call.
        alone: Feed each token by a call of its own.
        rows: Give the second row of the batch the positions in the other order.
        heads: How many heads there are.
        strided: Feed views of tensors with heads and tokens exchanged; vectors of different tokens differ in size.
        before: What the same object is asked before.
    """

    pos: tuple[int, ...]
    vectors: str = "two"
    dtype: str = "float32"
    whole: bool = False
    alone: bool = False
    rows: bool = False
    heads: int = HEADS
    strided: bool = False
    before: tuple["Ask", ...] = ()


@dataclass(frozen=True)
class Places:
    """Where the tokens of an answer stood in their calls, (positions,) each.

    Args:
        pos: The position.
        index: The number of the token in its call.
        first: The position of the first token of the call.
        last: That of the last one.
        tokens: How many tokens the call had.
    """

    pos: Array
    index: Array
    first: Array
    last: Array
    tokens: Array


def calls(convention: str, ask: Ask) -> list[tuple[list[int], list[int]]]:
    """Return the positions of each call, and the numbers of those tokens that are kept."""
    reach, listed = REACH[convention], list(ask.pos)
    if ask.alone:
        return [([p], [0]) for p in listed]
    if reach == "start" or ask.whole:
        return [(list(range(listed[-1] + 1)), listed)]
    if reach == "any":
        return [(listed, list(range(len(listed))))]
    return [(list(range(first, end)), [p - first for p in wanted]) for first, end, wanted in runs(listed)]


def runs(listed: Sequence[int]) -> list[tuple[int, int, list[int]]]:
    """Return (first, end, wanted) of runs of at least three tokens: a single one may go another way.

    >>> runs([0, 1, 2, 5, 100])
    [(0, 3, [0, 1, 2]), (3, 6, [5]), (98, 101, [100])]
    """
    found, begin = [], 0
    for i in range(1, len(listed) + 1):
        if i == len(listed) or listed[i] > listed[i - 1] + 2:
            first = max(0, min(listed[begin], listed[i - 1] - 2))
            found.append((first, max(listed[i - 1] + 1, 3), list(listed[begin:i])))
            begin = i
    return found


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
    whole = feed_heads(convention, one, x, ask)
    if not ask.strided:  # heads that differ there only are no fault of angles
        _check_heads(whole)
    return np.ascontiguousarray(whole[:, :, -1])


def feed_heads(convention: str, one: Callable[[], Any], x: Tensor, ask: Ask) -> Array:
    """Return the same for each head, (2, vectors, heads, positions, head_dim).

    Raises:
        SubjectError: A call fails.
    """
    parts = []
    for positions, wanted in calls(convention, ask):
        n, pos = len(positions), torch.tensor(positions)
        size = (2.0 ** (torch.arange(ask.heads * n) % 7)).view(-1, n, 1) if ask.strided else torch.ones(1, 1, 1)
        given = (x[:, None, None] * size).to(getattr(torch, ask.dtype)).expand(-1, ask.heads, n, -1).contiguous()
        pos = torch.stack((pos, pos.flip(0))) if ask.rows else pos
        found = rotate(convention, one(), given, given.clone(), pos, strided=ask.strided)
        parts.append(torch.stack([(t.detach().double() / size)[:, :, wanted] for t in found]).numpy())
    return np.concatenate(parts, 3)


def _check_heads(found: Array) -> None:
    """Raise if heads of one token are rotated by different angles; `found` is (2, vectors, heads, positions, dim)."""
    with np.errstate(invalid="ignore"):
        spread = float(np.nan_to_num(np.abs(found - found[:, :, :1])).max())
        if spread < FAINT * max(1.0, float(np.nan_to_num(np.abs(found), posinf=0.0).max())):
            return
        by_token = float(np.nan_to_num(np.abs(found - found[:, :, :, :1])).max())
    message = f"heads of one token are rotated differently, by up to {spread:.3g}"
    if by_token > 1e-3:
        raise SubjectError(Cause("rope.heads.differ", message, spread, {"heads": found.shape[2]}))
    message += ", and tokens of one head are not: the angle follows the axis of heads instead of that of tokens"
    raise SubjectError(Cause("rope.axis.heads", message, spread, {"heads": found.shape[2]}))


def rotate(
    convention: str, subject: Any, q: Tensor, k: Tensor, pos: Tensor, *, grad: bool = False, strided: bool = False
) -> tuple[Tensor, Tensor]:
    """Return queries and keys (batch, heads, seq, head_dim) rotated at positions (seq,), for hf_rope also (batch, seq).

    Raises:
        SubjectError: The subject fails, or returns something else.
    """
    words = f"{convention} on x {tuple(q.shape)} of {str(q.dtype)[6:]} at positions {_short(pos)}"
    call = partial(guard.call, what=words, grad=grad)
    is_bshd = convention in ("meta_complex", "bshd_module")
    q, k = (_laid(t.transpose(1, 2) if is_bshd else t, strided) for t in (q, k))
    found = WAYS[convention](subject, q, k, pos, call)
    if not isinstance(found, tuple | list) or len(found) < 2:
        message = f"{words} must return queries and keys; got {type(found).__name__}"
        raise SubjectError(Cause("subject.shape", message, 1.0, {"call": words}))
    out = [guard.shaped(t, tuple(q.shape), words) for t in found[:2]]
    return (out[0].transpose(1, 2), out[1].transpose(1, 2)) if is_bshd else (out[0], out[1])


def _laid(t: Tensor, strided: bool) -> Tensor:
    """Return a tensor in contiguous memory, as every caller gives it, or with its axes 1 and 2 exchanged there."""
    return t.transpose(1, 2).contiguous().transpose(1, 2) if strided else t.contiguous()


def _hf_rope(subject: Any, q: Tensor, k: Tensor, pos: Tensor, call: Call) -> Any:
    ids = (pos if pos.ndim == 2 else pos[None].expand(len(q), -1)).contiguous()
    tables = call(subject[0], q.detach(), ids)
    if not isinstance(tables, tuple | list) or len(tables) != 2:
        raise SubjectError(Cause("subject.shape", "the rotary module must return cos and sin", 1.0))
    return call(subject[1], q, k, *tables)


def _meta_complex(subject: Any, q: Tensor, k: Tensor, pos: Tensor, call: Call) -> Any:
    table = call(subject[0], end=int(pos.max()) + 1)
    return call(subject[1], q, k, table[pos])


def _rope_fn(subject: Any, q: Tensor, k: Tensor, pos: Tensor, call: Call) -> Any:
    return call(subject, q, pos), call(subject, k, pos)


def _rope_offset_fn(subject: Any, q: Tensor, k: Tensor, pos: Tensor, call: Call) -> Any:
    return call(subject, q, int(pos[0])), call(subject, k, int(pos[0]))


def _lucidrains(subject: Any, q: Tensor, k: Tensor, pos: Tensor, call: Call) -> Any:
    return tuple(call(subject.rotate_queries_or_keys, t, offset=int(pos[0])) for t in (q, k))


def _both(subject: Any, q: Tensor, k: Tensor, pos: Tensor, call: Call) -> Any:
    return call(subject, q, k)


WAYS: dict[str, Callable[[Any, Tensor, Tensor, Tensor, Call], Any]] = {
    "hf_rope": _hf_rope,
    "meta_complex": _meta_complex,
    "rope_fn": _rope_fn,
    "rope_offset_fn": _rope_offset_fn,
    "lucidrains": _lucidrains,
    "bshd_module": _both,
    "xpos_fn": _both,
}


def prefix(ask: Ask, count: int) -> Ask:
    """Return the question about the first positions only."""
    return replace(ask, pos=ask.pos[:count])


def _short(pos: Tensor) -> str:
    listed = pos.tolist()
    if pos.ndim == 1 and len(listed) > 3 and listed == list(range(listed[0], listed[0] + len(listed))):
        return f"{listed[0]} .. {listed[-1]}"
    return str(listed) if len(listed) <= 12 else f"[{', '.join(map(str, listed[:4]))}, ..., {listed[-1]}]"
