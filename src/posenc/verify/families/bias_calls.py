"""Call biases and score_mods, however they are written, and find the keys that they hide: shared by all biases."""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from posenc.verify import guard
from posenc.verify.engine import Case, Family, Fault, Seen
from posenc.verify.engine.observe import fresh
from posenc.verify.engine.records import Array, Model, kind
from posenc.verify.guard import SubjectError
from posenc.verify.report import Cause

Size = tuple[int, int, int]  # heads, queries, keys: the queries are the last of the keys' positions
SCORE = -2.5
ONE_BY_ONE = 20_000  # the most entries computed one at a time, for code that vmap cannot map
NUMBERS = (64, 40, 32, 24, 20, 16, 12, 10, 8, 7, 6, 5, 4, 3, 2, 1)
Places = NDArray[np.bool_]
HIDDEN = -9000.0  # a lower bias hides a key: BERT used -10000 for -inf
FAR = 130  # keys; beyond, an ordinary bias may be as low as that
LONGEST = 1 << 17  # keys of one query
FEWER = "calls with fewer queries than keys: if the model is not causal, queries have no declared place among the keys"
LARGEST = 1 << 21  # entries of a square that is larger than a window


@lru_cache(maxsize=64)
def distance(size: Size) -> Array:
    """Return query minus key, (q_len, k_len)."""
    _, q_len, k_len = size
    return np.arange(k_len - q_len, k_len)[:, None] - np.arange(float(k_len))


def ask(subject: Any, size: Size, convention: str, row: int = 0) -> tuple[Array, float]:
    """Return the bias, and the rounding error of its numbers; a score_mod is called for a row of the batch."""
    if convention == "score_mod":
        found = _scores(subject, size, row=row)
    else:
        found = (_slopes if convention == "slopes_fn" else _bias)(subject, size)
    what = "complex numbers" if found.is_complex() else "+inf, which makes a softmax NaN; hide keys by -inf"
    if found.is_complex() or (found == torch.inf).any():
        call = "bias({}, {}, {})".format(*size)
        raise SubjectError(Cause("subject.not_finite", f"{call} returns {what}", 1.0, {"call": call}))
    return found.double().numpy().copy(), guard.rounding(found)


def count(subject: Any, tokens: int, convention: str, usual: tuple[int, ...]) -> int:
    """Return the first number of heads with which a call works: usual ones first, then the largest."""
    for n in (*usual, *NUMBERS):
        with suppress(SubjectError):
            ask(subject, (n, tokens, tokens), convention)
            return n
    ask(subject, (1, tokens, tokens), convention)  # this raises the error
    return 1


def _slopes(subject: Any, size: Size) -> Tensor:
    """Return a bias of two tokens from slopes, which may be any kind of list."""
    n, what = size[0], f"slopes({size[0]})"
    found = invoke(subject, n, what=what)
    t = guard.array(found, what).flatten()
    if t.is_complex() or not (t.double().abs() < 1e30).all():
        message = f"{what} must return a list of finite numbers; got {t.tolist()!s:.60}"
        raise SubjectError(Cause("subject.shape", message, 1.0, {"n_heads": n}))
    return -t.double()[:, None, None] * torch.from_numpy(distance(size))


def _bias(subject: Any, size: Size) -> Tensor:
    what = "bias({}, {}, {})".format(*size)
    found = invoke(subject, *size, what=what)
    if isinstance(found, Tensor):
        found = found.detach().cpu()
        while found.ndim > 3 and found.shape[0] == 1:
            found = found[0]
        with suppress(RuntimeError):
            found = found.expand(size)
    return guard.shaped(found, size, what, hides=True)


def _scores(subject: Any, size: Size, score: float = 0.0, row: int = 0) -> Tensor:
    """Return the result of a score_mod for one score in all places."""
    n, q_len, k_len = size
    places = (torch.arange(n), torch.arange(k_len - q_len, k_len), torch.arange(k_len))
    at = torch.tensor(score), torch.tensor(row)
    what = f"score_mod({score:g}, {row}, h, q, k) with h < {n}, q and k < {k_len}"

    over_all: Callable[..., Any] = subject
    for axes in ((None, None, None, None, 0), (None, None, None, 0, None), (None, None, 0, None, None)):
        over_all = torch.vmap(over_all, in_dims=axes)

    def one_by_one(s: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Any:
        each = [guard.array(subject(s, b, i, j, t), what) for i in h for j in q for t in k]
        return torch.stack(each).reshape(size)

    try:
        found = guard.call(over_all, *at, *places, what=what)
    except SubjectError as error:
        if error.cause.code != "subject.raises" or n * q_len * k_len > ONE_BY_ONE:
            raise
        # plain Python such as `if kv_idx > q_idx` is right too, one number at a time
        found = guard.call(one_by_one, *at, *places, what=what)
    return guard.shaped(found, size, what, hides=True)


def _check_score(subject: Any, size: Size, zero: Array, code: str) -> None:
    """Raise an error if a score_mod does not return the score plus its result for a score of 0."""
    scores = _scores(subject, size, SCORE)
    found = scores.double().numpy()
    kept = (zero > -1e30) & np.isfinite(found)
    back = found[kept] - zero[kept]
    off = np.abs(back - SCORE) / (1 + np.abs(zero[kept]).max(initial=0.0))
    if (off > 1e-4 + 2 * guard.rounding(scores)).any():
        at, factor = off.argmax(), np.median(back) / SCORE
        words = f"a score of {SCORE:g} is returned as {back[at]:.5g} after the bias is subtracted"
        if not np.ptp(back) > 1e-3 * abs(SCORE):
            words = "the score is lost" if abs(factor) < 1e-3 else f"the score is multiplied by {factor:.5g}"
        elif not zero[kept].any():
            words = "the score is multiplied by the bias: a score of 0 is returned as 0 for all keys"
        raise SubjectError(Cause(code, words, float(off.max()), {"score": SCORE}))


def invoke(subject: Callable[..., Any], *args: Any, what: str) -> Any:
    """Call a subject, by keyword if it takes no positional arguments."""
    names: list[str] = []
    with suppress(TypeError, ValueError):
        taken = inspect.signature(subject).parameters.values()
        names = [p.name for p in taken if p.kind is p.KEYWORD_ONLY and p.default is p.empty]
    at = max(len(args) - len(names), 0)
    return guard.call(subject, *args[:at], what=what, **dict(zip(names, args[at:], strict=False)))


@dataclass(frozen=True)
class Mask:
    """Which keys a query sees: none ahead, and none beyond a largest distance; queries may be counted from 0."""

    causal: bool
    reach: float = np.inf
    from_zero: bool = False

    def sees(self, d: Array) -> Places:
        """Return which values of query - key are visible."""
        d = d - d[0, 0] if self.from_zero and d.ndim > 1 else d
        seen: Places = ((d >= 0) | (not self.causal)) & (np.abs(d) <= self.reach)
        return seen

    def wrong(self, d: Array, gone: Places, hides: frozenset[str] = frozenset()) -> Places:
        """Return the places that a bias hides but should not, or shows although it hides others of their kind."""
        start = d[0, 0] if self.from_zero else 0.0
        see, ahead = self.sees(d), (d < start) & self.causal
        found: Places = gone & see
        # a bias that hides keys ahead is the mask, so it must apply the window too
        of_beyond = {"beyond", "ahead"} if self.causal else {"beyond"}
        for alike, of in ((ahead, {"ahead"}), (~ahead & ~see, of_beyond)):
            found = found | (~gone & alike & (bool(of & hides) or (gone & alike).any()))
        return found


class Biases(Family):
    """The questions to one subject; a family adds how to judge the answers."""

    word: str  # the first word of its finding codes
    state = "alibi.mask_cached_on_class"  # the finding code for state of other calls
    usual: tuple[int, ...] = ()  # numbers of heads to try first if none is declared
    both = False  # whether a query sees both sides if the specification declares no side
    pairs = 24

    def __init__(self, convention: str, spec: Mapping[str, Any]) -> None:
        super().__init__(convention, spec)
        self.score_mod = convention == "score_mod"
        self.heads = int(spec.get("heads") or 0)
        both = spec.get("bidirectional", None if spec.get("causal") is None else not spec["causal"])
        self.open = both is None  # whether the sides are left open
        self.causal = not (self.both if self.open else both)
        self.window: Any = spec.get("window")  # how many keys a query sees on one side, including its own
        if self.window is not None and (type(self.window) is not int or self.window < 1):
            said = f"{self.window!r:.60}. Give one number, as 64."
            raise ValueError(f"verify: window must be the number of keys that a query sees; got {said}")
        self.hides: frozenset[str] = frozenset()  # where one call hides keys, so that all must
        self.lowest = 0.0  # the lowest bias of a decode step
        self.nearest = np.inf  # the smallest distance that is hidden, not counting keys ahead
        right = "near cached" if (self.causal or self.open) and convention != "slopes_fn" else "near"
        self.kinds = (kind(self.state, "again", right), kind(f"{self.word}.axis.batch", "row", right))

    def masks(self) -> list[Mask]:
        """Return masks of visible keys, the likeliest first; a window on both sides is counted in three ways."""
        sides = [np.inf] if self.window is None else [self.window - 1, self.window, self.window // 2]
        one = [Mask(True, sides[0])] if self.causal or self.open else []
        both = [Mask(False, side) for side in sides if not self.causal or (self.open and self.window)]
        return one + both if self.causal else both + one

    def steps(self, n: int) -> Iterator[Case]:
        """Yield calls with a cache, calls longer than a window, and calls after other calls or of another row.

        Code may refuse several queries after a cache.
        """
        sizes = ((1, 2), (1, 9), (3, 8), (5, 6), (3, 7)) if self.causal or self.open else ()
        yield from (Case("cached", (n, *size), "the last of all keys", optional=size[0] > 1) for size in sizes)
        if self.score_mod:
            yield Case("row", (n, 7, 7), "the second row of a batch", optional=True)
            return
        beyond = (self.window or 0) + 4
        if self.window and max(n, 4) * beyond**2 <= LARGEST:
            yield Case("beyond", (n, beyond, beyond), f"a text of {beyond} tokens", optional=True)
        if self.window and sizes:
            yield Case("beyond", (n, 3, beyond + 2), f"3 queries after {beyond - 1} keys", optional=True)
        more = [(7, 7, n, 11, 11), (11, 11, n, 7, 7)]
        more += [(3, 9, n, 3, 8), (1, 9, n, 3, 9)] if sizes else []
        yield from (
            Case("again", (n, *size), "after a call of another size", optional=1 < size[0] < size[1]) for size in more
        )

    def observe(self, subject: Any, case: Case) -> Seen:
        """Return the bias."""
        one = fresh(subject)
        if case.args[0] == 0:
            self.heads = self.heads or self.count(one)
            case = replace(case, args=(self.heads, *case.args[1:]))
        size, before = case.args[:3], case.args[3:]
        with suppress(SubjectError):  # an object for a fixed number of heads may refuse others
            if before:
                ask(fresh(subject) if self.heads and before[0] != size[0] else one, before, self.convention)
        try:
            value, eps = ask(one, size, self.convention, row=int(case.kind == "row"))
        except SubjectError as error:
            if case.optional and error.cause.code == "subject.shape":  # a table ends
                error.cause = replace(error.cause, code="subject.raises")
            if size[1] < size[2] and guard.is_refusal(error):  # code that has no cache serves only as many queries
                raise guard.NotAnsweredError(error.cause.message) from error
            raise
        if case.kind == "score":
            _check_score(one, size, value, f"{self.word}.score.not_added")
        if size[2] < FAR:
            self.lowest = min(self.lowest, float(value[value > HIDDEN].min(initial=0.0)) / max(size[2] - 1, 1))
        # far keys are as low by their distance as near ones that are hidden
        seen = Seen(case, value, eps, min(HIDDEN, 2 * self.lowest * size[2]))
        places = {"ahead": distance(size) < 0, "beyond": distance(size) >= (self.window or np.inf)}
        if (d := distance(size)[gone(seen).any(0) & (distance(size) > 0)]).size:
            self.nearest = min(self.nearest, float(d.min()))
        self.hides |= {where for where, at in places.items() if gone(seen)[:, at].any()}
        return seen

    def count(self, subject: Any) -> int:
        """Return the number of heads of a subject if none is declared."""
        return count(subject, 5, self.convention, self.usual)

    def off(self, seen: Seen, predicted: Array, model: Model) -> Array:
        """Return the difference for each visible key; a key that is wrongly hidden or shown counts as fully wrong."""
        d, mask = distance(seen.case.args[:3]), model["mask"]
        wrong = mask.wrong(d, gone(seen), self.hides)
        if mask.from_zero and d[0, 0]:  # the own key may be hidden, so numbers cannot be compared
            return np.where(wrong | (not gone(seen).any()), np.inf, 0.0)
        if wrong.any():
            return np.where(wrong, np.inf, 0.0)
        return np.where(mask.sees(d), super().off(seen, predicted, model), 0.0)

    def windows(self) -> Iterator[Fault]:
        """Yield windows with another number of keys."""
        for mask in self.masks() if self.window else ():
            for reach in sorted({mask.reach + 1, mask.reach - 1, self.nearest - 1} - {mask.reach, np.inf}):
                values = {"sees": int(self.window + reach - mask.reach), "window": self.window}
                yield Fault(f"{self.word}.mask.window", {"mask": replace(mask, reach=reach)}, values)

    def unknown(self, seen: Sequence[Seen], wrong: Sequence[Seen], model: Model) -> Fault:
        """Return what is wrong with the keys that a bias hides, if anything."""
        hidden, d = gone(wrong[0]), distance(wrong[0].case.args[:3])
        for h, i, j in np.argwhere(model["mask"].wrong(d, hidden, self.hides))[:1]:
            ahead = model["mask"].causal and d[i, j] < 0
            code = "hides_visible" if hidden[h, i, j] else "shows_ahead" if ahead else "window"
            _, queries, keys = wrong[0].case.args[:3]
            words = f"the call with q_len {queries} and k_len {keys} shows "
            if code == "window":
                far = (d if self.causal else abs(d)) >= self.window
                here = " on one side of the query, and hides those on the other"
                others = ", which others hide" if "beyond" in self.hides else ", although the bias hides keys ahead"
                words += f"keys beyond the window of {self.window}{here if hidden[:, far].any() else others}"
            shown = -d[~hidden[h] & (d < 0)].min(initial=0.0)
            if code == "shows_ahead" and (hidden[h] == (d < -shown)).all():
                words += f"each query {shown:g} keys ahead: its number, or the edge of the mask, is {shown:g} too high"
            return Fault(f"{self.word}.mask.{code}", {}, {"message": words} if not words.endswith("shows ") else {})
        return super().unknown(seen, wrong, model)

    def refine(self, fault: Fault, wrong: frozenset[str], right: frozenset[str], seen: Sequence[Seen]) -> Fault:
        """Return state of other calls in place of a fault of the bias, since it affects all later calls."""
        first = {s.case.args[:3]: s.value for s in reversed(seen)}
        again = [s for s in seen if s.case.kind == "again"]
        return fault if all(np.array_equal(s.value, first[s.case.args[:3]]) for s in again) else Fault(self.state)

    def raised(self, cause: Cause, case: Case) -> Fault | None:
        """Return state of other calls."""
        return Fault(self.state, {}, {"message": "", "fix": ""}) if case.kind == "again" else None

    def smallest(self, seen: Seen, predicted: Array, off: Array) -> dict[str, Any]:
        """Return the entry with the largest error, as scores see it."""
        case = dict(zip(("heads", "q_len", "k_len"), seen.case.args, strict=False))
        if not off.shape == predicted.shape == seen.value.shape:
            return case
        at = np.unravel_index(int(off.argmax()), off.shape)
        found: tuple[Any, ...] = tuple(float(self.visible(v, seen.case)[at]) + 0.0 for v in (seen.value, predicted))
        if np.isinf(off[at]):
            found = ("hidden", "seen") if gone(seen)[at] else ("seen", "hidden")
        names = ("head", "query", "key", "found", "expected")
        return {**case, **dict(zip(names, (*map(int, at), *found), strict=True))}

    def not_judged(self, seen: Sequence[Seen]) -> list[str]:
        """Return a window that no call shows, since a separate mask may hide keys, and calls that have no rule."""
        found = [] if self.causal or self.open or self.score_mod else [FEWER]
        if self.window and seen:
            far = [distance(s.case.args[:3]) >= self.window for s in seen]
            hidden = any(bool((gone(s) & beyond).any()) for s, beyond in zip(seen, far, strict=True))
            longest = max((s.case.args[1] for s in seen), default=0)
            if not hidden and not (self.causal and "ahead" in self.hides):
                found.append(f"the window of {self.window} keys: the bias does not apply it, so a separate mask must")
            if longest <= self.window and not self.score_mod:
                found.append(f"the window of {self.window} keys in calls of more than {longest} queries")
        return found


def gone(seen: Seen) -> Places:
    """Return which keys a bias hides."""
    hidden: Places = seen.value <= seen.note
    return hidden
