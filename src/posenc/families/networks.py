"""Small networks and tables of distances: run once for each distinct distance, and for all heads at once."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int64, Shaped
from torch import Tensor
from torch.nn import functional as F

from posenc import positions
from posenc.families.numbers import no_autocast, wide
from posenc.private import is_known

Network = Callable[[Tensor, Sequence[Tensor]], Tensor]


def tabulated(
    network: Network,
    h: Int64[Tensor, "..."],
    along: Sequence[Shaped[Tensor, "..."]],
    window: tuple[int, ...] | None = None,
) -> Float[Tensor, "..."]:
    """Return network(h, along), from a table of all integer distances in range if that is smaller.

    A text or an image has few distances but many pairs. Autocast is off, because half precision would round between the
    layers.

    Args:
        network: A function of heads and the distance along each axis, which broadcast.
        h: Indices of heads.
        along: The distance along each axis.
        window: The side along each axis of a window that may be whole. Where distances cannot be read and there are
            as many tokens as in the window, the table is of its distances, and a larger one is out of bounds.
    """
    with no_autocast(h.device):
        ends = _ends(along, window)
        if ends is None:
            return network(h, along)
        counts = [high - low + 1 for low, high in ends]
        if math.prod(counts) >= torch.broadcast_shapes(*(d.shape for d in along)).numel():
            return network(h, along)
        axes = [torch.arange(low, high + 1, device=h.device) for low, high in ends]
        cells = network(h.reshape(-1, 1), [axis.flatten() for axis in torch.meshgrid(*axes, indexing="ij")])
        place: Any = 0
        for d, (low, high), count in zip(along, ends, counts, strict=True):
            place = place * count + (d - low)
            if not positions.may_look(d):
                place = torch.where((d >= low) & (d <= high), place, math.prod(counts) ** 2)
        return cells[torch.arange(h.numel(), device=h.device).view(h.shape), place]


def _ends(along: Sequence[Tensor], window: tuple[int, ...] | None) -> list[tuple[int, int]] | None:
    """Return the least and the greatest distance along each axis; None if they are fractions or unknown."""
    if any(d.is_floating_point() for d in along):
        return None
    if all(positions.may_look(d) for d in along):
        return [(int(low), int(high)) for low, high in (d.aminmax() for d in along)]
    if window is None or not all(is_known(n) and n == math.prod(window) for n in along[0].shape[-2:]):
        return None
    return [(1 - side, side - 1) for side in window]


def of_heads(
    units: Float[Tensor, "... width"], weight: Float[Tensor, "n_heads width"], h: Int64[Tensor, "..."]
) -> Float[Tensor, "..."]:
    """Return units·weight[h] for heads that broadcast with pairs; for a column of heads by one product."""
    column = without_head_dim(h, units, trailing=1)
    if column is None:
        return (units * weight[h]).sum(-1)
    return F.linear(column, weight[h.flatten()]).movedim(-1, -h.ndim)


def looked_up(
    table: Float[Tensor, "n n_heads"], row: Int64[Tensor, "..."], h: Int64[Tensor, "..."]
) -> Float[Tensor, "..."]:
    """Return table[row, h] in float32 or wider; for a column of heads by one index."""
    column = without_head_dim(h, row) if positions.may_look(row) else None
    if column is None:
        return wide(table)[row, h]
    rows = wide(table).T[h.flatten()].index_select(1, column.flatten())
    found: Tensor = rows.unflatten(1, column.shape)
    return found.movedim(0, -h.ndim)


def without_head_dim(h: Int64[Tensor, "..."], t: Tensor, *, trailing: int = 0) -> Tensor | None:
    """Return `t` without the dimension in which it has one number for a whole column of heads.

    None if `h` is not a column, (heads, 1, ..), or `t` differs between heads.

    Args:
        h: Indices of heads.
        t: A tensor over pairs, which broadcasts with `h`.
        trailing: Number of dimensions of `t` behind those of pairs.
    """
    if not h.ndim or h.numel() != h.shape[0]:
        return None
    t = t[(None,) * (h.ndim + trailing - t.ndim)]
    return t.squeeze(-h.ndim - trailing) if t.shape[-h.ndim - trailing] == 1 else None
