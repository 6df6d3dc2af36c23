"""Positions of text with pictures and video, as in published models."""

import math
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

Part = int | Sequence[int] | Tensor  # tokens of text, or (frames, rows, columns) of a picture or video
Step = int | float | Sequence[int | float] | Tensor
# (a picture's (frames, rows, columns), its step, its first number) -> its numbers, the next part's first number
_Place = Callable[[tuple[int, int, int], float, Any], tuple[Tensor, Any]]


def mrope(
    parts: Sequence[Part],
    *,
    time_step: Step = 1,
    next_after: Literal["all_axes", "sides"] = "all_axes",
    spatial_reset: bool = False,
    side_step: int = 1,
    device: torch.device | str | None = None,
) -> Int64[Tensor, "seq 3"]:
    """Number text with images and video on three axes: time, row, column (Qwen2-VL; Wang 2024, 2409.12191).

    A text token has the same number on all axes. An image continues from the next number, from which it counts rows
    and columns. Frame i of a video is floor(i * time_step) after its first frame, computed in float32, as in
    transformers. `next_after` selects one of two published definitions of the next part's first number, which differ
    only for a video with more frames than rows and columns. Models that write a time stamp before each frame (Qwen3-VL,
    GLM-4V) number each frame as a separate image.

    Args:
        parts: In the order of the sequence, the number of tokens of a text, or (frames, rows, columns) of a picture
            or video, in cells after merging, as the language model receives them.
        time_step: The step between two frames: one number, or one for each picture and video. 1 in Qwen2-VL; in
            Qwen2.5-VL tokens_per_second times the seconds per frame. Qwen2.5-Omni first rounds i times the seconds, so
            a frame at an integer time may be one earlier there.
        next_after: "all_axes": one after the largest number so far (the paper, Qwen2.5-Omni, transformers 4, vLLM).
            "sides": the larger of rows and columns after the picture's first number, for any number of frames
            (transformers 5: Qwen2-VL to Qwen3.5, GLM-4V, Ernie 4.5 VL).
        spatial_reset: True counts rows and columns of each picture from 0 (MHRoPE and MRoPE-I, Huang 2025, 2510.23095;
            OmniGen2's Omni-RoPE; Mogao's IL-RoPE). The next part's first number is the same.
        side_step: The step between two rows, and between two columns (MM-RoPE, Yuan 2025, 2507.08801: the compression
            of the video's cells, 8 with time_step=4).
        device: The device of the result.

    Raises:
        ValueError: A size or step is negative, the number of steps is not that of pictures and videos, or `next_after`
            has another value.
        TypeError: A part is neither one number nor three, or side_step is no integer.

    >>> mrope([2, (1, 2, 2), 1]).tolist()
    [[0, 0, 0], [1, 1, 1], [2, 2, 2], [2, 2, 3], [2, 3, 2], [2, 3, 3], [4, 4, 4]]
    >>> mrope([(4, 1, 1), 1], time_step=1.5)[:, 0].tolist(), mrope([(4, 1, 1), 1], next_after="sides")[:, 0].tolist()
    ([0, 1, 3, 4, 5], [0, 1, 2, 3, 1])
    >>> mrope([2, (1, 1, 2), 1], spatial_reset=True).tolist()
    [[0, 0, 0], [1, 1, 1], [2, 0, 0], [2, 0, 1], [4, 4, 4]]
    """
    who = "positions.mrope"
    if next_after not in ("all_axes", "sides"):
        raise ValueError(f"{who}: next_after must be 'all_axes' or 'sides'; got {next_after!r}.")
    if isinstance(side_step, bool) or not isinstance(side_step, int):
        raise TypeError(f"{who}: side_step must be a whole number; got {side_step!r}.")
    if side_step < 0:
        raise ValueError(f"{who}: side_step must be 0 or more; got {side_step}.")

    def place(sizes: tuple[int, int, int], step: float, begin: int) -> tuple[Tensor, int]:
        times = (torch.arange(sizes[0], dtype=torch.float32, device="cpu") * step).long()
        sides = [torch.arange(n, device="cpu") * side_step for n in sizes[1:]]
        corner = 0 if spatial_reset else begin
        counted = [times, *sides] if next_after == "all_axes" else sides
        cells = _cells(times, *sides) + torch.tensor([begin, corner, corner], device="cpu")
        return cells, begin + max((int(axis[-1]) + 1 for axis in counted if len(axis)), default=0)

    return _number(who, parts, ("time_step", time_step), place, torch.int64, device)


def videorope(
    parts: Sequence[Part], *, time_step: Step = 2, device: torch.device | str | None = None
) -> Float64[Tensor, "seq 3"]:
    """Number text with images and video along the diagonal of time, row and column (Wei 2025, 2502.05173).

    Frames lie on the diagonal of text, `time_step` apart, and each frame's rows and columns are centred on its point.
    Text continues one after the last frame. Use `MRoPE(layout="time_last")` for the rotation. HoPE (Li 2025,
    2505.20444) has the same positions with `MRoPE(layout="time_unrotated")`, and draws the step of each video from 0.5,
    0.75, 1, 1.25 and 1.5 in training. The middle of an even number of rows is the lower one, as in the authors' code.

    Args:
        parts: As for `mrope`.
        time_step: The step between two frames: one number, or one for each picture and video.
        device: The device of the result.

    Raises:
        ValueError: A size or step is negative, or the number of steps is not that of pictures and videos.
        TypeError: A part is neither one number nor three.

    >>> videorope([1, (2, 1, 3), 1]).int().T.tolist()
    [[0, 1, 1, 1, 3, 3, 3, 4], [0, 1, 1, 1, 3, 3, 3, 4], [0, 0, 1, 2, 2, 3, 4, 4]]
    """

    def place(sizes: tuple[int, int, int], step: float, begin: float) -> tuple[Tensor, float]:
        times, *sides = (torch.arange(n, dtype=torch.float64, device="cpu") for n in sizes)
        cells = _cells(begin + times * step, *(side - (len(side) - 1) // 2 for side in sides))
        following = begin + (sizes[0] - 1) * step + 1 if sizes[0] else begin
        return torch.cat((cells[:, :1], cells[:, 1:] + cells[:, :1]), 1), following

    return _number("positions.videorope", parts, ("time_step", time_step), place, torch.float64, device)


def v2pe(
    parts: Sequence[Part], *, step: Step = 1 / 16, device: torch.device | str | None = None
) -> Float64[Tensor, " seq"]:
    """Number text with images and video on one axis, with smaller steps for cells (V2PE; Ge 2024, 2412.09616).

    Pictures then use less of the trained length. Use `RoPE` for the rotation. Text continues at the next integer, as
    in the authors' code. InternVL3 uses it.

    Args:
        parts: As for `mrope`.
        step: The step between two cells: one number, or one for each picture and video; 1, 1/2, .. 1/256 in the paper.
            For a picture of n cells that spans s positions, pass s / n.
        device: The device of the result.

    Raises:
        ValueError: A size or step is negative, or the number of steps is not that of pictures and videos.
        TypeError: A part is neither one number nor three.

    >>> v2pe([2, (1, 1, 3), 1], step=0.5).tolist()
    [0.0, 1.0, 1.5, 2.0, 2.5, 4.0]
    """

    def place(sizes: tuple[int, int, int], step: float, begin: float) -> tuple[Tensor, float]:
        n = math.prod(sizes)
        along = begin - 1 + step * torch.arange(1, n + 1, dtype=torch.float64, device="cpu")
        return along[:, None].expand(-1, 3), math.ceil(begin - 1 + step * n) + 1

    return _number("positions.v2pe", parts, ("step", step), place, torch.float64, device)[:, 0]


def circle_rope(
    parts: Sequence[Part],
    *,
    radius: float = 10.0,
    alpha: float = 0.5,
    grid_share: float = 0.0,
    time_step: Step = 1,
    device: torch.device | str | None = None,
) -> Float64[Tensor, "seq 3"]:
    """Number images on a ring around the diagonal of text (Circle-RoPE; Wang 2025, 2505.16416).

    All cells of a picture then have the same distance to a text token. The plane of the ring is orthogonal to the
    diagonal of time, row and column. Use `MRoPE` for the rotation. The paper alternates between these positions and
    those of `mrope` from layer to layer. A video (not in the paper) has one ring per frame, along the diagonal.

    Args:
        parts: As for `mrope`.
        radius: The radius of the ring, in positions.
        alpha: The weight of a cell's direction from the picture's centre in its angle; the rest is its index.
        grid_share: The weight of the grid in a cell's place on the plane of the ring (dff_rate in the authors' code);
            0 is the ring, 1 the grid.
        time_step: The step between two frames: one number, or one for each picture and video.
        device: The device of the result.

    Raises:
        ValueError: A size, a step or the radius is negative, the number of steps is not that of pictures and videos, or
            alpha or grid_share is outside 0 to 1.
        TypeError: A part is neither one number nor three.

    >>> circle_rope([(1, 1, 2)], radius=2**0.5, alpha=0.0).round().int().tolist()
    [[0, 1, -1], [0, -1, 1]]
    """
    who = "positions.circle_rope"
    if not 0 <= radius < math.inf:
        raise ValueError(f"{who}: radius must be a finite number, 0 or more; got {radius}.")
    for option, share in (("alpha", alpha), ("grid_share", grid_share)):
        if not 0 <= share <= 1:
            raise ValueError(f"{who}: {option} must be from 0 to 1; got {share}.")
    u = torch.tensor([0.0, 1.0, -1.0], dtype=torch.float64, device="cpu") / math.sqrt(2)  # of time, row and column
    v = torch.tensor([2.0, -1.0, -1.0], dtype=torch.float64, device="cpu") / math.sqrt(6)

    def place(sizes: tuple[int, int, int], step: float, begin: float) -> tuple[Tensor, float]:
        frames, rows, columns = sizes
        down, right = (torch.arange(n, dtype=torch.float64, device="cpu") - (n - 1) / 2 for n in (rows, columns))
        y, x = _cells(down, right).unbind(1)
        if not frames * len(x):
            return torch.zeros(0, 3, device="cpu"), begin
        shares = torch.arange(len(x), dtype=torch.float64, device="cpu") / len(x)
        angle = alpha * _stretched(torch.atan2(y, x)) + (1 - alpha) * 2 * math.pi * shares
        on_u = (1 - grid_share) * radius * angle.cos() + grid_share * x
        on_v = (1 - grid_share) * radius * angle.sin() + grid_share * y
        times = begin + step * torch.arange(frames, dtype=torch.float64, device="cpu")
        cells = (times[:, None, None] + on_u[:, None] * u + on_v[:, None] * v).flatten(0, 1)
        return cells, float(cells.max()) + 1

    return _number(who, parts, ("time_step", time_step), place, torch.float64, device)


def _stretched(angle: Float64[Tensor, " cells"]) -> Float64[Tensor, " cells"]:
    """Rescale angles to the range from 0 to 2 pi; equal angles are returned unchanged."""
    low, high = angle.aminmax()
    return (angle - low) / (high - low) * 2 * math.pi if high > low else angle


def _cells(*axes: Tensor) -> Tensor:
    """Return all combinations of the axes' numbers; the last axis changes fastest."""
    return torch.stack([axis.flatten() for axis in torch.meshgrid(*axes, indexing="ij")], 1)


def _number(
    who: str,
    parts: Sequence[Part],
    step: tuple[str, Step],
    place: _Place,
    dtype: torch.dtype,
    device: torch.device | str | None,
) -> Tensor:
    """Number the parts in order on three axes: text equally on all, and pictures by `place`."""
    sizes = [_sizes(who, part) for part in parts]
    steps = iter(_steps(who, *step, sum(len(size) == 3 for size in sizes)))
    numbered, begin = [torch.zeros(0, 3, dtype=dtype, device="cpu")], 0
    for size in sizes:
        if len(size) == 1:
            numbered.append((begin + torch.arange(size[0], dtype=dtype, device="cpu"))[:, None].expand(-1, 3))
            begin += size[0]
        else:
            cells, begin = place(size, next(steps), begin)  # type: ignore[arg-type]
            numbered.append(cells.to(dtype))
    return torch.cat(numbered).to(torch.empty(0, device=device).device)  # None means the default device


def _sizes(who: str, part: Part) -> tuple[int, ...]:
    """Return the number of tokens of a text, or the three sizes of a picture."""
    try:
        sizes = tuple(map(operator.index, _several(part) or [part]))
    except TypeError:
        sizes = ()
    if len(sizes) not in (1, 3):
        raise TypeError(
            f"{who}: a part must be a number of text tokens, or (frames, rows, columns) of a picture; got {part!r}."
        )
    if min(sizes) < 0:
        raise ValueError(f"{who}: the sizes of a part must be 0 or more; got {part!r}.")
    return sizes


def _steps(who: str, option: str, given: Step, n_pictures: int) -> list[float]:
    """Return one step for each picture and video."""
    several = _several(given)
    steps = [float(step) for step in ([given] * n_pictures if several is None else several)]  # type: ignore[arg-type]
    if len(steps) != n_pictures:
        raise ValueError(
            f"{who}: {option} must be one number, or one for each of the {n_pictures} pictures and videos; got "
            f"{len(steps)}. For a picture of one frame any number will do, such as 1."
        )
    if not all(0 <= step < math.inf for step in steps):
        raise ValueError(f"{who}: {option} must be a finite number, 0 or more; got {given!r}.")
    return steps


def _several(value: Any) -> list[Any] | None:
    """Return the entries of a list, tensor or array; None for a single number."""
    return list(value) if isinstance(value, Iterable) and getattr(value, "ndim", None) != 0 else None
