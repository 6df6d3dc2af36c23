"""Which calls of a sinusoid are made, and what they say of where its table ends."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from posenc.verify.engine import Case, Choice, Seen
from posenc.verify.engine.records import Array, Model
from posenc.verify.families.added_calls import FLAGS, Added, Shape, finding, ready
from posenc.verify.families.added_reading import near_ones
from posenc.verify.guard import SubjectError

FAR, LARGEST = 33_000, 2**23  # 16 bits count to 32,767; numbers of the largest answer
HALF = 600  # tokens in half precision; bfloat16 counts to 256


class Asking(Added):
    """The calls of a code of known numbers: small ones, later ones of one object, long texts, half precision.

    Attributes:
        single: The smallest call.
        later: Calls of one object, in this order and in the other.
        lengths: Of long texts.
        top: The length that must work; 0 where none is asked for.
        ends: The first length that raises an error; 0 where none did.
        permuted: The dimensions stand in an order that was read off.
    """

    shapes: Sequence[Shape] = ((2, 3), (1, 4), (2, 5), (3, 7), (1, 24))  # ascending, for what keeps its longest table
    single: Shape = (1, 1)
    later: Sequence[Shape] = ((2, 5), (2, 9), (2, 3), (3, 5), (2, 40), (2, 9), (2, 5))
    lengths = (40, 130, 600, 2100)

    def __init__(self, convention: str, spec: Mapping[str, Any]) -> None:
        super().__init__(convention, spec)
        self.top, self.ends = int(spec.get("max_positions") or 0), 0
        self.permuted = False

    def cases(self) -> Iterator[Case]:
        """Yield calls of several sizes; later and far ones only where these are right, or unknown."""
        yield from self.flags("tokens")
        for shape in self.shapes:
            if not self.top or shape[-1] <= self.top:
                yield Case("near", (shape,), self.calls.words(shape), optional=max(shape) > 20)
        best = self.best() if near_ones(self.heard) else self.truth
        if best is None:
            return
        self.permuted = best["lanes"] is not None
        if self.permuted:  # slow dimensions are not distinct in a few tokens, so that far ones would be off
            yield from self.flags("grad", "trained")
            return
        yield Case("single", (self.single,), self.calls.words(self.single), optional=True)
        yield from self._more()
        yield from self.flags("grad", "trained")

    def _more(self) -> Iterator[Case]:
        within = [s for s in self.later if not self.top or s[-1] <= self.top]
        for order in (within, within[::-1]):
            yield Case("again", tuple(order), "calls of one object, one after another")
        dim = max(self.calls.dim, 1)
        lengths = [n for n in self.lengths if not self.top or n < self.top]
        ends = [self.top] if self.top else []
        ends += [FAR] if not 0 < self.top <= FAR else []
        lengths = [n for n in lengths if n <= HALF or n * dim <= LARGEST // 32]
        lengths += [n for n in sorted(ends) if n * dim <= LARGEST]
        if lengths:
            yield Case("far", tuple((1, n) for n in lengths), f"{max(lengths)} tokens")
        if self.spec.get("activation_dtype"):
            yield Case("half", ((1, min(HALF, self.top or HALF)),), "tokens in bfloat16", optional=True)

    def best(self) -> Model | None:
        """Return the first allowed model that explains the near answers."""
        near = near_ones(self.heard)
        models = ({**self.truth, **choice.change} for choice in itertools.chain([Choice({})], self.free()))
        return next((model for model in models if self.fits(model, near)), None)

    def fits(self, model: Model, some: Sequence[Seen], within: float = 1.0) -> bool:
        """Return whether a model explains some answers, with so many times their tolerance."""
        return all(bool((self.off(s, self.predict(model, s.case), model) <= within).all()) for s in some)

    def added(self, subject: Any, case: Case) -> Seen:
        """Return what the calls of a case add, row by row."""
        ask = {"again": self._again, "far": self._far, "half": self._half}.get(case.kind)
        seen = ask(subject, case) if ask else Seen(case, self.calls.code(ready(subject), case.args[0]))
        self.heard.append(seen)
        return seen

    def _again(self, subject: Any, case: Case) -> Seen:
        """Return what one object adds, call after call."""
        called, rows = ready(subject), []
        for i, shape in enumerate(case.args):
            try:
                rows.append(self.calls.code(called, shape))
            except SubjectError as error:
                if i and self.calls.works(subject, shape):
                    what = f"{self.calls.words(shape)}, which works on a fresh object, fails"
                    calls = {"calls": [self.calls.case(s) for s in case.args[: i + 1]]}
                    raise finding("sinusoidal.state_kept", calls, what=what, off=1.0) from error
                case = Case(case.kind, case.args[:i], case.words)  # a table that ends, and says so
                break
        return Seen(case, np.concatenate(rows) if rows else np.zeros((0, self.calls.dim)))

    def _far(self, subject: Any, case: Case) -> Seen:
        """Return what is added to long texts, as far as the subject goes."""
        rows: list[Array] = []
        for shape in case.args:
            try:
                rows.append(self.calls.code(ready(subject), shape))
            except SubjectError as error:
                if self.top:
                    words = f"{self.top} positions were asked for, and {self.calls.words(shape)} fails"
                    words += f": {error.cause.message[:160]}"
                    raise finding("sinusoidal.table.too_short", self.calls.case(shape), words=words) from error
                self.ends = shape[-1]
                break
        case = Case(case.kind, case.args[: len(rows)], case.words)
        return Seen(case, np.concatenate(rows) if rows else np.zeros((0, self.calls.dim)))

    def _half(self, subject: Any, case: Case) -> Seen:
        """Return what is added to tokens in bfloat16."""
        called = ready(subject)
        called = called.to(torch.bfloat16) if isinstance(called, torch.nn.Module) else called
        x = torch.zeros(self.calls.full(case.args[0]), dtype=torch.bfloat16)
        return Seen(case, self.calls.code(called, case.args[0], x), 2.0**-8)

    def refusal(self, subject: Any, case: Case, error: SubjectError) -> SubjectError:
        """Return the finding behind a call that fails: the batch taken for the text, or an odd width."""
        shape = case.args[0]
        if self.calls.works(subject, (1, *shape[1:])) and not self.calls.works(subject, (2, 9)):
            return finding("sinusoidal.axis.batch", self.calls.case(shape), words="a batch of one works, others fail")
        if self.calls.dim % 2:
            return finding(
                "sinusoidal.width.odd", {"dim": self.calls.dim}, dim=self.calls.dim, error=error.cause.message[:160]
            )
        return error

    def grid(self, shape: Shape) -> Shape:
        """Return the axes of a call's rows."""
        return shape

    def smallest(self, seen: Seen, predicted: Array, off: Array) -> dict[str, Any]:
        """Return the first wrong row of an answer, with its worst number."""
        shape = seen.case.args[0]
        if seen.case.kind in FLAGS or off.ndim != 2 or off.shape != predicted.shape:
            return self.calls.case(shape)
        row = int((off > 1).any(1).argmax())
        lane = int(np.abs(seen.value[row] - predicted[row]).argmax())
        at = row
        for shape in seen.case.args:
            size = math.prod(self.grid(shape))
            if at < size:
                break
            at -= size
        index = [int(i) for i in np.unravel_index(at, self.grid(shape))]
        index = [index[0], lane, *index[1:]] if self.calls.image else [*index, lane]
        numbers = {"index": index, "found": float(seen.value[row, lane]), "expected": float(predicted[row, lane])}
        return {**self.calls.case(shape), **numbers}

    def not_judged(self, seen: Sequence[Seen]) -> list[str]:
        """Return what was not looked at."""
        said = self.ignored()
        if not any(s.case.kind == "half" for s in seen):
            said.append("tokens in half precision: the specification gives no activation_dtype")
        if self.permuted:
            said.append("later calls and long texts: the dimensions stand in an order that was read off a few tokens")
        longest = max((shape[-1] for s in seen if s.case.kind in ("again", "far") for shape in s.case.args), default=0)
        if longest:
            ends = f": a text of {self.ends} tokens raises an error" if self.ends else ""
            said.append(f"positions beyond {longest - 1}{ends}")
        return said
