"""Counts of tokens: positions of padded rows and of packed documents, and the rows of a table that they select."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any

import numpy as np

from posenc.verify import rules
from posenc.verify.engine import Case, Choice, Family, Fault, Seen
from posenc.verify.engine.judge import explains
from posenc.verify.engine.observe import fresh
from posenc.verify.engine.records import Array, Model, kind
from posenc.verify.families import counts_faults as ways
from posenc.verify.families.counts_calls import Call, ask, packed, text_of
from posenc.verify.guard import NotAnsweredError

SMALL = 100  # tokens of a text whose positions are listed
LONG = 4200  # tokens: bfloat16 counts to 256, float16 to 2048
FAR, FARTHEST = 33_000, 1 << 17  # tokens: int16 counts to 32767
SIDES = {"both": ("left", "right"), "right": ("right",), "left": ("left",), "none": ()}  # where padding may be
PADS = ((0, 0), (1, 4, 0), (3, 1, 2))  # padding of batches; the first row is not the longest, nor always the last one
ABSOLUTE = ("learned", "sinusoidal", "additive")  # encodings that depend on where counting starts
UNSEEN = "it does not affect encodings of distances (rotation, biases), but it affects a table of learned rows"
ONE_SIDE = "padding on the right: the specification's padding is not 'right' or 'both'"
OWN = f"every row or document starts at another position: {UNSEEN}"
MOVES = "counting starts elsewhere in each call: right only if keys are cached unrotated and rotated in every call"
OF_BOUNDS = "Subtract each document's start: arange(total) - repeat_interleave(cu_seqlens[:-1], cu_seqlens.diff())."
OF_TOKENS = "Give token t the declared first row plus t: arange(x.size(1)) + offset."
# Documents of each row; a digit is the number of tokens of one document.
DOCUMENTS = ["1", "2", "12", "21", "22", "111", "222", "5", "32", "24", "333", "4162", "27115", "354623"]
EMPTY = ["3204", "04", "23003", "340", "400"]
LATER = ["27115", "333", "23211"]  # the last two have equally many tokens
BATCHES = ((["2", "12"], (1, 0)), (["23", "412", "3"], (2, 0, 4)), (["222", "1133"], (2, 0)))


def family(convention: str, spec: Mapping[str, Any]) -> Family:
    """Return the family of a function of positions or of rows for a specification."""
    return (Rows if convention == "learned_rows_fn" else Counts)(convention, spec)


class Counts(Family):
    """The number of tokens before each token in its row or document: the model has a rule for each kind of call.

    Attributes:
        masked: Whether calls have a mask, if they do not give bounds.
        packed, of_bounds: Whether there are documents, and whether calls give their bounds instead of a mask.
        whole: Whether calls use only whole masks, without chunks and steps.
        side: Where padding is: "left", "right", "both" or "none"; empty if not declared.
        sides: Where it may be in the calls.
        top: How many tokens a text may have; 0 if not declared.
        least, long, far: Tokens of a text that must then work, of a long one, and of one beyond 16 bits.
        open: What the specification leaves open, in sentences.
        first, starts, origins: Where counting starts: in the first call, in others, in each document.
        end: The smallest right position that is not returned.
    """

    mismatch, pairs, reads_first = "positions.mismatch", 120, True
    tolerance = 0.01  # positions are whole numbers
    whole, masked = False, True
    sides: Sequence[str] = ("left",)
    least, long, far = 120, LONG, FAR

    def __init__(self, convention: str, spec: Mapping[str, Any]) -> None:
        super().__init__(convention, spec)
        self.of_bounds = convention == "packed_position_fn"
        self.packed = self.of_bounds or bool(spec.get("packed"))
        self.definition = f"positions@{'restart-by-document' if self.packed else 'count-of-tokens'}"
        kept = kind("positions.state_kept", "again", "prefill" if self.packed or self.whole else "prefill decode chunk")
        self.kinds = (kept, kind("positions.packed.empty_document", "empty", "prefill"))
        said = str(spec.get("padding", "")).lower()
        self.side = said if said in SIDES else ""
        self.sides = SIDES.get(self.side, self.sides)
        self.top = int(spec.get("max_positions") or 0)
        self.open = [] if self.side or self.packed else [ONE_SIDE]
        if self.packed and not self.of_bounds:
            self.open = ["decode steps and chunks: masks with documents are called as whole rows"]
        # `start`: a number, or a function of the call; `number`: a function that changes large numbers
        start = float(spec.get("start") or 0)
        right = dict.fromkeys(ways.KINDS, attrgetter("right"))
        self.truth = {**right, "start": start, "number": None, "padding_row": None}
        self.seen: Sequence[Seen] = ()
        self.first, self.starts, self.end = start + 1, [start + 1], 2048.0
        self.origins: dict[tuple[str, int, float], float] = {}
        self.last: Array = np.zeros(0)  # the result of the previous call
        self.step = 1.0  # from token to token

    def cases(self) -> Iterator[Case]:
        """Yield small texts, a large one, small ones after it, and some beyond 16 bits."""
        return self._documents() if self.packed else self._texts()

    def _short(self) -> list[list[Call]]:
        """Return short texts, the smallest first, as far as positions go."""
        small = [(side, (1,)) for side in self.sides] or [("left", (0,))]
        large = [(side, pads) for side in self.sides or ["left"] for pads in PADS[: 3 if self.sides else 1]]
        texts = [text_of(1)]
        texts += [text for side, n in small for text in (text_of(2, n, side, 1), text_of(4, n, side, 1, 2))]
        texts += [text for side, pads in large for text in (text_of(7, pads, side, 2), text_of(8, pads, side, 1, 3))]
        if self.whole:
            texts = [text[:1] for text in texts if text[0].total == text[0].prompt]
        return [text for text in texts if not self.top or text[-1].total <= self.top] or [texts[0][:1]]

    def _texts(self) -> Iterator[Case]:
        short = self._short()
        for text in short:
            yield from (Case(call.kind, (call,), call.text) for call in text)
        if short[-1][-1].kind == "decode":
            yield Case("turns", (short[-1][-1],), "several texts in turn", optional=True)
        most = min(self.long, self.top or self.long)
        steps = 0 if self.whole else min(2, most - 1)
        shorter: Case | None = None
        for n in (self.least, 500, 2000):  # code may end anywhere if no length is declared
            if not self.top and n < most:
                shorter = Case("prefill", tuple(text_of(n)), f"{n} columns", otherwise=shorter)
        for call in text_of(most - steps, steps=steps):
            words, smaller = f"{call.total} columns", shorter if call.kind == "prefill" else None
            yield Case(call.kind, (call,), words, not self.top, smaller)
        yield from self._again([call for text in short for call in text])
        for n in sorted({min(self.top or self.far, self.far), min(self.top or self.far, FARTHEST)} - set(range(LONG))):
            yield Case("far", tuple(text_of(n)), f"{n} columns", optional=True)

    def _documents(self) -> Iterator[Case]:
        calls = [packed([lengths]) for lengths in DOCUMENTS]
        for rows, pads in () if self.of_bounds or self.side == "none" else BATCHES:
            for before in {"left": [pads], "both": [pads, (0, 0, 0)]}.get(self.side, [(0, 0, 0)]):
                calls.append(packed(rows, before[: len(rows)]))
        large = (40, 300, 9000 if self.of_bounds else 2200, 9)  # code may compare the columns of a mask with each other
        yield from (Case(call.kind, (call,), call.text) for call in (*calls, packed([large])))
        yield from self._again([packed([lengths]) for lengths in LATER])
        for call in (packed([lengths]) for lengths in EMPTY) if self.of_bounds else ():
            yield Case("empty", (call,), call.text, optional=True)
        each = min(self.top or FAR, FAR)
        if -(-FAR // each) < 38 and (self.of_bounds or self.top):
            yield Case("far", (packed([(2, *[each] * -(-FAR // each), 9)]),), f"{each} tokens each", optional=True)

    def _again(self, calls: Sequence[Call]) -> Iterator[Case]:
        """Yield calls that repeat others on an object that has already answered calls."""
        for call in calls:
            later = Call(call.mask, call.q_len, f"{call.text}, after others", call.prompt)
            yield Case("again", (later,), later.text, optional=not self.top)

    def observe(self, subject: Any, case: Case) -> Seen:
        """Return the answer of a call; later calls of a text, and those "again", use the same object."""
        (call,) = case.args
        if not call.earlier and case.kind not in ("again", "turns"):
            self.object = fresh(subject)
        if case.kind == "turns":
            ask(self.object, Call(np.ones((len(call.mask), 3)), 3, "another"), self.convention)
        value = ask(self.object, call, self.convention)
        if case.kind == "turns" and (value != self.last).any():
            raise NotAnsweredError("a step continues from the call before it, even one of another text")
        self.last = value
        return Seen(case, value, 0.0)

    def predict(self, model: Model, case: Case) -> Array:
        """Return the positions of the requested columns; those of padded slots are seldom compared."""
        (call,) = case.args
        start = model["start"](call) if callable(model["start"]) else model["start"]
        found: Array = model[call.kind](call)[:, -call.q_len :] + start + 0.0 * call.asked
        found = found if model["number"] is None else model["number"](found)
        return found if model["padding_row"] is None else np.where(call.asked > 0, found, model["padding_row"])

    def visible(self, value: Array, case: Case) -> Array:
        """Return the positions of tokens."""
        return np.where(case.args[0].asked > 0, value, 0.0)

    def look(self, seen: Sequence[Seen]) -> None:
        """Measure where counting starts, in all calls and in each document, and where it ends."""
        self.seen, self.first = seen, float(seen[0].value[0, 0])
        starts, ends = [], []
        for s in seen:
            (call,) = s.case.args
            real, want = call.asked > 0, self.predict(self.truth, s.case)
            begins = s.value - want + self.truth["start"]
            for i, row in enumerate(call.asked):
                for document, at in zip(*np.unique(row, return_index=True), strict=True):
                    self.origins.setdefault((call.text, i, document), begins[i, at])
            if real.sum() > 1 and (begins[real] == begins[real][0]).all():
                starts.append(float(begins[real][0]))
            ends += want[real & (s.value != want)].tolist()
        self.starts = starts if len(seen) > 1 else [self.first]
        plain = (s.value[0] for s in seen if s.case.args[0].q_len > 2 and (s.case.args[0].mask == 1).all())
        self.step = next((float(line[2] - line[0]) / 2 for line in plain), 1.0)
        self.end = min(ends, default=self.end)

    def _own(self, call: Call) -> Array:
        """Return where the document of each token starts, as it was returned."""
        rows = enumerate(call.asked)
        return np.array([[self.origins.get((call.text, i, d), 0.0) for d in row] for i, row in rows])

    def free(self) -> Iterator[Choice]:
        """Yield other origins, if only distances matter or the specification leaves them open."""
        is_free = self.spec.get("origin") == "any"
        absolute = "start" in self.spec or str(self.spec.get("encoding", "")) in ABSOLUTE
        off = self.first - self.truth["start"]
        if off and (is_free or not absolute):
            yield Choice({"start": self.first}, f"every position is off by {off:+g}, in all calls alike: {UNSEEN}")
        for start, words in ((self._own, OWN), *((start, MOVES) for start in ways.moving(self.first + 1))):
            # an origin that explains only some of the answers would hide the fault
            if is_free and explains(self, {**self.truth, "start": start}, self.seen):
                yield Choice({"start": start}, words)

    def constants(self) -> Iterator[Fault]:
        """Yield other positions of the first token."""
        asked = self.truth["start"]
        for found in dict.fromkeys(self.starts):
            if found != asked:
                words = {"start": found, "asked": asked, "by": found - asked}
                yield Fault("positions.off_by_one", {"start": found}, words)

    def faults(self) -> Iterator[Fault]:
        """Yield a constant, ways to count, large numbers, a moving origin, and ways of only some kinds of calls."""
        yield from self.constants()
        yield from (*ways.of_orders(), *ways.of_steps(self.step, self.truth["start"]))
        if self.packed:
            line = max((s.value[0] for s in self.seen), key=len, default=np.zeros(2))
            yield from ways.of_documents(int((line[1:] == line[0]).argmax()) + 1)
        else:
            yield from ways.of_masks(self.side, ways.KINDS)
        yield from ways.of_numbers(self.truth["start"], self.end)
        yield from (Fault("positions.origin_moves", {"start": start}) for start in ways.moving(self.first + 1))
        for kinds in () if self.packed else ways.SOME:
            yield from ways.of_masks(self.side, kinds)

    def read(self, seen: Sequence[Seen], wrong: Sequence[Seen], model: Model) -> Fault | None:
        """Return what is wrong in a text without padding, which the kind of a call, or padding, does not explain."""
        short = [s for s in wrong if 1 < s.case.args[0].q_len < SMALL]
        plain = (s.value[0] for s in short if (s.case.args[0].mask == 1).all())
        return next(filter(None, (ways.described(line, self.truth["start"]) for line in plain)), None)

    def refine(self, fault: Fault, wrong: frozenset[str], right: frozenset[str], seen: Sequence[Seen]) -> Fault:
        """Return the fault with a fix that does not speak of a mask, where the convention has none."""
        fault = super().refine(fault, wrong, right, seen)
        fix = OF_BOUNDS if self.of_bounds else "" if self.masked else OF_TOKENS
        is_of_masks = fix and "attention_mask" in rules.find(fault.code).fix
        return replace(fault, values={"fix": fix, **fault.values}) if is_of_masks else fault

    def smallest(self, seen: Seen, predicted: Array, off: Array) -> dict[str, Any]:
        """Return the first wrong column of the row with the largest error."""
        (call,) = seen.case.args
        row = int(off.max(-1).argmax())
        at = int(np.argmax(off[row] > 1))
        numbers = {"found": float(seen.value[row, at]), "expected": float(predicted[row, at])}
        return {**self.asked(call), "row": row, "column": at + call.earlier, **numbers}

    def asked(self, call: Call) -> dict[str, Any]:
        """Return a call as the smallest case shows it."""
        mask = call.mask.astype(int).tolist() if call.total <= 24 else call.text
        return {"cu_seqlens": call.bounds} if self.of_bounds else {"attention_mask": mask, "q_len": call.q_len}

    def not_judged(self, seen: Sequence[Seen]) -> list[str]:
        """Return what the specification leaves open, and texts longer than those of the calls."""
        return [*self.open, f"texts of more than {max((s.case.args[0].total for s in seen), default=0):,} tokens"]


class Rows(Counts):
    """Rows of a learned table: the position of each token plus an offset, within the table."""

    mismatch, whole, sides = "learned.mismatch", True, ("left", "right")
    guesses = True  # guess that a first row is padding_idx + 1

    def __init__(self, convention: str, spec: Mapping[str, Any]) -> None:
        first, self.padding_idx = ways.first_row(spec)
        self.table, top = int(spec.get("table_rows") or 0), int(spec.get("max_positions") or 0)
        spare = max(0, self.table - top) if self.table and top else 0
        super().__init__(convention, {**spec, "start": spare if first is None else first})
        self.definition = "learned@count-of-tokens"
        self.truth = {**self.truth, "padding_row": self.padding_idx, "ends": bool(self.table)}
        self.top = top or int(max(0, self.table - self.truth["start"]))
        self.open = [] if self.padding_idx is not None else ["the rows of padded slots: no padding_idx is declared"]
        self.open += [] if self.table else ["the end of the table: no table_rows is declared"]

    def off(self, seen: Seen, predicted: Array, model: Model) -> Array:
        """Return the differences; rows outside the table, and wrong rows of padding, count as fully wrong."""
        padded = (seen.case.args[0].asked == 0) & (seen.value != predicted) & (model["padding_row"] is not None)
        behind = (seen.value >= self.table) & model["ends"]
        return np.where(padded | behind, np.inf, super().off(seen, predicted, model))

    def free(self) -> Iterator[Choice]:
        """Yield any first row, if the specification allows it."""
        if self.spec.get("origin") == "any" and "offset" not in self.spec:
            yield Choice({"start": self.first})

    def faults(self) -> Iterator[Fault]:
        """Yield other first rows, ways to count, large numbers, and rows of padding."""
        asked = self.truth["start"]
        for fault in self.constants():
            found = fault.change["start"]
            guessed = found - 1 if self.guesses and asked == 0 and found != 2 else self.padding_idx
            code = f"learned.{ways.row_code(found, asked, guessed)}"
            padding = self.padding_idx and self.padding_idx + found - asked  # if it is added to padding too
            for rest in ({}, {"padding_row": padding, "ends": False}):
                yield replace(fault, code=code, change={**fault.change, **rest})
        more = (*ways.of_orders(), *ways.of_steps(self.step, asked))
        masks = ways.of_masks("", ("prefill",)) if self.masked else ways.without_masks()
        for fault in (*more, *masks, *ways.of_numbers(asked, self.end)):
            yield replace(fault, code=ways.IN_ROWS.get(fault.code, fault.code))
        yield Fault("learned.table_too_short", {"ends": False}, {"end": self.table})
        if self.padding_idx is not None:
            yield Fault("learned.padding_not_masked", {"padding_row": None})
