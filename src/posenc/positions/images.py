"""Positions on several axes: the cells of images, and conversions from other conventions."""

from typing import Literal

import torch
from jaxtyping import Float64, Int, Int64, Shaped
from torch import Tensor


def grid(h: int, w: int, *, n_prefix: int = 0, device: torch.device | str | None = None) -> Int64[Tensor, "cells 2"]:
    """Number the cells of an image row by row; axis 0 is the row, axis 1 the column.

    Args:
        h: Rows.
        w: Columns.
        n_prefix: Tokens before the image, such as a class token; they get row -1.
        device: The device of the result.

    >>> grid(2, 2, n_prefix=1).tolist()
    [[-1, 0], [0, 0], [0, 1], [1, 0], [1, 1]]
    """
    cells = torch.cartesian_prod(torch.arange(h, device=device), torch.arange(w, device=device))
    prefix = torch.stack((torch.full((n_prefix,), -1, device=device), torch.arange(n_prefix, device=device)), -1)
    return torch.cat((prefix, cells))


def unit_grid(
    h: int,
    w: int,
    *,
    sides: Literal["separate", "longer", "shorter"] = "separate",
    device: torch.device | str | None = None,
) -> Float64[Tensor, "cells 2"]:
    """Return the coordinates of the centres of an image's cells, row by row, between -1 and 1.

    An image then has the same extent at every resolution. Source: DINOv3 (Siméoni 2025, 2508.10104), which uses them
    in an axial rotation.

    Args:
        h: Rows.
        w: Columns.
        sides: The sides that span -1 to 1: each side ("separate"), or the "longer" or "shorter" one, with square cells.
        device: The device of the result.

    Raises:
        ValueError: `sides` has another value.

    >>> unit_grid(1, 2).tolist()
    [[0.0, -0.5], [0.0, 0.5]]
    """
    spans = {"separate": (h, w), "longer": (max(h, w),) * 2, "shorter": (min(h, w),) * 2}
    if sides not in spans:
        raise ValueError(f"positions.unit_grid: sides must be one of {tuple(spans)}; got {sides!r}.")
    span = torch.tensor(spans[sides], dtype=torch.float64, device=device)
    return (2 * grid(h, w, device=device).double() + 1) / span - 1


def from_hf(position_ids: Int[Tensor, "n_axes batch seq"]) -> Int[Tensor, "batch seq n_axes"]:
    """Convert Hugging Face's position ids on several axes, (3, batch, seq), to ours, (batch, seq, 3).

    >>> from_hf(torch.tensor([[[0, 1]], [[0, 5]], [[0, 7]]])).tolist()
    [[[0, 0, 0], [1, 5, 7]]]
    """
    return position_ids.permute(1, 2, 0)


def on_each_axis(pos: Shaped[Tensor, "*batch seq"], n_axes: int) -> Shaped[Tensor, "*pos"]:
    """Give each token the same number on all axes, like text among pictures; one axis returns `pos` unchanged.

    >>> on_each_axis(torch.tensor([4, 5]), 3).tolist(), on_each_axis(torch.tensor([4, 5]), 1).tolist()
    ([[4, 4, 4], [5, 5, 5]], [4, 5])
    """
    return pos if n_axes == 1 else pos[..., None].expand(*pos.shape, n_axes)
