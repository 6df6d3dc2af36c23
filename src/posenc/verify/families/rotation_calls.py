"""Calls of a rotation in seven conventions: near and far, one by one, after other calls, backwards."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from posenc.verify import guard
from posenc.verify.engine import Case, Seen
from posenc.verify.engine.observe import fresh
from posenc.verify.engine.read import free_of
from posenc.verify.engine.records import Array
from posenc.verify.guard import NotAnsweredError, SubjectError
from posenc.verify.report import Cause

if TYPE_CHECKING:
    from posenc.verify.families.rotation import Rotation

HEADS = 3
FAINT = 1e-5  # float32 differences below it are ignored
REPEATS = 1e-4  # relative to the largest number: the most that two runs of one call may differ
REACH = {  # the positions of one call: any, consecutive ones from any offset, or those from 0 on
    **dict.fromkeys(("hf_rope", "meta_complex", "rope_fn"), "any"),
    **dict.fromkeys(("rope_offset_fn", "lucidrains"), "run"),
    **dict.fromkeys(("bshd_module", "xpos_fn"), "start"),
}
TOGETHER = ("hf_rope", "meta_complex", "bshd_module", "xpos_fn")  # queries and keys come in one call
BELOW = ("hf_rope", "rope_fn", "rope_offset_fn", "lucidrains")  # a position may be below 0
BACK = (1, 3, 7)
FAR = 4096  # positions that must work if none are declared
FARTHEST = 2**17  # of declared positions
UNSAID = 2**16 + 2  # if none are declared: beyond 16 bits
LONGEST = 20_000  # tokens in one call
NUMBERS = 2**23  # entries of one tensor of basis vectors
STEPS = (3, 5, 7, 11, 100, 101, 257, 258, 1001, 2051)
ODD = (511, 1023, 2047, 4099, 9001, 17003, 32771)  # far ones, not powers of two, since all dtypes hold those
OF_HALF = (255, 256, 257, 259, 511, 1023, 2049)  # around the first ones that half precision does not hold


@dataclass(frozen=True)
class Ask:
    """One question to a rotation."""

    pos: tuple[int, ...]  # the kept positions, in most questions ascending
    vectors: str = "two"  # the vectors at each position: "basis", their sum ("ones"), or "two"
    dtype: str = "float32"  # of the vectors
    whole: bool = False  # the whole text up to the last position in one call
    alone: bool = False  # one call for each token
    rows: bool = False  # the second row of the batch has the positions in the other order
    behind: bool = False  # a row with a short text comes first in the batch, and is not kept
    heads: int = HEADS
    grouped: bool = False  # all query heads share one key head
    sized: bool = False  # vectors of different tokens and heads differ in size
    strided: bool = False  # views with heads and tokens exchanged in memory
    before: tuple["Ask", ...] = ()  # earlier calls of the same object


@dataclass(frozen=True)
class Places:
    """Where the tokens of an answer were in their calls, (positions,) each."""

    pos: Array
    index: Array  # of the token in its call
    first: Array  # position of the call
    last: Array
    tokens: Array  # of the call


def calls(convention: str, ask: Ask) -> list[tuple[list[int], list[int]]]:
    """Return the positions of each call, and the indices of the tokens that are kept.

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
    # three tokens each: single tokens may take another path
    firsts = [max(p - 2, 0) if p >= 0 else p - 2 for p in listed]
    return [([first, first + 1, first + 2], [p - first]) for first, p in zip(firsts, listed, strict=True)]


@cache
def places(convention: str, ask: Ask) -> Places:
    """Return where each token of an answer was."""
    rows = [(call[i], i, call[0], max(call), len(call)) for call, wanted in calls(convention, ask) for i in wanted]
    return Places(*np.array(rows, dtype=np.float64).T)


def feed(convention: str, one: Callable[[], Any], x: Tensor, ask: Ask, *, alike: bool = True) -> Array:
    """Return vectors x (vectors, head_dim), rotated as queries and as keys: (2, vectors, positions, head_dim).

    Raises:
        SubjectError: A call fails, numbers are not finite, or heads of one token are rotated differently.
    """
    parts = []
    for positions, wanted in calls(convention, ask):
        pos = torch.tensor(positions)
        first = x[: ask.behind]
        given = torch.cat((first, x))[:, None, None].to(getattr(torch, ask.dtype)).expand(-1, ask.heads, len(pos), -1)
        size = 2.0 ** (torch.arange(ask.heads * len(pos)) % 7 * ask.sized).view(-1, len(pos), 1).to(given.dtype)
        pos = torch.stack((pos, pos.flip(0))) if ask.rows else pos
        pos = torch.stack((torch.arange(len(pos)), *[pos] * len(x))) if ask.behind else pos
        keys = (given * size)[:, : 1 if ask.grouped else None]
        sides = rotate(convention, one(), given * size, keys, pos, strided=ask.strided)
        both = [(t.detach().double().expand_as(given) / size)[len(first) :, :, wanted] for t in sides]
        parts.append(torch.stack(both).numpy())
    found = np.concatenate(parts, 3)
    if not np.isfinite(found).all():
        message = f"{convention} returned numbers that are not finite, at positions up to {ask.pos[-1]:,}"
        raise SubjectError(Cause("subject.not_finite", message, 1.0, {"positions": list(ask.pos[-1:])}))
    spread, by_token = (float(np.abs(found - t).max()) for t in (found[:, :, :1], found[:, :, :, :1]))
    if alike and not ask.sized and spread >= FAINT * max(1.0, float(np.abs(found).max())):
        code, message = "rope.heads.differ", f"heads of one token are rotated differently, by up to {spread:.3g}"
        code = "rope.axis.heads" if by_token <= 1e-3 else code  # if tokens of a head are rotated alike
        raise SubjectError(Cause(code, message, spread, {"heads": ask.heads}))
    return np.ascontiguousarray(found[:, :, -1])


def rotate(
    convention: str, subject: Any, q: Tensor, k: Tensor, pos: Tensor, *, grad: bool = False, strided: bool = False
) -> tuple[Tensor, Tensor]:
    """Return queries and keys (batch, heads, seq, head_dim) rotated at positions (seq,), or (batch, seq)."""
    at = f"{pos.shape[-1]} positions up to {int(pos.max())}"
    words = f"{convention} on x {tuple(q.shape)} of {str(q.dtype)[6:]} at {at}"
    call = partial(guard.call, what=words, grad=grad)
    is_bshd = convention in ("meta_complex", "bshd_module")
    q, k = (t.transpose(1, 2).contiguous() if is_bshd else t for t in (q, k))
    q, k = (t.transpose(1, 2).contiguous().transpose(1, 2) if strided else t for t in (q, k))
    if convention == "hf_rope":
        ids = (pos if pos.ndim == 2 else pos[None].expand(len(q), -1)).contiguous()
        tables = call(subject[0], q.detach(), ids)
        if not isinstance(tables, tuple | list) or len(tables) != 2:
            raise SubjectError(Cause("subject.shape", "the rotary module must return cos and sin", 1.0))
        found = call(subject[1], q, k, *tables)
    elif convention == "meta_complex":
        table = call(subject[0], end=int(pos.max()) + 1, passed_on=True)
        index = pos if isinstance(table, Tensor) else pos.numpy()
        rows = guard.call(lambda: table[index], what=f"rows of the table of {words}", grad=grad, passed_on=True)
        found = call(subject[1], q, k, rows)
    elif convention == "rope_fn":
        found = [call(subject, t, pos) for t in (q, k)]
    elif convention == "rope_offset_fn":
        found = [call(subject, t, int(pos[0])) for t in (q, k)]
    elif convention == "lucidrains":
        found = [call(subject.rotate_queries_or_keys, t, offset=int(pos[0])) for t in (q, k)]
    else:
        found = call(subject, q, k)
    if not isinstance(found, tuple | list) or len(found) < 2:
        message = f"{words} must return queries and keys; got {type(found).__name__}"
        raise SubjectError(Cause("subject.shape", message, 1.0, {"call": words}))
    q, k = (guard.shaped(t, tuple(given.shape), words, grad=grad) for t, given in zip(found, (q, k), strict=False))
    if convention == "xpos_fn" and q.dtype != k.dtype:
        message = f"queries are returned in {str(q.dtype)[6:]} and keys in {str(k.dtype)[6:]}"
        raise SubjectError(Cause("xpos.dtype.keys_float32", message, 1.0, {"call": words}))
    return (q.transpose(1, 2), k.transpose(1, 2)) if is_bshd else (q, k)


def doubling(end: int, *more: int) -> tuple[int, ...]:
    """Return 0, 1, 2, 4, .. and some odd positions, all below an end."""
    powers = {2**i for i in range(40)}
    return tuple(sorted(p for p in powers | {0, *STEPS, *more} if 0 <= p < end))


def cases(family: "Rotation") -> Iterator[Case]:
    """Yield all questions; later ones depend on how far the first ones worked."""
    asked, reach, half = family.asked, family.reach, family.asked.activation_dtype
    near = min(asked.max_positions or FAR, asked.trained or FAR, FAR)
    yield Case("short", (Ask(doubling(min(12, near)), whole=True),), "a text of 12 tokens")
    if asked.xpos:
        near = min(near, int(asked.xpos[0]) + 100)
        yield Case("near", (Ask(doubling(near, near - 1)),), "near positions")
    else:
        end = min(near, max(16, NUMBERS // (3 * asked.head_dim**2))) if reach == "start" else near
        yield Case("near", (Ask(doubling(end), "basis"),), "near positions")
    yield from _far(family)
    yield from _lengths(family)
    first = doubling(family.reached + 1)
    if reach != "start":
        yield Case("single", (Ask((*first[:8], first[-1]), alone=True),), "single tokens")
        offsets = [Ask(tuple(p for p in first if p >= begin)[:3]) for begin in (0, 3, 1)]
        if len(first) > 5:
            yield Case("offsets", (replace(offsets[2], before=(*offsets[:2],)),), "three tokens after three others")
    if family.convention == "hf_rope":
        yield Case("rows", (Ask(first[:4], rows=True),), "a batch whose rows have different positions")
    if reach == "any":
        yield Case(
            "restart",
            (
                Ask(
                    (*first[3:5], *first[:3]),
                ),
            ),
            "positions that restart, as in packed texts",
            True,
        )
    if family.convention in TOGETHER:
        yield Case("grouped", (Ask(first[:6], grouped=True),), "query heads that share one key head", optional=True)
    ends = {first[-1] + 1, min(2 * (asked.trained or 1), LONGEST, asked.max_positions or LONGEST)}
    long = tuple(Ask(doubling(n, n - 1), whole=reach != "any" or n <= LONGEST) for n in sorted(ends))
    yield Case("again", (Ask(first[:6], before=long),), "a short text after a long one")
    yield Case("sized", (Ask(first[:6], sized=True),), "vectors that differ from head to head and token to token")
    yield Case(
        "strided", (Ask(first[:6], sized=True, strided=True),), "views with heads and tokens exchanged", optional=True
    )
    yield Case("grad", (Ask((0, 1, 2), whole=True),), "gradients", optional=True)
    if asked.xpos:
        yield Case("dtype", (Ask((0,), dtype="bfloat16"),), "vectors of bfloat16", optional=True)
    if half in ("bfloat16", "float16"):
        whole = Ask(tuple(sorted({*first, *(p for p in OF_HALF if p <= first[-1])})), dtype=half)
        yield Case(half, (whole,), f"vectors of {half}", optional=True)
        yield Case("after_half_short", (Ask(first, before=(replace(whole, pos=first[:4]),)),), f"float32 after {half}")
        yield Case("after_half", (Ask(first, before=(whole,)),), f"float32 after {half}")
    if family.convention in BELOW and asked.trained is None:  # last, since a program may end at them
        yield Case("negative", (Ask((*(-p for p in BACK), *BACK), "basis"),), "negative positions", optional=True)


def _far(family: "Rotation") -> Iterator[Case]:
    """Yield positions as far as declared; beyond, a refusal is allowed."""
    asked = family.asked
    end = min(asked.max_positions or UNSAID, asked.trained or FARTHEST, FARTHEST)
    end = min(end, FAR) if family.reach == "start" else end
    end = min(end, 3 * int(asked.xpos[0]) + 10) if asked.xpos else end
    pos = doubling(end, *ODD, end - 2, end - 1)
    if pos[-1] > family.reached:
        begin = 2 if family.reach != "start" and family.reached > 64 else len(pos)
        yield Case("far", (Ask(tuple(p for p in pos if p in pos[:begin] or p > family.reached // 2)),), "far positions")


def _lengths(family: "Rotation") -> Iterator[Case]:
    """Yield texts at and beyond the length at which frequencies change, and calls that end such texts."""
    asked, trained = family.asked, family.asked.trained
    longest = asked.max_positions or 4 * (trained or 1024)
    lengths = [2 * longest] if asked.scaling != "default" and trained is None else []
    if trained is not None:
        lengths = [n for n in (trained, trained + 1, 2 * trained, longest) if trained <= n <= longest]
        if asked.scaling == "dynamic" and not asked.max_positions:  # also beyond factor times the trained length
            lengths.append(int(2 * asked.factor * trained))
    for n in dict.fromkeys(n for n in lengths if n <= LONGEST):
        whole = Ask(doubling(n, n - 2, n - 1), whole=True)
        yield Case("wide", (whole,), f"a text of {n:,} tokens", optional=trained is None)
        if trained is not None and n > max(trained + 1, 8) and family.reach != "start":
            yield Case("tail", (Ask(tuple(range(n - 8, n))),), f"the last 8 tokens of {n:,}")
            if family.convention == "hf_rope":
                yield Case(
                    "behind", (Ask(tuple(range(n - 8, n)), behind=True),), f"a row of {n:,} tokens after a short one"
                )
    if asked.scaling == "dynamic" and asked.original <= LONGEST // 4:
        yield Case("heads", (Ask((0, 1, 2), heads=2 * asked.original),), f"{2 * asked.original} heads")


def observe(family: "Rotation", subject: Any, case: Case) -> Seen | None:
    """Return the answer to a case, without effects of position 0 that do not change scores.

    Beyond the declared lengths, an error is a refusal, and the positions before it are the answer.
    """
    ask: Ask = case.args[0]
    if case.kind == "short":
        _steady(family, subject)
        ends = Ask((0, 1, 2), "basis")
        value = feed(family.convention, partial(fresh, subject), family.fed(ends), ends)
        family.origin = free_of(value[0, :, 0].T, value[1, :, 0].T, only_rotations=family.asked.xpos is not None)
    if case.kind == "grad":
        return Seen(case, _gradient(family, subject, ask))
    if case.kind == "negative":
        _backwards(family, subject, ask)
        return None
    kept = fresh(subject)
    for earlier in ask.before:
        with suppress(SubjectError):  # such as a text that is too long: only the calls after it count
            feed(family.convention, lambda: kept, family.fed(earlier), earlier)
    take = (lambda: kept) if ask.before else partial(fresh, subject)
    is_open = case.kind in ("near", "far") and family.asked.max_positions is None
    while True:
        try:
            value = feed(family.convention, take, family.fed(ask), ask)
            break
        except SubjectError as error:
            if ask.strided and "view size is not compatible" in error.cause.message:
                message = f"views that are not contiguous raise an error: {error.cause.message}"
                raise SubjectError(Cause("rope.input.strides", message, 1.0, {"call": case.words})) from error
            if error.cause.code != "subject.raises" or not is_open or ask.pos[-1] <= 7:
                raise
            why = error.cause.message.split(" raised ")[-1]
            family.unseen = [f"positions from {ask.pos[-1]:,} on, where the code raises {why}"]
            ask = replace(ask, pos=ask.pos[:-1])
    if case.kind == "near":
        family.reached = ask.pos[-1]
    if family.origin is not None:
        value = np.stack([value[0] @ np.linalg.inv(family.origin).T, value[1] @ family.origin])
    return Seen(Case(case.kind, (ask,), case.words), value, note=family.origin)


def _steady(family: "Rotation", subject: Any) -> None:
    """Raise if calls depend on each other or rows on their batch, if zeros change, or if dtypes differ."""
    end, one, x = min(family.asked.trained or 16, family.asked.max_positions or 16), fresh(subject), family.two
    ask = Ask(tuple(p for p in (0, 1, 2, 5) if p < end), whole=True)
    first, again = (feed(family.convention, lambda: one, x, ask, alike=False) for _ in range(2))
    given = (x, 0 * x, x[1:])
    other, zero, alone = (feed(family.convention, partial(fresh, subject), t, ask, alike=False) for t in given)
    whole = x[:, None, None].expand(-1, HEADS, end, -1).contiguous()
    (q, k), (right, _) = (
        rotate(family.convention, fresh(subject), whole, keys, torch.arange(end)) for keys in (0 * whole, whole)
    )
    family.returned = str(right.dtype)[6:]
    crossed = "rope.side.mixed" if q.any() else "rope.side.exchanged"
    for code, off, words in (
        ("rope.not_deterministic", other - first, "the same call on two copies gives two results"),
        ("rope.state_kept", again - first, "the same call gives another result the second time"),
        ("rope.not_linear", zero, "zeros are not returned as zeros: a term is added"),
        ("rope.axis.batch", alone - first[:, 1:], "a row of a batch gets another result than by itself"),
        (
            crossed,
            torch.stack((q.double() - right.double(), k.double())).numpy(),
            "queries depend on keys, or keys on queries",
        ),
    ):
        share = float(np.abs(off).max() / np.abs(first).max(initial=1e-30))
        if share > REPEATS:
            message = f"{words}, by up to {share:.2%} of the largest number"
            raise SubjectError(Cause(code, message, share, {"positions": list(ask.pos), "calls": 2}))


def _backwards(family: "Rotation", subject: Any, ask: Ask) -> None:
    """Raise if a position below 0 does not rotate back: most models have none, so this is no fault."""
    try:
        value = feed(family.convention, partial(fresh, subject), family.fed(ask), ask)
    except SubjectError as error:
        raise NotAnsweredError(error.cause.message) from error
    origin = np.eye(value.shape[-1]) if family.origin is None else family.origin
    for vectors in (value[0] @ np.linalg.inv(origin).T, value[1] @ origin):
        for i, p in enumerate(BACK):
            below, above = vectors[:, i], vectors[:, i + len(BACK)]
            if np.abs(below - above.T).max() > 1e-3 * np.abs(above).max():
                raise NotAnsweredError(f"the code does not rotate position {-p} back by the angles of position {p}")


def _gradient(family: "Rotation", subject: Any, ask: Ask) -> Array:
    """Return the vectors x times <x, gradient of |y|^2 / 2> / |y|^2, which is 1 if y is linear in x."""
    x = family.two[:, None, None].expand(-1, HEADS, len(ask.pos), -1).contiguous()
    sides = [x.clone().requires_grad_() for _ in range(2)]
    found = rotate(family.convention, fresh(subject), sides[0], sides[1], torch.tensor(ask.pos), grad=True)
    out = [t.double() for t in found]
    total = sum((t.square().sum() / 2 for t in out), 0 * sides[0].sum())
    grads = [t[:, 0].double() for t in torch.autograd.grad(total, sides, materialize_grads=True)]
    for name, grad in zip(("queries", "keys"), grads, strict=True):
        if cut := int((grad == 0).flatten(0, 1).all(0).sum()):
            message = f"no gradient reaches {cut} of {x.shape[-1]} dimensions of {name}"
            raise SubjectError(Cause("rope.grad.severed", message, 1.0, {"positions": list(ask.pos)}))
    lengths = [
        x[:, 0] * ((x[:, 0] * g).sum(-1) / y[:, 0].square().sum(-1))[..., None] for g, y in zip(grads, out, strict=True)
    ]
    return torch.stack(lengths).detach().double().numpy()
