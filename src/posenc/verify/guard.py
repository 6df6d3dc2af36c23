"""Calls into code that may do anything: what goes wrong there is a finding, never a traceback."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from posenc.placed import map_tensors, tensors
from posenc.verify.report import Cause


class SubjectError(Exception):
    """A call that cannot be used, and the cause that says why."""

    def __init__(self, cause: Cause) -> None:
        super().__init__(cause.message)
        self.cause = cause


class NotAnsweredError(Exception):
    """A recorded or remote subject has no answer to a call, so that its case is not judged."""


def call(subject: Callable[..., Any], *args: Any, what: str, grad: bool = False, **options: Any) -> Any:
    """Return what a call of the subject returns, on copies of the arguments; an array of NumPy as a tensor.

    Args:
        subject: The user's callable.
        args: Its arguments; tensors are copied, so that nothing can be written into ours.
        options: Its keyword arguments, likewise.
        what: The call in words, for a message: "rope(x, positions) with x of (2, 3, 5, 64)".
        grad: Keep gradients.

    Raises:
        SubjectError: It raised (subject.raises), wrote into its arguments (subject.writes_input), or returned NaN
            (subject.not_finite).
    """
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
    if changed := _difference(before, copies):  # also where a view of an argument was written to
        said = f"{what} wrote into its arguments, which changed by up to {changed:.3g}: a caller's tensors are spoilt"
        raise _unusable("writes_input", said, what, changed)
    for t in tensors(found):
        if (t.is_floating_point() or t.is_complex()) and bool(t.isnan().any()):
            share = float(t.isnan().float().mean())
            raise _unusable("not_finite", f"{what} returned NaN in {share:.1%} of its numbers", what, share)
    return found


def shaped(t: Any, shape: tuple[int, ...], what: str) -> Tensor:
    """Return a tensor of a result as it should be shaped.

    Raises:
        SubjectError: It is no tensor, or of another shape (subject.shape).
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
