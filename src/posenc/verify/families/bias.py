"""ALiBi as `bias(heads, q_len, k_len)` or a score_mod: -slope * distance, by the authors' or Falcon's definition."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from posenc.definitions import versions
from posenc.verify.engine import CannotTellError, Case, Choice, Family, Fault, Seen
from posenc.verify.engine.records import Array, Model
from posenc.verify.families import bias_faults, slopes, tables
from posenc.verify.families.bias_calls import ADDED, added, distance
from posenc.verify.families.bias_cases import BIASES, STATE, Asked, is_long
from posenc.verify.families.masks import Mask, on_both_sides, window
from posenc.verify.report import Cause


def family(convention: str, spec: Mapping[str, Any]) -> Family:
    """Return the family of a bias for a specification.

    Raises:
        ValueError: The window or the order of heads is no such thing.
        CannotTellError: No check knows the encoding, or nothing of it can be seen.
    """
    encoding = spec.get("encoding")
    if encoding in ("swin", "swin_bias"):  # whose window is a piece of an image
        return tables.Window(convention, spec)
    if window(spec) == 1:
        raise CannotTellError("a window of 1 leaves each query its own key only: no bias can be seen")
    if encoding in ("t5", "relative_bias"):
        return tables.Line(convention, spec)
    if encoding not in (None, "alibi", *versions.BIASES):
        raise CannotTellError(f"{convention} has no check for encoding {encoding!r}")
    return Alibi(convention, spec)


class Alibi(Asked):
    """ALiBi, up to a constant in each row, which no softmax sees."""

    mismatch = "alibi.mismatch"
    pairs = 0

    def look(self, seen: Sequence[Seen]) -> None:
        """Read the slopes off what is linear; learned ones are right as they are.

        Raises:
            CannotTellError: Learned slopes are all 0.
        """
        self.found = {}
        for s in (s for s in seen if s.case.kind in ("near", "rest", "other") and s.case.args[1] > 4):
            linear = None if is_long(s.case) else bias_faults.fit(s, self.mask(self.truth))
            if linear is not None:
                self.found.setdefault(s.case.args[0], linear[0])
        self.limit = bias_faults.limit([s for s in seen if s.case.kind in BIASES], self.truth)
        if self.learned and self.found:
            if not any(s.any() for s in self.found.values()):
                raise CannotTellError("all learned slopes are 0: no bias can be seen")
            self.truth = {**self.truth, "given": {n: np.abs(s) for n, s in self.found.items()}}

    def predict(self, model: Model, case: Case) -> Array:
        """Return a bias with a model's parameters."""
        n, q_len, k_len = size = case.args[:3]
        if case.kind in ADDED:
            return added(case, model["gain"])
        if model["falcon"]:
            share = 1.0 if model["penalty"] is None else model["penalty"](np.ones(1), size)
            return np.broadcast_to(_falcon(n, k_len) * model["factor"] * share, size)
        slope = slopes.slopes_of(model, n)
        if model["bias"] is not None:
            return np.broadcast_to(model["bias"](slope, size), (len(slope), q_len, k_len))
        d = distance(size)
        if model["place"] is not None:
            d = d + model["place"](size) - (k_len - q_len)
        form = np.where(d < 0, -model["ahead"] * d, d) if model["penalty"] is None else model["penalty"](d, size)
        return -slope[:, None, None] * form

    def off(self, seen: Seen, predicted: Array, model: Model) -> Array:
        """Return the difference of each key that is seen, compared with the row's last one."""
        if seen.case.kind in ADDED:
            return np.asarray(np.abs(seen.value - predicted) / seen.note)
        if seen.case.kind == "other":
            return np.zeros(1)
        if seen.value.shape != predicted.shape:
            return np.full(1, np.inf)
        size, mask = seen.case.args[:3], self.mask(model)
        gone = seen.value <= seen.note
        if (wrong := mask.wrong(size, gone)).any():
            return np.where(wrong, np.inf, 0.0)
        shown = mask.shown(size)
        with np.errstate(invalid="ignore"):
            difference = np.where(shown, seen.value - predicted, 0.0)
        found = np.where(shown, np.abs(seen.value), 0.0)
        slack = 4 * seen.eps * (found + bias_faults.last_of(found, shown) + np.abs(predicted)) + 1e-6
        if model["given"]:  # slopes that were read off, and are rough
            slack = slack + 2e-5 * np.abs(predicted)
        return np.abs(bias_faults.against_last(difference, shown)) / slack

    def same(self, seen: Seen, predicted: Array) -> bool:
        """Return whether the numbers are the same too, where keys are seen."""
        if seen.case.kind not in BIASES or is_long(seen.case):
            return True
        shown = self.mask(self.truth).shown(seen.case.args[:3])
        with np.errstate(invalid="ignore"):
            shown = shown & (seen.value > seen.note)
            off = np.where(shown, np.abs(seen.value - predicted) - 4 * seen.eps * np.abs(predicted), 0.0)
        return bool((off <= 1e-6 + 2e-5 * bool(self.truth["given"]) * np.abs(predicted)).all())

    def unlike(self, seen: Sequence[Seen]) -> str:
        """Return what is different where scores are the same."""
        return "each row has a constant added, which a softmax over the row takes away"

    def free(self) -> Iterator[Choice]:
        """Yield what the specification leaves open: the keys ahead, a window on both sides, the heads' order."""
        if self.spec.get("order") == "any":
            wrong = [n for n, s in self.found.items() if not slopes.alike(s, slopes.slopes_of(self.truth, n), 1e-3)]
            if how := slopes.order(self.found, self.truth, wrong):
                exact = {n: _snapped(self.found[n], slopes.slopes_of(self.truth, n)) for n in wrong}
                words = "the heads have ALiBi's slopes in another order{how}, which the specification leaves free"
                yield Choice({"given": exact}, words.format(**how))
        ahead = [{}] if self.spec.get("variant") in ("symmetric", "one-sided") else [{}, {"ahead": 0.0}]
        if not self.causal:
            yield from (Choice(change) for change in ahead[1:])
        if self.window is not None and (self.open or not self.causal):
            for mask in on_both_sides(self.window):
                yield from (Choice({"causal": False, "reach": mask.reach, **change}) for change in ahead)

    def faults(self) -> Iterator[Fault]:
        """Yield wrong biases, those of public reports first."""
        yield from bias_faults.faults(self)

    def read(self, seen: Sequence[Seen], wrong: Sequence[Seen], model: Model) -> Fault | None:
        """Return what no formula explains: hidden keys, slopes on another axis, rows from another place, a memory."""
        biases = [s for s in seen if s.case.kind in BIASES]
        bad = [s for s in wrong if s.case.kind in BIASES]
        if bad and (fault := self._hidden(bad[0], self.mask(model))):
            return fault
        near = [s for s in wrong if s.case.kind in ("near", "rest") and not is_long(s.case)]
        linear = all(
            bias_faults.fit(s, self.mask(model)) is not None
            for s in biases
            if s.case.kind in ("near", "rest") and not is_long(s.case)
        )
        if self.learned and near and linear:
            return Fault("alibi.sign", {}, {"factor": "in part -1", "why": ""})
        if near and linear:
            numbers = [n for n in dict.fromkeys(s.case.args[0] for s in near) if n in self.found]
            bad_ones = [n for n in numbers if not slopes.alike(self.found[n], slopes.slopes_of(model, n), 1e-3)]
            return slopes.named(self.found, self.truth, bad_ones) or bias_faults.sides(near[0], self.mask(model))
        fault = bias_faults.along_axis(near, self.mask(model)) or bias_faults.shifted(self, biases, model)
        if fault is None and any(self.asker.stale(s.case.args[:3]) for s in wrong):
            fault = Fault(STATE)
        return fault

    def _hidden(self, seen: Seen, mask: Mask) -> Fault | None:
        """Return what is wrong with the keys that a bias hides."""
        size, gone = seen.case.args[:3], seen.value <= seen.note
        fault = mask.fault(size, gone, "alibi")
        if fault is not None and fault.code == "alibi.mask.both_sides" and self.open:
            return Mask(False, mask.reach).fault(size, gone, "alibi")
        return fault

    def refine(self, fault: Fault, wrong: frozenset[str], right: frozenset[str], seen: Sequence[Seen]) -> Fault:
        """Return what is behind a wrong bias: what becomes of the score, or a memory; and whose rounding it is."""
        if "score" in wrong and fault.code != "alibi.scale.applied_to_bias":
            return bias_faults.of_score(next(s for s in seen if s.case.kind == "score"))
        if "batch" in wrong and "score" not in wrong:
            return Fault("alibi.axis.batch")
        if fault.code.startswith("alibi.precision.") and not self.truth["falcon"]:
            rest = [s for s in seen if s.case.kind in BIASES]
            model = {**self.truth, "falcon": True}
            if all((self.off(s, self.predict(model, s.case), model) <= 1).all() for s in rest):
                return bias_faults.falcons(fault, self.definition)
        return fault

    def raised(self, cause: Cause, case: Case) -> Fault | None:
        """Return a memory of other calls, or a bias over the queries only."""
        if case.kind == "again" or cause.code == STATE:
            return Fault(STATE, {}, {"message": "", "fix": ""})
        if case.kind == "cached" and cause.code == "subject.shape":
            return Fault("alibi.kv_cache.bias_zero", {}, {"words": cause.message, "message": "", "fix": ""})
        return None

    def smallest(self, seen: Seen, predicted: Array, off: Array) -> dict[str, Any]:
        """Return the place that is off most, its value as it should be with the row's own constant."""
        size = dict(zip(("heads", "q_len", "k_len"), seen.case.args, strict=False))
        if off.shape != seen.value.shape or predicted.shape != seen.value.shape or off.ndim != 3:
            return size
        h, i, j = (int(v) for v in np.unravel_index(int(off.argmax()), off.shape))
        found, want = float(seen.value[h, i, j]) + 0.0, float(predicted[h, i, j]) + 0.0
        last = int(np.flatnonzero(self.mask(self.truth).shown(seen.case.args[:3])[i])[-1])
        if np.isfinite(found) and j != last:
            want += float(seen.value[h, i, last] - predicted[h, i, last])
        place = {"head": h, "query": i, "key": j, "found": found if math.isfinite(found) else str(found)}
        return {**size, **place, "expected": want}

    def measured(self, seen: Sequence[Seen], model: Model) -> dict[str, Any]:
        """Return the slopes, the longest row and how far a query sees where there is a window."""
        said: dict[str, Any] = {"slopes": next(iter(self.found.values()), np.zeros(0)).tolist()}
        if far := [s.case.args[2] for s in seen if is_long(s.case)]:
            said["longest"] = max(far)
        if model["reach"] is not None:
            said["largest distance seen"] = model["reach"]
        return said

    def not_judged(self, seen: Sequence[Seen]) -> list[str]:
        """Return what was not looked at."""
        longest = max((s.case.args[2] for s in seen if is_long(s.case)), default=0)
        return [f"distances from {longest:,} on"] if longest else ["distances from 11 on: no longer row could be asked"]


def _snapped(found: Array, want: Array) -> Array:
    """Return the wanted slopes in the order of the measured ones."""
    snapped = np.empty_like(want)
    snapped[np.argsort(found)] = np.sort(want)
    return snapped


def _falcon(n: int, k_len: int) -> Array:
    return np.asarray(versions.alibi_falcon(np.array([0.0]), np.arange(float(k_len)), n_heads=n))
