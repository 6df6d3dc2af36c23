"""The norm of a head before it rotates, as in Qwen3 and Gemma 3."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from posenc.versions import WIDE_EPS


@dataclass(frozen=True, eq=False)
class Norm:
    """Divide a head by the root of its mean square, and multiply its dimensions by learned factors.

    Args:
        weight: (head_dim,) factors.
        eps: Added to the mean square.
        plus_one: The factors are 1 + weight, as in Gemma.
    """

    weight: Tensor
    eps: float = 1e-6
    plus_one: bool = False

    def apply(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """Return x normalised, in a precision of float32 or wider."""
        wide, factors = x.to(dtype), self.weight.to(dtype)
        size = (wide.square().mean(-1, keepdim=True) + self.eps).rsqrt()
        return wide * size * (factors + 1 if self.plus_one else factors)


def as_norm(who: str, name: str, given: Norm | nn.RMSNorm | None, x: Tensor) -> Norm | None:
    """Return a norm for the heads of `x`.

    Raises:
        TypeError: `given` is neither a Norm nor a torch.nn.RMSNorm with a weight.
        ValueError: The weight does not fit the heads.
    """
    if given is None or isinstance(given, Norm):
        norm = given
    elif isinstance(given, nn.RMSNorm) and type(given).forward is nn.RMSNorm.forward and given.weight is not None:
        # torch documents the eps of the dtype and uses that of its arithmetic
        wide = torch.promote_types(x.dtype, torch.float32) if WIDE_EPS else x.dtype
        eps = torch.finfo(wide).eps if given.eps is None else given.eps
        norm = Norm(given.weight, float(eps))
    else:
        raise TypeError(
            f"{who}: {name} must be a posenc.Norm or a torch.nn.RMSNorm with a weight, which are computed in the "
            f"precision of the rotation; got {type(given).__name__}. Call other norms before rotate."
        )
    if norm is not None and (norm.weight.shape != x.shape[-1:] or norm.weight.device != x.device):
        raise ValueError(
            f"{who}: {name} must have one factor for each dimension of a head, on its device; got a weight of shape "
            f"{tuple(norm.weight.shape)} on {norm.weight.device} for head_dim={x.shape[-1]} on {x.device}."
        )
    return norm
