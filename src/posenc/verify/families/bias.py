"""ALiBi as slopes, `bias(heads, q_len, kv_len)` or a score_mod: -slope * distance, by the authors or by Falcon."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from posenc.definitions import versions
from posenc.verify.engine import CannotTellError, Case, Choice, Family, Fault, Seen
from posenc.verify.engine.judge import explains
from posenc.verify.engine.precision import rounded
from posenc.verify.engine.records import Array, Model
from posenc.verify.families import slopes, tables
from posenc.verify.families.bias_calls import FAR, LONGEST, Biases, distance, gone
from posenc.verify.report import Cause

NUMBERS = (6, 8, 12, 4, 2, 3, 5, 16, 20)
PAST_INT16 = 33_000


def family(convention: str, spec: Mapping[str, Any]) -> Family:
    """Return the family of slopes or a bias for a specification."""
    encoding = spec.get("encoding")
    if convention == "slopes_fn":
        if spec.get("variant") == "learned":
            raise CannotTellError("learned slopes have no right values")
        return Slopes(convention, {**spec, "causal": True, "bidirectional": None, "window": None})
    if encoding in ("swin", "swin_bias"):  # its window is a part of an image
        return tables.Window(convention, spec)
    if encoding not in (None, "alibi", "t5", "relative_bias", *versions.BIASES):
        raise CannotTellError(f"{convention} has no check for encoding {encoding!r}")
    made = (tables.Line if encoding in ("t5", "relative_bias") else Alibi)(convention, spec)
    if made.window == 1:
        raise CannotTellError("with a window of 1 each query sees only its own key: the bias has no effect")
    return made


class Alibi(Biases):
    """ALiBi, up to a constant in each row, which a softmax ignores."""

    word, mismatch = "alibi", "alibi.mismatch"

    def __init__(self, convention: str, spec: Mapping[str, Any]) -> None:
        super().__init__(convention, spec)
        self.truth = {**slopes.truth(spec), "mask": self.masks()[0]}
        self.definition = slopes.definition(self.truth)
        self.found: dict[int, Array] = {}  # the measured slopes, by the number of heads
        self.end = 0  # the smallest wrong distance of a long row; 0 if all are right
        self.side = 1.0  # how many times the slope of keys behind keys ahead have

    def cases(self) -> Iterator[Case]:
        """Yield squares, calls with a cache, calls after other calls, and a long row."""
        numbers = [self.heads] if self.heads or self.score_mod else NUMBERS
        n = numbers[0]
        if self.score_mod:
            yield Case("score", (n, 5, 5))
        elif n > 3:
            yield Case("near", (n, n, n), optional=True)  # slopes along another axis fit only here
        yield from (Case("near", (n, size, size)) for size in (7, 11, 4))
        for at, m in enumerate(numbers[1:], 12):  # sizes that no other number of heads used
            yield Case("near" if slopes.is_power(m) else "rest", (m, at, at))
        yield from self.steps(n)
        if not self.score_mod:
            yield Case("again", (n, 9, 9, 2 * n, 9, 9))
            if not self.heads:
                yield Case("again", (2 * n, 10, 10, n, 10, 10))
        # the longest possible row, since a table may end before; twice the window, to see where it ends
        usual, beyond = int(min(2080, (4e7 / max(n, 1)) ** 0.5)), min(2 * (self.window or 0) + 8, LONGEST)
        case = None
        for k_len in sorted({FAR, 520, usual, max(usual, beyond)}) if self.causal else (FAR, 300):
            size = (n, 1 if self.causal else k_len, k_len)
            case = Case("cached" if self.causal else "near", size, optional=True, otherwise=case)
        yield from [case] if case else []
        if self.score_mod and self.causal:
            yield Case("cached", (n, 1, PAST_INT16), optional=True)

    def count(self, subject: Any) -> int:
        """Return how many heads a score_mod has, from the largest index that works and from its slopes."""
        n = super().count(subject)
        if n < 64:
            return n
        s = _slopes(self.observe(subject, Case("near", (n, 7, 7))).value)
        for m in range(1, n + 1):
            if slopes.alike(s[:m], self.steps_of(self.truth, m)):
                return m
        raise CannotTellError("the number of heads is not declared, and the slopes fit no number; declare heads")

    def look(self, seen: Sequence[Seen]) -> None:
        """Measure the slopes; learned ones are right as they are."""
        near = [s for s in reversed(seen) if s.case.kind in ("near", "rest") and s.case.args[1] < FAR]
        read = {s.case.args[0]: _slopes(s.value) for s in near}
        telling = sorted(read, key=lambda n: n < 3 or not slopes.is_power(n))
        self.found = {n: read[n] for n in telling if len(read[n]) and np.isfinite(read[n]).all()}
        behind, own, ahead = near[0].value[0, 1, :3] if near and not self.causal else (1.0, 0.0, 1.0)
        self.side = float((ahead - own) / (behind - own)) if np.isfinite(ahead) and behind != own else 1.0
        self.end = next((self._end(s) for s in reversed(seen) if s.case.args[2] >= FAR), 0)
        if self.spec.get("variant") == "learned" and self.found:
            if not any(s.any() for s in self.found.values()):
                raise CannotTellError("all learned slopes are 0: the bias has no effect")
            self.truth = {**self.truth, "given": {n: np.abs(s) for n, s in self.found.items()}}

    def _end(self, s: Seen) -> int:
        """Return the smallest distance of the last query that a long answer has wrong; 0 if there is none."""
        predicted = self.predict(self.truth, s.case)
        with np.errstate(invalid="ignore", divide="ignore"):
            off = self.off(s, predicted, self.truth)
        return int((off.reshape(-1, *off.shape[-2:])[:, -1, ::-1].max(0) > 1).argmax())

    def steps_of(self, model: Model, n: int) -> Array:
        """Return the slopes of n heads with a model's parameters."""
        return _slopes(self.predict(model, Case("near", (n, 2, 2))))

    def predict(self, model: Model, case: Case) -> Array:
        """Return the bias with a model's parameters."""
        n, q_len, k_len = size = case.args[:3]
        if model["flat"] and model["flat"](q_len, k_len):
            return np.zeros(size)
        slope, k = slopes.slopes_of(model, n)[:, None, None], np.arange(float(k_len))
        if model["form"]:
            form, dtype = model["form"]
            bias = form(slope, k[k_len - q_len :, None], k, partial(rounded, dtype=dtype))
            return np.broadcast_to(bias, (len(slope), q_len, k_len))
        d = distance(size)
        return -slope * np.where(d < 0, -model["ahead"] * d, d)

    def visible(self, value: Array, case: Case) -> Array:
        """Return the bias relative to that of the query's own key."""
        with np.errstate(invalid="ignore"):
            return value - _own(value)

    def slack(self, seen: Seen, predicted: Array, model: Model) -> Array | float:
        """Return the rounding error of the two numbers that are subtracted; measured slopes are less exact."""
        found = np.abs(seen.value) + np.abs(_own(seen.value)) + np.abs(predicted)
        rough: Array = 4 * seen.eps * found + 1e-6 + 2e-5 * bool(model["given"]) * np.abs(predicted)
        return rough

    def same(self, seen: Seen, predicted: Array) -> bool:
        """Return whether the numbers of visible keys agree too."""
        if seen.case.args[2] >= FAR or self.convention == "slopes_fn":
            return True
        off = np.where(gone(seen), 0.0, np.abs(seen.value - predicted)) <= self.slack(seen, predicted, self.truth)
        return bool(off[:, self.truth["mask"].sees(distance(seen.case.args[:3]))].all())

    def unlike(self, seen: Sequence[Seen]) -> str:
        """Return the difference that scores do not show."""
        return "a constant is added to each row, which a softmax over the row cancels"

    def free(self) -> Iterator[Choice]:
        """Yield what the specification leaves open: the heads' order, the keys ahead, a window on both sides."""
        if self.spec.get("order") == "any" and (same := self.reordered()):
            words = "the heads have ALiBi's slopes in another order, which the specification allows"
            yield Choice({"given": same}, words)
        for mask in (mask for mask in self.masks() if not mask.causal):
            for ahead in (1.0, 0.0) if self.spec.get("variant") not in ("symmetric", "one-sided") else (1.0,):
                yield Choice({"mask": mask, "ahead": ahead * self.truth["ahead"]})

    faults = slopes.faults

    def read(self, seen: Sequence[Seen], wrong: Sequence[Seen], model: Model) -> Fault | None:
        """Return what is wrong with slopes, if the measured ones explain all answers."""
        off = (s for s in wrong if len(s.value) != s.case.args[0])
        measured = {**model, "given": self.found, "factor": 1.0}
        if next(off, None) is None and not explains(self, measured, wrong):
            return None
        return slopes.described(self)

    def reordered(self) -> dict[int, Array]:
        """Return the right slopes in the order of the measured ones, if they are only permuted; else an empty dict."""
        wants = {n: np.sort(slopes.slopes_of(self.truth, n)) for n in self.found}
        same = all(slopes.alike(np.sort(s), wants[n]) for n, s in self.found.items())
        return {n: wants[n][s.argsort().argsort()] for n, s in self.found.items()} if same else {}

    def raised(self, cause: Cause, case: Case) -> Fault | None:
        """Return state of other calls, a bias over the queries only, or slopes for powers of two only."""
        plain = {"message": "", "fix": ""}
        if case.kind in ("cached", "beyond") and cause.code == "subject.shape":
            return Fault("alibi.kv_cache.bias_zero", {}, {**plain, "words": cause.message})
        if case.kind == "rest" and cause.code == "subject.raises":
            return Fault("alibi.slopes.not_power_of_two", {}, {**plain, "how": f"no slopes at all: {cause.message}"})
        return super().raised(cause, case)

    def measured(self, seen: Sequence[Seen], model: Model) -> dict[str, Any]:
        """Return the slopes by the number of heads."""
        self.definition = slopes.definition(model)  # one of the right ones
        return {"slopes": {str(n): s.tolist() for n, s in self.found.items()}}

    def not_judged(self, seen: Sequence[Seen]) -> list[str]:
        """Return the parts that were not judged."""
        longest = max((s.case.args[2] for s in seen), default=2)
        return [*super().not_judged(seen), *([f"distances from {longest:,} on"] if longest > 2 else [])]


class Slopes(Alibi):
    """`slopes(n_heads)` for one number of heads or for many, judged as a bias of two tokens."""

    def cases(self) -> Iterator[Case]:
        """Yield powers of two, other numbers of heads, and some of them again after others."""
        for n in [self.heads] if self.heads else [4, 8, 16, 32, 2, 1, 3, 5, 6, 12, 20, 40]:
            kind = "near" if self.heads or (slopes.is_power(n) and n > 2) else "rest"
            yield Case(kind, (n, 2, 2), optional=n == 1)
        for n in [self.heads] if self.heads else (8, 4):
            yield Case("again", (n, 2, 2, 2 * n, 2, 2))

    def not_judged(self, seen: Sequence[Seen]) -> list[str]:
        """Return that only the declared number of heads was asked."""
        return ["slopes of other numbers of heads"] if self.spec.get("heads") else []

    def smallest(self, seen: Seen, predicted: Array, off: Array) -> dict[str, Any]:
        """Return the slope with the largest error."""
        case = super().smallest(seen, predicted, off)
        head = {"head": case["head"]} if "head" in case else {}
        return {"n_heads": case["heads"]} | head | {k: -case[k] + 0.0 for k in ("found", "expected") if k in case}


def _own(value: Array) -> Array:
    """Return the bias of each query's own key, (.., q_len, 1)."""
    q_len, k_len = value.shape[-2:]
    return np.diagonal(value, k_len - q_len, -2, -1)[..., None]


def _slopes(value: Array) -> Array:
    """Return the slopes of a bias from its second query and the key before it, if it is square."""
    with np.errstate(invalid="ignore"):
        return np.asarray(value[:, 1, 1] - value[:, 1, 0])
