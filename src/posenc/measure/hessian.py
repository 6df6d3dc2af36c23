"""Second derivatives of a function of token vectors: products with the Hessian, never the whole of it; with checks."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import grad, vjp

from posenc.config.values import short

Function = Callable[[Tensor], Tensor]  # token vectors (seq, d_model) to a scalar
Products = Callable[[Tensor], Tensor]  # what H makes of a displacement (seq, d_model)
# Steps at which a second derivative is held against a difference of first ones, the likeliest first: where a step
# meets a kink of ReLU, or rounding, another one does not.
_STEPS = (1e-4, 1e-5, 1e-6, 1e-7, 1e-3)
_AGREES = 1e-3
_REMEDY = (
    "Write it with operations that torch differentiates twice: softplus or GELU for ReLU, plain products and softmax "
    'for a fused attention kernel, posenc.attend(..., backend="reference") for another backend'
)


def check_tokens(who: str, x: Tensor, p: Tensor) -> None:
    """Check token vectors and what is added to them.

    Raises:
        TypeError: One is no floating tensor.
        ValueError: They are no (seq, d_model), or are not finite, or not in float32 or float64.
    """
    for name, t in (("x", x), ("p", p)):
        if not isinstance(t, Tensor) or not t.is_floating_point():
            kind = t.dtype if isinstance(t, Tensor) else type(t).__name__
            raise TypeError(f"{who}: {name} must be a floating tensor (seq, d_model); got {kind}.")
        if t.dtype not in (torch.float32, torch.float64):
            raise ValueError(f"{who}: {name} must be float64, or float32; got {t.dtype}. Cast model and tokens.")
        if not t.isfinite().all():
            raise ValueError(f"{who}: {name} must be finite; got NaN or infinity.")
    if x.ndim != 2 or x.numel() == 0 or p.shape != x.shape or p.dtype != x.dtype:
        raise ValueError(
            f"{who}: x and p must both be (seq, d_model) in one dtype; got {x.dtype} {tuple(x.shape)} and {p.dtype} "
            f"{tuple(p.shape)}. Pass one text at a time; the function may add a batch of one."
        )


@torch.no_grad()
def number(who: str, function: Function, x: Tensor) -> float:
    """Return what a function says of x.

    Raises:
        ValueError: It is no finite scalar, or another one when asked again.
    """
    values = [function(x) for _ in range(2)]
    for value in values:
        if not isinstance(value, Tensor) or value.numel() != 1 or not value.is_floating_point():
            kind = f"{value.dtype} {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            raise ValueError(
                f"{who}: the function must return one real number as a tensor; got {kind}. Pick one logit, or a loss."
            )
        if not value.isfinite().all():
            raise ValueError(f"{who}: the function must be finite; got {float(value)}.")
    first, again = (float(value) for value in values)
    if abs(first - again) > 1e-4 * max(abs(first), abs(again)):
        raise ValueError(
            f"{who}: the function must answer the same when asked again; got {first:.6g} and {again:.6g}. Turn dropout "
            "off with model.eval()."
        )
    return first


def check_depends(who: str, function: Function, moved: Tensor, row: int, back: Tensor, *found: Tensor) -> None:
    """Check that a function depends on a token, of which `found` are derivatives.

    Raises:
        ValueError: They are all zero, and putting the token of `moved` back changes nothing either.
    """
    if any(bool(t.any()) for t in found):
        return
    without = moved.clone()
    without[row] = back
    if number(who, function, without) == number(who, function, moved):
        raise ValueError(f"{who}: the function does not depend on token {row}, which it may not see. Leave it out.")


def second(who: str, function: Function, x: Tensor, direction: Tensor) -> tuple[Tensor, Products]:
    """Return the gradient at x and products with the Hessian, checked along one direction."""
    scalar: Function = lambda z: function(z).reshape(())  # noqa: E731
    slope_at = grad(scalar)
    try:
        slope, back = vjp(slope_at, x)[:2]
        slope, bent = slope.detach(), back(direction)[0].detach()
    except (RuntimeError, NotImplementedError) as error:
        reason = short(str(error).splitlines()[0] if str(error) else type(error).__name__)
        raise ValueError(f"{who}: the function has no second derivative in torch ({reason}). {_REMEDY}.") from error
    if not (slope.isfinite().all() and bent.isfinite().all()):
        raise ValueError(f"{who}: the function's derivatives at x are not finite. Move x off that point.")
    if not bent.any():
        _check_flat(who, x, direction, slope, slope_at)
    elif x.dtype == torch.float64 and not _agrees(slope_at, x, direction, bent):
        raise ValueError(
            f"{who}: the function's second derivative is not how its first one changes, which a hand-written backward "
            f"pass or a kink just at x makes. {_REMEDY}."
        )
    return slope, lambda v: back(v)[0].detach()


def _check_flat(who: str, x: Tensor, p: Tensor, slope: Tensor, slope_at: Function) -> None:
    """Refuse a second derivative of zero where it does not come from a function that is linear along p."""
    far = 2 * max(float(x.abs().max()), 1.0) / max(float(p.abs().max()), 1e-30)
    elsewhere = [slope_at(x + step * p).detach() for step in (1.0, -1.0, far, -far)]
    if not slope.any() and not any(t.any() for t in elsewhere):
        raise ValueError(
            f"{who}: the function has no gradient, neither at x nor around it: it does not depend on x, or hides "
            "that by detach(), no_grad() or argmax. Compute it from its argument alone."
        )
    if not all(torch.allclose(t, slope, rtol=1e-4, atol=1e-6 * float(slope.abs().max())) for t in elsewhere):
        raise ValueError(
            f"{who}: the function's second derivative is zero at x though it bends elsewhere, as a network of ReLU "
            f"alone does, which is linear in pieces. {_REMEDY}."
        )


def _agrees(slope_at: Function, x: Tensor, direction: Tensor, bent: Tensor) -> bool:
    """Whether the gradient changes along a direction as the Hessian says."""
    unit = max(float(x.abs().max()), 1.0) / float(direction.abs().max())
    for step in _STEPS:
        h = step * unit
        there, here = slope_at(x + h * direction).detach(), slope_at(x - h * direction).detach()
        noise = 1e-13 * float(there.norm()) / h
        if float(((there - here) / (2 * h) - bent).norm()) <= _AGREES * float(bent.norm()) + noise:
            return True
    return False
