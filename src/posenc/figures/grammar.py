"""The parts that all figures share: fonts, backgrounds, colours, axes, lines and matrices.

Position and distance are on the x axis. Every encoding has its own colour from `posenc.colours`; several curves of one
encoding differ by shade or dash. Matrices are blue below zero, white at zero and red above. pyplot is not used, so no
window opens and no figure is shown twice.
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

from posenc import colours, languages, registry
from posenc.encoding import Encoding
from posenc.figures import fonts
from posenc.languages import tr

Reals = NDArray[np.float64]
P = ParamSpec("P")

INK, SOFT, HAIR, NOTHING = "#1c1e22", "#565b64", "#e4e2dc", "#cfcfcf"
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1.2, 1.6)), (0, (7, 2, 1.4, 2)))
MAP = colors.LinearSegmentedColormap.from_list("posenc", list(colours.DIVERGING))
_PLAIN = 0.7  # place of the colour itself between the lightest and the darkest shade
_CHARACTERS = 88  # characters of a legend that fit into the width of one panel
STYLE: Mapping[str, Any] = {
    "figure.facecolor": colours.PAPER,
    "figure.constrained_layout.use": True,
    "figure.dpi": 110,
    "savefig.dpi": 160,
    "font.family": fonts.PLAIN,
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
    "svg.hashsalt": "posenc",  # without it, ids in an SVG file differ between runs
}
_METADATA = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}  # no time stamps, so files are reproducible


class Drawing(Figure):
    """A matplotlib figure that notebooks show without pyplot."""

    def savefig(self, fname: Any, **options: Any) -> None:
        """Write the figure in this package's style, without a time stamp."""
        kind = options.get("format") or Path(fname).suffix[1:] if isinstance(fname, (str, os.PathLike)) else "png"
        if kind in _METADATA:
            options["metadata"] = {**_METADATA[kind], **(options.get("metadata") or {})}
        with style.context(["default", dict(STYLE)]):
            super().savefig(fname, **options)

    def _repr_png_(self) -> bytes:
        """Return the PNG that a notebook shows."""
        held = io.BytesIO()
        self.savefig(held, format="png", dpi=110)
        return held.getvalue()


def drawn(function: Callable[P, Drawing]) -> Callable[P, Drawing]:
    """Decorate a function to draw in this package's style, in a language that an installed font can write.

    The caller's style is not changed.
    """

    @wraps(function)
    def draw(*args: P.args, **options: P.kwargs) -> Drawing:
        language, families = fonts.choose()
        with languages.use(language), style.context(["default", {**STYLE, "font.family": families}]):
            return function(*args, **options)

    return draw


def sheet(width: float, height: float, rows: int = 1, columns: int = 1, **options: Any) -> tuple[Drawing, Any]:
    """Return a figure with a size in inches, and its axes as an array (rows, columns)."""
    figure = Drawing(figsize=(width, height))
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


def head(figure: Drawing, title: str) -> None:
    """Write a common title above several panels."""
    figure.suptitle(title, x=0.01, ha="left", fontsize=STYLE["axes.titlesize"])


def space(figure: Drawing, width: float = 0.08) -> None:
    """Set the space between columns, as a fraction of the figure's width, so that labels do not touch."""
    engine = figure.get_layout_engine()
    assert isinstance(engine, ConstrainedLayoutEngine)
    engine.set(wspace=width)


def name_of(encoding: Encoding) -> str:
    """Return an encoding's registered name, or `package.module:Class` for a user class.

    >>> from posenc import RoPE
    >>> name_of(RoPE(head_dim=64))
    'rope'
    """
    cls = type(encoding)
    card = registry.card_of(cls)
    return card.name if card else f"{cls.__module__}:{cls.__qualname__}"


def label_of(encoding: Encoding, longest: int = 56) -> str:
    """Return an encoding as Python code without default options, with as many options as fit into `longest`.

    >>> from posenc import RoPE
    >>> label_of(RoPE(head_dim=64)), label_of(RoPE(head_dim=64, base=5e5))
    ('RoPE(head_dim=64)', 'RoPE(head_dim=64, base=500000.0)')
    """
    options = {k: v for k, v in encoding.options().items() if isinstance(v, (int, float, str, tuple))}
    usual = _defaults(encoding, options)
    shown = [f"{key}={value!r}" for key, value in options.items() if key not in usual or value != usual[key]]
    whole = len(shown)
    while shown and len(_write(encoding, shown, whole)) > longest:
        shown.pop()
    return _write(encoding, shown, whole) if shown else encoding.name


def _write(encoding: Encoding, shown: list[str], whole: int) -> str:
    return f"{encoding.name}({', '.join(shown)}{', …' if len(shown) < whole else ''})"


def _defaults(encoding: Encoding, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of an instance that is constructed with only the required ones."""
    cls = type(encoding)
    parameters = inspect.signature(cls).parameters.values()
    required = {p.name: options[p.name] for p in parameters if p.default is p.empty and p.name in options}
    try:
        with torch.random.fork_rng(devices=[]):  # the caller's random state stays unchanged
            twin = cls(**required)
    except (TypeError, ValueError):
        return {p.name: p.default for p in parameters if p.default is not p.empty}
    return {key: value for key, value in twin.options().items() if key not in required}


def colour_of(encoding: Encoding) -> str:
    """Return the encoding's colour for a light background."""
    return colours.colour(name_of(encoding))


def shades(code: str, n: int) -> list[str]:
    """Return n shades of a colour, from light but readable to dark; a single one is the colour itself.

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
    """Return the colour, dash and label of each encoding's line.

    Dashes differ as well as colours, for colour-blind readers and for lines that coincide.

    Raises:
        ValueError: No encoding is given.
    """
    if not encodings:
        raise ValueError("figures: there is nothing to draw; got no encoding. Pass at least one.")
    return [
        {"color": colour_of(encoding), "linestyle": DASHES[i % len(DASHES)], "label": label_of(encoding, 44)}
        for i, encoding in enumerate(encodings)
    ]


def name_lines(axes: Axes, title: str, encodings: Sequence[Encoding]) -> None:
    """Write the title, with the name of a single encoding, or with a legend for several."""
    if len(encodings) == 1:
        axes.set_title(tr("{title}: {encoding}", title=title, encoding=label_of(encodings[0])))
    else:
        axes.set_title(title)
        legend_above(axes)


def legend_above(axes: Axes) -> None:
    """Put the legend between the title and the axes, in as many columns as fit, so that it hides no line."""
    _, labels = axes.get_legend_handles_labels()
    columns = max(1, min(len(labels), _CHARACTERS // (max(map(len, labels)) + 8)))
    axes.legend(loc="lower left", bbox_to_anchor=(-0.01, 1.0), ncols=columns, borderaxespad=0.1, handlelength=2.6)
    axes.set_title(axes.get_title(loc="left"), pad=9 + 15.5 * math.ceil(len(labels) / columns))


def log_axis(axis: Axis) -> None:
    """Make an axis logarithmic, with plain numbers such as 10k instead of powers of ten."""
    (axis.axes.set_xscale if axis is axis.axes.xaxis else axis.axes.set_yscale)("log")
    axis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))


def short(value: float) -> str:
    """Format a power of ten in few characters, for ticks.

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
    """Return x coordinates for positions: the positions, or their indices if they have several axes."""
    found = line_of(pos)
    return found.astype(float) if found.ndim == 1 else np.arange(len(found), dtype=float)


def paint(
    axes: Axes, values: ArrayLike, x: ArrayLike, y: ArrayLike, *, meaning: str, limit: float | None = None
) -> None:
    """Draw a matrix (len(y), len(x)), zero in white, with a colour bar over the range of the values.

    Args:
        axes: The axes; y grows downwards, like the rows of a matrix.
        values: The matrix; entries that are not finite stay grey.
        x: A coordinate for each column.
        y: A coordinate for each row.
        meaning: The label of the colour bar, with the unit.
        limit: The value of the deepest red; minus this is the deepest blue. The largest magnitude if left out.
    """
    low, high = span(values)
    mesh = tint(axes, values, x, y, limit or max(-low, high))
    axes.invert_yaxis()
    scale = bar(mesh, [axes], meaning, fraction=0.06)
    if limit is None and low < high:
        scale.ax.set_ylim(low, high)


def tint(axes: Axes, values: ArrayLike, x: ArrayLike, y: ArrayLike, limit: float) -> QuadMesh:
    """Draw only the cells, for panels that share one colour bar; arguments as for `paint`."""
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
    """Put the colour bar of a matrix next to its axes."""
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
    """Choose at most `most` of n indices, evenly spaced, including the first and the last.

    >>> spread(3, 4), spread(8, 4)
    ([0, 1, 2], [0, 2, 5, 7])
    """
    if n <= most:
        return list(range(n))
    return [round(i * (n - 1) / (most - 1)) for i in range(most)]
