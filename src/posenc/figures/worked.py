"""A worked example with d_model = 4, number by number, and the two most frequent mistakes in it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from posenc import colours, measure
from posenc.encodings import Sinusoidal
from posenc.figures import grammar
from posenc.figures.grammar import Drawing, drawn
from posenc.languages import tr

Reals = NDArray[np.float64]
_WRONG = "#b2182b"


@dataclass(frozen=True)
class Worked:
    """The numbers of two sinusoidal vectors with d_model = 4, and of their products.

    Args:
        pos: The two positions.
        inv_freq: Radians per position of the two pairs.
        first: The vector of the first position: sin, cos, sin, cos.
        second: The vector of the second position.
        products: The products in each dimension.
        dot: Their sum, the dot product, which depends only on the distance.
        cosine: `dot` divided by the lengths of both vectors, each √2.
        mixed: The dot product after the first mistake, with the second vector in the other order (sin, sin, cos, cos).
            It depends on both positions.
        mixed_shifted: The same, both positions one later; it differs from `mixed`, though the distance is the same.
        dot_shifted: The right dot product, both positions one later; it equals `dot`.
    """

    pos: tuple[int, int]
    inv_freq: Reals
    first: Reals
    second: Reals
    products: Reals
    dot: float
    cosine: float
    mixed: float
    mixed_shifted: float
    dot_shifted: float


def work_out(first: int = 1, second: int = 3) -> Worked:
    """Compute the worked example for two positions with d_model = 4 and base 10,000, by the code that models run.

    Args:
        first: A position, in tokens.
        second: Another one.

    >>> found = work_out(1, 3)
    >>> round(found.dot, 4), round(found.cosine, 4)  # cos 2 + cos 0.02, and half of it
    (0.5837, 0.2918)
    """
    right, other = Sinusoidal(d_model=4), Sinusoidal(d_model=4, order="concatenated")
    a, b, a_next, b_next = measure.heat_map(right, [first, second, first + 1, second + 1])
    mixed, mixed_next = measure.heat_map(other, [second, second + 1])
    cosine = measure.similarity(np.stack([a, b]), cosine=True)[0, 1]
    return Worked(
        pos=(first, second),
        inv_freq=measure.frequencies_of(right)[0],
        first=a,
        second=b,
        products=a * b,
        dot=float(a @ b),
        cosine=float(cosine),
        mixed=float(a @ mixed),
        mixed_shifted=float(a_next @ mixed_next),
        dot_shifted=float(a_next @ b_next),
    )


@drawn
def worked_example(first: int = 1, second: int = 3) -> Drawing:
    """Draw the worked example as a table: angles, vectors, products, dot product, cosine, and the two mistakes.

    Args:
        first: A position, in tokens.
        second: Another one.
    """
    found = work_out(first, second)
    figure, ((axes,),) = grammar.sheet(8.6, 5.4)
    axes.set_axis_off()
    axes.set(xlim=(0, 1), ylim=(0, 1))
    axes.set_title(tr("Two sinusoidal vectors with d_model = 4, base 10,000, number by number"))
    _write_table(axes, found)
    _write_remarks(axes, found)
    return figure


def _write_table(axes: Axes, found: Worked) -> None:
    m, n = found.pos
    slow = f"{found.inv_freq[1]:g}"
    angles = [f"sin(p · {w})" if i % 2 == 0 else f"cos(p · {w})" for i, w in enumerate(("1", "1", slow, slow))]
    columns = (0.30, 0.46, 0.62, 0.78, 0.97)
    rows = [
        ("", [*(tr("dimension {number}", number=i) for i in range(4)), tr("sum")]),
        (tr("formula"), [*angles, ""]),
        (tr("position p = {position}", position=m), [*_spell(found.first), ""]),
        (tr("position p = {position}", position=n), [*_spell(found.second), ""]),
        (tr("product"), [*_spell(found.products), f"{found.dot:.4f}"]),
    ]
    for i, (title, cells) in enumerate(rows):
        y = 0.955 - 0.075 * i
        axes.text(0.0, y, title, va="center", fontweight="bold" if i in (2, 3) else "normal")
        for x, cell in zip(columns, cells, strict=True):
            soft = grammar.SOFT if i < 2 else grammar.INK
            axes.text(x, y, cell, ha="right", va="center", color=soft, fontsize=10 if i != 1 else 9)
        if i in (1, 3):
            axes.plot((0, 1), (y - 0.038, y - 0.038), color=grammar.SOFT, linewidth=0.8)
    axes.texts[-1].set_color(colours.colour("sinusoidal"))
    axes.texts[-1].set_fontweight("bold")


def _write_remarks(axes: Axes, found: Worked) -> None:
    m, n = found.pos
    d = abs(n - m)
    slow = f"{d * found.inv_freq[1]:g}"
    of = {"m": m + 1, "n": n + 1, "d": d, "slow": slow, **vars(found)}
    right, wrong = colours.colour("sinusoidal"), _WRONG
    lines = (
        (right, tr("Dot product"), tr("cos({d}) + cos({slow}) = {dot:.4f}: depends only on the distance {d}.", **of)),
        (right, "", tr("Positions {m} and {n} give the same: {dot_shifted:.4f}.", **of)),
        (right, tr("Cosine"), tr("dot product / (√2 · √2) = {dot:.4f} / 2 = {cosine:.4f}.", **of)),
        (
            wrong,
            tr("Mistake 1: mixed orders"),
            tr("one vector as sin, cos, sin, cos and the other as sin, sin, cos, cos"),
        ),
        (wrong, "", tr("gives {mixed:.4f}, and {mixed_shifted:.4f} for both positions one later:", **of)),
        (wrong, "", tr("it depends on both positions, not only on their distance.")),
        (
            wrong,
            tr("Mistake 2: no division"),
            tr("{dot:.4f} is not a cosine: at distance 0 it is 2.0000, not 1.", **of),
        ),
        (wrong, "", tr("A vector's length is √(d_model / 2); divide by both lengths, here by 2.")),
    )
    y = 0.56
    for colour, title, said in lines:
        y -= 0.03 if title else 0.0
        axes.text(0.0, y, title, color=colour, fontweight="bold", va="center")
        axes.text(0.30, y, said, va="center")
        y -= 0.055


def _spell(numbers: Reals) -> list[str]:
    return [f"{x:.4f}".replace("-", "−") for x in numbers]
