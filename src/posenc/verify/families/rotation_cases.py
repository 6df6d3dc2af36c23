"""What a rotation is asked, and how its answers are taken: near and far, alone, after other calls, backwards."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from posenc.verify.engine import Case, Seen
from posenc.verify.engine.observe import fresh
from posenc.verify.engine.read import free_of
from posenc.verify.engine.records import Array
from posenc.verify.families.rotation_calls import HEADS, Ask, calls, feed, feed_heads, rotate
from posenc.verify.guard import SubjectError
from posenc.verify.report import Cause

if TYPE_CHECKING:
    from posenc.verify.families.rotation import Rotation

FAR = 4096  # positions that must work where nothing is said
FARTHEST = 2**17  # of positions that are declared
UNSAID = 2**16 + 2  # where none are: beyond what 16 bits hold
LONGEST = 20_000  # tokens that are fed at once
NUMBERS = 2**23  # of one tensor of basis vectors
STEPS = (3, 5, 7, 11, 100, 101, 257, 258, 1001, 2051)
ODD = (511, 1023, 2047, 4099, 9001, 17003, 32771)  # far ones that are no power of two, which all dtypes hold
OF_HALF = (255, 256, 257, 259, 511, 1023, 2049)  # around those that a half precision does not hold
REPEATS = 1e-4  # of the largest number: what two runs of one call may differ by


def doubling(end: int, *more: int) -> tuple[int, ...]:
    """Return 0, 1, 2, 4, .. and some odd positions, all below an end."""
    powers = {2**i for i in range(40)}
    return tuple(sorted(p for p in powers | {0, *STEPS, *more} if 0 <= p < end))


def cases(family: "Rotation") -> Iterator[Case]:
    """Yield all questions; what later ones ask depends on how far the first ones came."""
    asked, reach, half = family.asked, family.reach, family.asked.activation_dtype
    near = min(asked.max_positions or FAR, asked.trained or FAR, FAR)
    yield _case("short", Ask(doubling(min(12, near)), whole=True), "a text of 12 tokens")
    if asked.xpos:
        near = min(near, int(asked.xpos[0]) + 100)
        yield _case("near", Ask(doubling(near, near - 1)), "near positions")
    else:
        end = min(near, max(16, NUMBERS // (3 * asked.head_dim**2))) if reach == "start" else near
        yield _case("near", Ask(doubling(end), "basis"), "near positions")
    yield from _far(family)
    yield from _lengths(family)
    first = doubling(family.reached + 1)
    if reach != "start":
        yield _case("single", Ask((*first[:8], first[-1]), alone=True), "single tokens")
        offsets = [Ask(tuple(p for p in first if p >= begin)[:3]) for begin in (0, 3, 1)]
        if len(first) > 5:
            yield _case("offsets", replace(offsets[2], before=(*offsets[:2],)), "three tokens after three others")
    if family.convention == "hf_rope":
        yield _case("rows", Ask(first[:4], rows=True), "a batch whose rows have positions of their own")
    ends = {first[-1] + 1, min(2 * (asked.trained or 1), LONGEST, asked.max_positions or LONGEST)}
    long = tuple(Ask(doubling(n, n - 1), whole=reach != "any" or n <= LONGEST) for n in sorted(ends))
    yield _case("again", Ask(first[:6], before=long), "a short text after a long one")
    yield _case("strided", Ask(first[:6], strided=True), "views with heads and tokens exchanged", optional=True)
    yield _case("grad", Ask((0, 1, 2), whole=True), "gradients", optional=True)
    if half in ("bfloat16", "float16"):
        whole = Ask(tuple(sorted({*first, *(p for p in OF_HALF if p <= first[-1])})), dtype=half)
        yield _case(half, whole, f"vectors of {half}", optional=True)
        yield _case("after_half_short", Ask(first, before=(replace(whole, pos=first[:4]),)), f"float32 after {half}")
        yield _case("after_half", Ask(first, before=(whole,)), f"float32 after {half}")


def _case(name: str, ask: Ask, words: str, *, optional: bool = False) -> Case:
    return Case(name, (ask,), words, optional=optional)


def _far(family: "Rotation") -> Iterator[Case]:
    """Yield positions as far out as is declared; what is not declared may be refused."""
    asked = family.asked
    end = min(asked.max_positions or UNSAID, asked.trained or FARTHEST, FARTHEST)
    end = min(end, FAR) if family.reach == "start" else end
    end = min(end, 3 * int(asked.xpos[0]) + 10) if asked.xpos else end
    pos = doubling(end, *ODD, end - 2, end - 1)
    if pos[-1] > family.reached:
        begin = 2 if family.reach != "start" and family.reached > 64 else len(pos)
        yield _case("far", Ask(tuple(p for p in pos if p in pos[:begin] or p > family.reached // 2)), "far positions")


def _lengths(family: "Rotation") -> Iterator[Case]:
    """Yield texts at and beyond the length at which frequencies change, and calls that end them."""
    asked, trained = family.asked, family.asked.trained
    longest = asked.max_positions or 4 * (trained or 1024)
    lengths = [2 * longest] if asked.scaling != "default" and trained is None else []
    if trained is not None:
        lengths = [n for n in (trained, trained + 1, 2 * trained, longest) if trained <= n <= longest]
    for n in dict.fromkeys(n for n in lengths if n <= LONGEST):
        whole = Ask(doubling(n, n - 2, n - 1), whole=True)
        yield _case("wide", whole, f"a text of {n:,} tokens", optional=trained is None)
        if trained is not None and n > max(trained + 1, 8) and family.reach != "start":
            yield _case("tail", Ask(tuple(range(n - 8, n))), f"the last 8 tokens of {n:,}")
    if asked.scaling == "dynamic" and asked.original <= LONGEST // 4:
        yield _case("heads", Ask((0, 1, 2), heads=2 * asked.original), f"{2 * asked.original} heads")


def observe(family: "Rotation", subject: Any, case: Case) -> Seen:
    """Return the answer to a case, without what scores do not see of position 0.

    Raises:
        SubjectError: The call cannot be used.
    """
    ask: Ask = case.args[0]
    if case.kind == "short":
        _steady(family, subject)
        ends = Ask((0, 1, 2), "basis")
        value = feed(family.convention, partial(fresh, subject), family.fed(ends), ends)
        is_xpos = family.asked.xpos is not None
        family.origin = free_of(value[0, :, 0].T, value[1, :, 0].T, only_rotations=is_xpos)
    if case.kind == "grad":
        return Seen(case, _gradient(family, subject, ask))
    one = fresh(subject)
    for earlier in ask.before:
        with suppress(SubjectError):  # such as a text that is too long: what is asked after it counts
            feed(family.convention, lambda: one, family.fed(earlier), earlier)
    value, pos = _as_far_as(family, (lambda: one) if ask.before else partial(fresh, subject), case)
    if case.kind == "near":
        family.reached = pos[-1]
    if family.origin is not None:
        value = np.stack([value[0] @ np.linalg.inv(family.origin).T, value[1] @ family.origin])
    return Seen(Case(case.kind, (replace(ask, pos=pos),), case.words), value, note=family.origin)


def _as_far_as(family: "Rotation", take: Callable[[], Any], case: Case) -> tuple[Array, tuple[int, ...]]:
    """Return answers as far as the subject gives any, and where: beyond what is declared, an error is a refusal.

    Raises:
        SubjectError: It refuses a length that is declared, or the beginning.
    """
    ask: Ask = case.args[0]
    refused = list[str]()
    while True:
        try:
            value = feed(family.convention, take, family.fed(ask), ask)
            break
        except SubjectError as error:
            is_free = case.kind in ("near", "far") and family.asked.max_positions is None and ask.pos[-1] > 7
            if error.cause.code != "subject.raises" or not is_free:
                raise
            why = error.cause.message.split(" raised ")[-1]
            refused = [f"positions from {ask.pos[-1]:,} on, where the code raises {why}"]
            ask = replace(ask, pos=ask.pos[:-1])
    family.unseen = family.unseen or refused
    return value, ask.pos


def _steady(family: "Rotation", subject: Any) -> None:
    """Raise if the same call gives something else the second time, if zeros do not stay, or dtypes differ."""
    end, one, x = min(family.asked.trained or 16, family.asked.max_positions or 16), fresh(subject), family.two
    ask = Ask(tuple(p for p in (0, 1, 2, 5) if p < end), whole=True)
    first, again = (feed_heads(family.convention, lambda: one, x, ask) for _ in range(2))
    other, zero = (feed_heads(family.convention, partial(fresh, subject), x * times, ask) for times in (1, 0))
    alone = feed_heads(family.convention, partial(fresh, subject), x[1:], ask)
    for code, off, words in (
        ("rope.not_deterministic", other - first, "the same call on two copies gives two results"),
        ("rope.state_kept", again - first, "the same call gives something else the second time"),
        ("rope.not_linear", zero, "zeros do not come back as zeros: something is added"),
        ("rope.axis.batch", alone - first[:, 1:], "a row of a batch comes back otherwise than by itself"),
    ):
        share = float(np.abs(off).max() / np.abs(first).max(initial=1e-30))
        if share > REPEATS:
            message = f"{words}, by up to {share:.2%} of the largest number"
            raise SubjectError(Cause(code, message, share, {"positions": list(ask.pos), "calls": 2}))
    _apart(family, subject, min(end, 4))
    if family.asked.xpos is None:
        return
    try:
        x = family.two[:, None, None].bfloat16()
        q, k = rotate(family.convention, fresh(subject), x, x.clone(), torch.arange(1))
    except SubjectError:
        return  # it does not take this dtype
    if q.dtype != k.dtype:
        message = f"of bfloat16 vectors queries come back in {str(q.dtype)[6:]} and keys in {str(k.dtype)[6:]}"
        raise SubjectError(Cause("xpos.dtype.keys_float32", message, 1.0, {"dtype": "bfloat16"}))


def _apart(family: "Rotation", subject: Any, end: int) -> None:
    """Raise if queries come back otherwise where keys are other ones, or the reverse."""
    a, b = (x[None, None, None].expand(1, HEADS, end, -1).contiguous() for x in family.two)
    given = [(a, a), (b, b), (a, b)]
    pos, ask = torch.arange(end), partial(rotate, family.convention)
    (q, _), (other, k), both = (ask(fresh(subject), one.clone(), two.clone(), pos) for one, two in given)
    off = [float((t - right).abs().max()) for t, right in zip(both, (q, k), strict=True)]
    if max(off) <= REPEATS * float(q.abs().max()):
        return
    code, words = "rope.side.mixed", f"{'queries' if off[0] >= off[1] else 'keys'} depend on the other side"
    if torch.allclose(both[0], other, 0, REPEATS):
        code, words = "rope.side.exchanged", "queries and keys come back exchanged"
    raise SubjectError(Cause(code, f"{words}, by up to {max(off):.3g}", max(off), {"positions": pos.tolist()}))


def _gradient(family: "Rotation", subject: Any, ask: Ask) -> Array:
    """Return the gradient of the sum of answers times `weights`, (2, vectors, positions, head_dim).

    Raises:
        SubjectError: None reaches some dimensions.
    """
    positions, wanted = calls(family.convention, ask)[0]
    x = family.two[:, None, None].expand(-1, HEADS, len(positions), -1).contiguous()
    sides = [x.clone().requires_grad_() for _ in range(2)]
    out = rotate(family.convention, fresh(subject), sides[0], sides[1], torch.tensor(positions), grad=True)
    origin = np.eye(family.asked.head_dim) if family.origin is None else family.origin
    total = 0 * sides[0].sum()
    for t, undone in zip(out, (np.linalg.inv(origin), origin.T), strict=True):
        total = total + (t[:, 0][:, wanted] * torch.from_numpy(family.weights(ask) @ undone).to(t.dtype)).sum()
    grads = torch.autograd.grad(total, sides, materialize_grads=True)
    found = np.stack([t[:, 0][:, wanted].double().numpy() for t in grads])
    for name, cut in zip(("queries", "keys"), (found == 0).all((1, 2)).sum(1), strict=True):
        if cut:
            message = f"no gradient reaches {cut} of {x.shape[-1]} dimensions of {name}"
            raise SubjectError(Cause("rope.grad.severed", message, 1.0, {"positions": positions}))
    return found
