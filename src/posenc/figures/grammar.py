"""What all figures share: fonts, grounds, colours, axes, and the two ways of drawing, lines and matrices.

Position and distance stand on x. An encoding has its colour from `posenc.colours` wherever it is drawn; several curves
of one encoding differ by shade or dash. Matrices have blue below zero, white at zero, red above. Nothing here touches
pyplot: figures are plain objects, so that no window opens and none is shown twice.
"""

from __future__ import annotations

import inspect
import io
import math
import os
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec

import numpy as np
import torch
from matplotlib import colors, style
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.collections import QuadMesh
from matplotlib.colorbar import Colorbar
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FuncFormatter
from numpy.typing import ArrayLike, NDArray

from posenc import colours, registry
from posenc.encoding import Encoding

Reals = NDArray[np.float64]
P = ParamSpec("P")

INK, SOFT, HAIR, NOTHING = "#1c1e22", "#565b64", "#e4e2dc", "#cfcfcf"
POSITION, DISTANCE, LANE = "position (tokens)", "distance (tokens)", "lane (number)"
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1.2, 1.6)), (0, (7, 2, 1.4, 2)))
MAP = colors.LinearSegmentedColormap.from_list("posenc", list(colours.DIVERGING))
_PLAIN = 0.7  # of the way from the lightest to the darkest shade: the colour itself
_CHARACTERS = 88  # of a legend that fit into the width of one panel
STYLE: Mapping[str, Any] = {
    "figure.facecolor": colours.PAPER,
    "figure.constrained_layout.use": True,
    "figure.dpi": 110,
    "savefig.dpi": 160,
    "font.family": "DejaVu Sans",  # comes with matplotlib, so that a figure is the same on every machine
    "font.size": 10,
    "text.color": INK,
    "axes.edgecolor": SOFT,
    "axes.labelcolor": INK,
    "axes.titlesize": 10.5,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": HAIR,
    "grid.linewidth": 0.7,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "lines.linewidth": 1.7,
    "legend.frameon": False,
    "legend.fontsize": 9.5,
    "svg.hashsalt": "posenc",  # else the names inside an SVG file differ from run to run
}
_METADATA = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}  # the clock is no part of a figure


class Drawing(Figure):
    """A matplotlib figure that notebooks show, though pyplot does not know it."""

    def savefig(self, fname: Any, **options: Any) -> None:
        """Write the figure in the style that it was drawn in, without the time of day."""
        kind = options.get("format") or Path(fname).suffix[1:] if isinstance(fname, (str, os.PathLike)) else "png"
        if kind in _METADATA:
            options["metadata"] = {**_METADATA[kind], **(options.get("metadata") or {})}
        with style.context(["default", dict(STYLE)]):
            super().savefig(fname, **options)

    def _repr_png_(self) -> bytes:
        """Return what a notebook shows; one call of a function is one figure."""
        held = io.BytesIO()
        self.savefig(held, format="png", dpi=110)
        return held.getvalue()


def drawn(function: Callable[P, Drawing]) -> Callable[P, Drawing]:
    """Draw in this package's style, whatever style the caller has set; the caller's stays."""

    @wraps(function)
    def draw(*args: P.args, **options: P.kwargs) -> Drawing:
        with style.context(["default", dict(STYLE)]):
            return function(*args, **options)

    return draw


def sheet(width: float, height: float, rows: int = 1, columns: int = 1, **options: Any) -> tuple[Drawing, Any]:
    """Return a figure, in inches, and its axes as an array (rows, columns)."""
    figure = Drawing(figsize=(width, height))
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


def head(figure: Drawing, title: str) -> None:
    """Write what several panels have in common above them."""
    figure.suptitle(title, x=0.01, ha="left", fontsize=STYLE["axes.titlesize"])


def space(figure: Drawing, width: float = 0.08) -> None:
    """Leave room between columns, a part of the figure's width, so that no two labels meet."""
    engine = figure.get_layout_engine()
    assert isinstance(engine, ConstrainedLayoutEngine)
    engine.set(wspace=width)


def name_of(encoding: Encoding) -> str:
    """Return an encoding's registered name, or `package.module:Class` of a class of one's own.

    >>> from posenc import RoPE
    >>> name_of(RoPE(head_dim=64))
    'rope'
    """
    cls = type(encoding)
    card = registry.card_of(cls)
    return card.name if card else f"{cls.__module__}:{cls.__qualname__}"


def label_of(encoding: Encoding, longest: int = 56) -> str:
    """Return an encoding as one writes it, without what is as its constructor has it; as many options as fit.

    >>> from posenc import RoPE
    >>> label_of(RoPE(head_dim=64)), label_of(RoPE(head_dim=64, base=5e5))
    ('RoPE(head_dim=64)', 'RoPE(head_dim=64, base=500000.0)')
    """
    told = {k: v for k, v in encoding.options().items() if isinstance(v, (int, float, str, tuple))}
    usual = _usual(encoding, told)
    said = [f"{key}={value!r}" for key, value in told.items() if key not in usual or value != usual[key]]
    whole = len(said)
    while said and len(_write(encoding, said, whole)) > longest:
        said.pop()
    return _write(encoding, said, whole) if said else encoding.name


def _write(encoding: Encoding, said: list[str], whole: int) -> str:
    return f"{encoding.name}({', '.join(said)}{', …' if len(said) < whole else ''})"


def _usual(encoding: Encoding, told: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that are as if only the required ones had been given."""
    cls = type(encoding)
    parameters = inspect.signature(cls).parameters.values()
    required = {p.name: told[p.name] for p in parameters if p.default is p.empty and p.name in told}
    try:
        with torch.random.fork_rng(devices=[]):  # a figure draws no one's random numbers
            twin = cls(**required)
    except (TypeError, ValueError):
        return {p.name: p.default for p in parameters if p.default is not p.empty}
    return {key: value for key, value in twin.options().items() if key not in required}


def colour_of(encoding: Encoding) -> str:
    """Return the encoding's colour on a light ground."""
    return colours.colour(name_of(encoding))


def shades(code: str, n: int) -> list[str]:
    """Return n shades of a colour, from light but readable to dark; one alone is the colour itself.

    >>> shades("#800000", 3)
    ['#c58a8a', '#942727', '#4d0000']
    """
    if n == 1:
        return [code]
    return [_shade(code, i / (n - 1)) for i in range(n)]


def _shade(code: str, part: float) -> str:
    """Return a shade, lightest at 0, the colour itself at 0.7 and darkest at 1."""
    if part < _PLAIN:
        return colours.mix(code, colours.PAPER, 0.54 * (1 - part / _PLAIN))
    return colours.mix(code, "#000000", 0.4 * (part - _PLAIN) / (1 - _PLAIN))


def looks(encodings: Sequence[Encoding]) -> list[dict[str, Any]]:
    """Return colour, dash and label of each encoding's line.

    The dash repeats what the colour says, for readers who cannot tell two colours apart and for lines that coincide.

    Raises:
        ValueError: There are none.
    """
    if not encodings:
        raise ValueError("figures: there is nothing to draw; got no encoding. Pass at least one.")
    return [
        {"color": colour_of(encoding), "linestyle": DASHES[i % len(DASHES)], "label": label_of(encoding, 44)}
        for i, encoding in enumerate(encodings)
    ]


def name_lines(axes: Axes, title: str, encodings: Sequence[Encoding]) -> None:
    """Say what is drawn, and of what: one encoding in the title, several in a legend above."""
    if len(encodings) == 1:
        axes.set_title(f"{title}: {label_of(encodings[0])}")
    else:
        axes.set_title(title)
        legend_above(axes)


def legend_above(axes: Axes) -> None:
    """Put the legend between the title and the axes, where it hides no line, in as many columns as fit."""
    _, labels = axes.get_legend_handles_labels()
    columns = max(1, min(len(labels), _CHARACTERS // (max(map(len, labels)) + 8)))
    axes.legend(loc="lower left", bbox_to_anchor=(-0.01, 1.0), ncols=columns, borderaxespad=0.1, handlelength=2.6)
    axes.set_title(axes.get_title(loc="left"), pad=9 + 15.5 * math.ceil(len(labels) / columns))


def log_axis(axis: Axis) -> None:
    """Make an axis logarithmic, with plain numbers: 10k and not a power of ten."""
    (axis.axes.set_xscale if axis is axis.axes.xaxis else axis.axes.set_yscale)("log")
    axis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))


def short(value: float) -> str:
    """Write a power of ten so that it fits under a tick.

    >>> short(0.01), short(100.0), short(1e4), short(1e6)
    ('0.01', '100', '10k', '1M')
    """
    for unit, letter in ((1e6, "M"), (1e3, "k")):
        if value >= unit:
            return f"{value / unit:,g}{letter}"
    return f"{value:g}"


def line_of(pos: ArrayLike | int) -> Any:
    """Return positions, or distances, as an array; an integer n means 0 .. n - 1."""
    return np.arange(pos) if isinstance(pos, int) else np.asarray(pos)


def coordinates(pos: ArrayLike | int) -> Reals:
    """Return what stands on x for positions: themselves, or their number in the list where they have several axes."""
    found = line_of(pos)
    return found.astype(float) if found.ndim == 1 else np.arange(len(found), dtype=float)


def paint(
    axes: Axes, values: ArrayLike, x: ArrayLike, y: ArrayLike, *, meaning: str, limit: float | None = None
) -> None:
    """Draw a matrix (len(y), len(x)), zero white, with a bar that shows the range that occurs.

    Args:
        axes: Where to draw; y grows downwards, as rows of a matrix do.
        values: What is not finite stays grey.
        x: A coordinate for each column.
        y: A coordinate for each row.
        meaning: The label of the bar, with the unit.
        limit: The value of the deepest red, and less of the deepest blue; the largest that occurs if left out.
    """
    low, high = span(values)
    mesh = tint(axes, values, x, y, limit or max(-low, high))
    axes.invert_yaxis()
    scale = bar(mesh, [axes], meaning, fraction=0.06)
    if limit is None and low < high:
        scale.ax.set_ylim(low, high)


def tint(axes: Axes, values: ArrayLike, x: ArrayLike, y: ArrayLike, limit: float) -> QuadMesh:
    """Draw the cells alone, for a figure whose panels share one bar; arguments as of `paint`."""
    matrix = np.ma.masked_invalid(np.asarray(values, dtype=float))
    bound = limit or 1.0
    axes.grid(visible=False)
    axes.set_facecolor(NOTHING)
    return axes.pcolormesh(edges(x), edges(y), matrix, cmap=MAP, vmin=-bound, vmax=bound, rasterized=True)


def span(*matrices: ArrayLike) -> tuple[float, float]:
    """Return the least and the largest finite value, and 0 if it lies outside them.

    >>> span([1.0, float("inf")], [2.0])
    (0.0, 2.0)
    """
    flat = np.concatenate([np.ravel(np.asarray(m, dtype=float)) for m in matrices])
    flat = flat[np.isfinite(flat)]
    return float(flat.min(initial=0.0)), float(flat.max(initial=0.0))


def bar(mesh: QuadMesh, axes: list[Axes], meaning: str, **options: Any) -> Colorbar:
    """Put the bar of a matrix's colours beside its axes."""
    figure = axes[0].get_figure()
    assert figure is not None
    found = figure.colorbar(mesh, ax=axes, label=meaning, pad=0.02, **options)
    found.outline.set_visible(False)
    found.ax.grid(visible=False)
    return found


def edges(centres: ArrayLike) -> Reals:
    """Return the n + 1 bounds of cells around n coordinates.

    >>> edges([0, 1, 3]).tolist()
    [-0.5, 0.5, 2.0, 4.0]
    """
    x = np.asarray(centres, dtype=float)
    if len(x) == 1:
        return np.array([x[0] - 0.5, x[0] + 0.5])
    middle = (x[1:] + x[:-1]) / 2
    return np.concatenate(([x[0] - (middle[0] - x[0])], middle, [x[-1] + (x[-1] - middle[-1])]))


def spread(n: int, most: int) -> list[int]:
    """Choose at most `most` of n, evenly, the first and the last among them.

    >>> spread(3, 4), spread(8, 4)
    ([0, 1, 2], [0, 2, 5, 7])
    """
    if n <= most:
        return list(range(n))
    return [round(i * (n - 1) / (most - 1)) for i in range(most)]
