"""The rotation in plain torch, in a form that a compiler fuses into one pass."""

from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from posenc.positions.checks import KINDS

Pairing = Literal["half", "interleaved"]
Side = Literal["first", "last"]


def rotate(
    x: Float[Tensor, "*x_batch seq head_dim"],
    cos: Float[Tensor, "*t_batch seq n_pairs"],
    sin: Float[Tensor, "*t_batch seq n_pairs"],
    pairing: Pairing,
    side: Side = "first",
) -> Float[Tensor, "*x_batch seq head_dim"]:
    """Rotate pairs of head dimensions counter-clockwise: (a, b) -> (a cos - b sin, b cos + a sin).

    The products are formed in the tables' precision (float32 or wider) and rounded to the dtype of `x` once.
    Dimensions beyond 2 n_pairs stay unchanged. If the tables have fewer heads than `x`, each table is shared by a group
    of consecutive heads.

    Args:
        x: Queries or keys.
        cos: Cosines of the angles, one for each pair, already multiplied by any gain; for each head, or for all.
        sin: The same for sines.
        pairing: "half" pairs dimension k with k + n_pairs (GPT-NeoX, Llama in Hugging Face);
            "interleaved" pairs dimensions 2k and 2k + 1 (the paper, GPT-J, Meta's Llama).
        side: Which end of the head rotates if the tables are narrower than the head.
    """
    if cos.ndim > 2 and cos.shape[-3] > 1:
        grouped = x.unflatten(-3, (cos.shape[-3], -1))
        rotated = rotate(grouped, cos.unsqueeze(-3), sin.unsqueeze(-3), pairing=pairing, side=side)
        return rotated.flatten(-4, -3)
    n_pairs = cos.shape[-1]
    rest = x.shape[-1] - 2 * n_pairs
    if hasattr(x, "device_mesh"):
        cos, sin = _like(x, cos), _like(x, sin)
    rotating, untouched = x, x
    if rest:  # an empty part of a DTensor would get no gradient
        head, tail = x.split((2 * n_pairs, rest) if side == "first" else (rest, 2 * n_pairs), dim=-1)
        rotating, untouched = (head, tail) if side == "first" else (tail, head)
    a, b = rotating.chunk(2, -1) if pairing == "half" else (rotating[..., ::2], rotating[..., 1::2])
    if type(x) in KINDS:
        first, second = torch.addcmul(a * cos, b, sin, value=-1), torch.addcmul(b * cos, a, sin)
    else:  # nested tensors have no addcmul
        first, second = a * cos - b * sin, b * cos + a * sin
    if first.dtype != x.dtype:
        first, second = first.to(x.dtype), second.to(x.dtype)
    if pairing == "half":
        parts = [first, second]
    else:
        both = torch.stack((first, second), dim=-1)
        parts = [both.reshape(*both.shape[:-2], 2 * n_pairs)]  # not flatten, which does not support batched gradients
    if rest:
        parts.insert(len(parts) if side == "first" else 0, untouched)
    return parts[0] if len(parts) == 1 else torch.cat(parts, -1)


def _like(x: Any, table: Tensor) -> Tensor:
    """Return a table that a DTensor can be multiplied with: a DTensor that is replicated on all ranks."""
    if hasattr(table, "device_mesh"):
        return table
    from torch.distributed.tensor import DTensor  # x is a DTensor, so the module is loaded

    return DTensor.from_local(table, x.device_mesh)
