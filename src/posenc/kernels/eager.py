"""The turn in plain torch, written so that a compiler fuses it into one pass."""

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

Pairing = Literal["half", "interleaved"]
Side = Literal["first", "last"]


def turn(
    x: Float[Tensor, "*x_batch seq head_dim"],
    cos: Float[Tensor, "*t_batch seq n_pairs"],
    sin: Float[Tensor, "*t_batch seq n_pairs"],
    *,
    pairing: Pairing,
    side: Side = "first",
) -> Float[Tensor, "*x_batch seq head_dim"]:
    """Turn pairs of lanes counter-clockwise: (a, b) -> (a cos - b sin, b cos + a sin).

    The products are formed in the tables' precision (float32 or wider) and rounded to the dtype
    of `x` once. Lanes beyond 2 n_pairs pass through untouched. Tables of fewer heads than `x` has are those of groups
    of heads, one after another.

    Args:
        x: Queries or keys.
        cos: Cosines of the angles, one a pair, already multiplied by any gain; for each head, or one for all.
        sin: The same for sines.
        pairing: "half" pairs lane k with lane k + n_pairs (GPT-NeoX, Llama in Hugging Face);
            "interleaved" pairs lanes 2k and 2k + 1 (the paper, GPT-J, Meta's Llama).
        side: Which end of the head turns when the tables are narrower than the head.
    """
    if cos.ndim > 2 and cos.shape[-3] > 1:
        grouped = x.unflatten(-3, (cos.shape[-3], -1))
        turned = turn(grouped, cos.unsqueeze(-3), sin.unsqueeze(-3), pairing=pairing, side=side)
        return turned.flatten(-4, -3)
    n_pairs = cos.shape[-1]
    rest = x.shape[-1] - 2 * n_pairs
    cos, sin = _beside(x, cos), _beside(x, sin)
    lanes, untouched = x, x
    if rest:  # an empty part of a DTensor has a gradient that is none
        head, tail = x.split((2 * n_pairs, rest) if side == "first" else (rest, 2 * n_pairs), dim=-1)
        lanes, untouched = (head, tail) if side == "first" else (tail, head)
    a, b = lanes.chunk(2, dim=-1) if pairing == "half" else (lanes[..., ::2], lanes[..., 1::2])
    parts: tuple[Tensor, ...] = (a * cos - b * sin).to(x.dtype), (b * cos + a * sin).to(x.dtype)
    if pairing == "interleaved":
        both = torch.stack(parts, dim=-1)
        parts = (both.reshape(*both.shape[:-2], 2 * n_pairs),)  # not flatten, which batches of gradients do not know
    if rest:
        parts = (*parts, untouched) if side == "first" else (untouched, *parts)
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)


def _beside(x: Tensor, table: Tensor) -> Tensor:
    """Return a table as x can be multiplied with it: beside a DTensor, as one that is the same on all ranks."""
    mesh = getattr(x, "device_mesh", None)
    if mesh is None or hasattr(table, "device_mesh"):
        return table
    from torch.distributed.tensor import DTensor  # loaded already, since x is one

    return DTensor.from_local(table, mesh)
