"""Sinusoids that are added to tokens, and tables of sinusoids of distances."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from posenc.verify.engine import CannotTellError, Case, Choice, Family, Fault, Seen, precision
from posenc.verify.engine.records import FLOAT32, Array, Model, kind
from posenc.verify.families import added_faults, added_reading, added_words
from posenc.verify.families.added_asking import Asking
from posenc.verify.families.added_calls import FLAGS, Shape, finding
from posenc.verify.families.added_faults import FACTORS, PAPER, ROWS, RULES, STAGES, T2T
from posenc.verify.report import Cause

BASES = (10000.0, 1000.0, 100.0, 20.0, 100000.0, 500000.0, 1000000.0)
COARSE = "sinusoidal.precision.product_bf16"
ORIGIN = (
    "the first position is {start:+g} from the definition's, and origin='any' was declared: each pair of dimensions is "
    "rotated by a constant angle, which a model trained with it takes up; weights from elsewhere would see it"
)
MOVED = (
    "the dimensions stand in another order ({words}), and no order was declared: a model trained with this one "
    "computes the same; weights from elsewhere need the dimensions of everything permuted alike"
)


def family(convention: str, spec: Mapping[str, Any]) -> Family:
    """Return the family of a code that is added, or of a table of distances.

    Raises:
        CannotTellError: The encoding has no definition in this convention.
    """
    word = str(spec.get("encoding") or "sin").lower()
    image = convention == "additive_2d_module"
    if not word.startswith(("sin", "relative_sin", "learned")) or ("2d" in word and not image):
        raise CannotTellError(f"{convention} with encoding {word!r} has no definition to compare it with")
    if word.startswith("learned") and convention == "relative_table_fn":
        raise CannotTellError("a trained table of distances has no numbers to compare it with")
    if word.startswith("learned"):
        from posenc.verify.families import trained, trained_images

        return trained_images.TrainedImage(convention, spec) if image else trained.Trained(convention, spec)
    if image:
        from posenc.verify.families import images

        return images.Image(convention, spec)
    if convention == "relative_table_fn":
        from posenc.verify.families import distances

        return distances.Distances(convention, spec)
    return Sinusoid(convention, spec)


def refused(convention: str, spec: Mapping[str, Any], cause: Cause) -> Cause:
    """Return the fault behind a build() that raises: a width that its halves do not divide; else the cause as it is."""
    dim = int(spec.get("dim") or spec.get("d_model") or spec.get("head_dim") or 0)
    by = 4 if convention == "additive_2d_module" else 2
    if dim % by and cause.code in {"subject.raises", "subject.build_fails"}:
        return finding("sinusoidal.width.odd", {"dim": dim}, float(dim), dim=dim, error=cause.message[:160]).cause
    return cause


class Sinusoid(Asking):
    """The sinusoid of Vaswani et al. 2017, section 3.5, added to the tokens of a text.

    Attributes:
        asked: What the specification says.
        prefix: The first word of the codes that texts, images and distances do not share.
    """

    prefix = "sinusoidal"
    ignores = "table_rows padding padding_idx"
    pairs = 100
    parts = ("misplaced", "orders", "rules", "bases", "places")  # of the faults, the likeliest first

    def __init__(self, convention: str, spec: Mapping[str, Any]) -> None:
        super().__init__(convention, spec)
        self.asked = asked = added_words.read(spec, image=self.calls.image)
        self.definition = f"{self.prefix}@{'tensor2tensor' if asked.rules[0] == T2T else 'vaswani'}"
        self.mismatch = f"{self.prefix}.mismatch"
        later = (
            kind("sinusoidal.state_kept", "again"),
            kind("sinusoidal.table.too_short", "far"),
            kind(COARSE, "half"),
        )
        self.kinds = (self.kinds[0], *later, *self.kinds[1:])
        self.truth = {
            "rule": asked.rules[0],
            "base": asked.base,
            "order": asked.orders[0],
            "lanes": None,  # the dimension of the definition that each one shows, where they are permuted
            "place": "",  # a wrong way to count rows
            "start": asked.starts[0],
            "gain": 1.0,
            "keep": 1.0,
            "constant": 0.0,  # a vector that is added to every row
            "factor": 1.0,  # on all frequencies
            **{f"round_{stage}": None for stage in STAGES},
        }
        self._kept: dict[tuple[int, int], tuple[Model, Case, tuple[Array, Array]]] = {}

    # What is right

    def positions(self, model: Model, shape: Shape) -> tuple[Array, ...]:
        """Return the positions of the rows of a call, (batch or 1, tokens)."""
        b, n = shape
        text, row = np.arange(b, dtype=np.float64)[:, None], np.arange(n, dtype=np.float64)[None]
        place = ROWS[model["place"]][0](text, row, b, n) if model["place"] else row
        return (place + model["start"],)

    def predict(self, model: Model, case: Case) -> Array:
        """Return what a model adds in the calls of a case."""
        return self.flag(model, case) if case.kind in FLAGS else self.rows(model, case)[0]

    def slack(self, seen: Seen, predicted: Array, model: Model) -> Array | float:
        """Return what rounding explains: angles in float32 are coarser the larger they are."""
        if seen.case.kind in FLAGS:
            return super().slack(seen, predicted, model)
        largest = np.maximum(np.abs(predicted), max(abs(self.calls.keep), 1.0))
        slack: Array = self.rows(model, seen.case)[1] + 16 * FLOAT32 * largest
        return slack + 2.0**-7 if seen.case.kind == "half" else slack

    def rows(self, model: Model, case: Case) -> tuple[Array, Array]:
        """Return the rows of the calls of a case, and how far float32 may be off in each number."""
        kept = self._kept.get((id(model), id(case)))
        if kept is not None:
            return kept[2]
        parts = [self._rows(model, shape) for shape in case.args]
        empty = np.zeros((0, self.calls.dim))
        both = tuple(np.concatenate([part[i] for part in parts]) if parts else empty for i in (0, 1))
        if len(self._kept) > 64:
            self._kept.clear()
        self._kept[id(model), id(case)] = (model, case, (both[0], both[1]))  # which keeps the ids in use
        return both[0], both[1]

    def _rows(self, model: Model, shape: Shape) -> tuple[Array, Array]:
        code, slack = self.code(model, self.positions(model, shape))
        if any(model[f"round_{stage}"] for stage in STAGES):  # a number at the edge may be rounded either way
            near = [self.code(model, self.positions(model, shape), nudge)[0] for nudge in (1e-6, -1e-6)]
            slack = slack + np.abs(near[0] - code) + np.abs(near[1] - code)
        if model["lanes"] is not None:
            code, slack = code[..., model["lanes"]], slack[..., model["lanes"]]
        code = model["gain"] * code + model["constant"]
        full = (*self.grid(shape), code.shape[-1])
        wide = [np.broadcast_to(a, full).reshape(-1, full[-1]) for a in (code, abs(model["gain"]) * slack)]
        return wide[0], wide[1]

    def code(self, model: Model, axes: tuple[Array, ...], nudge: float = 0.0) -> tuple[Array, Array]:
        """Return the code of positions, and how far float32 may be off."""
        return added_faults.wave(model, axes[0], model["order"], self.calls.dim, nudge)

    # What else is right

    @property
    def lanes_free(self) -> bool:
        """Whether the order of dimensions is not declared."""
        return not self.asked.order_said

    def readings(self) -> Iterator[dict[str, Any]]:
        """Yield every reading of the specification, as changes of the truth."""
        asked = self.asked
        orders = [o for o in asked.orders if o in added_faults.layouts(self.calls.dim)]
        for rule, order, start in itertools.product(asked.rules, orders, asked.starts):
            yield {"rule": rule, "order": order, "start": start}

    def free(self) -> Iterator[Choice]:
        """Yield the other readings, and the orders of dimensions that were not declared."""
        choices = [Choice(reading) for reading in self.readings()]
        for reading, change in itertools.product(self.readings(), self.moved()):
            words = self.order_words({**self.truth, **change})
            choices.append(Choice({**reading, **change}, MOVED.format(words=words)))
        yield from choices
        near = added_reading.near_ones(self.heard)
        if not near or any(self.fits({**self.truth, **choice.change}, near) for choice in choices):
            return
        for choice in choices:
            yield from self.read_choices(near, choice)

    def read_choices(self, near: Sequence[Seen], choice: Choice) -> Iterator[Choice]:
        """Yield choices that are read off the answers: another origin, any order of dimensions."""
        model = {**self.truth, **choice.change}
        if self.spec.get("origin") == "any":
            fault = self.read_places(near, model)
            if fault is not None and fault.code.endswith(".start"):
                words = ORIGIN.format(start=fault.values["start"] - self.truth["start"])
                yield Choice({**choice.change, **fault.change}, "; ".join(filter(None, (choice.because, words))))
        if self.lanes_free and not choice.because:
            lanes = added_reading.permutation(self, near, model)
            if lanes is not None:
                yield Choice({**choice.change, "lanes": lanes}, MOVED.format(words=f"{lanes[:8]}..."))

    def moved(self) -> Iterator[dict[str, Any]]:
        """Yield the orders of the same dimensions, where none is declared."""
        if self.lanes_free:
            known_orders = added_faults.layouts(self.calls.dim)
            yield from ({"order": name} for name in added_faults.ORDERS if name in known_orders)

    def order_words(self, model: Model) -> str:
        """Return the order of dimensions in words, with the project that has it."""
        words = added_faults.layouts(self.calls.dim)[model["order"]].words
        return words + (', as Tensor2Tensor has them: variant="tensor2tensor"' if model["order"] == "half" else "")

    # What is wrong

    def faults(self) -> Iterator[Fault]:
        """Yield the known faults: the input and the whole code first, then positions, orders and angles."""
        yield from self.about_the_input()
        if not any(np.abs(s.value).max() > 1e-6 for s in added_reading.near_ones(self.heard)):
            yield Fault("sinusoidal.not_used", {"gain": 0.0})
        yield Fault("sinusoidal.added_twice", {"gain": 2.0})
        for part in self.parts:
            yield from getattr(self, part)()
        yield from precision.faults("sinusoidal", STAGES)

    def misplaced(self) -> Iterator[Fault]:
        """Yield other first positions."""
        for by in (1.0, -1.0, 2.0, -2.0):
            yield self.start_fault(self.truth["start"] + by)

    def start_fault(self, start: float) -> Fault:
        """Return the fault of counting from another number."""
        return Fault(f"{self.prefix}.start", {"start": start}, {"start": start, "asked": self.truth["start"]})

    def orders(self) -> Iterator[Fault]:
        """Yield wrong orders of sines and cosines."""
        for name, layout in added_faults.layouts(self.calls.dim).items():
            if name not in self.asked.orders:
                code = layout.code or added_faults.order_code(name, self.truth["order"])
                yield Fault(f"sinusoidal.{code}", {"order": name}, {"words": self.order_words({"order": name})})

    def rules(self) -> Iterator[Fault]:
        """Yield wrong angles."""
        for words, rule in RULES.items():
            if words not in self.asked.rules:
                values = {"words": words, "other": self.other(words)}
                yield Fault(f"sinusoidal.{rule.code}", {"rule": words}, values)
        for words, factor in FACTORS.items():
            yield Fault("sinusoidal.frequency.factor", {"rule": self.truth["rule"], "factor": factor}, {"words": words})

    def bases(self) -> Iterator[Fault]:
        """Yield the bases of other models."""
        for base in BASES:
            if base != self.asked.base:
                code = "temperature_hardwired" if base == 10000.0 else "frequency.base"
                yield Fault(f"sinusoidal.{code}", {"base": base}, {"base": base, "asked": self.asked.base})

    def places(self) -> Iterator[Fault]:
        """Yield wrong ways to count rows."""
        for words, (_, code) in ROWS.items():
            yield Fault(f"sinusoidal.{code}", {"place": words}, {"words": words})

    def other(self, rule: str) -> str:
        """Return which project has a rule that was not asked for, as the end of a message."""
        names = {T2T: 'Tensor2Tensor\'s, variant="tensor2tensor"', PAPER: 'the paper\'s, variant="paper"'}
        return f" (that is {names[rule]})" if rule in names else ""

    def read(self, seen: Sequence[Seen], wrong: Sequence[Seen], model: Model) -> Fault | None:
        """Return what can be read off the rows: a factor, positions, a vector, frequencies, an order of dimensions."""
        others = [{**self.truth, **choice.change} for choice in self.free()]
        if not self.lanes_free:
            lanes = added_reading.permutation(self, added_reading.near_ones(seen), self.truth)
            if lanes is not None:
                return Fault("sinusoidal.layout.permuted", {"lanes": lanes}, {"words": f"{lanes[:8]}..."})
        return self._with_choice(wrong) or added_reading.by_model(self, wrong, [model, *others])

    def _with_choice(self, wrong: Sequence[Seen]) -> Fault | None:
        """Return a fault that explains wrong answers together with what the specification leaves open."""
        few = {"rule", "base", "factor", "place", "cells"}
        faults = [fault for fault in self.faults() if set(fault.change) <= few and fault.change]
        for choice, fault in itertools.product(self.free(), faults):
            change = {**choice.change, **fault.change}
            if self.fits({**self.truth, **change}, wrong):
                return Fault(fault.code, change, fault.values)
        return None

    def read_places(self, near: Sequence[Seen], model: Model) -> Fault | None:
        """Return what the positions of rows show."""
        return added_reading.of_text(self, near, model)

    def neighbours(self, near: Sequence[Seen], model: Model) -> Array | None:
        """Return rows of neighbouring positions."""
        longest = max(near, key=lambda s: s.case.args[0][-1])
        rows: Array = longest.value[: longest.case.args[0][-1]]
        return rows

    @property
    def width(self) -> int:
        """Over how many dimensions the waves of one axis are spread."""
        return self.calls.dim

    def refine(self, fault: Fault, wrong: frozenset[str], right: frozenset[str], seen: Sequence[Seen]) -> Fault:
        """Return what later, far or coarse answers show, where near ones are right."""
        kinds = {"sinusoidal.state_kept": "again", "sinusoidal.table.too_short": "far", COARSE: "half"}
        model = None if fault.change else self.best()
        case = next((s for s in seen if s.case.kind == kinds.get(fault.code)), None)
        if model is None or case is None or case.case.kind not in wrong:
            return super().refine(fault, wrong, right, seen)
        if case.case.kind == "half":
            return added_reading.rounding(self, case, model)[0]
        ask = added_reading.far if case.case.kind == "far" else added_reading.again
        return ask(self, case, model)

    # What is said

    def measured(self, seen: Sequence[Seen], model: Model) -> dict[str, Any]:
        """Return what the rows show."""
        found = {"dim": self.calls.dim, "angles": model["rule"], "lanes": self.order_words(model)}
        return {**found, "base": model["base"], **({"refuses_length": self.ends} if self.ends else {})}
