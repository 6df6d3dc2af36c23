"""Positions on several axes: images, video, and text among them."""

import math
import operator
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import torch
from jaxtyping import Float64, Int, Int64, Shaped
from torch import Tensor


def grid(h: int, w: int, *, n_prefix: int = 0, device: torch.device | str | None = None) -> Int64[Tensor, "cells 2"]:
    """Number the cells of an image row by row; axis 0 is the row, axis 1 the column.

    Args:
        h: Rows.
        w: Columns.
        n_prefix: Tokens before the image, such as a class token; they stand in row -1.
        device: Of the result.

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
    """Place the cells of an image, row by row, at the coordinates of their centres between -1 and 1.

    So an image keeps its extent at every resolution. Source: DINOv3 (Siméoni 2025, 2508.10104), which feeds them to an
    axial rotation.

    Args:
        h: Rows.
        w: Columns.
        sides: What -1 to 1 spans: each side ("separate"), or, so that cells stay square, the "longer" or the "shorter".
        device: Of the result.

    Raises:
        ValueError: Another word for `sides`.

    >>> unit_grid(1, 2).tolist()
    [[0.0, -0.5], [0.0, 0.5]]
    """
    spans = {"separate": (h, w), "longer": (max(h, w),) * 2, "shorter": (min(h, w),) * 2}
    if sides not in spans:
        raise ValueError(f"positions.unit_grid: sides must be one of {tuple(spans)}; got {sides!r}.")
    span = torch.tensor(spans[sides], dtype=torch.float64, device=device)
    return (2 * grid(h, w, device=device).double() + 1) / span - 1


Part = int | Sequence[int] | Tensor  # tokens of text, or (frames, rows, columns) of a picture or video
Step = int | float | Sequence[int | float] | Tensor


def mrope(
    parts: Sequence[Part],
    *,
    time_step: Step = 1,
    next_after: Literal["all_axes", "sides"] = "all_axes",
    device: torch.device | str | None = None,
) -> Int64[Tensor, "seq 3"]:
    """Number text with images and video on three axes: time, row, column (Qwen2-VL; Wang 2024, 2409.12191).

    A text token has the same number on all axes. The cells of an image begin there too, and count rows and columns
    on. Frame i of a video is floor(i * time_step) later than its first frame; the product is of float32, as in
    transformers. Two definitions exist of where the next part begins, and they differ only for a video that is longer
    than its sides: `next_after`. Models that write a time stamp before each frame (Qwen3-VL, GLM-4V) number each frame
    as an image of its own.

    Args:
        parts: In the order of the sequence, the number of tokens of a text, or (frames, rows, columns) of a picture
            or video, in cells as the language model sees them (after merging).
        time_step: Between two frames: one number, or one for each picture and video in their order. 1 in Qwen2-VL;
            in Qwen2.5-VL tokens_per_second times the seconds of a frame. Qwen2.5-Omni rounds i times the seconds
            first, so that a frame at a whole number may be one earlier there.
        next_after: "all_axes": one after the largest number so far (the paper, Qwen2.5-Omni, transformers 4, vLLM).
            "sides": the longer of rows and columns after the picture's beginning, however many frames there are
            (transformers 5: Qwen2-VL to Qwen3.5, GLM-4V, Ernie 4.5 VL).
        device: Of the result.

    Raises:
        ValueError: A size or a step below zero, another number of steps than of pictures and videos, or another word
            for `next_after`.
        TypeError: A part that is neither a number nor three.

    >>> mrope([2, (1, 2, 2), 1]).tolist()
    [[0, 0, 0], [1, 1, 1], [2, 2, 2], [2, 2, 3], [2, 3, 2], [2, 3, 3], [4, 4, 4]]
    >>> mrope([(4, 1, 1), 1], time_step=1.5)[:, 0].tolist(), mrope([(4, 1, 1), 1], next_after="sides")[:, 0].tolist()
    ([0, 1, 3, 4, 5], [0, 1, 2, 3, 1])
    """
    if next_after not in ("all_axes", "sides"):
        raise ValueError(f"positions.mrope: next_after must be 'all_axes' or 'sides'; got {next_after!r}.")
    sizes = [_sizes(part) for part in parts]
    steps = iter(_steps(time_step, sum(len(size) == 3 for size in sizes)))
    numbered, start = [torch.zeros(0, 3, dtype=torch.int64, device=device)], 0
    for size in sizes:
        if len(size) == 1:
            numbered.append(torch.arange(start, start + size[0], device=device)[:, None].expand(-1, 3))
            start += size[0]
            continue
        frames, rows, columns = size
        times = (torch.arange(frames, dtype=torch.float32, device="cpu") * next(steps)).long()
        axes = times.to(device), torch.arange(rows, device=device), torch.arange(columns, device=device)
        if frames * rows * columns:
            numbered.append(start + torch.cartesian_prod(*axes))
        last = int(times[-1]) + 1 if next_after == "all_axes" and frames else 0
        start += max(last, rows, columns)
    return torch.cat(numbered)


def _sizes(part: Part) -> tuple[int, ...]:
    """Return the number of tokens of a text, or the three sizes of a picture."""
    try:
        sizes = tuple(map(operator.index, _several(part) or [part]))
    except TypeError:
        sizes = ()
    if len(sizes) not in (1, 3):
        raise TypeError(
            "positions.mrope: a part must be a number of tokens of text, or (frames, rows, columns) of a picture; got "
            f"{part!r}."
        )
    if min(sizes) < 0:
        raise ValueError(f"positions.mrope: the sizes of a part must be 0 or more; got {part!r}.")
    return sizes


def _steps(time_step: Step, n_pictures: int) -> list[float]:
    """Return one step for each picture and video."""
    given: list[Any] = [time_step] * n_pictures if (several := _several(time_step)) is None else several
    steps = [float(step) for step in given]
    if len(steps) != n_pictures:
        raise ValueError(
            f"positions.mrope: time_step must be one number, or one for each of the {n_pictures} pictures and videos; "
            f"got {len(steps)}. A picture of one frame takes any, for instance 1."
        )
    if not all(0 <= step < math.inf for step in steps):
        raise ValueError(f"positions.mrope: time_step must be a finite number, 0 or more; got {time_step!r}.")
    return steps


def _several(value: Any) -> list[Any] | None:
    """Return the entries of a list, a tensor or an array; None of one number."""
    return list(value) if isinstance(value, Iterable) and getattr(value, "ndim", None) != 0 else None


def from_hf(position_ids: Int[Tensor, "n_axes batch seq"]) -> Int[Tensor, "batch seq n_axes"]:
    """Turn Hugging Face's position ids of several axes, (3, batch, seq), into ours, (batch, seq, 3).

    >>> from_hf(torch.tensor([[[0, 1]], [[0, 5]], [[0, 7]]])).tolist()
    [[[0, 0, 0], [1, 5, 7]]]
    """
    return position_ids.permute(1, 2, 0)


def on_each_axis(pos: Shaped[Tensor, "*batch seq"], n_axes: int) -> Shaped[Tensor, "*pos"]:
    """Give each token the same number on all axes, as text has among pictures; as it is where there is one axis.

    >>> on_each_axis(torch.tensor([4, 5]), 3).tolist(), on_each_axis(torch.tensor([4, 5]), 1).tolist()
    ([[4, 4, 4], [5, 5, 5]], [4, 5])
    """
    return pos if n_axes == 1 else pos[..., None].expand(*pos.shape, n_axes)
