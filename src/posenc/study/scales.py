"""Lines to draw, and the arithmetic of drawing them: ranges, ticks, and labels that do not overlap."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import quantiles

from .marks import Mark

GUESSING = 8.0  # bits per byte of a uniform guess; an axis need not reach above it


@dataclass(frozen=True)
class Line:
    """One encoding's line: x positions (log2), means, the range and the single values over seeds."""

    name: str
    mark: Mark
    xs: tuple[float, ...]
    ys: tuple[float, ...]
    ranges: tuple[tuple[float, float], ...] = ()
    seeds: tuple[tuple[float, ...], ...] = ()
    note: str = ""
    points: bool = True


def _third_quartile(values: Sequence[float]) -> float:
    return quantiles(values, n=4, method="inclusive")[2] if len(values) > 1 else values[0]


def y_range(lines: Sequence[Line]) -> tuple[float, float, bool]:
    """Return the y axis' low and high end, and whether a line lies above it.

    The high end follows the third quartile of the lines' first and last values and is never above a uniform
    guess (unless every line is), so that lines that explode leave at the top and do not flatten the others.
    """
    values = [y for line in lines for y in line.ys]
    values += [v for line in lines for span in line.ranges for v in span]
    if not values:
        return 0.0, 1.0, False
    low, high = min(values), max(values)
    quarter = max(_third_quartile([line.ys[end] for line in lines]) for end in (0, -1))
    cap = max(low + 2.0 * (quarter - low), low + 0.5)
    if low < GUESSING - 0.5:
        cap = min(cap, GUESSING + 0.2)
    clipped = high > cap + 0.15 * (cap - low)
    top = cap if clipped else max(high, low + 0.1)
    pad = 0.04 * (top - low)
    # room below the lowest line for the label at the bottom of the plot
    return max(low - 2.2 * pad, 0.0), top if clipped else top + pad, clipped


def y_ticks(low: float, high: float) -> list[float]:
    """Return about five round values within the range."""
    raw = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(raw))
    step = min((m * power for m in (1, 2, 2.5, 5, 10)), key=lambda s: abs(s - raw))
    first = math.ceil(low / step - 1e-9)
    return [round(k * step, 6) for k in range(first, math.floor(high / step + 1e-9) + 1)]


def spread_labels(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Move labels apart as little as possible (least squares), in their order and within the range.

    `wanted` must be sorted. Labels closer than `gap` are pooled and centred on their mean place; labels that do not
    fit into the range at all are spaced evenly over it.
    """
    count = len(wanted)
    if count > 1 and (count - 1) * gap > high - low:
        return [low + k * (high - low) / (count - 1) for k in range(count)]
    blocks: list[tuple[float, int]] = []  # mean of (wanted - gap * place), size
    for place, value in enumerate(wanted):
        block = (value - gap * place, 1)
        while blocks and blocks[-1][0] > block[0]:
            mean, size = blocks.pop()
            block = ((mean * size + block[0] * block[1]) / (size + block[1]), size + block[1])
        blocks.append(block)
    shifted = [mean for mean, size in blocks for _ in range(size)]
    roof = high - gap * (count - 1)
    return [min(max(mean, low), roof) + gap * place for place, mean in enumerate(shifted)]


def shorten(name: str, letters: int) -> str:
    """Return the name, or its two ends around an ellipsis if it is longer than `letters`."""
    if len(name) <= letters:
        return name
    tail = max(letters // 3, 1)
    return f"{name[: letters - tail - 1]}…{name[-tail:]}"
