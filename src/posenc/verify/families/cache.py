"""Models with a cache: outputs of steps next to those of one pass, and if they differ, which scores say why."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from posenc.verify.engine import CannotTellError, Case, Family, Fault, Seen
from posenc.verify.engine.records import Array, Model, kind
from posenc.verify.families import cache_masks, cache_names, cache_places, cache_state, cache_table
from posenc.verify.families.cache_observe import PARTS, SEVERAL, SHORT, STEPS, Observer
from posenc.verify.families.cache_runs import BATCH, SMALL, TOKENS

ONE_PASS = ("repeat", "ahead", "batch", "length", "order")
OUTPUTS, OF_PARTS = ALL = "outputs", "outputs of parts"
SCORES, PART_SCORES, MASK, PART_MASK = INSIDE = "scores", "scores of parts", "mask", "mask of parts"
SINGLE = ((4, 1, 1, 1, 1, 1), (1, 1, 1, 1, 1, 1), (5, 1, 1, 1, 1, 1, 1), (8, 1, 1, 1, 1))
MIXED = ((5, 3, 1, 1, 4, 2, 1), (3, 3, 3, 3), (2, 6, 1, 3))
LENGTHS = (SHORT, 300, 1030)  # beyond 256, where bfloat16 has no odd numbers, and 512 and 1024, where tables end


def family(convention: str, spec: Mapping[str, Any]) -> Family:
    """Return the family of `model(x, cache)` for a specification."""
    return Cached(convention, spec)


class Cached(Family):
    """Parts and steps of `model(x, cache or None) -> (y, cache)`, compared with the model's own single pass.

    Outputs say whether a cache changes anything. If it does, scores and masks are looked at, as far as they are seen,
    and judged in place of the outputs.
    """

    definition, mismatch, pairs, branches = "decode@one-pass", "decode.mismatch", 0, INSIDE
    kinds = (
        kind("kv_cache.state_kept", "repeat"),
        kind("decode.not_causal", "ahead"),
        kind("axis.batch", "batch"),
        kind("decode.length_dependent", "length"),
        kind("not_applied", "order"),
        kind("kv_cache.state_kept", "again"),
        kind("decode.cache.shared", "turns"),
        kind("decode.cache.not_rolled_back", "back"),
    )

    def __init__(self, convention: str, spec: Mapping[str, Any]) -> None:
        super().__init__(convention, spec)
        self.truth = {"single": cache_places.RIGHT, "several": cache_places.RIGHT, "sees": None}
        self.at: Observer
        self.tables: cache_table.Tables | None = None
        self.masks: dict[Case, tuple[Array, Array]] = {}  # who sees whom next to a cache, and in one pass
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
        for chunks in STEPS:
            yield Case(OUTPUTS, chunks, f"parts of {list(chunks)} tokens")
        yield from self._of_parts(OF_PARTS, PARTS)
        if self.wrong:
            yield Case("again", (True,))
            yield Case(MASK, STEPS[0])
        if self.wrong & {"again", MASK}:
            return
        if self.wrong:
            yield from self._inside()
        if not self.wrong:
            yield from self._caches()
            yield from self._far()

    def _of_parts(self, what: str, patterns: Sequence[tuple[int, ...]]) -> Iterator[Case]:
        for chunks in patterns:
            if SEVERAL not in self.at.refused:
                yield Case(what, chunks, f"parts of {list(chunks)} tokens")

    def _inside(self) -> Iterator[Case]:
        """Yield scores of single tokens, then masks and scores of parts."""
        if OUTPUTS in self.wrong and (tables := self.at.tables()) is not None:
            self.tables = tables
            yield from (Case(SCORES, sizes) for sizes in SINGLE)
        yield from self._of_parts(PART_MASK, PARTS[:2])
        if PART_MASK in self.wrong:
            self.spared = not self.spec.get("chunked")
            if self.spared:  # a model may be meant for single tokens next to its cache
                what = "lets tokens see later ones" if self._looks_ahead() else "hides keys"
                self.at.refused[SEVERAL] = f"their mask {what}, and the specification does not say chunked"
                self.wrong -= {OF_PARTS, PART_MASK}
            return
        self.tables = self.tables or self.at.tables()
        yield from self._of_parts(PART_SCORES, MIXED if self.tables else ())

    def _caches(self) -> Iterator[Case]:
        """Yield what a cache must hold besides keys and values."""
        yield Case("again", (False,))
        for each, what in (("turns", "two sequences by turns"), ("back", "a cache that is gone back to")):
            if self.wrong:
                return
            reason = cache_state.unjudged(self.at.bench, copied=each == "back")
            if reason is None:
                yield Case(each, words=what, optional=True)
            else:
                self.at.refused[what] = reason

    def _far(self) -> Iterator[Case]:
        """Yield steps far into a text, and why they are wrong."""
        for n in LENGTHS if self.at.bench.tolerance < 1e-3 else LENGTHS[:1]:  # angles of half precision are coarse
            if self.wrong or self.at.slow:
                break
            yield Case("far", (n,), f"steps behind {n} tokens", optional=n != SHORT)
            if self.at.farthest != n + 2:
                break
        if "far" in self.wrong and self.at.first is not None:
            yield Case(MASK, (self.at.first, 1))
            if MASK not in self.wrong and (tables := self.at.tables()) is not None:
                self.tables = tables
                yield Case(SCORES, (self.at.first, 1, 1, 1))

    def observe(self, subject: Any, case: Case) -> Seen:
        """Return the errors of outputs, who sees whom, or the scores of one token said again and again."""
        if case.kind == ONE_PASS[0]:
            self.at = Observer(subject, self.spec)
        seen = Seen(case, self._value(case))
        if (self.off(seen, self.predict(self.truth, case), self.truth) > 1).any():
            self.wrong.add(case.kind)
        return seen

    def _value(self, case: Case) -> Array:
        at, b, what = self.at, self.at.bench, case.kind
        if what in ONE_PASS:
            return np.array([at.of_one_pass(what)])
        if what in ALL:
            return at.outputs(case.args)
        if what in (MASK, PART_MASK):
            self.masks[case] = cache_masks.visible(b, case.args)
            return self.masks[case][0]
        if what in (SCORES, PART_SCORES) and self.tables is not None:
            return self.tables.observe(b, case.args)
        if what == "far":
            return at.far(*case.args)
        if what == "again":
            return at.repeated() if case.args[0] else at.again()
        return cache_state.by_turns(b) if what == "turns" else cache_state.rolled_back(b)

    def look(self, seen: Sequence[Seen]) -> None:
        """Find out whether scores or masks are wrong, which are then judged in place of the outputs."""
        inside = [s for s in seen if s.case.kind in INSIDE]
        self.inside = any((self.off(s, self.predict(self.truth, s.case), self.truth) > 1).any() for s in inside)

    def predict(self, model: Model, case: Case) -> Array:
        """Return scores and masks as one pass shows them, or as a fault does; no errors for outputs."""
        if case.kind in (MASK, PART_MASK):
            whole = self.masks[case][1]
            return whole if model["sees"] is None else cache_masks.spoilt(model["sees"], whole, case.args)
        if case.kind in (SCORES, PART_SCORES) and self.tables is not None:
            return self.tables.predict(model, case.args)
        return np.zeros(1)

    def off(self, seen: Seen, predicted: Array, model: Model) -> Array:
        """Return how far an answer is from one pass; outputs are not judged where scores or masks are wrong."""
        what, value = seen.case.kind, seen.value
        if not value.size or (self.spared and what in (OF_PARTS, PART_MASK)):
            return np.zeros(1)
        if what in INSIDE and value.shape != predicted.shape:
            return np.full(1, np.inf)
        if what in (MASK, PART_MASK):
            return 2 * np.abs(value - predicted)
        if what in (SCORES, PART_SCORES) and self.tables is not None:
            difference, share = cache_table.apart(value, predicted)
            off: Array = difference / self.tables.noise(seen.case.args)
            return off if share > 0.5 else np.full(1, np.inf)
        return np.zeros(1) if self.inside and what in (*ALL, "far") else value / self.at.bench.tolerance

    def same(self, seen: Seen, predicted: Array) -> bool:
        """Return whether the model sees order, where the specification names no encoding."""
        return self.spec.get("encoding") is not None or self.at.of_one_pass("order") == 0.0

    def unlike(self, seen: Sequence[Seen]) -> str:
        """Raise: where order has no effect, nothing was measured.

        Raises:
            CannotTellError: Always.
        """
        raise CannotTellError(
            "exchanging two earlier tokens changes no output, so that nothing shows where tokens stand; a "
            'model without position encodings has encoding "nope"'
        )

    def faults(self) -> Iterator[Fault]:
        """Yield wrong masks, then wrong positions."""
        yield Fault("kv_cache.past_not_seen", {"sees": ("past unseen", 0)})
        yield Fault("decode.mask.top_left", {"sees": ("top left", 0)})
        for case in self.masks:
            kept, shown = self._keys(case)
            if case.kind == MASK and kept != shown:
                way = "short" if kept < shown else "long"
                yield Fault(f"decode.window.{way}", {"sees": (way, kept)})
        yield Fault("decode.mask.missing", {"sees": ("unmasked", 0)})
        if self.tables is not None:
            window = self.spec.get("window")
            room = self.tables.evicted() or (window if isinstance(window, int) and window > 0 else None)
            several = any(sizes in self.tables.keys for sizes in MIXED)
            biased = self.at.family in cache_names.BIASES
            yield from cache_places.faults(room, self.at.first, biased=biased, several=several)

    def _keys(self, case: Case) -> tuple[int, int]:
        """Return how many cached keys the last step sees, and how many one pass shows it."""
        here, whole = (cache_masks.kept_keys(table, case.args) for table in self.masks[case])
        return here, whole

    def _looks_ahead(self) -> bool:
        """Return whether a token of a part sees a key that one pass hides from it."""
        return any((here > whole).any() for case, (here, whole) in self.masks.items() if case.kind == PART_MASK)

    def read(self, seen: Sequence[Seen], wrong: Sequence[Seen], model: Model) -> Fault | None:
        """Return what masks, or which calls are wrong, show where no known fault explains them."""
        kinds = {s.case.kind for s in wrong}
        if MASK in kinds:
            return Fault("decode.mask.hides_keys")
        if PART_MASK in kinds:
            return Fault("decode.mask.missing" if self._looks_ahead() else "decode.mask.hides_keys")
        scores = [s for s in seen if s.case.kind in (SCORES, PART_SCORES) and len(s.value)]
        if scores and self.at.family == "xpos" and self._right_within(scores):
            return Fault("kv_cache.centre_moves")
        if self.at.first is not None:
            return None
        wrong_calls = {s.case.args: s.value / self.at.bench.tolerance > 1 for s in seen if s.case.kind in ALL}
        return self.at.of_calls(wrong_calls, unseen=self.tables is None)

    def _right_within(self, scores: Sequence[Seen]) -> bool:
        """Return whether tokens of each call score one another as in one pass."""
        assert self.tables is not None
        within = {"single": cache_places.WITHIN, "several": cache_places.WITHIN}
        return all(
            (
                cache_table.apart(s.value, self.tables.predict(within, s.case.args))[0]
                <= self.tables.noise(s.case.args)
            ).all()
            for s in scores
        )

    def refine(self, fault: Fault, wrong: frozenset[str], right: frozenset[str], seen: Sequence[Seen]) -> Fault:
        """Return a fault with the code of its encoding, and with the largest error of outputs."""
        code = self._of_bias(fault, seen) if fault.code == "decode.bias_dropped" else fault.code
        errors = [float(s.value.max(initial=0.0)) for s in seen if s.case.kind not in INSIDE]
        values = {**fault.values, "evidence": max(errors, default=1.0)}
        return Fault(cache_names.named(self.at.family, code), fault.change, values, fault.case)

    def _of_bias(self, fault: Fault, seen: Sequence[Seen]) -> str:
        """Return whether the bias is dropped, or formed for the query by itself."""
        if self.tables is None:
            return fault.code
        if self.at.family == "t5":
            singles = [s for s in seen if s.case.kind == SCORES]
            itself = all(self.tables.as_of_itself(s.value, s.case.args) for s in singles)
            return "kv_cache.query_offset_missing" if itself else fault.code
        parts = [s for s in seen if s.case.kind == PART_SCORES and len(s.value)]
        model = {**self.truth, **fault.change}
        even = all((self.off(s, self.predict(model, s.case), model) <= 1).all() for s in parts)
        return fault.code if parts and even else "kv_cache.bias_zero"

    def smallest(self, seen: Seen, predicted: Array, off: Array) -> dict[str, Any]:
        """Return the smallest parts that differ from one pass."""
        what, at = seen.case.kind, self.at
        found: dict[str, Any] = {"batch": BATCH, "tokens": TOKENS}
        if at.first is not None:
            found = {"batch": 1, "chunks": [at.first, 1], "call": 1, "right_up_to": at.first - 1}
        elif what in ("turns", "back", "again"):
            prefills: dict[str, Any] = {
                "turns": {"prefills": [5, 8]},
                "back": {"prefill": 2, "dropped": cache_state.DRAFTS},
            }
            found = {"batch": BATCH, **prefills.get(what, {}), "error": round(float(seen.value.max()), 6)}
        elif what not in ONE_PASS:
            several = what in (OF_PARTS, PART_MASK, PART_SCORES)
            found = at.bench.smallest([c for c in (*SMALL, *STEPS, *PARTS) if (max(c[1:]) > 1) == several]) or found
        if what == MASK:
            kept, shown = self._keys(seen.case)
            found |= {"behind": sum(seen.case.args) - 1, "found": f"{kept} cached keys", "expected": f"{shown}"}
        return found

    def measured(self, seen: Sequence[Seen], model: Model) -> dict[str, Any]:
        """Return how far was looked."""
        calls = [s.value for s in seen if s.case.kind in (*ALL, "far")]
        return {
            "width": self.at.bench.x.shape[-1],
            "largest_error": max((float(c.max(initial=0.0)) for c in calls), default=0.0),
            "farthest_position": self.at.farthest,
            "calls_compared": sum(map(len, calls)),
        }

    def not_judged(self, seen: Sequence[Seen]) -> list[str]:
        """Return what was refused, and that one pass is compared with itself only."""
        if not seen:
            return []
        found = [f"{what}: {why}" for what, why in self.at.refused.items()]
        if not any(what.startswith("positions") for what in self.at.refused):
            found.append(f"positions beyond {self.at.farthest}")
        return [*found, "whether one pass is right: steps are compared with it, not with a definition"]
