"""Positions on several axes: how code numbers text, pictures and video for M-RoPE."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def mrope_positions(
    segments: Sequence[int | tuple[int, int, int]],
    time_steps: float | Sequence[float] = 1.0,
    *,
    next_after: str = "all_axes",
) -> NDArray[np.int64]:
    """Number text, pictures and video on three axes, (3, seq_len): time, row, column.

    A text of n tokens is the number n: its numbers rise by 1, alike on the axes. A picture or video is (frames, rows,
    columns) as the language model sees them: cell (t, r, c), frame by frame and row by row, is its beginning plus
    (floor(t * step), r, c). Source: Wang 2024 (2409.12191), section 2.1; the step, Bai 2025 (2502.13923), section
    2.1.2, and the floor of a product of float32, the code of Qwen2.5-VL.

    Departure: "the maximum position ID of the preceding modality" plus 1 begins what follows ("all_axes"), and
    transformers 5 leaves time out: the beginning plus the longer of rows and columns ("sides").
    """
    n_pictures = sum(not isinstance(segment, int) for segment in segments)
    steps = iter(np.broadcast_to(np.asarray(time_steps, np.float32), n_pictures))
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
        rows_of_all += [[begin + t, begin + r, begin + c] for t in times for r in range(rows) for c in range(columns)]
        begin += max([rows, columns] + ([times[-1] + 1] if next_after == "all_axes" else []))
    return np.array(rows_of_all, np.int64).reshape(-1, 3).T
