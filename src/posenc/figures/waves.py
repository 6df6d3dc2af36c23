"""Figures of frequencies: wavelengths by pair, and the sum over infinitely many pairs for several laws."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from posenc import measure
from posenc.encoding import Encoding
from posenc.figures import grammar
from posenc.figures.grammar import DASHES, Drawing, drawn
from posenc.languages import tr

# Laws of frequencies are not encodings: they have seven colours that colour-blind readers can distinguish.
_LAW_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#8b3f86", "#a67c00", "#5c6068", "#46a8dd")
_DOTS = 64  # up to so many pairs each gets a dot


@drawn
def wavelengths(*encodings: Encoding, length: int | None = None) -> Drawing:
    """Draw the wavelength of each pair of dimensions, in positions, on a logarithmic axis.

    Args:
        encodings: Rotary or sinusoidal ones. Each axis, and each head with its own frequencies, gets a line.
        length: The length of a text, in tokens, drawn as a line: pairs above it make no full rotation in the text.

    Raises:
        ValueError: An encoding has no wavelengths, or no encoding is given.
    """
    figure, ((axes,),) = grammar.sheet(7.2, 4.2)
    for encoding, look in zip(encodings, grammar.looks(encodings), strict=True):
        rows = np.atleast_2d(measure.wavelengths(encoding))
        rows = np.unique(rows.reshape(-1, rows.shape[-1]), axis=0)
        for row in rows:
            finite = np.isfinite(row)
            pairs = np.arange(len(row))
            dots = {"marker": "o", "markersize": 2.6, "linewidth": 1.0} if len(row) <= _DOTS else {}
            axes.plot(pairs[finite], row[finite], **dots, **look)
            look["label"] = "_"  # one legend entry for all axes
    grammar.log_axis(axes.yaxis)
    axes.set(xlabel=tr("pair of dimensions (number)"), ylabel=tr("wavelength (positions)"))
    if length is not None:
        axes.axhline(length, color=grammar.SOFT, linewidth=1.2, linestyle=DASHES[1])
        axes.annotate(
            tr("{length:,} tokens: no full rotation above", length=length),
            (0.01, length),
            xycoords=("axes fraction", "data"),
            xytext=(0, 4),
            textcoords="offset points",
            color=grammar.SOFT,
            fontsize=9,
        )
    grammar.name_lines(axes, tr("Wavelength of each pair"), encodings)
    return figure


@drawn
def oscillatory_integrals(
    laws: Sequence[str] = tuple(measure.LAWS), *, near: float = 40.0, far: float = 100_000.0
) -> Drawing:
    """Draw the mean cosine of infinitely many pairs by distance, for several laws of frequencies, near and far.

    Args:
        laws: Names in `posenc.measure.LAWS`: radians per position at t, from 0 at the first pair to 1 at the last.
        near: The last distance of the upper panel, in tokens.
        far: The last distance of the lower panel, which has a logarithmic axis.

    Raises:
        ValueError: A law is unknown, or there is none.
    """
    figure, axes = grammar.sheet(7.2, 7.0, rows=2)
    for distance, panel in zip((np.linspace(0, near, 401), np.geomspace(1, far, 900)), axes[:, 0], strict=True):
        for i, law in enumerate(laws):
            if law == "constant" and distance[0] > 0:
                continue  # a plain cosine, which would cover the other lines
            mean = measure.law_limit(distance, law).real
            look = {"color": _LAW_COLOURS[i % len(_LAW_COLOURS)], "linestyle": DASHES[i % len(DASHES)]}
            panel.plot(distance, mean, label=_spell(law), **look)
        panel.axhline(0, color=grammar.SOFT, linewidth=0.8)
        panel.set(xlabel=tr("distance (tokens)"), ylabel=tr("mean cosine"))
        panel.margins(x=0.01)
    grammar.log_axis(axes[1, 0].xaxis)
    axes[0, 0].set_title(tr("Mean of cos(distance · θ(t)) over t from 0 to 1: near"))
    endless = "constant" in laws
    axes[1, 0].set_title(tr("The same: far (without θ = 1, which does not decay)") if endless else tr("The same: far"))
    grammar.legend_above(axes[0, 0])
    return figure


@drawn
def finite_size(n_pairs: Sequence[int] = (16, 64), *, base: float = 10000.0, far: float = 100_000.0) -> Drawing:
    """Draw the mean cosine of finitely many pairs, and its limit for infinitely many, by distance.

    Args:
        n_pairs: Numbers of pairs, one line each.
        base: The base of the frequencies.
        far: The last distance, in tokens.

    Raises:
        ValueError: The base is not above 1, or a number of pairs is below 1.
    """
    figure, ((axes,),) = grammar.sheet(7.2, 4.2)
    distance = np.geomspace(1, far, 1200)
    limit = measure.continuous_limit(distance, base=base).real
    for n, shade in zip(n_pairs, grammar.shades(_LAW_COLOURS[0], len(n_pairs)), strict=True):
        mean = limit + measure.finite_size_error(distance, n, base)
        axes.plot(distance, mean, color=shade, linewidth=1.0, label=tr("{n} pairs", n=n))
    axes.plot(distance, limit, color=grammar.INK, linewidth=1.6, label=tr("infinitely many"))
    axes.axhline(0, color=grammar.SOFT, linewidth=0.8)
    grammar.log_axis(axes.xaxis)
    axes.set(xlabel=tr("distance (tokens)"), ylabel=tr("mean cosine"))
    axes.set_title(tr("Mean of cos(distance · θ) over the pairs, base {base:,.0f}", base=base))
    grammar.legend_above(axes)
    return figure


def _spell(law: str) -> str:
    """Return a law of frequencies as mathematics."""
    base, power, exponent = law.partition("^")
    if law == "constant":
        return "θ = 1"
    return f"θ = ${base}^{{{exponent}}}$" if power else f"θ = {law}"
