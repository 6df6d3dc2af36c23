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
    of `x` once. Lanes beyond 2 n_pairs pass through untouched.

    Args:
        x: Queries or keys.
        cos: Cosines of the angles, one a pair, already multiplied by any gain; for each head, or one for all.
        sin: The same for sines.
        pairing: "half" pairs lane k with lane k + n_pairs (GPT-NeoX, Llama in Hugging Face);
            "interleaved" pairs lanes 2k and 2k + 1 (the paper, GPT-J, Meta's Llama).
        side: Which end of the head turns when the tables are narrower than the head.
    """
    n_pairs = cos.shape[-1]
    rest = x.shape[-1] - 2 * n_pairs
    head, tail = x.split((2 * n_pairs, rest) if side == "first" else (rest, 2 * n_pairs), dim=-1)
    lanes, untouched = (head, tail) if side == "first" else (tail, head)
    a, b = lanes.chunk(2, dim=-1) if pairing == "half" else (lanes[..., 0::2], lanes[..., 1::2])
    turned: tuple[Tensor, ...] = (a * cos - b * sin).to(x.dtype), (b * cos + a * sin).to(x.dtype)
    if pairing == "interleaved":
        turned = (torch.stack(turned, dim=-1).flatten(-2),)
    if rest:
        turned = (*turned, untouched) if side == "first" else (untouched, *turned)
    return torch.cat(turned, dim=-1) if len(turned) > 1 else turned[0]
