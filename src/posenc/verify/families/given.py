"""Functions that get the numbers which a model learns: draw these, call by name or by place, and compare the result."""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from posenc.verify import guard
from posenc.verify.conventions import CONVENTIONS
from posenc.verify.engine import CannotTellError, Case, Choice, Family, Fault, Seen
from posenc.verify.engine.observe import fresh
from posenc.verify.engine.read import rowless
from posenc.verify.engine.records import FLOAT32, Array, Model
from posenc.verify.guard import SubjectError
from posenc.verify.report import Cause

Places = NDArray[np.int64]
Table = Mapping[str, Mapping[str, Callable[..., Any]]]  # wrong formulas by the end of a code and by words
HIDDEN = -9000.0  # a lower number hides a key
ALL = 14  # up to so many rows are compared whole
COMPARED, IGNORED, MASKED = "compared", "ignored", "masked"  # keys ahead of the query
CONSTANT = "a constant is added to each row, which a softmax over the row cancels"


@dataclass(frozen=True, eq=False)
class Call:
    """One call: its arguments by name, the shape of the result, and the rows and columns that are compared."""

    args: Mapping[str, Any]
    shape: tuple[int, ...]
    rows: Places
    cols: Places

    @property
    def ahead(self) -> NDArray[np.bool_]:
        """Which compared keys are ahead of their query; the queries are the last of the keys' positions."""
        *_, m, n = self.shape
        return np.asarray(self.cols > self.rows[:, None] + n - m)

    def exact(self, name: str) -> Array:
        """Return an argument in float64."""
        return np.asarray(self.args[name].double().numpy())


def sampled(n: int) -> Places:
    """Return all of n rows, or the first, the middle and the last ones of many."""
    return np.arange(n) if n <= ALL else np.array([0, 1, 2, n // 2, n - 3, n - 2, n - 1])


def invoke(subject: Any, args: Mapping[str, Any], what: str) -> Any:
    """Call a subject by the names of the convention if it has them, else by place."""
    try:
        inspect.signature(getattr(subject, "forward", subject)).bind(**args)
    except (TypeError, ValueError):
        return guard.call(subject, *args.values(), what=what)
    return guard.call(subject, what=what, **args)


class Given(Family):
    """The questions to one function; an encoding adds what it draws, its definition and its faults.

    Attributes:
        word: The first word of its finding codes.
        ahead: Whether keys ahead of the query are compared if the specification does not say so.
        cancels: Whether a constant in each row of the result does not matter.
    """

    word: str
    truth: dict[str, Any]
    ahead = IGNORED
    cancels = True

    def __init__(self, convention: str, spec: Mapping[str, Any]) -> None:
        super().__init__(convention, spec)
        self.definition, self.mismatch = self.word, f"{self.word}.mismatch"
        self.heads, self.head_dim = int(spec.get("heads") or 2), int(spec.get("head_dim") or spec.get("dim") or 8)
        if (causal := spec.get("causal")) is not None:
            self.ahead = IGNORED if causal else COMPARED
        self.truth = {"ahead": self.ahead, "cancels": False}
        self.names = CONVENTIONS[convention].signatures[self.word]
        self.function = next(iter(CONVENTIONS[convention].functions))

    def case(self, kind: str, call: Call, size: str, *, optional: bool = False) -> Case:
        """Return a case that says its sizes in words."""
        return Case(kind, (call,), f"{self.function}({', '.join(self.names)}) with {size}", optional=optional)

    def normal(self, seed: int, **shapes: tuple[int, ...]) -> dict[str, Tensor]:
        """Return normally distributed numbers, others for each seed, so that kept ones are noticed."""
        random = torch.Generator().manual_seed(seed)
        return {name: torch.randn(shape, generator=random) for name, shape in shapes.items()}

    def observe(self, subject: Any, case: Case) -> Seen:
        """Return the compared places of a result."""
        call = case.args[0]
        found = invoke(fresh(subject), call.args, case.words)
        if isinstance(found, Tensor) and found.shape[-2:] == call.shape[-2:] and found.numel() == np.prod(call.shape):
            found = found.reshape(call.shape)  # one more axis of 1, or batch and heads in one
        found = guard.shaped(found, call.shape, case.words).detach().cpu()
        if found.is_complex():
            message = f"{case.words} returned complex numbers"
            raise SubjectError(Cause("subject.not_finite", message, 1.0, {"call": case.words}))
        eps = max(torch.finfo(found.dtype).eps, FLOAT32) if found.is_floating_point() else FLOAT32
        return Seen(case, found.double().numpy()[..., call.rows[:, None], call.cols], eps)

    def predict(self, model: Model, case: Case) -> Array:
        """Return the result of the definition, or of a wrong formula."""
        return self.result(model, case.args[0])

    def result(self, model: Model, call: Call) -> Array:
        """Return the compared places for one call."""
        raise NotImplementedError

    def off(self, seen: Seen, predicted: Array, model: Model) -> Array:
        """Return the error of each compared key, up to a constant of the row if this does not matter."""
        call, value = seen.case.args[0], seen.value
        ahead = call.ahead & (model["ahead"] != COMPARED)
        if model["ahead"] == MASKED and (value[..., ahead] > HIDDEN).any():
            return np.full(1, np.inf)
        shown = np.broadcast_to(~ahead & ~self.doubtful(call), value.shape)
        if model["cancels"] and np.isfinite(value[shown]).all():
            value, predicted = rowless(value, shown), rowless(predicted, shown)
        off = super().off(replace(seen, value=np.where(shown, value, 0.0)), np.where(shown, predicted, 0.0), model)
        return np.where(shown, off, 0.0)

    def doubtful(self, call: Call) -> Any:
        """Return where rounding decides, so that nothing is compared."""
        return False

    def free(self) -> Iterable[Choice]:
        """Yield masked keys ahead where the specification leaves them open, and what a softmax cancels."""
        open_ = self.truth["ahead"] == COMPARED and self.spec.get("causal") is None
        for ahead in (self.truth["ahead"], *([MASKED] if open_ else [])):
            yield Choice({"ahead": ahead})
            if self.cancels:
                yield Choice({"ahead": ahead, "cancels": True}, CONSTANT)

    def listed(self, key: str, table: Table) -> Iterator[Fault]:
        """Yield the faults of a table: each is a formula in place of the one that a parameter of the model names."""
        for code, formulas in table.items():
            for words, wrong in formulas.items():
                yield Fault(f"{self.word}.{code}", {key: wrong}, {"words": words})

    def read(self, seen: Sequence[Seen], wrong: Sequence[Seen], model: Model) -> Fault | None:
        """Return keys that are hidden although their query sees them."""
        hidden = [(s.value <= HIDDEN) & ~(s.case.args[0].ahead & (model["ahead"] != COMPARED)) for s in wrong]
        return Fault("scores.hides_visible") if all(map(np.any, hidden)) else None

    def smallest(self, seen: Seen, predicted: Array, off: Array) -> dict[str, Any]:
        """Return the entry with the largest error."""
        call, case = seen.case.args[0], {"call": seen.case.words}
        if off.shape != seen.value.shape:
            return case
        *outer, row, col = np.unravel_index(int(off.argmax()), off.shape)
        at = {"head": int(outer[-1]), "query": int(call.rows[row]), "key": int(call.cols[col])}
        found, expected = (float(t[(*outer, row, col)]) for t in (seen.value, predicted))
        return {**case, **at, "found": found, "expected": expected}

    def not_judged(self, seen: Sequence[Seen]) -> list[str]:
        """Return whether keys ahead of the query are left out."""
        left = "keys ahead of the query, which a causal mask hides" if self.truth["ahead"] == IGNORED else ""
        return [left] if left and any(s.case.args[0].ahead.any() for s in seen) else []


def chosen(convention: str, spec: Mapping[str, Any], known: Mapping[str, type[Given]]) -> Given:
    """Return the family of the encoding that a specification names."""
    if (name := str(spec.get("encoding"))) not in known:
        said = (
            "declare encoding"
            if spec.get("encoding") is None
            else f"{convention} has no check for encoding {name!r:.60}"
        )
        raise CannotTellError(f"{said}: one of {', '.join(known)}")
    return known[name](convention, spec)
