"""Positions on several axes: how papers and code number text with pictures and video."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Segments = Sequence[int | tuple[int, int, int]]


def mrope_positions(
    segments: Segments,
    time_steps: float | Sequence[float] = 1.0,
    *,
    next_after: str = "all_axes",
    spatial_reset: bool = False,
    side_step: int = 1,
) -> NDArray[np.int64]:
    """Number text, pictures and video on three axes, (3, seq_len): time, row, column.

    A text of n tokens is the number n: its positions rise by 1, equal on all axes. A picture or video is (frames, rows,
    columns) as the language model receives it: cell (t, r, c), frame by frame and row by row, is its start plus
    (floor(t * step), r, c). Source: Wang 2024 (2409.12191), section 2.1; the step, Bai 2025 (2502.13923), section
    2.1.2, and the floor of a product of float32, the code of Qwen2.5-VL.

    spatial_reset (Huang 2025, 2510.23095; OmniGen2, 2506.18871): r and c count from 0 and not from the start.
    side_step (MM-RoPE, Yuan 2025, 2507.08801, scaled position): r and c are multiplied by it.

    Departure: the next segment starts at "the maximum position ID of the preceding modality" plus 1 ("all_axes").
    transformers 5 ignores time: the start plus the longer of rows and columns ("sides"). Where r and c are reset, the
    next start is computed as if they were not, as in the authors' code.
    """
    steps = _each(segments, np.asarray(time_steps, np.float32))
    rows_of_all: list[list[int]] = []
    begin = 0
    for segment in segments:
        if isinstance(segment, int):
            rows_of_all += [[begin + i] * 3 for i in range(segment)]
            begin += segment
            continue
        frames, rows, columns = segment
        step = next(steps)
        times = [int(np.floor(np.float32(t) * step)) for t in range(frames)]
        down, right = ([side_step * i for i in range(n)] for n in (rows, columns))
        corner = 0 if spatial_reset else begin
        rows_of_all += [[begin + t, corner + r, corner + c] for t in times for r in down for c in right]
        counted = [down, right, times if next_after == "all_axes" else []]
        begin += max((axis[-1] + 1 for axis in counted if axis), default=0)
    return np.array(rows_of_all, np.int64).reshape(-1, 3).T


def videorope_positions(segments: Segments, time_steps: float | Sequence[float] = 2.0) -> NDArray[np.float64]:
    """Number text, pictures and video along the diagonal of the three axes, (3, seq_len): time, row, column.

    Paper: Wei et al. 2025, "VideoRoPE", arXiv 2502.05173 (diagonal layout, adjustable temporal spacing): the frames of
    a video lie time_steps apart on the line of the text's positions, and each frame spreads around its point there.
    From the authors' code: cell (r, c) is (r - floor((rows - 1) / 2), c - floor((columns - 1) / 2)) away from it; the
    paper has r - rows / 2. The text continues one after the last frame; in the paper, one step after it.
    HoPE (Li et al. 2025, arXiv 2505.20444) draws a random time step for each video in training.
    """
    steps = _each(segments, np.asarray(time_steps, np.float64))
    numbered: list[list[float]] = []
    begin = 0.0
    for segment in segments:
        if isinstance(segment, int):
            numbered += [[begin + i] * 3 for i in range(segment)]
            begin += segment
            continue
        frames, rows, columns = segment
        step = float(next(steps))
        for t in (begin + step * i for i in range(frames)):
            middle = (rows - 1) // 2, (columns - 1) // 2
            numbered += [[t, t + r - middle[0], t + c - middle[1]] for r in range(rows) for c in range(columns)]
        begin += step * (frames - 1) + 1 if frames else 0
    return np.array(numbered, np.float64).reshape(-1, 3).T


def v2pe_positions(segments: Segments, step: float | Sequence[float]) -> NDArray[np.float64]:
    """Number text, pictures and video on one axis, (seq_len,), where a cell of a picture advances less than a token.

    Paper: Ge et al. 2024, "V2PE", arXiv 2412.09616, section 3: p_i = p_{i-1} + 1 for a token of text and p_{i-1} + step
    for a cell of a picture, step in 1, 1/2, .. 1/256, from p = 0 for the first token. From the authors' code: after a
    picture p is rounded up.
    """
    steps = _each(segments, np.asarray(step, np.float64))
    numbered: list[float] = []
    p = -1.0
    for segment in segments:
        delta, n = (1.0, segment) if isinstance(segment, int) else (float(next(steps)), math.prod(segment))
        numbered += [p + delta * (i + 1) for i in range(n)]
        p = float(math.ceil(p + delta * n))
    return np.array(numbered, np.float64)


def circle_positions(
    segments: Segments,
    *,
    radius: float,
    alpha: float,
    grid_share: float = 0.0,
    time_steps: float | Sequence[float] = 1.0,
) -> NDArray[np.float64]:
    """Number pictures on a ring around the line of the text's positions, (3, seq_len): time, row, column.

    Paper: Wang et al. 2025, "Circle-RoPE", arXiv 2505.16416, section 3 (circular image token index projection): every
    cell of a picture is as far from a token of text as any other. Cells are shifted so that their middle is the origin,
    x the column and y the row. Their angle is alpha times that of (x, y), stretched from its least and greatest to 0
    and 2 pi, plus 1 - alpha times 2 pi i / n of cell i of n, row by row. The ring has the radius, and is perpendicular
    to (1, 1, 1), on u = (-1, 1, 0) / sqrt 2 and v = (1, 1, 1) / sqrt 3 x u, as (column, row, time).

    From the authors' code: a share grid_share (dff_rate there) of each cell is (x, y) itself on u and v. From the code
    of Huang 2025 (2510.23095): frame t of a video has the same ring, shifted along (1, 1, 1) by time_steps * t; the
    next segment starts one after the largest number of the picture.
    """
    steps = _each(segments, np.asarray(time_steps, np.float64))
    u = np.array([-1.0, 1.0, 0.0]) / math.sqrt(2)
    v = np.cross(np.ones(3) / math.sqrt(3), u)
    numbered: list[Array] = []
    begin = 0.0
    for segment in segments:
        if isinstance(segment, int):
            numbered += [np.full(3, begin + i) for i in range(segment)]
            begin += segment
            continue
        frames, rows, columns = segment
        step = float(next(steps))
        cells = [(c - (columns - 1) / 2, r - (rows - 1) / 2) for r in range(rows) for c in range(columns)]
        own = [math.atan2(y, x) for x, y in cells]
        low, high = min(own), max(own)
        ring = []
        for i, ((x, y), angle) in enumerate(zip(cells, own, strict=True)):
            stretched = (angle - low) / (high - low) * 2 * math.pi if high > low else angle
            angle = alpha * stretched + (1 - alpha) * 2 * math.pi * i / len(cells)
            on_u = (1 - grid_share) * radius * math.cos(angle) + grid_share * x
            on_v = (1 - grid_share) * radius * math.sin(angle) + grid_share * y
            ring.append((on_u * u + on_v * v)[::-1])
        picture = [begin + step * t + cell for t in range(frames) for cell in ring]
        numbered += picture
        begin = float(np.max(picture)) + 1
    return np.array(numbered, np.float64).reshape(-1, 3).T


def _each(segments: Segments, steps: NDArray[np.floating]) -> Iterator[np.floating]:
    """Return one step for each picture and video."""
    return iter(np.broadcast_to(steps, sum(not isinstance(segment, int) for segment in segments)))
