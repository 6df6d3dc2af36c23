"""Pictures drawn with characters, readable without colour and without Unicode."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rich.color import Color
from rich.style import Style
from rich.text import Text

from posenc import colours
from posenc.cli.picture import SEED, Picture, Series

_MARGIN = 10  # characters left of a drawing


@dataclass(frozen=True)
class Page:
    """What a drawing may use: its width, Unicode blocks, and coloured cells."""

    width: int
    blocks: bool
    colour: bool

    @property
    def shades(self) -> str:
        """Characters from the lightest to the darkest."""
        return " ░▒▓█" if self.blocks else " .:-=+*#%@"

    @property
    def steps(self) -> str:
        """Characters that fill a cell from the bottom, from empty to full."""
        return " ▁▂▃▄▅▆▇█" if self.blocks else " .:#"

    @property
    def corner(self) -> tuple[str, str, str]:
        """The axes: vertical, corner, horizontal."""
        return ("│", "└", "─") if self.blocks else ("|", "+", "-")


def draw(picture: Picture, page: Page) -> list[Text]:
    """Draw a picture as lines, with a caption that names the construction of its numbers."""
    if picture.kind == "none":
        return [Text(picture.title)]
    lines = [Text(f"{picture.title[0].upper()}{picture.title[1:]}, drawn for {picture.drawn_for}")]
    if picture.learned:
        lines.append(Text(f"Learned: shown as freshly initialised (seed {SEED}); training changes it.", "italic"))
    lines.append(Text(""))
    if picture.kind == "vectors":
        return lines + _draw_heat_map(picture, page)
    return lines + (_draw_heads if len(picture.series) > 1 else _draw_curve)(picture, page)


def _draw_heat_map(picture: Picture, page: Page) -> list[Text]:
    n_dims = len(picture.x)
    cell = 2 if 2 * n_dims <= page.width - _MARGIN else 1
    shown = min(n_dims, (page.width - _MARGIN) // cell)
    numbers = [value for series in picture.series for value in series.values]
    low, high = min(numbers), max(numbers)
    if low < 0 < high:
        high = max(-low, high)
        low = -high  # zero is the middle of the scale
    of_all = "" if shown == n_dims else f" of {n_dims}"
    lines = [Text(f"{'position':>{_MARGIN - 1}} dimensions 0 to {shown - 1}{of_all}")]
    for series in picture.series:
        line = Text(f"{series.label:>{_MARGIN - 1}} ")
        for value in series.values[:shown]:
            line.append_text(_paint(_part(value, low, high), cell, page))
        lines.append(line)
    return [*lines, Text(""), _draw_scale(low, high, page)]


def _draw_scale(low: float, high: float, page: Page) -> Text:
    n_steps = 9 if page.colour else len(page.shades)
    line = Text(f"{_number(low):>{_MARGIN - 1}} ")
    for i in range(n_steps):
        line.append_text(_paint(i / (n_steps - 1), 2, page))
    return line.append(f" {_number(high)}")


def _paint(part: float, cell: int, page: Page) -> Text:
    """Return one cell of the heat map for a value's part of the scale, 0 to 1."""
    if not page.colour:
        return Text(page.shades[min(int(part * len(page.shades)), len(page.shades) - 1)] * cell)
    return Text(" " * cell, Style(bgcolor=Color.from_rgb(*colours.rgb(colours.diverging(part)))))


def _draw_curve(picture: Picture, page: Page, n_rows: int = 8) -> list[Text]:
    values = picture.series[0].values[: page.width - _MARGIN]
    low, high = _ends([*values, 0.0])
    rows = _fill(values, low, high, n_rows, page)
    labels = [""] * n_rows
    labels[-1 - min(int(_part(0.0, low, high) * n_rows), n_rows - 1)] = "0"
    labels[0], labels[-1] = _number(high), _number(low)
    lines = [
        Text(f"{label:>{_MARGIN - 2}} {page.corner[0]}").append(row, "cyan")
        for label, row in zip(labels, rows, strict=True)
    ]
    return lines + _draw_axis(len(values), page)


def _draw_heads(picture: Picture, page: Page) -> list[Text]:
    """Draw one strip per head, all on one scale."""
    n = min(len(picture.x), page.width - _MARGIN)
    numbers = [value for series in picture.series for value in series.values[:n]]
    low, high = _ends(numbers)
    lines = []
    for series in picture.series:
        strip = _fill(series.values[:n], low, high, 2, page)
        for label, row in zip((series.label, ""), strip, strict=True):
            lines.append(Text(f"{label:>{_MARGIN - 2}} {page.corner[0]}").append(row, "cyan"))
    return [*lines, *_draw_axis(n, page), Text(""), *_describe_heads(picture.series, n, low, high)]


def _describe_heads(heads: Sequence[Series], n: int, low: float, high: float) -> list[Text]:
    ends = ", ".join(_number(head.values[n - 1]) for head in heads)
    return [
        Text(f"A full bar is {_number(high)}, an empty one {_number(low)}."),
        Text(f"At distance {n - 1}, head by head: {ends}."),
    ]


def _fill(values: Sequence[float], low: float, high: float, n_rows: int, page: Page) -> list[str]:
    """Return rows of bars, the upper row first; each bar's height is its part of the scale."""
    full = len(page.steps) - 1
    heights = [round(_part(value, low, high) * n_rows * full) for value in values]
    rows = reversed(range(n_rows))
    return ["".join(page.steps[min(max(h - row * full, 0), full)] for h in heights) for row in rows]


def _draw_axis(n: int, page: Page) -> list[Text]:
    _, corner, level = page.corner
    ticks = "".join(f"{tick:<16}" for tick in range(0, n, 16)).rstrip()
    label = "distance" if len(ticks) + 10 <= n else ""
    return [
        Text(" " * (_MARGIN - 1) + corner + level * n),
        Text(" " * _MARGIN + f"{ticks:<{n - len(label)}}{label}"),
    ]


def _ends(values: Sequence[float]) -> tuple[float, float]:
    """Return the least and the largest finite value."""
    finite = [value for value in values if math.isfinite(value)] or [0.0]
    return min(finite), max(finite)


def _part(value: float, low: float, high: float) -> float:
    """Return a value's part of the scale; infinity, as of a window, is at the end."""
    return (min(max(value, low), high) - low) / (high - low) if high > low else 0.5


def _number(value: float) -> str:
    return f"{value:.3g}" if value else "0"
