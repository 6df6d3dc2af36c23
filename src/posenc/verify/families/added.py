"""Sinusoids that are added to tokens, and tables of sinusoids of distances."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from posenc.verify.engine import CannotTellError, Case, Choice, Family, Fault, Seen, precision
from posenc.verify.engine.judge import explains
from posenc.verify.engine.records import FLOAT32, Array, Model, kind
from posenc.verify.families import added_faults, added_places, added_reading, added_words
from posenc.verify.families.added_calls import FLAGS, Added, Shape, finding, ready
from posenc.verify.families.added_faults import FACTORS, ROWS, RULES, STAGES, T2T
from posenc.verify.families.added_reading import near_ones
from posenc.verify.guard import SubjectError
from posenc.verify.report import Cause

BASES = (10000.0, 1000.0)  # tried together with other faults; any other base is measured
FAR, LARGEST = 33_000, 2**23  # 16 bits count to 32,767; the largest number of entries in an answer
LATE = {  # the fault if calls of a kind are wrong, but short ones on fresh objects right
    "again": "sinusoidal.state_kept",
    "far": "sinusoidal.table.too_short",
    "half": "sinusoidal.precision.product_bf16",
}
SINGLE = "sinusoidal.single_token"
HALF = 600  # tokens in half precision; bfloat16 counts to 256
ORIGIN = "the first position is off by {by:+g}, which origin='any' allows, but weights of other code do not fit"
MOVED = "dimensions are in another order ({words}); none was declared, but weights of another implementation do not fit"


def family(convention: str, spec: Mapping[str, Any]) -> Family:
    """Return the family of an encoding that is added, or of a table of distances.

    Raises:
        CannotTellError: The encoding has no definition in this convention.
    """
    from posenc.verify.families import distances, images, trained, trained_images

    word = str(spec.get("encoding") or "sin").lower()
    learned, image = word.startswith("learned"), convention == "additive_2d_module"
    unknown = not word.startswith(("sin", "relative_sin", "learned")) or ("2d" in word and not image)
    if unknown or (learned and convention == "relative_table_fn"):
        raise CannotTellError(f"{convention} with encoding {word!r} has no definition to compare it with")
    if learned:
        return trained_images.TrainedImage(convention, spec) if image else trained.Trained(convention, spec)
    of = {"additive_2d_module": images.Image, "relative_table_fn": distances.Distances}
    return of.get(convention, Sinusoid)(convention, spec)


def refused(convention: str, spec: Mapping[str, Any], cause: Cause) -> Cause:
    """Return the fault behind a build() that raises: a width that cannot be halved, or else the given cause."""
    dim = int(spec.get("dim") or spec.get("d_model") or spec.get("head_dim") or 0)
    odd = dim % (4 if convention == "additive_2d_module" else 2) and cause.code.startswith("subject.")
    return _odd(dim, cause).cause if odd else cause


def _odd(dim: int, cause: Cause) -> SubjectError:
    return finding("sinusoidal.width.odd", {"dim": dim}, float(dim), dim=dim, error=cause.message[:160])


class Sinusoid(Added):
    """The sinusoid of Vaswani et al. 2017, section 3.5, added to the tokens of a text.

    Attributes:
        prefix: The first word of the finding codes that texts, images and distances do not share.
        cut_wrong: The finding code if rows are off by a constant number of positions that differs from call to call.
        later: Calls of one object, made in this order and in reverse.
        divides: The width must be a multiple of this number.
        top: The length that must work; 0 if none is declared.
        ended: Whether longer texts, or later calls, fail.
    """

    prefix, cut_wrong, divides, pairs = "sinusoidal", "sinusoidal.slice.tail", 2, 32
    ignores = "table_rows padding padding_idx interpolation"
    shapes: Sequence[Shape] = ((2, 3), (1, 4), (2, 5), (3, 7), (1, 24))  # ascending, for code that keeps a table
    single: Shape = (1, 1)
    later: Sequence[Shape] = ((2, 5), (2, 9), (2, 3), (3, 5), (2, 40), (2, 9), (2, 5))
    lengths: Sequence[int] = (40, 130, 600, 2100)

    def __init__(self, convention: str, spec: Mapping[str, Any]) -> None:
        super().__init__(convention, spec)
        self.readings, self.moved, self.free_lanes = added_words.read(spec, image=self.calls.image)
        if "start" not in spec and self.readings[0]["start"]:  # the row after padding_idx is the first
            self.ignores = self.ignores.replace("padding_idx ", "")
        self.top, self.ended = int(spec.get("max_positions") or 0), False
        self.mismatch = f"{self.prefix}.mismatch"
        late = [kind(code, name, "near") for name, code in LATE.items()]
        late += [kind(SINGLE, "single", "near")] if self.single == (1, 1) else []
        self.kinds = (self.kinds[0], *late, *self.kinds[1:])
        self.truth = {
            "lanes": None,  # for each dimension its index in the definition, if they are permuted
            "place": "",  # a wrong way to count rows
            **{"start": 0.0, "gain": 1.0, "keep": 1.0, "factor": 1.0},  # the last one multiplies all frequencies
            "summed": False,  # each row is the sum of the encodings up to it
            **{f"round_{stage}": None for stage in STAGES},
            **self.readings[0],
        }
        self.definition = f"{self.prefix}@{'tensor2tensor' if self.truth['rule'] == T2T else 'vaswani'}"
        self._last: tuple[Model, Case, tuple[Array, Array]] | None = None

    def cases(self) -> Iterator[Case]:
        """Yield calls of several sizes and, if these are right, later calls of one object and long texts."""
        yield from self.flags("tokens")
        end = self.top or FAR
        shapes, later = ([shape for shape in some if shape[-1] <= end] for some in (self.shapes, self.later))
        for shape in shapes:
            yield Case("near", (shape,), self.calls.words(shape), optional=max(shape) > 20)
        if near_ones(self.heard) and self.best() is None:
            return
        yield Case("single", (self.single,), self.calls.words(self.single), optional=True)
        for order in (later, later[::-1]):
            self.ended = False
            for i in range(2, len(order) + 1):
                if not self.ended:
                    yield Case("again", tuple(order[:i]), "calls of one object, one after another", optional=True)
        self.ended = not self.lengths
        for n in sorted({*self.lengths, end}):
            if not self.ended and n <= end and n * self.calls.dim <= LARGEST:
                yield Case("far", ((1, n),), f"{n} tokens", optional=not self.top)
        if self.lengths and self.spec.get("activation_dtype"):
            yield Case("half", ((1, min(HALF, end)),), "tokens in bfloat16", optional=True)
        yield from self.flags("grad", "trained")

    def added(self, subject: Any, case: Case) -> Seen:
        """Return the rows that the last call of a case adds."""
        called, x, shape = ready(subject), None, case.args[-1]
        if case.kind == "half":
            called = called.to(torch.bfloat16) if isinstance(called, torch.nn.Module) else called
            x = torch.zeros(self.calls.full(shape), dtype=torch.bfloat16)
        try:
            rows = [self.calls.code(called, one, x) for one in case.args][-1]
        except SubjectError as error:
            self.ended = True
            if case.kind != "again" or not self.calls.works(subject, shape):
                raise
            calls = {"calls": [self.calls.case(one) for one in case.args]}
            what = f"{self.calls.words(shape)}, which works on a fresh object, fails after other calls"
            raise finding("sinusoidal.state_kept", calls, what=what, off=1.0) from error
        self.heard.append(Seen(case, rows, FLOAT32 if x is None else 2.0**-8))
        return self.heard[-1]

    def raised(self, cause: Cause, case: Case) -> Fault | None:
        """Return the fault behind a long text that fails although its length is declared."""
        if case.kind != "far" or cause.code != "subject.raises":
            return None
        words = f"{self.top} positions are declared, but {cause.message[:200]}"
        return Fault("sinusoidal.table.too_short", {}, {"message": words}, self.calls.case(case.args[-1]))

    def refusal(self, subject: Any, case: Case, error: SubjectError) -> SubjectError:
        """Return the finding behind a call that fails: the batch is taken for the text, or the width is odd."""
        shape = case.args[0]
        if len(shape) == 2 and self.calls.works(subject, (1, *shape[1:])) and not self.calls.works(subject, (2, 9)):
            return finding("sinusoidal.axis.batch", self.calls.case(shape), words="only a batch of one works")
        return _odd(self.calls.dim, error.cause) if self.calls.dim % self.divides else error

    def grid(self, shape: Shape) -> Shape:
        """Return the axes of a call's rows."""
        return shape

    def positions(self, model: Model, shape: Shape) -> tuple[Array, ...]:
        """Return the positions of the rows of a call, (batch or 1, tokens)."""
        b, n = shape
        text, row = np.arange(b, dtype=np.float64)[:, None], np.arange(n, dtype=np.float64)[None]
        place = ROWS[model["place"]][0](text, row, b, n) if model["place"] else row
        return (place + model["start"],)

    def predict(self, model: Model, case: Case) -> Array:
        """Return the rows that a model adds in the last call of a case."""
        return self.flag(model, case) if case.kind in FLAGS else self.rows(model, case)[0]

    def slack(self, seen: Seen, predicted: Array, model: Model) -> Array | float:
        """Return the rounding error: angles in float32 are coarser the larger they are."""
        if seen.case.kind in FLAGS:
            return super().slack(seen, predicted, model)
        largest = np.maximum(np.abs(predicted), max(abs(self.calls.keep), 1.0))
        slack: Array = self.rows(model, seen.case)[1] + 16 * FLOAT32 * largest
        return slack + (2.0**-7 if seen.case.kind == "half" else self.calls.half)

    def rows(self, model: Model, case: Case) -> tuple[Array, Array]:
        """Return the rows of the last call of a case, and the float32 error of each number."""
        if self._last is None or self._last[0] is not model or self._last[1] is not case:
            full = (*self.grid(case.args[-1]), self.calls.dim)
            lanes = slice(None) if model["lanes"] is None else model["lanes"]
            code, slack = (
                np.broadcast_to(a[..., lanes], full).reshape(-1, full[-1])
                for a in self.code(model, self.positions(model, case.args[-1]))
            )
            if model["summed"]:
                code = code.reshape(full).cumsum(-2).reshape(code.shape)
            self._last = model, case, (np.nan_to_num(model["gain"] * code), np.nan_to_num(abs(model["gain"]) * slack))
        return self._last[2]

    def code(self, model: Model, axes: tuple[Array, ...]) -> tuple[Array, Array]:
        """Return the encoding of positions, and its float32 error."""
        return added_faults.wave(model, axes[0], self.calls.dim)

    def best(self) -> Model | None:
        """Return the first allowed model that explains the answers to short calls."""
        models = ({**self.truth, **choice.change} for choice in self.free())
        return next((model for model in models if explains(self, model, near_ones(self.heard))), None)

    @property
    def width(self) -> int:
        """The number of dimensions over which the waves of one axis are spread."""
        return self.calls.dim

    def free(self) -> Iterator[Choice]:
        """Yield readings, undeclared orders, and measured choices: another origin, any order."""
        near, choices = near_ones(self.heard), [Choice(reading) for reading in self.readings]
        for reading, change in itertools.product(self.readings, self.moved):
            words = self._order_words({**self.truth, **change})
            choices.append(Choice({**reading, **change}, MOVED.format(words=words)))
        yield from choices
        if any(explains(self, {**self.truth, **choice.change}, near) for choice in choices):
            return
        rows = [s for s in self.heard if s.case.kind in ("near", "again", "far")]
        for choice in choices:
            model = {**self.truth, **choice.change}
            fault = added_reading.shifted(self, near, model) if self.spec.get("origin") == "any" else None
            if fault is not None and fault.change:
                words = ORIGIN.format(by=fault.values["start"] - fault.values["asked"])
                yield Choice({**choice.change, **fault.change}, "; ".join(filter(None, (choice.because, words))))
            lanes = added_reading.permutation(self, rows, model) if self.free_lanes and not choice.because else None
            if lanes is not None:
                yield Choice({**choice.change, "lanes": lanes}, MOVED.format(words=f"{lanes[:8]}..."))

    def _order_words(self, model: Model) -> str:
        join, words = model["join"], added_faults.layouts(self.width)[model["order"]].words
        alternating = ", the axes alternating" if join.startswith("woven") else ""
        return words + (f"{alternating}, {'rows' if join.endswith('yx') else 'columns'} first" if join else "")

    def faults(self) -> Iterator[Fault]:
        """Yield the known faults; the first ones are also tried in pairs."""
        yield from self.about_the_input()
        if not any(np.abs(s.value).max() > 1e-6 for s in near_ones(self.heard)):
            yield Fault("sinusoidal.not_used", {"gain": 0.0})
        yield Fault("sinusoidal.added_twice", {"gain": 2.0})
        yield from (self.start_fault(by) for by in (1.0, -1.0))
        for base in BASES:
            code, values = "frequency.base", {"base": base, "asked": self.truth["base"]}
            yield Fault(f"sinusoidal.{'temperature_hardwired' if base == 10000.0 else code}", {"base": base}, values)
        some = (self._orders, self._places) if self.calls.image else (self._places, self._orders)
        for faults in some:
            yield from faults()
        for words, (code, *_) in RULES.items():
            yield Fault(f"sinusoidal.{code}", {"rule": words}, {"words": words})
        for words, factor in FACTORS.items():
            yield Fault("sinusoidal.frequency.factor", {"factor": factor}, {"words": words})
        yield from precision.faults("sinusoidal", STAGES)

    def start_fault(self, by: float) -> Fault:
        """Return the fault of counting from another number."""
        asked = self.truth["start"]
        return Fault(f"{self.prefix}.start", {"start": asked + by}, {"start": asked + by, "asked": asked})

    def _orders(self) -> Iterator[Fault]:
        """Yield wrong orders of sines and cosines."""
        for name, layout in added_faults.layouts(self.width).items():
            words = self._order_words({**self.truth, "order": name})
            yield Fault(f"sinusoidal.{layout.code}", {"order": name}, {"words": words})

    def _places(self) -> Iterator[Fault]:
        """Yield wrong ways to count rows."""
        for words, (_, code) in ROWS.items():
            yield Fault(f"sinusoidal.{code}", {"place": words}, {"words": words})
        yield Fault("sinusoidal.sum_of_rows", {"summed": True})

    def read(self, seen: Sequence[Seen], wrong: Sequence[Seen], model: Model) -> Fault | None:
        """Return a fault measured from the rows: a factor, positions, a base."""
        near = near_ones(wrong)
        for some in filter(None, (near, near[:-1])):  # a separate branch for longer texts may be wrong as well
            for ask in (added_reading.empty, added_reading.scaled, added_reading.shifted, added_reading.base):
                if (fault := ask(self, some, model)) is not None:
                    return fault
        if (fault := next(filter(None, (added_reading.broken(self, s, model) for s in near[::-1])), None)) is not None:
            return fault
        readings = (*self.readings, *({**self.readings[0], **change} for change in self.moved))
        whole = [s for s in near_ones(seen) if s.case.args[-1][-1] > 1]
        return self.described(whole, [{**self.truth, **reading} for reading in readings])

    def described(self, near: Sequence[Seen], models: Sequence[Model]) -> Fault | None:
        """Return which positions the rows encode, if they encode any."""
        return added_places.of_text(self, near, models) if near else None

    def parts(self, model: Model) -> list[NDArray[np.int64]]:
        """Return the dimensions that encode each axis."""
        return [np.arange(self.calls.dim, dtype=np.int64)] if model["lanes"] is None else []

    def refine(self, fault: Fault, wrong: frozenset[str], right: frozenset[str], seen: Sequence[Seen]) -> Fault:
        """Return the fault that later, long or coarse calls show, if short ones are right."""
        model = self.best()
        if fault.code == SINGLE and model is not None:
            return self._of_one(next(s for s in seen if s.case.kind == "single"), model)
        if fault.change or fault.code not in LATE.values() or model is None:
            return super().refine(fault, wrong, right, seen)
        s = next(s for s in seen if LATE.get(s.case.kind) == fault.code and not explains(self, model, [s]))
        off = float(np.abs(s.value - self.predict(model, s.case)).max())
        coarse = (f for f in precision.faults("sinusoidal", STAGES) if explains(self, {**model, **f.change}, [s]))
        code = self.mismatch if s.case.kind == "far" else fault.code
        other = Fault(code, {}, {"what": "a call after calls of other sizes", "off": off, "dtype": "bfloat16"})
        return added_reading.broken(self, s, model) or next(coarse, other)

    def _of_one(self, s: Seen, model: Model) -> Fault:
        """Return what a text of one token gets."""
        moved = added_reading.shifted(self, [s], model)
        words = "nothing is added" if np.abs(s.value).max() < 1e-6 else "the encoding is that of no position"
        if moved is not None:
            words = f"the token gets position {moved.values['start']:g}, not {self.truth['start']:g}"
        return Fault(SINGLE, {}, {"words": words})

    def smallest(self, seen: Seen, predicted: Array, off: Array) -> dict[str, Any]:
        """Return the first wrong row of an answer, with its worst number."""
        if seen.case.kind in FLAGS or off.shape != predicted.shape:
            return self.calls.case(seen.case.args[0])
        row = int((off > 1).any(1).argmax())
        lane = int(np.abs(seen.value[row] - predicted[row]).argmax())
        shape = seen.case.args[-1]
        index = [int(i) for i in np.unravel_index(row, self.grid(shape))]
        index.insert(1 if self.calls.image else len(index), lane)
        numbers = {"found": float(seen.value[row, lane]), "expected": float(predicted[row, lane])}
        return {**self.calls.case(shape), "index": index, **numbers}

    def not_judged(self, seen: Sequence[Seen]) -> list[str]:
        """Return the parts that were not judged."""
        said = self.ignored()
        if not any(s.case.kind == "half" for s in seen):
            said.append("tokens in half precision: the specification has no activation_dtype")
        longest = max((s.case.args[-1][-1] for s in seen if s.case.kind in ("again", "far")), default=0)
        return [*said, f"positions beyond {longest - 1}"] if longest else said

    def measured(self, seen: Sequence[Seen], model: Model) -> dict[str, Any]:
        """Return the measured width, angles, order and base."""
        order = self._order_words(model)
        return {"dim": self.calls.dim, "angles": model["rule"], "lanes": order, "base": model["base"]}
