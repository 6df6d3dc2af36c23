"""What is asked of any bias of distances or score_mod, and which keys it may hide."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from posenc.verify.engine import Case, Family, Fault, Seen
from posenc.verify.engine.observe import fresh
from posenc.verify.engine.records import Array, Model, kind
from posenc.verify.families.bias_calls import ADDED, Size, ask, ask_added, count, distance
from posenc.verify.guard import SubjectError
from posenc.verify.report import Cause

Places = NDArray[np.bool_]
HIDDEN = -9000.0  # what is below hides a key: -10000 was BERT's way to say -inf
FAR = 130  # keys, of which the farthest may have a bias as low as that
LONGEST = 1 << 17  # keys of one query


@dataclass(frozen=True)
class Mask:
    """Which keys a query sees: none ahead, and none beyond a largest distance."""

    causal: bool
    reach: int | None = None

    def sees(self, d: Array) -> Places:
        """Return which of some values of query - key are seen."""
        seen: Places = ((d >= 0) | (not self.causal)) & (np.abs(d) <= (np.inf if self.reach is None else self.reach))
        return seen

    def wrong(self, size: Size, gone: Places) -> Places:
        """Return the places that a bias hides and must not, or shows while it hides others of their kind."""
        d = distance(size)
        see, ahead = self.sees(d), (d < 0) & self.causal
        found: Places = gone & see
        for alike in (ahead, ~ahead & ~see):
            found = found | (~gone & alike & (gone & alike).any())
        return found

    def fault(self, size: Size, gone: Places, word: str) -> Fault | None:
        """Return what is wrong with the keys that a bias hides, with its code's first word; None if nothing is."""
        wrong = self.wrong(size, gone)
        if not wrong.any():
            return None
        _, q_len, k_len = size
        values: dict[str, Any] = {}
        d, code = distance(size), "mask.window"
        behind, ahead = gone & (d > 0), gone & (d < 0)
        first = int(np.broadcast_to(d, gone.shape)[behind].min(initial=k_len))
        if q_len < k_len and (gone == ~self.sees(d - (k_len - q_len))).all():
            code = "buffer_slice_shifted" if word == "alibi" else "kv_cache.query_from_zero"
            values = {"words": "queries are counted from 0"}
        elif self.causal and (wrong & (d < 0)).any() and not (gone & self.sees(d)).any():
            code = "mask.shows_ahead"
        elif self.reach is None or (not self.causal and (ahead == (d < 0)).all()):
            code = "mask.hides_visible"
        elif (behind == (d >= first)).all():
            values = {"sees": first, "window": self.reach + 1}
        at = map(int, np.argwhere(wrong)[0])
        case = dict(zip(("heads", "q_len", "k_len", "head", "query", "key"), (*size, *at), strict=True))
        return Fault(f"{word}.{code}", {}, values, case)


class Biases(Family):
    """The questions to one subject, up to what a family says of their answers."""

    word: str  # the first of its codes
    state = "alibi.mask_cached_on_class"  # the code of a memory of other calls
    both = False  # whether a query sees both sides where the specification is silent
    pairs = 0

    def __init__(self, convention: str, spec: Mapping[str, Any]) -> None:
        super().__init__(convention, spec)
        self.score_mod = convention == "score_mod"
        self.heads = int(spec.get("heads") or 0)
        both = spec.get("bidirectional", None if spec.get("causal") is None else not spec["causal"])
        self.open = both is None  # which sides a query sees
        self.causal = not (self.both if self.open else both)
        self.window = spec.get("window")  # how many keys a query sees on a side, its own included
        if self.window is not None and (type(self.window) is not int or self.window < 1):
            said = f"{self.window!r:.60}. Give one number, as 64."
            raise ValueError(f"verify: window must be how many keys a query sees; got {said}")
        self.kinds = (kind(self.state, "again", "near cached" if self.causal else "near"),)

    def masks(self) -> list[Mask]:
        """Return which keys a query may see, the likeliest first; a window on both sides is counted in three ways."""
        reach = None if self.window is None else self.window - 1
        sides = [None] if self.window is None else [reach, self.window, self.window // 2]
        one = [Mask(True, reach)] if self.causal or self.open else []
        both = [Mask(False, side) for side in sides if not self.causal or (self.open and self.window)]
        return one + both if self.causal else both + one

    def steps(self, n: int) -> Iterator[Case]:
        """Yield calls with a cache, and calls after other calls."""
        if self.causal or self.open:
            yield from (Case("cached", (n, *size)) for size in ((1, 2), (1, 9), (3, 8), (5, 6), (3, 7)))
        if not self.score_mod:
            sizes = [(7, 7, n, 11, 11), (11, 11, n, 7, 7)]
            sizes += [(3, 9, n, 3, 8), (1, 9, n, 3, 9)] if self.causal or self.open else []
            yield from (Case("again", (n, *size)) for size in sizes)

    def observe(self, subject: Any, case: Case) -> Seen:
        """Return the bias, or what a score_mod makes of scores."""
        one = fresh(subject)
        if case.args[0] == 0:
            self.heads = self.heads or self.count(one)
            case = replace(case, args=(self.heads, *case.args[1:]))
        if case.kind in ADDED:
            return ask_added(one, case)
        size, before = case.args[:3], case.args[3:]
        with suppress(SubjectError):  # an object for so many heads may refuse others, so that it is another one
            if before:
                ask(fresh(subject) if self.heads and before[0] != size[0] else one, before, self.score_mod)
        try:
            value, eps = ask(one, size, self.score_mod)
        except SubjectError as error:
            if case.optional and error.cause.code == "subject.shape":  # a table ends
                error.cause = replace(error.cause, code="subject.raises")
            raise
        return Seen(case, value, eps, HIDDEN if size[2] < FAR else -1e8)

    def count(self, subject: Any) -> int:
        """Return for how many heads a subject is, where it is not said: the most that it can be called for."""
        return count(subject, 5, self.score_mod)

    def off(self, seen: Seen, predicted: Array, model: Model) -> Array:
        """Return the difference of each key that is seen; a key that is hidden otherwise is wrong by all."""
        if seen.case.kind in ADDED:
            return np.asarray(np.abs(seen.value - predicted) / seen.note)
        size, mask = seen.case.args[:3], model["mask"]
        if (wrong := mask.wrong(size, gone(seen))).any():
            return np.where(wrong, np.inf, 0.0)
        return np.where(mask.sees(distance(size)), super().off(seen, predicted, model), 0.0)

    def read(self, seen: Sequence[Seen], wrong: Sequence[Seen], model: Model) -> Fault | None:
        """Return what is wrong with the keys that a bias hides."""
        mask = model["mask"]
        for s in (s for s in wrong if s.case.kind not in ADDED):
            ahead = gone(s)[:, distance(s.case.args[:3]) < 0]
            if self.open and self.window and ahead.any():
                mask = Mask(bool(ahead.all()), mask.reach)
            fault: Fault | None = mask.fault(s.case.args[:3], gone(s), self.word)
            if fault:
                return fault
        return None

    def refine(self, fault: Fault, wrong: frozenset[str], right: frozenset[str], seen: Sequence[Seen]) -> Fault:
        """Return what becomes of the score in place of what is wrong with the bias then."""
        if "score" in wrong and not fault.change.get("gain"):
            back = next(s for s in seen if s.case.kind == "score").value[0]
            return Fault(f"{self.word}.score.not_added", {}, {"back": float(back.flat[np.abs(back - 1).argmax()])})
        return Fault(f"{self.word}.axis.batch") if "batch" in wrong and "score" not in wrong else fault

    def raised(self, cause: Cause, case: Case) -> Fault | None:
        """Return a memory of other calls."""
        return Fault(self.state, {}, {"message": "", "fix": ""}) if case.kind == "again" else None

    def smallest(self, seen: Seen, predicted: Array, off: Array) -> dict[str, Any]:
        """Return the place that is off most, as scores see it."""
        case = dict(zip(("heads", "q_len", "k_len"), seen.case.args, strict=False))
        got, want = self.visible(seen.value, seen.case), self.visible(predicted, seen.case)
        if off.ndim != 3 or not off.shape == got.shape == want.shape:
            return case
        at = np.unravel_index(int(off.argmax()), off.shape)
        place = dict(zip(("head", "query", "key"), map(int, at), strict=True))
        found = float(got[at]) + 0.0 if np.isfinite(got[at]) else str(got[at])
        return {**case, **place, "found": found, "expected": float(want[at]) + 0.0}


def gone(seen: Seen) -> Places:
    """Return which keys a bias hides."""
    hidden: Places = seen.value <= seen.note
    return hidden
