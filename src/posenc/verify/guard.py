"""Call arbitrary code: errors there become findings, never tracebacks."""

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import numpy as np
import torch
from torch import Tensor

from posenc.placed import map_tensors, tensors
from posenc.verify.report import Cause

Listener = Callable[[tuple[Any, ...], dict[str, Any], bool], None]
LISTENER: ContextVar[Listener | None] = ContextVar(
    "listener", default=None
)  # sees arguments, and whether to keep grads


class SubjectError(Exception):
    """A call whose result cannot be used, with the cause."""

    def __init__(self, cause: Cause) -> None:
        super().__init__(cause.message)
        self.cause = cause


class NotAnsweredError(Exception):
    """A recorded or remote subject has no answer to a call, so its case is not judged."""


def call(subject: Callable[..., Any], *args: Any, what: str, grad: bool = False, **options: Any) -> Any:
    """Return the result of a call of the subject on copies of the arguments; NumPy arrays as tensors.

    Args:
        subject: The user's callable.
        args: Its arguments; tensors are copied, so that the subject cannot write to ours.
        options: Its keyword arguments, copied likewise.
        what: The call in words, for a message: "rope(x, positions) with x of (2, 3, 5, 64)".
        grad: Keep gradients.

    Raises:
        SubjectError: It raised (subject.raises), wrote to its arguments (subject.writes_input), or returned NaN
            (subject.not_finite).
    """
    if (listener := LISTENER.get()) is not None:
        listener(args, options, grad)
    copies = map_tensors(torch.clone if grad else _copy, (args, options))  # gradients pass through a clone
    before = map_tensors(_copy, copies)
    try:
        with torch.set_grad_enabled(grad):
            found = subject(*copies[0], **copies[1])
        if isinstance(found, np.ndarray) and found.dtype.kind in "biuf":
            found = torch.from_numpy(np.ascontiguousarray(found))
    except (SubjectError, NotAnsweredError):
        raise
    except (Exception, SystemExit) as error:
        raise _unusable("raises", f"{what} raised {type(error).__name__}: {str(error)[:300]}", what) from error
    if changed := _difference(before, copies):  # includes writes to a view of an argument
        said = f"{what} wrote to its arguments, which changed by up to {changed:.3g}: the caller's tensors are wrong"
        raise _unusable("writes_input", said, what, changed)
    for t in tensors(found):
        if (t.is_floating_point() or t.is_complex()) and bool(t.isnan().any()):
            share = float(t.isnan().float().mean())
            raise _unusable("not_finite", f"{what} returned NaN in {share:.1%} of its numbers", what, share)
    return found


def shaped(t: Any, shape: tuple[int, ...], what: str) -> Tensor:
    """Return a result as a tensor of the required shape.

    Raises:
        SubjectError: It is not a tensor, or has another shape (subject.shape).
    """
    if isinstance(t, Tensor) and tuple(t.shape) == shape:
        return t
    got = tuple(t.shape) if isinstance(t, Tensor) else type(t).__name__
    raise _unusable("shape", f"{what} must return a tensor of shape {shape}; got {got}", what)


def _unusable(code: str, message: str, what: str, evidence: float = 1.0) -> SubjectError:
    return SubjectError(Cause(f"subject.{code}", message, evidence, {"call": what}))


def _copy(t: Tensor) -> Tensor:
    return t.detach().clone().requires_grad_(t.requires_grad)


def _difference(before: Any, after: Any) -> float:
    pairs = zip(tensors(before), tensors(after), strict=False)
    changed = [a for a in pairs if not torch.equal(a[0].nan_to_num(), a[1].nan_to_num())]
    return max((float((a - b).abs().double().max()) if a.shape == b.shape else 1.0 for a, b in changed), default=0.0)
