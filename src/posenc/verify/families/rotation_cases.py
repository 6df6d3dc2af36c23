"""What a rotation is asked, and how its answers are taken: near and far, alone, after other calls, backwards."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from posenc.verify.engine import Case, Seen
from posenc.verify.engine.observe import fresh
from posenc.verify.engine.read import free_of
from posenc.verify.engine.records import FLOAT32, Array
from posenc.verify.families import rotation
from posenc.verify.families.rotation_calls import HEADS, Ask, calls, feed, feed_heads, prefix, rotate
from posenc.verify.guard import SubjectError
from posenc.verify.report import Cause

if TYPE_CHECKING:
    from posenc.verify.families.rotation import Rotation

FAR = 4096  # positions that must work where nothing is said
FARTHEST = 2**17  # of positions that are declared
UNSAID = 2**16 + 2  # where none are: beyond what 16 bits hold
LONGEST = 20_000  # tokens that are fed at once
NUMBERS = 2**23  # of one tensor of basis vectors
STEPS = (3, 5, 7, 11, 100, 101, 257, 258, 1000, 1001)
ODD = (511, 1023, 2047, 4099, 9001, 17003, 32771)  # far ones that are no power of two, which all dtypes hold
OF_HALF = (255, 256, 257, 259, 511, 1023, 2049)  # around those that a half precision does not hold
REPEATS = 1e-4  # of the largest number: what two runs of one call may differ by
LINEAR = 1e-2  # x may be rounded to half precision on the way
FEW = (0, 1, 2, 5)


def doubling(end: int, *more: int) -> tuple[int, ...]:
    """Return 0, 1, 2, 4, .. and some odd positions, all below an end.

    >>> doubling(9, 6)
    (0, 1, 2, 3, 4, 5, 6, 7, 8)
    """
    powers = [2**i for i in range(40)]
    return tuple(sorted({p for p in (0, *powers, *STEPS, *more) if 0 <= p < end}))


def cases(family: "Rotation") -> Iterator[Case]:
    """Yield all questions; what later ones ask depends on how far the first ones came."""
    asked, reach = family.asked, family.reach
    near = min(asked.max_positions or FAR, asked.trained or FAR, FAR)
    yield _case("short", Ask(doubling(min(12, near))), "a text of 12 tokens")
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
    if family.convention == "hf_rope":
        yield _case("rows", Ask(first[:4], rows=True), "a batch whose rows have positions of their own")
    yield from _kept(family, first)
    yield _case("grad", Ask(first[:5] if reach == "any" else (0, 1, 2)), "gradients", optional=True)
    strided = "views in which heads and tokens are exchanged"
    yield _case("strided", Ask(tuple(p for p in FEW if p <= family.reached), strided=True), strided, optional=True)
    if asked.activation_dtype in rotation.HALF:
        yield from _half(asked.activation_dtype, first)


def _case(name: str, ask: Ask, words: str, *, optional: bool = False) -> Case:
    return Case(name, (ask,), words, optional=optional)


def _far(family: "Rotation") -> Iterator[Case]:
    """Yield positions as far out as is declared; what is not declared may be refused."""
    asked = family.asked
    end = min(asked.max_positions or UNSAID, asked.trained or FARTHEST, FARTHEST)
    end = min(end, FAR) if family.reach == "start" else end
    if asked.xpos:
        end = min(end, 3 * int(asked.xpos[0]) + 10)
    pos = doubling(end, *ODD, end - 2, end - 1)
    if pos[-1] > family.reached:
        begin = 2 if family.reach != "start" and family.reached > 64 else len(pos)
        far = tuple(p for p in pos if p in pos[:begin] or p > family.reached // 2)
        yield _case("far", Ask(far), "far positions")


def _lengths(family: "Rotation") -> Iterator[Case]:
    """Yield texts at and beyond the length at which frequencies change, and calls that end them."""
    asked, trained = family.asked, family.asked.trained
    if asked.scaling == "default":
        return
    longest = asked.max_positions or 4 * (trained or 1024)
    if trained is None:
        if 2 * longest <= LONGEST:
            yield _whole(2 * longest, optional=True)
        return
    lengths = [n for n in (trained, trained + 1, 2 * trained, longest) if trained <= n <= min(longest, LONGEST)]
    for n in dict.fromkeys(lengths):
        yield _whole(n)
    if lengths and lengths[-1] > max(trained, 8) and family.reach != "start":
        tail = tuple(range(lengths[-1] - 8, lengths[-1]))
        yield _case("tail", Ask(tail), f"the last 8 tokens of {lengths[-1]:,}")
    if asked.scaling == "dynamic" and trained <= LONGEST // 4:
        yield _case("heads", Ask((0, 1, 2), heads=2 * trained), f"{2 * trained} heads")


def _whole(n: int, *, optional: bool = False) -> Case:
    return _case("wide", Ask(doubling(n, n - 2, n - 1), whole=True), f"a text of {n:,} tokens", optional=optional)


def _kept(family: "Rotation", first: tuple[int, ...]) -> Iterator[Case]:
    """Yield calls of one object after others: long texts, other offsets, as many tokens as before."""
    asked = family.asked
    end = family.reached + 1
    ends = [end] if asked.trained is None else [end, min(2 * asked.trained, LONGEST, asked.max_positions or LONGEST)]
    long = tuple(Ask(doubling(n, n - 1), whole=family.reach != "any" or n <= LONGEST) for n in ends)
    yield _case("again", Ask(first[:6], before=long), "a short text after a long one")
    if family.reach == "start" or len(first) < 6:
        return
    offsets = [Ask(tuple(p for p in first if p >= begin)[:3]) for begin in (0, 3, 1)]
    yield _case("offsets", Ask(offsets[2].pos, before=tuple(offsets[:2])), "three tokens after three others")
    if family.reach == "run" and end > 80:
        calls_ = [Ask(tuple(range(start, start + 29))) for start in (40, 7)]
        yield _case("first_of_length", calls_[0], "29 tokens")
        yield _case("next_of_length", Ask(calls_[1].pos, before=(calls_[0],)), "29 tokens after as many")


def _half(dtype: str, first: tuple[int, ...]) -> Iterator[Case]:
    """Yield calls in half precision, and float32 after them."""
    pos = tuple(sorted({*first, *(p for p in OF_HALF if p <= first[-1])}))
    half = Ask(pos, dtype=dtype)
    yield _case(dtype, half, f"vectors of {dtype}", optional=True)
    for name, before in (("after_half_short", Ask(first[:4], dtype=dtype)), ("after_half", half)):
        yield _case(name, Ask(first, before=(before,)), f"float32 after {dtype}")


def observe(family: "Rotation", subject: Any, case: Case) -> Seen:
    """Return the answer to a case, without what scores do not see of position 0.

    Raises:
        SubjectError: The call cannot be used.
    """
    ask: Ask = case.args[0]
    if case.kind == "short":
        _steady(family, subject)
        if family.asked.xpos:
            _dtypes(family, subject)
        family.origin = _origin(family, subject)
    if case.kind == "grad":
        return Seen(case, _gradient(family, subject, ask), FLOAT32)
    one = fresh(subject)
    for earlier in ask.before:
        try:
            feed(family.convention, partial(_same, one), family.fed(earlier), earlier)
        except SubjectError:  # such as a text that is too long: what is asked after it counts
            continue
    take = partial(_same, one) if ask.before else partial(fresh, subject)
    if case.kind in ("near", "far"):
        value, ask = _as_far_as(family, take, case)
        case = Case(case.kind, (ask,), case.words)
    else:
        value = feed(family.convention, take, family.fed(ask), ask)
    if case.kind == "near":
        family.reached = max(family.reached, ask.pos[-1])
    note = family.origin
    if family.origin is not None:
        value = np.stack([value[0] @ np.linalg.inv(family.origin).T, value[1] @ family.origin])
    return Seen(case, value, rotation.HALF.get(ask.dtype, FLOAT32), note)


def _same(one: Any) -> Any:
    return one


def _as_far_as(family: "Rotation", take: Callable[[], Any], case: Case) -> tuple[Array, Ask]:
    """Return answers as far as the subject gives any: beyond, an error is a refusal, and NaN is kept.

    Raises:
        SubjectError: It refuses a length that is declared, or the beginning.
    """
    ask: Ask = case.args[0]
    x = family.fed(ask)
    try:
        return feed(family.convention, take, x, ask), ask
    except SubjectError as error:
        cause = error.cause
        lost = cause.code == "subject.not_finite"
        if not lost and (cause.code != "subject.raises" or family.asked.max_positions is not None):
            raise
    good, bad, value = 0, len(ask.pos), None
    while bad - good > 1:
        middle = (good + bad) // 2
        try:
            value = feed(family.convention, take, x, prefix(ask, middle))
            good = middle
        except SubjectError as error:
            if error.cause.code not in ("subject.raises", "subject.not_finite"):
                raise
            bad = middle
    if value is None or (case.kind == "near" and ask.pos[good - 1] < 7):
        raise SubjectError(cause)
    if lost:
        gone = np.full((*value.shape[:2], len(ask.pos) - good, value.shape[3]), np.nan)
        return np.concatenate((value, gone), 2), ask
    why = cause.message.split(" raised ")[-1]
    family.unseen[:] = family.unseen or [f"positions from {ask.pos[good]:,} on, where the code raises {why}"]
    return value, prefix(ask, good)


def _steady(family: "Rotation", subject: Any) -> None:
    """Raise if the same call gives something else the second time, or if vectors come back in no linear way."""
    x, y = torch.randn(2, 2, family.asked.head_dim, generator=torch.Generator().manual_seed(7))
    ask = Ask(tuple(p for p in FEW if p < min(family.asked.trained or 16, family.asked.max_positions or 16)))
    one = fresh(subject)
    first, again, other = (_vectors(family, take, x, ask) for take in (one, one, fresh(subject)))
    size = np.abs(first).max(initial=1e-30)
    off, apart = (float(np.abs(t - first).max() / size) for t in (again, other))
    case = {"positions": list(ask.pos), "calls": 2}
    if apart > REPEATS:
        message = f"the same call on two copies gives two results, {apart:.2%} of the largest number apart"
        raise SubjectError(Cause("rope.not_deterministic", message, apart, case))
    if off > REPEATS:
        message = f"the same call gives something else the second time, by up to {off:.2%} of the largest number"
        raise SubjectError(Cause("rope.state_kept", message, off, case))
    a, b = 20.0, -30.0  # large, so that a bound on numbers shows
    whole = _vectors(family, fresh(subject), a * x + b * y, ask)
    parts = a * first + b * _vectors(family, fresh(subject), y, ask)
    off = float(np.abs(whole - parts).max() / np.abs(whole).max(initial=1e-30))
    if off > LINEAR:
        added = float(np.abs(_vectors(family, fresh(subject), 0 * x, ask)).max())
        why = f"zeros come back as up to {added:.3g}: something is added" if added > REPEATS else "zeros stay zeros"
        message = f"f(20 x - 30 y) is not 20 f(x) - 30 f(y), by up to {off:.2%} of the largest number; {why}"
        raise SubjectError(Cause("rope.not_linear", message, off, case))


def _vectors(family: "Rotation", subject: Any, x: torch.Tensor, ask: Ask) -> Array:
    return feed_heads(family.convention, partial(_same, subject), x, ask)


def _dtypes(family: "Rotation", subject: Any) -> None:
    """Raise if queries and keys come back in different dtypes, which no attention takes."""
    x = torch.ones(1, 1, 4, family.asked.head_dim, dtype=torch.bfloat16)
    try:
        q, k = rotate(family.convention, fresh(subject), x, x.clone(), torch.arange(4))
    except SubjectError:
        return  # it does not take this dtype
    if q.dtype != k.dtype:
        name = "keys" if k.dtype == torch.float32 else "queries"
        message = f"of bfloat16 vectors queries come back in {str(q.dtype)[6:]} and keys in {str(k.dtype)[6:]}"
        raise SubjectError(Cause(f"xpos.dtype.{name}_float32", message, 1.0, {"dtype": "bfloat16"}))


def _origin(family: "Rotation", subject: Any) -> Array | None:
    """Return what position 0 does to queries and the inverse of it to keys; None for nothing."""
    ask = Ask((0, 1, 2), "basis")
    value = feed(family.convention, partial(fresh, subject), family.fed(ask), ask)
    return free_of(value[0, :, 0].T, value[1, :, 0].T, only_rotations=family.asked.xpos is not None)


def _gradient(family: "Rotation", subject: Any, ask: Ask) -> Array:
    """Return the gradient of the sum of answers times `weights`, (2, vectors, positions, head_dim)."""
    positions, wanted = calls(family.convention, ask)[0]
    x = family.two[:, None, None].expand(-1, HEADS, len(positions), -1).contiguous()
    sides = [x.clone().requires_grad_() for _ in range(2)]
    out = rotate(family.convention, fresh(subject), sides[0], sides[1], torch.tensor(positions), grad=True)
    origin = np.eye(family.asked.head_dim) if family.origin is None else family.origin
    by = rotation.weights(family, ask)
    found = []
    for given, t, undone in zip(sides, out, (np.linalg.inv(origin), origin.T), strict=True):
        weight = torch.from_numpy(by @ undone).to(t.dtype)
        got = None
        if t.requires_grad:
            total = (t[:, 0][:, wanted] * weight).sum()
            (got,) = torch.autograd.grad(total, given, allow_unused=True, retain_graph=True)
        found.append(torch.zeros_like(given) if got is None else got)
    return np.stack([t[:, 0][:, wanted].detach().double().numpy() for t in found])
