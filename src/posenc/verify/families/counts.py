"""Counts of tokens: positions of padded rows and of packed documents, and the rows of a table that they choose."""

from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any

import numpy as np

from posenc.verify.engine import Case, Choice, Family, Fault, Seen
from posenc.verify.engine.judge import explains
from posenc.verify.engine.observe import fresh
from posenc.verify.engine.records import Array, Model, kind
from posenc.verify.families.counts_calls import Call, ask, packed, text_of
from posenc.verify.families.counts_faults import KINDS, SOME, moving, of_documents, of_masks, of_numbers
from posenc.verify.guard import NotAnsweredError

LONG = 4200  # tokens: bfloat16 counts to 256, float16 to 2048
FAR, FARTHEST = 33_000, 1 << 17  # tokens: int16 counts to 32767
EXACT = 0.01  # positions are whole numbers
SIDES = {"both": ("left", "right"), "right": ("right",), "left": ("left",), "none": ()}  # where padding may stand
PADS = ((0, 0), (1, 4, 0), (3, 1))  # of batches; the first row is not the longest
ABSOLUTE = ("learned", "sinusoidal", "additive")  # encodings that see where counting begins
UNSEEN = "what sees distances only (rotation, biases) does not see it; a table of learned rows would"
OWN = f"every row or document begins at a place of its own: {UNSEEN}"
MOVES = (
    "in each call all positions of a row are right but for one number, which is another in the next call; keys that "
    "are kept unrotated, or are all rotated in every call, stand at right distances"
)
DOCUMENTS: tuple[tuple[int, ...], ...] = (
    *((1,), (2,), (1, 2), (2, 1), (2, 2), (1, 1, 1), (2, 2, 2), (5,), (3, 2), (2, 4), (3, 3, 3)),
    *((4, 1, 6, 2), (2, 7, 1, 1, 5), (3, 5, 4, 6, 2, 3)),
)
EMPTY: tuple[tuple[int, ...], ...] = ((3, 2, 0, 4), (0, 4), (2, 3, 0, 0, 3), (3, 4, 0), (4, 0, 0))
LATER = ((2, 7, 1, 1, 5), (3, 3, 3), (2, 3, 2, 1, 1))  # the last two have as many tokens
BATCHES = ((((2,), (1, 2)), (1, 0)), (((2, 3), (4, 1, 2), (3,)), (2, 0, 4)), (((2, 2, 2), (1, 1, 3, 3)), (2, 0)))


def family(convention: str, spec: Mapping[str, Any]) -> Family:
    """Return the family of a function of positions or of rows for a specification."""
    from posenc.verify.families.learned_rows import Rows

    if convention == "learned_rows_fn":
        return Rows(convention, spec)
    if convention == "packed_position_fn" or spec.get("packed"):
        return Documents(convention, spec)
    return Positions(convention, spec)


class Counts(Family):
    """What all of them share: the model has a rule for each kind of call.

    Attributes:
        side: Where padding stands: "left", "right", "both" or "none"; empty where nothing is said.
        top: How many tokens a text may have; 0 where nothing is said.
        open: What the specification leaves open, in sentences.
        first: The position of the first token, as it was returned.
        starts: Where counting begins in some calls of more than one token, as they were returned.
        origins: Where each document of a text begins, as it was returned.
        end: The least right position that is not returned.
    """

    mismatch, pairs, reads_first = "positions.mismatch", 120, True

    def __init__(self, convention: str, spec: Mapping[str, Any]) -> None:
        super().__init__(convention, spec)
        said = str(spec.get("padding", "")).lower()
        self.side = said if said in SIDES else ""
        self.top = int(spec.get("max_positions") or 0)
        self.open: list[str] = []
        # `start`: a number, or what it is in a call; `number`: what becomes of large numbers
        start = float(spec.get("start") or 0)
        self.truth = {**dict.fromkeys(KINDS, attrgetter("right")), "start": start, "number": None, "padding_row": None}
        self.seen: Sequence[Seen] = ()
        self.first, self.starts, self.end = start + 1, [start + 1], 2048.0
        self.origins: dict[tuple[str, int, float], float] = {}
        self.last: Array = np.zeros(0)  # what the call before returned

    def observe(self, subject: Any, case: Case) -> Seen:
        """Return the answer of a call; later ones of a text, and those "again", are asked of the same object."""
        (call,) = case.args
        if not call.earlier and case.kind not in ("again", "turns"):
            self.object = fresh(subject)
        if case.kind == "turns":
            ask(self.object, Call(np.ones((len(call.mask), 3)), 3, "another"), self.convention)
        value = ask(self.object, call, self.convention)
        if case.kind == "turns" and (value != self.last).any():
            raise NotAnsweredError("a step goes on from the call before it, whichever text that was of")
        self.last = value
        return Seen(case, value, 0.0)

    def predict(self, model: Model, case: Case) -> Array:
        """Return the positions of the columns that are asked for; those of padded slots are seldom compared."""
        (call,) = case.args
        start = model["start"](call) if callable(model["start"]) else model["start"]
        found: Array = model[call.kind](call)[:, -call.q_len :] + start + 0.0 * call.asked
        found = found if model["number"] is None else model["number"](found)
        return found if model["padding_row"] is None else np.where(call.asked > 0, found, model["padding_row"])

    def visible(self, value: Array, case: Case) -> Array:
        """Return what tokens get."""
        return np.where(case.args[0].asked > 0, value, 0.0)

    def off(self, seen: Seen, predicted: Array, model: Model) -> Array:
        """Return the differences, of padded slots only where a row is theirs."""
        compared = (seen.case.args[0].asked > 0) | (model["padding_row"] is not None)
        compared &= seen.value != predicted  # infinite ones may be equal
        off: Array = np.abs(np.where(compared, seen.value, 0.0) - np.where(compared, predicted, 0.0)) / EXACT
        return off

    def look(self, seen: Sequence[Seen]) -> None:
        """Read off where counting begins, in all calls and in each document, and where it ends."""
        self.seen, self.first = seen, float(seen[0].value[0, 0])
        starts, ends = [], []
        for s in seen:
            (call,) = s.case.args
            real, want = call.asked > 0, self.predict({**self.truth, "padding_row": None}, s.case)
            begins = s.value - want + self.truth["start"]
            for i, row in enumerate(call.asked):
                for document, at in zip(*np.unique(row, return_index=True), strict=True):
                    self.origins.setdefault((call.text, i, document), begins[i, at])
            if real.sum() > 1 and (begins[real] == begins[real][0]).all():
                starts.append(float(begins[real][0]))
            ends += want[real & (s.value != want)].tolist()
        self.starts = starts if len(seen) > 1 else [self.first]
        self.end = min(ends, default=self.end)

    def _own(self, call: Call) -> Array:
        """Return where the document of each token begins, as it was returned."""
        rows = enumerate(call.asked)
        return np.array([[self.origins.get((call.text, i, d), 0.0) for d in row] for i, row in rows])

    def free(self) -> Iterator[Choice]:
        """Yield other origins, where distances are all that is seen or the specification leaves them free."""
        is_free = self.spec.get("origin") == "any"
        absolute = "start" in self.spec or str(self.spec.get("encoding", "")) in ABSOLUTE
        off = self.first - self.truth["start"]
        if off and (is_free or not absolute):
            yield Choice({"start": self.first}, f"every position is {off:+g} off, in all calls alike: {UNSEEN}")
        for start, words in ((self._own, OWN), *((start, MOVES) for start in moving(self.first + 1))):
            # one that explains only some of the answers would hide what is wrong
            if is_free and explains(self, {**self.truth, "start": start}, self.seen):
                yield Choice({"start": start}, words)

    def constants(self) -> Iterator[Fault]:
        """Yield other positions of the first token."""
        asked = self.truth["start"]
        for found in dict.fromkeys(self.starts):
            if found != asked:
                words = {"start": found, "asked": asked, "by": found - asked}
                yield Fault("positions.off_by_one", {"start": found}, words)

    def read(self, seen: Sequence[Seen], wrong: Sequence[Seen], model: Model) -> Fault | None:
        """Return positions that go down, or stay, in a text without padding."""
        plain = [s.value for s in wrong if s.case.args[0].q_len > 1 and (s.case.args[0].mask == 1).all()]
        steps = np.diff(plain[0]) if plain else np.ones(1)
        if (steps < 0).all():
            return Fault("positions.reversed")
        return None if steps.any() else Fault("positions.constant_in_chunk")

    def smallest(self, seen: Seen, predicted: Array, off: Array) -> dict[str, Any]:
        """Return the first wrong column of the row that is farthest off."""
        (call,) = seen.case.args
        row = int(off.max(-1).argmax())
        at = int(np.argmax(off[row] > 1))
        mask = call.mask.astype(int).tolist() if call.total <= 24 else call.text
        packed_fn = self.convention == "packed_position_fn"
        asked = {"cu_seqlens": call.bounds} if packed_fn else {"attention_mask": mask, "q_len": call.q_len}
        found, expected = float(seen.value[row, at]), float(predicted[row, at])
        return {**asked, "row": row, "column": at + call.earlier, "found": found, "expected": expected}

    def not_judged(self, seen: Sequence[Seen]) -> list[str]:
        """Return what the specification leaves open, and texts that are longer than those that were asked."""
        return [*self.open, f"texts of more than {max((s.case.args[0].total for s in seen), default=0):,} tokens"]


class Positions(Counts):
    """Positions of the last q_len columns of a mask: the number of a row's tokens before each.

    Attributes:
        whole: Whether only whole masks are asked, without chunks and steps.
        sides: Where padding may stand if the specification does not say it.
    """

    definition = "positions@count-of-tokens"
    kinds = (kind("positions.state_kept", "again", "prefill decode chunk"),)
    whole = False
    sides: Sequence[str] = ("left",)

    def __init__(self, convention: str, spec: Mapping[str, Any]) -> None:
        super().__init__(convention, spec)
        if not self.side:
            self.open = ["padding on the right: the specification's padding is not 'right' or 'both'"]

    def _short(self) -> list[list[Call]]:
        """Return short texts, the smallest first, as far as positions go."""
        padded = SIDES.get(self.side, self.sides)
        small = [(side, (1,)) for side in padded] or [("left", (0,))]
        large = [(side, pads) for side in padded or ["left"] for pads in (PADS if padded else PADS[:1])]
        texts = [text_of(1)]
        texts += [text for side, n in small for text in (text_of(2, n, side, 1), text_of(4, n, side, 1, 2))]
        texts += [text for side, pads in large for text in (text_of(7, pads, side, 2), text_of(8, pads, side, 1, 3))]
        if self.whole:
            texts = [text[:1] for text in texts if text[0].total == text[0].prompt]
        return [text for text in texts if not self.top or text[-1].total <= self.top] or [texts[0][:1]]

    def cases(self) -> Iterator[Case]:
        """Yield the calls of short texts, of a long one, of short ones after it, and of one beyond 16 bits."""
        short = self._short()
        for text in short:
            yield from (Case(call.kind, (call,), call.text) for call in text)
        if short[-1][-1].kind == "decode":
            yield Case("turns", (short[-1][-1],), "several texts in turn", optional=True)
        most = min(LONG, self.top or LONG)
        steps = 0 if self.whole else min(2, most - 1)
        shorter: Case | None = None
        for n in () if self.top else (120, 500, 2000):  # code may end where it likes if it was not declared
            shorter = Case("prefill", tuple(text_of(n)), f"{n} columns", otherwise=shorter)
        for call in text_of(most - steps, steps=steps):
            yield Case(call.kind, (call,), call.text, not self.top, shorter if call.kind == "prefill" else None)
        for call in (call for text in short for call in text):
            again = Call(call.mask, call.q_len, f"{call.text}, after others", call.prompt)
            yield Case("again", (again,), again.text, optional=not self.top)
        for n in sorted({min(self.top or FAR, FAR), min(self.top or FAR, FARTHEST)} - set(range(LONG))):
            yield Case("far", tuple(text_of(n)), f"{n} columns", optional=True)

    def faults(self) -> Iterator[Fault]:
        """Yield a constant, ways to count, large numbers, an origin that moves, and ways of some kinds of calls."""
        yield from self.constants()
        yield from of_masks(self.side, KINDS)
        yield from of_numbers(self.truth["start"], self.end)
        yield from (Fault("positions.origin_moves", {"start": start}) for start in moving(self.first + 1))
        for kinds in SOME:
            yield from of_masks(self.side, kinds)


class Documents(Counts):
    """Positions of packed documents, of their bounds or of a mask with their numbers: each begins at 0."""

    definition = "positions@restart-by-document"
    kinds = (kind("positions.state_kept", "again", "near"), kind("positions.packed.empty_document", "empty", "near"))

    def __init__(self, convention: str, spec: Mapping[str, Any]) -> None:
        super().__init__(convention, spec)
        self.of_bounds = convention == "packed_position_fn"
        # columns of a mask may be compared with one another
        self.large = (40, 300, 9000 if self.of_bounds else 2200, 9)
        self.open = [] if self.of_bounds else ["decode steps and chunks: masks with documents are asked as whole rows"]
        self.modulus = 512.0

    def cases(self) -> Iterator[Case]:
        """Yield small packings, a large one, small ones after it, documents of no tokens, some beyond 16 bits."""
        near = [packed([lengths]) for lengths in DOCUMENTS]
        for rows, pads in () if self.of_bounds or self.side == "none" else BATCHES:
            for before in {"left": [pads], "both": [pads, (0, 0, 0)]}.get(self.side, [(0, 0, 0)]):
                near.append(packed(rows, before[: len(rows)]))
        yield from (Case("near", (call,), call.text) for call in (*near, packed([self.large])))
        for call in (packed([lengths]) for lengths in LATER):
            call.text += ", after others"
            yield Case("again", (call,), call.text, optional=not self.top)
        for lengths in EMPTY if self.of_bounds else ():
            yield Case("empty", (packed([lengths]),), f"documents of {list(lengths)} tokens", optional=True)
        each = min(self.top or FAR, FAR)
        if -(-FAR // each) < 38 and (self.of_bounds or self.top):
            yield Case("far", (packed([(2, *[each] * -(-FAR // each), 9)]),), f"{each} tokens each", optional=True)

    def look(self, seen: Sequence[Seen]) -> None:
        """Read off after how many tokens positions begin anew, too."""
        super().look(seen)
        large = next((s.value[0] for s in seen if s.case.args[0].total == sum(self.large)), np.zeros(1))
        self.modulus = float(next(iter(np.flatnonzero(large[1:] == large[0])), 511) + 1)

    def faults(self) -> Iterator[Fault]:
        """Yield a constant, ways to count, and large numbers."""
        yield from self.constants()
        yield from of_documents(self.modulus)
        yield from of_numbers(self.truth["start"], self.end)
