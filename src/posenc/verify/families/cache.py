"""Models with a cache: outputs of steps next to those of one pass, and if they differ, which scores say why."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from posenc.verify.engine import CannotTellError, Case, Family, Fault, Seen
from posenc.verify.engine.records import Array, Model, kind
from posenc.verify.families import cache_places, cache_table
from posenc.verify.families.cache_runs import BATCH, DRAFTS, PARTS, STEPS, TOKENS, Bench
from posenc.verify.families.cache_watch import MASKS, UNUSED, Mask, Shown, mask
from posenc.verify.guard import SubjectError

FAMILIES = ("rope", "xpos", "alibi", "t5", "sinusoidal", "learned")
ONE_PASS = ("repeat", "ahead", "batch", "length", "order")
OUTPUTS, OF_PARTS, FAR = ALL = "outputs", "outputs of parts", "far"
SCORES, PART_SCORES, MASK, PART_MASK = INSIDE = "scores", "scores of parts", "mask", "mask of parts"
SINGLE = ((4, 1, 1, 1, 1, 1), (1, 1, 1, 1, 1, 1), (5, 1, 1, 1, 1, 1, 1), (8, 1, 1, 1, 1))
SEVERAL = ((5, 3, 4, 2), (3, 3, 3, 3), (2, 6, 3))
LENGTHS = (64, 300, 1030)  # beyond 256, where bfloat16 has no odd numbers, and 512 and 1024, where tables end
KINDS = {
    "repeat": "kv_cache.state_kept",
    "ahead": "decode.not_causal",
    "batch": "axis.batch",
    "length": "decode.length_dependent",
    "order": "not_applied",
    "again": "kv_cache.state_kept",
}
IN_PARTS = "parts of several tokens next to a cache"


def family(convention: str, spec: Mapping[str, Any]) -> Family:
    """Return the family of `model(x, cache)` for a specification."""
    return Cached(convention, spec)


class Cached(Family):
    """Parts and steps of `model(x, cache or None) -> (y, cache)`, compared with the model's own single pass.

    Outputs say whether a cache changes anything. If it does, scores and masks are looked at, as far as they are seen,
    and judged in place of the outputs.
    """

    definition, pairs, branches = "decode@one-pass", 0, INSIDE

    def __init__(self, convention: str, spec: Mapping[str, Any]) -> None:
        super().__init__(convention, spec)
        self.encoding = str(spec.get("encoding")) if spec.get("encoding") in FAMILIES else "model"
        self.mismatch = f"{self.encoding}.decode.mismatch"
        self.kinds = [kind(f"{self.encoding}.{code}", wrong) for wrong, code in KINDS.items()]
        self.kinds.append(kind("decode.cache.shared", "back"))
        self.truth = {"place": cache_places.RIGHT, "mask": ""}
        self.b: Bench
        self.tables: cache_table.Tables | None = None
        self.masks: dict[Case, Mask] = {}
        self.refused: dict[str, str] = {}  # what could not be asked, and why
        self.wrong: set[str] = set()
        self.inside = False  # scores or masks are wrong, so that outputs are a consequence
        self.spared = False  # masks of parts are wrong, and the specification does not ask for parts

    def cases(self) -> Iterator[Case]:
        """Yield one pass by itself, then steps and parts; then why these are wrong, or what else may be."""
        named = self.spec.get("encoding") not in (None, "nope", "none")
        for each in ONE_PASS if named else ONE_PASS[:-1]:
            yield Case(each, words=f"one pass: {each}")
        if self.wrong:
            return
        yield from (Case(OUTPUTS, chunks, f"parts of {list(chunks)} tokens") for chunks in STEPS)
        yield from self._of_parts(OF_PARTS, PARTS)
        if self.wrong:
            yield Case("again")
            yield Case(MASK, STEPS[0])
            if not self.wrong & {"again", MASK}:
                yield from self._inside()
        if not self.wrong:
            yield Case("back", words="another sequence, and going back", optional=True)
            yield from self._far()

    def _of_parts(self, what: str, patterns: Sequence[tuple[int, ...]]) -> Iterator[Case]:
        for chunks in patterns:
            if IN_PARTS not in self.refused:
                yield Case(what, chunks, f"parts of {list(chunks)} tokens")

    def _inside(self) -> Iterator[Case]:
        """Yield scores of single tokens, then masks and scores of parts."""
        self.tables = cache_table.read(self.b, int(self.spec.get("layers") or 0))
        if OUTPUTS in self.wrong and self.tables is not None:
            yield from (Case(SCORES, sizes) for sizes in SINGLE)
        yield from self._of_parts(PART_MASK, PARTS[:2])
        if PART_MASK not in self.wrong:
            yield from self._of_parts(PART_SCORES, SEVERAL if self.tables else ())
        elif not self.spec.get("chunked"):  # a model may be meant for single tokens next to its cache
            self.spared = True
            self.refused[IN_PARTS] = (
                "tokens see other keys than in one pass, and the specification does not say chunked"
            )
            self.wrong -= {OF_PARTS, PART_MASK}

    def _far(self) -> Iterator[Case]:
        """Yield steps far into a text, and why they are wrong."""
        for n in LENGTHS if self.b.tolerance < 1e-3 else LENGTHS[:1]:  # angles of half precision are coarse
            if not self.wrong and not self.b.slow:
                yield Case(FAR, (n,), f"steps behind {n} tokens", optional=n != LENGTHS[0])
            if self.b.farthest != n + 2:
                break
        if FAR in self.wrong and self.b.first is not None:
            yield Case(MASK, (self.b.first, 1))

    def observe(self, subject: Any, case: Case) -> Seen:
        """Return the errors of outputs, whether a mask is wrong, or the scores of one token said again and again."""
        if case.kind == ONE_PASS[0]:
            self.b = Bench(subject, self.spec)
        seen = Seen(case, self._value(case))
        if (self.off(seen, self.predict(self.truth, case), self.truth) > 1).any():
            self.wrong.add(case.kind)
        return seen

    def _value(self, case: Case) -> Array:
        b, what = self.b, case.kind
        if what in KINDS:
            return np.array([b.one_pass(what)])
        if what in (MASK, PART_MASK):
            self.masks[case] = mask(b, case.args)
            return np.array([2.0 * bool(self.masks[case][0])])
        if what in (SCORES, PART_SCORES) and self.tables is not None:
            return self.tables.observe(b, case.args)
        if what == "back":
            return b.kept_apart()
        try:
            return b.far(*case.args) if what == FAR else b.errors(b.x, case.args, b.full)
        except SubjectError as error:
            if what == OUTPUTS or (what == OF_PARTS and error.cause.code != "subject.raises"):
                raise
            self.refused[IN_PARTS if what == OF_PARTS else f"positions beyond {b.farthest}"] = error.cause.message
            return np.zeros(0)

    def look(self, seen: Sequence[Seen]) -> None:
        """Find out whether scores or masks are wrong, which are then judged in place of the outputs.

        Raises:
            CannotTellError: Nothing shows where tokens stand.
        """
        if not self.wrong and self.spec.get("encoding") is None and self.b.one_pass("order"):
            raise CannotTellError(
                "exchanging two earlier tokens changes no output, so that nothing shows where tokens stand; a "
                'model without position encodings has encoding "nope"'
            )
        inside = [s for s in seen if s.case.kind in INSIDE]
        self.inside = any((self.off(s, self.predict(self.truth, s.case), self.truth) > 1).any() for s in inside)

    def predict(self, model: Model, case: Case) -> Array:
        """Return scores and masks as one pass shows them, or as a fault does; no errors for outputs."""
        if case.kind in (MASK, PART_MASK):
            return np.array([2.0 * (model["mask"] == self.masks[case][0] != "")])
        if case.kind in (SCORES, PART_SCORES) and self.tables is not None:
            return self.tables.predict(model["place"], case.args)
        return np.zeros(1)

    def off(self, seen: Seen, predicted: Array, model: Model) -> Array:
        """Return how far an answer is from one pass; outputs are not judged where scores or masks are wrong."""
        what, value = seen.case.kind, seen.value
        if not value.size or (self.spared and what in (OF_PARTS, PART_MASK)) or (self.inside and what in ALL):
            return np.zeros(1)
        if what in (MASK, PART_MASK):
            return np.abs(value - predicted)
        return cache_table.apart(value, predicted) if what in INSIDE else value / self.b.tolerance

    def faults(self) -> Iterator[Fault]:
        """Yield wrong masks, then wrong positions."""
        yield Fault(f"{self.encoding}.{UNUSED}", {"mask": UNUSED})
        yield from (Fault(code, {"mask": code}) for code in MASKS)
        if self.tables is not None:
            window, layers = self.spec.get("window"), self.tables.layers
            room = self.tables.room() or (window if isinstance(window, int) and window > 0 else None)
            yield from cache_places.faults(self.encoding, room, layers)

    def read(self, seen: Sequence[Seen], wrong: Sequence[Seen], model: Model) -> Fault | None:
        """Return what the wrong calls of each pattern show where no known fault explains them."""
        bad = {s.case.args: s.value / self.b.tolerance > 1 for s in seen if s.case.kind in (OUTPUTS, OF_PARTS)}
        steps = [bad[chunks] for chunks in STEPS if chunks in bad]
        parts = np.concatenate([np.zeros(0, bool), *(bad[chunks] for chunks in PARTS if chunks in bad)])
        if self.b.first is not None:
            return Fault(f"{self.encoding}.kv_cache.position_ends", {}, {"first": self.b.first})
        if len(steps) < len(STEPS):
            return None
        code = self._of_steps(*steps) if parts.any() or not len(parts) else "decode.single_token_path"
        if not any(calls.any() for calls in steps):
            code = "decode.chunk_positions" if parts.any() else ""
        return Fault(f"{self.encoding}.{code}") if code else None

    def _of_steps(self, five: Shown, eight: Shown, single: Shown) -> str:
        """Return what shows by which steps are wrong, after five tokens, after eight, or from the first one on."""
        if not five[1] or not single.any():
            return "offset.ignored_by_cache" if eight[1] and not five[1] else "kv_cache.counts_calls"
        if self.tables is None and self.b.one_pass("steps' order"):
            return "kv_cache.offset_ignored"
        return "kv_cache.centre_moves" if self.tables and self.encoding == "xpos" else ""

    def refine(self, fault: Fault, wrong: frozenset[str], right: frozenset[str], seen: Sequence[Seen]) -> Fault:
        """Return a fault with the code of its encoding and its branch, and with the largest error of outputs."""
        family, _, name = fault.code.partition(".")
        if name == "decode.bias_dropped":
            name = "kv_cache.bias_zero" if family == "alibi" and PART_SCORES not in wrong else name
        elif wrong == {SCORES} and PART_SCORES in right:
            name = "decode.single_token_path"
        elif wrong == {PART_SCORES} and name != "window.positions_constant":
            name = "decode.chunk_positions"
        errors = [float(s.value.max(initial=0.0)) for s in seen if s.case.kind not in INSIDE]
        values = {**fault.values, "evidence": max(errors, default=1.0)}
        return Fault(f"{family}.{name}", fault.change, values, fault.case)

    def smallest(self, seen: Seen, predicted: Array, off: Array) -> dict[str, Any]:
        """Return the smallest parts that differ from one pass."""
        what, first = seen.case.kind, self.b.first
        found: dict[str, Any] = {"batch": BATCH, "tokens": TOKENS}
        if first is not None:
            found = {"batch": 1, "chunks": [first, 1], "call": 1, "right_up_to": first - 1}
        elif what == "back":
            found |= {"dropped": DRAFTS, "error": round(float(seen.value.max()), 6)}
        elif what not in KINDS:
            found |= {"chunks": list(seen.case.args)}
        if what == MASK:
            _, kept, shown = self.masks[seen.case]
            found |= {"behind": sum(seen.case.args) - 1, "found": f"{kept} cached keys", "expected": f"{shown}"}
        return found

    def measured(self, seen: Sequence[Seen], model: Model) -> dict[str, Any]:
        """Return how far was looked."""
        return {"farthest_position": self.b.farthest}

    def not_judged(self, seen: Sequence[Seen]) -> list[str]:
        """Return what was refused, and that one pass is compared with itself only."""
        if not seen:
            return []
        found = [f"{what}: {why}" for what, why in self.refused.items()]
        if not any(what.startswith("positions") for what in self.refused):
            found.append(f"positions beyond {self.b.farthest}")
        return [*found, "whether one pass is right: steps are compared with it, not with a definition"]
