"""Calls of an additive subject: what it adds, to which tokens, and how it behaves from call to call."""

import contextlib
import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from posenc.verify import guard
from posenc.verify.additive.places import Shape
from posenc.verify.additive.waves import Array
from posenc.verify.report import Cause

TRIED_DIMS = (16, 32, 64, 8, 12, 24, 48, 96, 128, 256, 512, 768, 4, 6, 20, 10, 7, 9, 15, 1024)


@dataclass
class Probe:
    """A subject and how to call it.

    Args:
        subject: What build() returned.
        kind: Its calling convention.
        dim: Lanes of the code.
        keep: The factor that its tokens come back with; 1 where it only adds.
    """

    subject: Any
    kind: str
    dim: int = 0
    keep: float = 1.0
    copies: bool = field(default=True)

    def fresh(self) -> Any:
        """Return a copy of the subject that has not been called, or itself where none can be made."""
        try:
            made = copy.deepcopy(self.subject) if self.copies else self.subject
        except Exception:
            self.copies, made = False, self.subject
        for module in _modules(made):
            module.eval()
        return made if callable(made) or not hasattr(made, "forward") else made.forward

    def full(self, shape: Shape) -> tuple[int, ...]:
        """Return the shape of x of a call, or of the table."""
        if self.kind == "relative_table_fn":
            return (2 * shape[0] - 1, self.dim)
        return (shape[0], self.dim, *shape[1:]) if self.kind == "additive_2d_module" else (*shape, self.dim)

    def say(self, shape: Shape) -> str:
        """Return a call in words."""
        if self.kind == "relative_table_fn":
            return f"table({shape[0]})"
        return f"forward(x) with x of {self.full(shape)}"

    def x(self, shape: Shape, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
        """Return random tokens."""
        generator = torch.Generator().manual_seed(seed + math.prod(shape))
        return torch.randn(self.full(shape), generator=generator, dtype=torch.float64).to(dtype)

    def raw(self, shape: Shape, x: Tensor | None = None, subject: Any = None, *, grad: bool = False) -> Tensor:
        """Return what a call gives."""
        called = self.fresh() if subject is None else subject
        what = self.say(shape)
        if self.kind == "relative_table_fn":
            found = guard.call(called, shape[0], what=what, grad=grad)
            while isinstance(found, Tensor) and found.ndim > 2 and found.shape[0] == 1:
                found = found[0]
            return _finite(guard.shaped(found, self.full(shape), what), what)
        found = guard.call(called, self.x(shape) if x is None else x, what=what, grad=grad)
        return _finite(guard.shaped(_alone(found), self.full(shape), what), what)

    def code(self, shape: Shape, x: Tensor | None = None, subject: Any = None) -> Array:
        """Return what a call adds, (batch, ..., dim) in float64; lanes last."""
        if self.kind == "relative_table_fn":
            return self.raw(shape, subject=subject).detach().double().numpy()[None]
        x = self.x(shape) if x is None else x
        out = self.raw(shape, x, subject).detach().double() - self.keep * x.double()
        return np.asarray((out.movedim(1, -1) if self.kind == "additive_2d_module" else out).numpy())


def _modules(subject: Any) -> list[nn.Module]:
    """Return the modules behind a callable: itself, that of a bound method, those that a function closes over."""
    held = [subject, getattr(subject, "__self__", None), getattr(subject, "func", None)]
    for cell in getattr(subject, "__closure__", None) or ():
        with contextlib.suppress(ValueError):  # a cell that is still empty
            held.append(cell.cell_contents)
    return [m for m in held if isinstance(m, nn.Module)]


def _finite(found: Tensor, what: str) -> Tensor:
    share = float(found.isinf().double().mean())
    if share:
        cause = f"{what} returned infinity in {share:.1%} of its numbers"
        raise guard.SubjectError(
            Cause("subject.not_finite", cause, share, {"call": what}, "Find the division by zero.")
        )
    return found


def _alone(found: Any) -> Any:
    """Return the tensor of a result that is one in a tuple or list."""
    return found[0] if isinstance(found, tuple | list) and len(found) == 1 else found


def width(subject: Any, kind: str) -> int:
    """Return the number of lanes that a subject works with, found by calling it.

    Raises:
        guard.SubjectError: None was found.
    """
    if kind == "relative_table_fn":
        found = guard.call(subject, 5, what="table(5)")
        return int(found.shape[-1]) if isinstance(found, Tensor) and found.ndim >= 2 else 0
    sizes: list[int] = []
    if isinstance(subject, nn.Module):
        for t in (*subject.buffers(), *subject.parameters()):
            sizes += [n for s in t.shape[::-1] for n in (s, 2 * s) if 1 < s <= 4096]
    for n in dict.fromkeys((*sizes, *TRIED_DIMS)):
        probe = Probe(subject, kind, n)
        try:
            probe.raw((2, 3, 5) if kind == "additive_2d_module" else (2, 5))
        except guard.SubjectError as error:
            last = error
            continue
        return n
    raise last


def tokens(probe: Probe, family: str, shape: Shape) -> list[Cause]:
    """Return what is wrong with the way x comes back, and set the factor that it comes back with."""
    subject = probe.fresh()
    a, b = probe.x(shape), probe.x(shape, seed=1)
    one, again = (probe.raw(shape, a, subject).detach().double() for _ in range(2))
    if not torch.equal(one, again):
        if probe.copies and torch.equal(one, probe.raw(shape, a).detach().double()):
            off = float((one - again).abs().max())
            message = f"the second of two equal calls is off by {off:.3g}, and a fresh object gives the first again"
            help_ = "Keep nothing from call to call, such as a count of the tokens so far."
            return [Cause(f"{family}.state_kept", message, off, {"x": list(probe.full(shape)), "calls": 2}, help_)]
        return [_random(probe, family, shape, one, again, a.double())]
    two = probe.raw(shape, b, subject).detach().double()
    step, moved = (a - b).double(), one - two
    keep = float((step * moved).sum() / (step * step).sum())
    off = float((moved - keep * step).abs().max())
    case = {"x": list(probe.full(shape))}
    if off > 1e-4 * max(abs(keep), 1.0):
        message = f"forward(x) is not x + code: x comes back changed, by up to {off:.3g} beyond a factor {keep:.4g}"
        return [Cause(f"{family}.input.changed", message, off, case, "Return x + code, with nothing else done to x.")]
    if abs(keep - 1) < 1e-4:
        return []
    probe.keep = keep
    code, what = ("input.lost", "x is left out") if abs(keep) < 1e-4 else ("input.scaled", f"x is scaled by {keep:.6g}")
    message = f"forward(x) must return x + code; {what}"
    return [Cause(f"{family}.{code}", message, keep, case, "Return x + code; scale the tokens outside, if at all.")]


def _random(probe: Probe, family: str, shape: Shape, one: Tensor, again: Tensor, x: Tensor) -> Cause:
    share = float((one == 0).double().mean())
    off = float((one - again).abs().max())
    dropped = share > 0.005 or float((one == x).double().mean()) > 0.005
    code = "dropout_in_eval" if dropped else "random"
    what = "drops numbers at random" if dropped else "is random"
    message = f"two equal calls differ by up to {off:.3g}: the code {what} though the module is in eval mode"
    help_ = "Pass training=self.training to dropout (or use nn.Dropout), and draw nothing in eval mode."
    return Cause(f"{family}.{code}", message, off, {"x": list(probe.full(shape)), "calls": 2}, help_)


def gradients(probe: Probe, family: str, shape: Shape, *, trained: bool) -> list[Cause]:
    """Return whether x gets its gradient, and whether a fixed code trains.

    Args:
        probe: The subject.
        family: Prefix of the codes.
        shape: Of the call.
        trained: The code is a trained table.
    """
    subject = probe.fresh()
    causes = []
    case = {"x": list(probe.full(shape))}
    if probe.kind != "relative_table_fn":
        x = probe.x(shape).requires_grad_()
        caught: list[Tensor] = []

        def keeping(given: Tensor) -> Any:
            caught.append(given)
            return subject(given)

        out = _alone(guard.call(keeping, x, what=probe.say(shape), grad=True))
        weight = probe.x(shape, seed=2).to(out.dtype)
        off = 1.0
        if out.requires_grad and caught:
            (got,) = torch.autograd.grad((out * weight).sum(), caught[0], allow_unused=True, retain_graph=True)
            off = 1.0 if got is None else float((got - probe.keep * weight).abs().max())
        if off > 1e-3 * max(abs(probe.keep), 1.0) and abs(probe.keep) > 1e-4:
            message = f"the gradient of x + code with respect to x is off by {off:.3g}: what lies before learns nothing"
            causes.append(
                Cause(f"{family}.grad.severed", message, off, case, "Detach the code alone, never x or the sum.")
            )
    free = [t for t in leaves(probe, shape, subject) if t.numel() > 1]
    if free and not trained:
        n = sum(t.numel() for t in free)
        message = f"the fixed code is trained: {n} of its numbers take a gradient and will leave the definition"
        causes.append(
            Cause(f"{family}.trainable", message, float(n), case, "Keep it as a buffer, or requires_grad=False.")
        )
    return causes


def leaves(probe: Probe, shape: Shape, subject: Any) -> list[Tensor]:
    """Return the tensors that train through a call, found in its graph: parameters, wherever they are kept."""
    out = probe.raw(shape, subject=subject, grad=True)
    nodes: list[Any] = [out.grad_fn]
    seen: set[Any] = set()
    found: list[Tensor] = []
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            found.append(node.variable)
        nodes += [n for n, _ in node.next_functions]
    if out.is_leaf and out.requires_grad:
        found.append(out)
    return found


def smallest(wrong: Callable[[Shape], bool], shapes: list[Shape], otherwise: Shape) -> Shape:
    """Return the first shape on which it goes wrong."""
    for shape in shapes:
        try:
            if wrong(shape):
                return shape
        except guard.SubjectError:
            continue
    return otherwise
