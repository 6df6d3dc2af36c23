"""Call arbitrary code and read its results: errors there become findings, never tracebacks."""

import dis
from collections.abc import Callable, Iterable, Mapping, Set
from contextlib import suppress
from contextvars import ContextVar
from numbers import Number
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from posenc.placed import map_tensors, tensors
from posenc.verify.report import Cause
from posenc.verify.sentences import string

_READABLE = ("__dlpack__", "__array__", "numpy")  # how arrays of other libraries become ours: JAX, MLX, TensorFlow
_Read = TypeVar("_Read")

Listener = Callable[[tuple[Any, ...], dict[str, Any], bool], None]
LISTENER: ContextVar[Listener | None] = ContextVar(
    "listener", default=None
)  # sees arguments, and whether to keep grads


class SubjectError(Exception):
    """A call whose result cannot be used, with the cause."""

    def __init__(self, cause: Cause) -> None:
        super().__init__(cause.message)
        self.cause = cause


class CannotTellError(Exception):
    """The specification does not determine what is right, or the subject shows nothing that can be judged."""


class NotAnsweredError(Exception):
    """A recorded or remote subject has no answer to a call, so its case is not judged."""


class _UnreadableError(Exception):
    """A result that is no array of numbers, in words."""


def call(
    subject: Callable[..., Any], *args: Any, what: str, grad: bool = False, passed_on: bool = False, **options: Any
) -> Any:
    """Return the result of a call of the subject on copies of the arguments; an array as a tensor (see `array`).

    Args:
        subject: The user's callable.
        args: Its arguments; tensors are copied, so that the subject cannot write to ours.
        options: Its keyword arguments, copied likewise.
        what: The call in words, for a message: "rope(x, positions) with x of (2, 3, 5, 64)".
        grad: Keep gradients.
        passed_on: Return the object itself, since only the subject reads it.

    Raises:
        SubjectError: It raised (subject.raises), wrote to its arguments (subject.writes_input), returned tensors that
            cannot be read (subject.result), or returned NaN (subject.not_finite).
        NotAnsweredError: The result carries no gradients, since it is an array of another library.
    """
    if (listener := LISTENER.get()) is not None:
        listener(args, options, grad)
    copies = map_tensors(torch.clone if grad else _copy, (args, options))  # gradients pass through a clone
    before = map_tensors(_copy, copies)
    try:
        with torch.set_grad_enabled(grad):
            found = subject(*copies[0], **copies[1])
    except (SubjectError, NotAnsweredError, CannotTellError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise _unusable("raises", f"{what} raised {string(error, type(error).__name__)}", what) from error
    if changed := _difference(before, copies, what):  # includes writes to a view of an argument
        said = f"{what} wrote to its arguments, which changed by up to {changed:.3g}: the caller's tensors are wrong"
        raise _unusable("writes_input", said, what, changed)
    is_array = _reading(lambda: isinstance(found, Tensor) or _is_foreign(found), found, what)
    parts = [array(found, what, grad=grad)] if is_array else _reading(lambda: tensors(found), found, what)
    for part in parts:
        t = part if is_array else array(part, what)
        if (t.is_floating_point() or t.is_complex()) and bool(t.isnan().any()):
            share = float(t.isnan().float().mean())
            raise _unusable("not_finite", f"{what} returned NaN in {share:.1%} of its numbers", what, share)
    return parts[0] if is_array and not passed_on else found


def array(found: Any, what: str, *, grad: bool = False) -> Tensor:
    """Return an array of any library, a number, or nested lists of numbers as a dense tensor on the CPU.

    Dtypes that only store numbers, such as float8, become float32 or int64.

    Raises:
        SubjectError: It has no numbers, or they cannot be read (subject.result).
        NotAnsweredError: Gradients are required, and it is an array of another library.
    """
    if grad and not isinstance(found, Tensor) and _is_foreign(found):
        raise NotAnsweredError(f"the result is a {type(found).__name__}, which carries no gradients of torch")
    with torch.set_grad_enabled(grad):
        t: Tensor = _reading(lambda: _dense(_tensor(found), grad), found, what)
    return t


def shaped(t: Any, shape: tuple[int, ...], what: str, *, grad: bool = False, hides: bool = False) -> Tensor:
    """Return a result as a tensor of real numbers of the required shape; only one that hides keys has infinite ones.

    Raises:
        SubjectError: It is no array of real numbers (subject.result), has another shape (subject.shape), or contains
            infinity (subject.not_finite).
        NotAnsweredError: As in `array`.
    """
    if isinstance(t, Tensor) or _reading(lambda: _is_foreign(t), t, what):
        read: Tensor = array(t, what, grad=grad)
        if read.is_complex():
            raise _unusable("result", f"{what} must return real numbers; got {str(read.dtype)[6:]}", what)
        if tuple(read.shape) != shape:
            raise _unusable("shape", f"{what} must return a tensor of shape {shape}; got {tuple(read.shape)}", what)
        if not hides and bool(read.isinf().any()):
            raise _unusable("not_finite", f"{what} returned infinity", what)
        return read
    raise _unusable("result", f"{what} must return a tensor of shape {shape}; got {type(t).__name__}", what)


def is_refusal(error: SubjectError) -> bool:
    """Return whether a call was refused by a raise or assert statement, rather than failed in an operation."""
    at = error.__cause__ and error.__cause__.__traceback__
    while at and at.tb_next:
        at = at.tb_next
    if not at or "posenc.verify.remote" in at.tb_frame.f_globals.get("__name__", ""):  # an answer does not show why
        return False
    return at.tb_frame.f_code.co_code[at.tb_lasti] == dis.opmap["RAISE_VARARGS"]


def rounding(t: Tensor) -> float:
    """Return the rounding error of a result's dtype, never finer than float32's."""
    return max(torch.finfo(t.dtype).eps if t.is_floating_point() else 0.0, 1.2e-7)


def _reading(read: Callable[[], _Read], found: Any, what: str) -> _Read:
    """Return what can be read from a result; any error of its own code is a finding."""
    try:
        return read()
    except _UnreadableError as error:
        raise _unusable("result", f"{what} returned {error}", what) from None
    except Exception as error:
        said = f"a {type(found).__name__} that cannot be read: {string(error, type(error).__name__)}"
        raise _unusable("result", f"{what} returned {said}", what) from error


def _is_foreign(found: Any) -> bool:
    return not isinstance(found, type) and any(callable(getattr(found, name, None)) for name in _READABLE)


def _tensor(found: Any) -> Tensor:
    """Return a tensor with the numbers of an array, a number or nested lists."""
    if isinstance(found, Tensor):
        return found
    if isinstance(found, Iterable) and not _is_foreign(found) and not isinstance(found, Mapping | Set | str | bytes):
        found = list(found)
    if isinstance(found, list) and any(isinstance(part, Tensor | list | tuple) for part in found):
        return torch.stack([_dense(_tensor(part), grad=False) for part in found])
    if not isinstance(found, np.ndarray | np.generic):
        if hasattr(found, "__dlpack__"):
            with suppress(Exception):  # __array__ may work
                return torch.from_dlpack(found)
        found = found.numpy() if not hasattr(found, "__array__") and hasattr(found, "numpy") else found
    numbers = np.asarray(found)
    if numbers.dtype.kind == "O" and all(isinstance(x, Number) for x in numbers.flat):
        numbers = np.array(numbers.tolist())
    if numbers.dtype.name == "bfloat16":  # of ml_dtypes
        return torch.from_numpy(numbers.view(np.int16)).view(torch.bfloat16)
    if numbers.dtype.kind not in "biufc":
        kind = f"a {type(found).__name__}"
        raise _UnreadableError(f"{kind} of {numbers.dtype}" if _is_foreign(found) else kind)
    wide = {"f": np.float64, "c": np.complex128}.get(numbers.dtype.kind)
    numbers = numbers.astype(wide) if wide and numbers.itemsize > np.dtype(wide).itemsize else numbers
    return torch.from_numpy(np.array(numbers, numbers.dtype.newbyteorder("="), order="C"))


def _dense(t: Tensor, grad: bool) -> Tensor:
    """Return a tensor of any layout as a dense one on the CPU."""
    for is_so, kind in ((t.is_meta, "meta tensor, which has no numbers"), (t.is_nested, "nested tensor")):
        if is_so:
            raise _UnreadableError(f"a {kind}")
    t = t.dequantize() if t.is_quantized else t
    t = t if t.layout == torch.strided else t.to_dense()
    t = (t if grad else t.detach()).as_subclass(Tensor).resolve_conj().resolve_neg().cpu()
    if t.dtype.is_floating_point:
        return t if t.dtype.itemsize > 1 else t.float()
    return t if t.is_complex() or (t.dtype.is_signed and t.dtype != torch.bool) else t.to(torch.int64)


def _unusable(code: str, message: str, what: str, evidence: float = 1.0) -> SubjectError:
    return SubjectError(Cause(f"subject.{code}", message, evidence, {"call": what}))


def _copy(t: Tensor) -> Tensor:
    return t.detach().clone().requires_grad_(t.requires_grad)


def _difference(before: Any, after: Any, what: str) -> float:
    pairs = zip(*([array(t, what).nan_to_num() for t in tensors(tree)] for tree in (before, after)), strict=False)
    changed = [(a, b) for a, b in pairs if not torch.equal(a, b)]
    return max((float((a - b).abs().double().max()) if a.shape == b.shape else 1.0 for a, b in changed), default=0.0)
