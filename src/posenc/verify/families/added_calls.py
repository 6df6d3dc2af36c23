"""How to call modules that add an encoding to their input, and how to separate the encoding from the input."""

import contextlib
import math
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from posenc.verify import guard, rules
from posenc.verify.engine import Case, Family, Fault, Kind, Seen
from posenc.verify.engine.observe import fresh
from posenc.verify.engine.records import Array, Model, kind
from posenc.verify.guard import SubjectError
from posenc.verify.report import Cause
from posenc.verify.sentences import message_of

Shape = tuple[int, ...]  # (batch, tokens) of a text, (batch, height, width) of images, (n,) of a table of distances
TRIED_DIMS = (16, 32, 64, 8, 128, 256, 512, 768, 1024)  # tried before all others
FLAGS = ("tokens", "grad", "trained")  # cases whose answer is one number
SAME = 1e-4  # tolerance of a factor or a gradient


def finding(code: str, case: dict[str, Any] | None = None, evidence: float = 1.0, **values: Any) -> SubjectError:
    """Return a finding that needs no comparison, with the message of its rule or its own."""
    message = message_of(rules.find(code), Fault(code, {}, values))
    return SubjectError(Cause(code, message, evidence, case or {}))


def ready(subject: Any) -> Any:
    """Return a fresh copy of a subject in evaluation mode, as a callable."""
    made = fresh(subject)
    for module in modules(made):
        module.eval()
    return made if callable(made) else made.forward


def modules(subject: Any) -> list[nn.Module]:
    """Return the modules behind a callable: itself, that of a bound method, those that a function closes over."""
    held = [subject, getattr(subject, "__self__", None), getattr(subject, "func", None)]
    for cell in getattr(subject, "__closure__", None) or ():
        with contextlib.suppress(ValueError):  # the cell is still empty
            held.append(cell.cell_contents)
    return [m for m in held if isinstance(m, nn.Module)]


def leaves(out: Tensor) -> list[Tensor]:
    """Return the trainable tensors in the graph of a result, wherever they are kept."""
    nodes: list[Any] = [out.grad_fn]
    seen: set[Any] = {None}
    found = [out] if out.is_leaf and out.requires_grad else []
    while nodes:
        node = nodes.pop()
        if node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            found.append(node.variable)
        nodes += [n for n, _ in node.next_functions]
    return found


class Calls:
    """How to call a convention.

    Attributes:
        dim: Dimensions of the encoding; 0 until they are found.
        keep: The factor by which the input is returned; 1 if the module only adds.
        half: The error of sums of float32 numbers that are returned in half precision; 0 if they are not.
    """

    def __init__(self, convention: str, dim: int) -> None:
        self.dim, self.keep, self.half = dim, 1.0, 0.0
        self.image = convention == "additive_2d_module"
        self.table = convention == "relative_table_fn"

    def full(self, shape: Shape) -> Shape:
        """Return the shape of the input of a call, or of the table."""
        if self.table:
            return (2 * shape[0] - 1, self.dim)
        return (shape[0], self.dim, *shape[1:]) if self.image else (*shape, self.dim)

    def words(self, shape: Shape) -> str:
        """Return a call in words."""
        return f"table({shape[0]})" if self.table else f"forward(x) with x of {self.full(shape)}"

    def case(self, shape: Shape) -> dict[str, Any]:
        """Return a call as the smallest case of a finding shows it."""
        return {"n": shape[0]} if self.table else {"x": list(self.full(shape))}

    def tokens(self, shape: Shape, seed: int = 0) -> Tensor:
        """Return a random input."""
        generator = torch.Generator().manual_seed(seed + math.prod(shape))
        return torch.randn(self.full(shape), generator=generator, dtype=torch.float64).float()

    def raw(self, subject: Any, shape: Shape, x: Tensor | None = None, *, grad: bool = False) -> Tensor:
        """Return the result of a call.

        Raises:
            SubjectError: The result cannot be used.
        """
        what = self.words(shape)
        given = shape[0] if self.table else self.tokens(shape) if x is None else x
        found = guard.call(subject, given, what=what, grad=grad)
        if isinstance(found, tuple | list) and len(found) == 1:
            found = found[0]
        while self.table and isinstance(found, Tensor) and found.ndim > 2 and found.shape[0] == 1:
            found = found[0]
        found = guard.shaped(found, self.full(shape), what, grad=grad)
        if x is None or x.dtype == torch.float32:
            self.half = 4 * guard.rounding(found) if found.dtype.itemsize == 2 else 0.0
        return found

    def code(self, subject: Any, shape: Shape, x: Tensor | None = None) -> Array:
        """Return the encoding that a call adds, one row for each token or cell."""
        given = None if self.table else self.tokens(shape) if x is None else x
        out = self.raw(subject, shape, given).detach().double()
        if given is not None:
            out = out - self.keep * given.double()
        rows: Array = (out.movedim(1, -1) if self.image else out).reshape(-1, self.dim).numpy()
        return rows

    def works(self, subject: Any, shape: Shape) -> bool:
        """Return whether a call works on a fresh copy."""
        with contextlib.suppress(SubjectError):
            self.raw(ready(subject), shape)
            return True
        return False

    def find(self, subject: Any, shape: Shape, *others: Shape) -> None:
        """Find the number of dimensions that a subject works with, by calling it; it may refuse some shapes.

        Raises:
            SubjectError: No number works.
        """
        if self.table:
            found = guard.call(ready(subject), shape[0], what=self.words(shape))
            self.dim = int(found.shape[-1]) if isinstance(found, Tensor) and found.ndim >= 2 else 0
            return
        for self.dim in (*TRIED_DIMS, *range(1, 2049)):
            if any(self.works(subject, each) for each in (shape, *others)):
                return
        try:
            self.raw(ready(subject), shape)  # its error is the finding
        except SubjectError as error:
            if len(shape) < 3:
                raise
            hint = 'if the table has one width and one size of image, declare "d_model" and "grid"'
            raise SubjectError(replace(error.cause, message=f"{error}; {hint}")) from None


class Added(Family):
    """An encoding that is added: the input must be returned unchanged, with its gradient, and equal calls must agree.

    Attributes:
        word: The first word of the finding codes that all added encodings share.
        shapes: Calls of different sizes, the smallest first; no two sizes of one call are equal.
        ignores: Words of a specification that the convention reads, but this encoding does not.
    """

    word, ignores = "sinusoidal", ""
    shapes: Sequence[Shape]
    kinds: Sequence[Kind] = ()

    def __init__(self, convention: str, spec: Any) -> None:
        super().__init__(convention, spec)
        self.calls = Calls(convention, int(spec.get("dim") or spec.get("d_model") or spec.get("head_dim") or 0))
        self.kinds = (
            kind(f"{self.word}.input.scaled", "tokens"),
            kind(f"{self.word}.grad.severed", "grad"),
            kind(f"{self.word}.trainable", "trained"),
        )
        self.heard: list[Seen] = []

    @property
    def call_shape(self) -> Shape:
        """The call that shows how the input is returned."""
        return next(s for s in self.shapes if min(s) > 1 or self.calls.table)

    def flags(self, *kinds: str) -> Iterator[Case]:
        """Yield the cases whose answer is one number."""
        for name in kinds:
            if name == "trained" or not self.calls.table:
                yield Case(name, (self.call_shape,), self.calls.words(self.call_shape))

    def observe(self, subject: Any, case: Case) -> Seen:
        """Return the answer to one question, or, where a call fails, the finding that other calls give."""
        if not self.calls.dim:
            self.calls.find(subject, self.call_shape)
        ask = {"tokens": self._tokens, "grad": self._grad, "trained": self._trained}.get(case.kind)
        try:
            return Seen(case, np.array([ask(subject, case.args[0])])) if ask else self.added(subject, case)
        except SubjectError as error:
            usable = case.optional or error.cause.code not in {"subject.raises", "subject.shape"}
            raise error if usable else self.refusal(subject, case, error) from error

    @abstractmethod
    def added(self, subject: Any, case: Case) -> Seen:
        """Return the rows that the calls of a case add."""

    def refusal(self, subject: Any, case: Case, error: SubjectError) -> SubjectError:
        """Return the finding behind a call that fails, if other calls show it."""
        return error

    def flag(self, model: Model, case: Case) -> Array:
        """Return the right answer to a case whose answer is one number."""
        return np.array([{"tokens": model["keep"], "grad": 1.0, "trained": 0.0}[case.kind]])

    def _tokens(self, subject: Any, shape: Shape) -> float:
        """Return the factor by which the input is returned."""
        called, calls = ready(subject), self.calls
        a, b = calls.tokens(shape), calls.tokens(shape, seed=1)
        one, again = (calls.raw(called, shape, a).detach().double() for _ in range(2))
        if not torch.equal(one, again):
            raise self._unequal(subject, shape, one, again)
        two = calls.raw(called, shape, b).detach().double()
        step, moved = (a - b).double(), one - two
        keep = float((step * moved).sum() / (step * step).sum())
        off = float((moved - keep * step).abs().max())
        if off > SAME * max(abs(keep), 1.0) + calls.half:
            raise finding(f"{self.word}.input.changed", calls.case(shape), off, off=off, factor=keep)
        if self.spec.get("padding") in (None, "none") and self.spec.get("padding_idx") is None:
            empty = a.clone()
            empty[(0, slice(None), 0, 1) if calls.image else (0, 1)] = 0  # code may take it for padding
            moved = calls.raw(called, shape, empty).detach().double() - one
            if (off := float((moved - keep * (empty - a)).abs().max())) > SAME * max(abs(keep), 1.0) + calls.half:
                raise finding(f"{self.word}.input.zero_token", calls.case(shape), off)
        calls.keep = 1.0 if abs(keep - 1) < SAME + calls.half else keep
        return calls.keep

    def _unequal(self, subject: Any, shape: Shape, one: Tensor, again: Tensor) -> SubjectError:
        """Return the finding behind two equal calls whose results differ."""
        off, case = float((one - again).abs().max()), {**self.calls.case(shape), "calls": 2}
        first = self.calls.raw(ready(subject), shape).detach().double()
        if fresh(subject) is not subject and torch.equal(one, first):
            return finding(f"{self.word}.state_kept", case, off, what="the second of two equal calls", off=off)
        empty = float(((one == 0) | (one == self.calls.tokens(shape).double())).double().mean())
        return finding(f"{self.word}.{'dropout_in_eval' if empty > 0.005 else 'random'}", case, off, off=off)

    def _grad(self, subject: Any, shape: Shape) -> float:
        """Return 1 if the gradient of the input is right."""
        keep, x = self.calls.keep, self.calls.tokens(shape).requires_grad_()
        out = self.calls.raw(ready(subject), shape, x, grad=True)
        weight = self.calls.tokens(shape, seed=2).to(out.dtype)
        (got,) = torch.autograd.grad((out * weight).sum() + 0 * x.sum(), x)
        return float(float((got - keep * weight).abs().max()) <= 1e-3 * max(abs(keep), 1.0) + self.calls.half)

    def _trained(self, subject: Any, shape: Shape) -> float:
        """Return how many numbers of the encoding are trainable."""
        out = self.calls.raw(ready(subject), shape, grad=True)
        return float(sum(t.numel() for t in leaves(out) if t.numel() > 1))

    def slack(self, seen: Seen, predicted: Array, model: Model) -> Array | float:
        """Return the rounding error of an answer of one number."""
        return SAME * max(1.0, float(np.abs(predicted).max(initial=0.0)))

    def look(self, seen: Sequence[Seen]) -> None:
        """Keep the answers, from which faults are measured."""
        self.heard = list(seen)
        self.calls.keep = next((float(s.value[0]) for s in seen if s.case.kind == "tokens"), 1.0)

    def about_the_input(self) -> Iterator[Fault]:
        """Yield the faults of an input that is returned scaled, or not at all."""
        keep = self.calls.keep
        if keep != 1:
            name = "lost" if abs(keep) < SAME else "scaled"
            for change in ({"keep": keep}, {"keep": keep, "gain": keep}):  # the second if the sum is scaled
                yield Fault(f"{self.word}.input.{name}", change, {"factor": keep})

    def refine(self, fault: Fault, wrong: frozenset[str], right: frozenset[str], seen: Sequence[Seen]) -> Fault:
        """Return a fault that a kind of case shows, with its number."""
        if fault.code == f"{self.word}.input.scaled" and not fault.change:
            return next(self.about_the_input(), fault)
        if fault.code == f"{self.word}.trainable":
            return Fault(fault.code, values={"n": int(next(s.value[0] for s in seen if s.case.kind == "trained"))})
        return fault

    def ignored(self) -> list[str]:
        """Return the ignored words of the specification, in sentences."""
        said = [word for word in self.ignores.split() if self.spec.get(word) is not None]
        return [f"{word!r} of the specification, which does not apply to this encoding" for word in said]
