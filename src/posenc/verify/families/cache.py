"""Models with a cache: compare decode steps with a single pass and, if they differ, find out why from scores."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from posenc.verify.engine import CannotTellError, Case, Family, Fault, Seen
from posenc.verify.engine.records import Array, Model, kind
from posenc.verify.families import cache_table
from posenc.verify.families.cache_runs import BATCH, HALF, PARTS, STEPS, TOKENS, Bench
from posenc.verify.families.cache_watch import CUT, MASKS, SHORT, Mask, Shown, first_scores, mask, windows
from posenc.verify.guard import NotAnsweredError, SubjectError

FAMILIES = ("rope", "xpos", "alibi", "t5", "sinusoidal", "learned")
ADDED = ("sinusoidal", "learned")
OUTPUTS, FAR, MASK, SCORES = "outputs", "far", "mask", "scores"
SINGLE = ((4, 1, 1, 1, 1, 1), (1, 1, 1, 1, 1, 1), (5, 1, 1, 1, 1, 1, 1), (8, 1, 1, 1, 1))
EQUAL = (3, 3, 3, 3)
SEVERAL = ((5, 3, 4, 2), EQUAL, (2, 6, 3))
LENGTHS = (64, 300, 1030)  # beyond 256, the last odd number of bfloat16, and beyond 512 and 1024, where tables end
ENDS = "a table or a counter ends, or what is far away gets another term"
WINDOW = "decode.window.single_pass"
FULL = "the window is full there, and other keys or values are dropped, or what is left gets other positions"
KINDS = {
    "repeat": "kv_cache.state_kept",
    "ahead": "decode.not_causal",
    "batch": "axis.batch",
    "length": "decode.length_dependent",
    "order": "not_applied",
    "again": "kv_cache.state_kept",
}


class Cached(Family):
    """Parts and steps of `model(x, cache or None) -> (y, cache)`, compared with the model's own single pass.

    Outputs show whether a cache changes anything. If it does, masks and scores are judged in place of the outputs,
    as far as they are visible.
    """

    definition, pairs = "decode@one-pass", 0

    def __init__(self, convention: str, spec: Mapping[str, Any]) -> None:
        super().__init__(convention, spec)
        self.encoding = str(spec.get("encoding")) if spec.get("encoding") in FAMILIES else "model"
        self.mismatch = f"{self.encoding}.decode.mismatch"
        self.kinds = [kind(f"{self.encoding}.{code}", wrong) for wrong, code in KINDS.items()]
        self.kinds += [kind("decode.cache.shared", "back"), kind(WINDOW, "window")]
        self.window, self.widths = int(spec.get("window") or 0), set[int]()  # keys of the window of each layer
        self.truth = {"place": cache_table.RIGHT, "mask": ""}
        self.b: Bench
        self.tables: cache_table.Tables | None = None
        self.masks: dict[Case, Mask] = {}
        self.wrong: set[str] = set()
        self.scores: list[Seen] = []
        self.several = True  # whether a model accepts several tokens after a cache

    def cases(self) -> Iterator[Case]:
        """Yield the single pass, then decode steps and chunks; then cases that explain errors, or further checks."""
        order = () if self.spec.get("encoding") in (None, "nope", "none") else ("order",)
        window = ("window",) if self.window else ()
        kinds = ("repeat", "ahead", "batch", "length", *order, *window)
        yield from (Case(each, words=f"single pass: {each}") for each in kinds)
        if self.wrong:
            return
        yield from (Case(OUTPUTS, chunks, f"calls of {list(chunks)} tokens") for chunks in STEPS)
        self.several = bool(self.spec.get("chunked")) or not mask(self.b, PARTS[0])[0]
        parts = PARTS if self.several else ()
        yield from (Case(OUTPUTS, chunks, "several tokens after a cache", optional=True) for chunks in parts)
        if not self.wrong:
            yield Case("back", words="steps of another sequence, and steps undone", optional=True)
            for n in LENGTHS if self.b.tolerance < 1e-3 else LENGTHS[:1]:  # angles in half precision are coarse
                yield Case(FAR, (n, 1, 1, 1), f"steps after {n} tokens")
                if self.b.farthest < n or self.b.slow:
                    break
            if FAR in self.wrong:
                yield Case(MASK, (n, 1))
            return
        yield Case("again")
        yield from (Case(MASK, chunks) for chunks in (STEPS[0], *parts[:2]))
        if not self.wrong & {"again", MASK}:
            self.tables = cache_table.read(self.b)
            schedules = (*SINGLE, *(SEVERAL if parts else ())) if self.tables else ()
            yield from (Case(SCORES, sizes, "scores", optional=True) for sizes in schedules)

    def observe(self, subject: Any, case: Case) -> Seen:
        """Return the errors of outputs, whether a mask is wrong, or the scores of one repeated token."""
        if not hasattr(self, "b"):
            self.b = Bench(subject, self.spec)
        seen = Seen(case, self._value(case))
        if (self.off(seen, self.predict(self.truth, case), self.truth) > 1).any():
            self.wrong.add(case.kind)
        return seen

    def _value(self, case: Case) -> Array:
        b, what = self.b, case.kind
        if what in KINDS:
            return np.array([b.one_pass(what)])
        if what == "window":
            self.widths = windows(b, self.window)
            return np.array([float(bool(self.widths) and self.window not in self.widths)])
        if what == "back":
            if self.spec.get("encoding") is None and b.one_pass("order"):
                raise CannotTellError(
                    "exchanging two earlier tokens changes no output, so nothing shows the positions of tokens; a "
                    'model without position encodings has encoding "nope"'
                )
            return b.kept_apart()
        if what == SCORES and self.tables is not None:
            return self.tables.observe(b, case.args)
        if what == MASK:
            code, kept, shown = mask(b, case.args)
            if code == SHORT and shown == sum(case.args[:-1]) and not self.spec.get("window"):
                code = CUT
            self.masks[case] = (code.format(self.encoding), kept, shown)
            return np.array([float(bool(code))])
        if what == OUTPUTS:
            return b.errors(b.x, case.args, b.full)
        try:
            return b.far(case.args[0])
        except SubjectError as error:  # also an error for NaN
            raise NotAnsweredError(error.cause.message) from error

    def predict(self, model: Model, case: Case) -> Array:
        """Return the scores and masks of a single pass or of a fault; no errors for outputs."""
        if case.kind == MASK:
            return np.array([float(model["mask"] == self.masks[case][0] != "")])
        if case.kind == SCORES and self.tables is not None:
            return self.tables.predict(model["place"], case.args)
        return np.zeros(1)

    def off(self, seen: Seen, predicted: Array, model: Model) -> Array:
        """Return how far an answer is from a single pass; outputs are not judged if scores or masks are wrong."""
        if seen.case.kind in (OUTPUTS, FAR) and self.wrong & {MASK, SCORES}:
            return np.zeros(1)
        if seen.case.kind == SCORES:
            return cache_table.apart(seen.value, predicted)
        return np.asarray(np.abs(seen.value - predicted) / self.b.tolerance)

    def faults(self) -> Iterator[Fault]:
        """Yield wrong masks, then wrong positions."""
        yield from (Fault(code, {"mask": code}) for code in (code.format(self.encoding) for code in MASKS))
        if self.tables is None:
            return
        yield from cache_table.faults(self.encoding)
        for s in (s for s in self.scores if s.case.args == SINGLE[2]):
            scale = self.tables.scale(s.value, s.case.args)
            place = replace(cache_table.RIGHT, scale=scale)
            # scores of equal tokens differ by the bias only
            what = "scores, or only their biases," if self.encoding in cache_table.BIASES else "scores"
            yield Fault("decode.scale", {"place": place}, {"what": what, "factor": f"{scale:.5g}"})

    def look(self, seen: Sequence[Seen]) -> None:
        """Keep the scores, from which a factor is measured."""
        self.scores = [s for s in seen if s.case.kind == SCORES]

    def read(self, seen: Sequence[Seen], wrong: Sequence[Seen], model: Model) -> Fault | None:
        """Return what the wrong calls of each pattern show if no known fault explains them."""
        if FAR in self.wrong:
            return self._of_far(next(s.case.args[0] for s in wrong if s.case.kind == FAR))
        steps = [s.value > self.b.tolerance for s in seen if s.case.kind == OUTPUTS][: len(STEPS)]
        ends = [sum(chunks[: int(s.argmax())]) for chunks, s in zip(STEPS, steps, strict=False) if s.any()]
        if len(ends) == len(STEPS) and len(set(ends)) == 1 and min(ends) > max(chunks[0] for chunks in STEPS):
            words = FULL if self.window and 0 <= ends[0] - self.window <= 2 else ENDS
            values = {"behind": ends[0], "right": ends[0] - 1, "words": words}
            return Fault(f"{self.encoding}.kv_cache.position_ends", {}, values)
        code = self._branch(seen)
        if not code and self.encoding in ("rope", "xpos") and self.tables and any(s.case.args == EQUAL for s in wrong):
            code = "decode.frequencies" if self.tables.speeds_differ(self.b, EQUAL) else ""
        if not code and (fault := self._of_contents(max(s.value.max() for s in seen if s.case.kind == OUTPUTS))):
            return fault
        code = code or (self._of_steps(*steps) if len(steps) == len(STEPS) else "") or self._rule()
        return Fault(f"{self.encoding}.{code}") if code else None

    def _of_far(self, behind: int) -> Fault:
        """Return what steps after so many tokens show: the position of the next one, if its scores show it."""
        at, values = behind + 1, {"behind": behind, "right": self.b.farthest, "words": ENDS}
        found = cache_table.place_of(self.b, at) if self.tables is None else None
        if found is None or found == at:
            return Fault(f"{self.encoding}.kv_cache.position_ends", {}, values)
        for dtype in (torch.bfloat16, torch.float16):
            if int(torch.tensor(float(at)).to(dtype)) == found:
                values["words"] = f"the token at {at} gets position {found}, its number in {str(dtype)[6:]}"
                return Fault(f"{self.encoding}.kv_cache.position_rounded", {}, values)
        values["words"] = f"the token at {at} gets position {found}: positions stop growing, or restart"
        return Fault(f"{self.encoding}.kv_cache.position_ends", {}, values)

    def _rule(self) -> str:
        """Return that steps encode distances otherwise than a single pass, or do not encode them."""
        steps = next((s for s in self.scores if s.case.args == SINGLE[1]), None)
        if self.tables is not None and steps is not None and (how := self.tables.rule(steps.value, SINGLE[1])):
            lost = "bias_dropped" if self.encoding in cache_table.BIASES else "not_applied"
            return "decode.other_rule" if how == "distance" else f"decode.{lost}"
        return "decode.other_code" if self.encoding in ADDED and not self.b.same_zeros() else ""

    def _of_contents(self, largest: float) -> Fault | None:
        """Return what is wrong with the contents of a cache, if positions and masks are right."""
        if largest < HALF and (half := self.b.rounded()):
            return Fault("decode.cache.rounded", {}, {"dtype": half})
        if self.encoding in ADDED and MASK not in self.wrong and self.b.same_zeros():
            return Fault("decode.input")
        if self.wrong & {MASK, SCORES}:
            return None
        if self.b.rows_share():
            return Fault("decode.cache.rows_share")
        try:
            how = first_scores(self.b, STEPS[0])
        except SubjectError:
            return None
        if how == "scaled":
            words = "after the first call q.k has another scale than in a single pass, next to the same bias"
            return Fault("decode.scale", {}, {"message": words})
        return Fault("decode.cache.values") if how else None

    def _branch(self, seen: Sequence[Seen]) -> str:
        """Return a name if single tokens are right and several wrong, or the reverse."""
        bad = {s.case.args: s.value.max() > self.b.tolerance for s in seen if s.case.kind == OUTPUTS}
        steps, parts = (any(bad.get(chunks, False) for chunks in some) for some in (STEPS, PARTS))
        if steps and not parts and PARTS[0] in bad:
            return "decode.single_token_path"
        return "decode.chunk_positions" if parts and not steps else ""

    def _of_steps(self, five: Shown, eight: Shown, single: Shown) -> str:
        """Return the fault shown by which steps are wrong: after five tokens, after eight, or from the first one on."""
        schedules = self.tables.keys if self.tables else {}
        if any(keys[-1] < sum(sizes) for sizes, layers in schedules.items() for keys in layers):
            return "kv_cache.eviction_offset"
        if single.any() and not (five[1] or eight[1]):
            return ""  # late steps are wrong, whatever the calls before
        if not five[1] or not single.any():
            return "offset.ignored_by_cache" if eight[1] and not five[1] else "kv_cache.counts_calls"
        if self.tables is None and self.b.moved(self.b.x, STEPS[2]) <= self.b.tolerance:
            return "kv_cache.offset_ignored"
        return "kv_cache.centre_moves" if self.tables and self.encoding == "xpos" else ""

    def refine(self, fault: Fault, wrong: frozenset[str], right: frozenset[str], seen: Sequence[Seen]) -> Fault:
        """Return a fault with the name of its branch if only that branch is wrong."""
        if fault.code == WINDOW:
            some = sorted(self.widths)
            found = ", ".join("all" if n > self.window + 3 else str(n) for n in some)
            return replace(fault, values={"found": found, "asked": self.window})
        place, branch = fault.change.get("place"), self._branch(seen)
        apart = place and branch and not place.flat and place.q != "kept"  # a cache of a window is full in late calls
        return replace(fault, code=f"{self.encoding}.{branch}") if apart else fault

    def smallest(self, seen: Seen, predicted: Array, off: Array) -> dict[str, Any]:
        """Return the smallest calls that differ from a single pass."""
        found: dict[str, Any] = {"batch": BATCH, "chunks": list(seen.case.args) or [TOKENS]}
        if seen.case.kind in (OUTPUTS, SCORES) and sum(seen.case.args) <= TOKENS:
            found["position"], found["found"], found["expected"] = self.b.largest(seen.case.args)
        if seen.case.kind == MASK:
            _, kept, shown = self.masks[seen.case]
            found["behind"] = sum(seen.case.args[:-1])
            found |= {"found": f"{kept} cached keys", "expected": f"{shown}"} if kept != shown else {}
        return found

    def not_judged(self, seen: Sequence[Seen]) -> list[str]:
        """Return the parts that were not judged, and that a single pass is compared only with itself."""
        if not seen:
            return []
        found = [f"positions beyond {self.b.farthest}", "batches with padding: the call has no mask"]
        if not self.several:
            found.append("calls of several tokens: they see other keys than a single pass, and chunked is not declared")
        if self.window and not self.widths:
            found.append(f"whether a single pass has the window of {self.window} keys")
        if self.window > self.b.farthest:
            found.append(f"steps after more than {self.window} keys: texts were shorter")
        return [*found, "whether a single pass is right: steps are compared with it, not with a definition"]


family = Cached
