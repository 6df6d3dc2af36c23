"""A backward pass without a derivative of its own, which says so instead of giving zeros."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor

WORDS = (
    "attend: this backend has no second derivative, because scores are formed again in its backward pass alone. "
    "Pass backend='reference' to have one."
)


def once(backward: Callable[..., tuple[Tensor | None, ...]]) -> Callable[..., tuple[Tensor | None, ...]]:
    """Decorate a backward: what it returns raises when it is differentiated.

    torch's `once_differentiable` does so only where the incoming gradient has a graph, and drops the rest in silence.
    """

    @wraps(backward)
    def wrapped(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        with torch.no_grad():
            found = backward(ctx, *grads)
        if not torch.is_grad_enabled():  # nobody asks for more
            return found
        # they hang on all that they depend on, so that whoever asks for the gradient of one tensor alone comes by
        depends = [t for t in (*ctx.saved_tensors, *grads) if isinstance(t, Tensor) and t.requires_grad]
        return tuple(None if t is None else _Raises.apply(t.detach(), *depends) for t in found)

    return wrapped


class _Raises(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, t: Tensor, *depends: Tensor) -> Tensor:
        return t.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        raise RuntimeError(WORDS)
