"""Figures of scores: score by distance with a band, biases by head, mapped distances, and precision."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from posenc import measure
from posenc.encoding import Encoding
from posenc.figures import grammar
from posenc.figures.grammar import DASHES, Drawing, Reals, drawn
from posenc.languages import tr

_HEADS = 8  # lines of one figure that a reader can distinguish
_CELLS = 512  # of a matrix along each side; more would be smaller than a pixel
_CHANGED = 0.4  # the share of distances that a map must change to be visible
_PANELS = 4  # matrices side by side


@drawn
def profile(
    *encodings: Encoding, distance: ArrayLike | int = 257, content: str = "same", head: int = 0, n_draws: int = 64
) -> Drawing:
    """Draw the mean score by distance, with the band between its 5 % and 95 % quantiles.

    Args:
        encodings: Any encodings that affect scores.
        distance: The number of distances from 0 on, or the distances, in tokens; positive ones look back.
        content: "same" draws q = k, "independent" draws q and k separately.
        head: The head that is drawn.
        n_draws: The number of random contents for the mean and the band.

    Raises:
        ValueError: An encoding has no profile, or no encoding is given.
    """
    where = grammar.line_of(distance)
    figure, ((axes,),) = grammar.sheet(7.2, 4.2)
    n_heads = 1
    for encoding, look in zip(encodings, grammar.looks(encodings), strict=True):
        found = measure.profile(encoding, where, content=content, n_draws=n_draws)
        row = min(head, len(found.mean) - 1)
        n_heads = max(n_heads, len(found.mean))
        axes.fill_between(where, found.low[row], found.high[row], color=look["color"], alpha=0.16, linewidth=0)
        axes.plot(where, found.mean[row], **look)
    axes.axhline(0, color=grammar.SOFT, linewidth=0.8)
    axes.set(xlabel=tr("distance (tokens)"), ylabel=tr("score, scaled, before the softmax"))
    axes.margins(x=0.01)
    drawn_as = "q = k" if content == "same" else tr("q and k independent")
    title = tr("Mean score, {content}, with 5–95 % band", content=drawn_as)
    if n_heads > 1:
        title = tr("Mean score of head {head}, {content}, with 5–95 % band", head=head, content=drawn_as)
    grammar.name_lines(axes, title, encodings)
    return figure


@drawn
def bias_curves(encoding: Encoding, distance: ArrayLike | int = 129) -> Drawing:
    """Draw the bias by distance, one line per head, from light for the first head to dark for the last.

    Args:
        encoding: One with a bias.
        distance: The number of distances from 0 on, or the distances, in tokens; positive ones look back.

    Raises:
        ValueError: The encoding adds nothing to scores.
    """
    where = grammar.line_of(distance)
    curves = measure.bias_curve(encoding, where)
    chosen = grammar.spread(len(curves), _HEADS)
    figure, ((axes,),) = grammar.sheet(7.2, 4.2)
    for head, shade in zip(chosen, grammar.shades(grammar.colour_of(encoding), len(chosen)), strict=True):
        axes.plot(where, curves[head], color=shade, label=tr("head {head}", head=head))
    axes.axhline(0, color=grammar.SOFT, linewidth=0.8)
    axes.set(xlabel=tr("distance (tokens)"), ylabel=tr("bias (added to the score)"))
    axes.set_title(tr("Bias of each head: {encoding}", encoding=grammar.label_of(encoding)))
    axes.margins(x=0.01)
    if len(chosen) > 1:
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


@drawn
def bias_matrix(encoding: Encoding, length: int = 64, heads: Sequence[int] | None = None) -> Drawing:
    """Draw the bias of each query and key, one panel per head, all on one scale.

    Args:
        encoding: One with a bias.
        length: The length of the text, in tokens.
        heads: The heads; up to four, evenly spaced, if left out.

    Raises:
        ValueError: The encoding adds nothing to scores.
    """
    found = measure.bias_matrix(encoding, np.arange(length), np.arange(length))
    chosen = grammar.spread(len(found), _PANELS) if heads is None else list(heads)
    n = len(chosen)
    figure, axes = grammar.sheet(1.6 + 2.9 * n, 4.0, columns=n, sharey=True)
    low, high = grammar.span(found[chosen])
    for head, panel in zip(chosen, axes[0], strict=True):
        mesh = grammar.tint(panel, found[head], np.arange(length), np.arange(length), max(-low, high))
        panel.set(xlabel=tr("key position (tokens)"), aspect="equal", title=tr("head {head}", head=head))
    axes[0, 0].set_ylabel(tr("query position (tokens)"))
    axes[0, 0].invert_yaxis()
    scale = grammar.bar(mesh, list(axes[0]), tr("bias (added to the score)"), fraction=0.03)
    if low < high:
        scale.ax.set_ylim(low, high)
    grammar.head(figure, tr("Bias of query and key: {encoding}", encoding=grammar.label_of(encoding)))
    return figure


@drawn
def effective_distance(encoding: Encoding, length: int | None = None) -> Drawing:
    """Draw mapped distances: as a matrix, and compared with true distances for the last query.

    Args:
        encoding: One that maps distances: Self-Extend, ReRoPE, leaky ReRoPE, dual chunk.
        length: The length of the text, in tokens; if left out, the first of 64, 128, .. 4,096 that shows the mapping.

    Raises:
        ValueError: The encoding does not map distances.
    """
    found = _map_at_work(encoding) if length is None else measure.effective_distance(encoding, length)
    length = len(found)
    figure, axes = grammar.sheet(9.4, 4.2, columns=2)
    left, right = axes[0]
    here = np.arange(length)
    some = here[:: -(-length // _CELLS)]
    seen = np.where(some[:, None] >= some, found[np.ix_(some, some)], np.nan)  # a causal model needs no others
    grammar.paint(left, seen, some, some, meaning=tr("mapped distance (tokens)"))
    left.set(xlabel=tr("key position (tokens)"), ylabel=tr("query position (tokens)"))
    left.set(aspect="equal", title=tr("by query and key"))
    grammar.head(figure, tr("Mapped distance: {encoding}", encoding=grammar.label_of(encoding)))
    grammar.space(figure)
    true = length - 1 - here
    right.plot(true, true, color=grammar.SOFT, linewidth=1.0, linestyle=DASHES[1], label=tr("true"))
    right.plot(true, found[-1], color=grammar.colour_of(encoding), label=tr("mapped"))
    right.set(xlabel=tr("true distance (tokens)"), ylabel=tr("mapped distance (tokens)"))
    right.set_title(tr("for the last query"))
    right.legend(loc="upper left")
    return figure


def _map_at_work(encoding: Encoding) -> Reals:
    """Return the mapped distances of the shortest text in which many distances of the last query change."""
    for length in (64, 128, 256, 512, 1024, 2048, 4096):
        found = measure.effective_distance(encoding, length)
        true = length - 1 - np.arange(length)
        if np.mean(found[-1] != true) > _CHANGED:
            break
    return found


@drawn
def precision(
    encoding: Encoding, *, up_to: int = 1_000_000, dtypes: Sequence[str] = ("float32", "bfloat16", "float16")
) -> Drawing:
    """Draw the error of the angles by position in each dtype, on logarithmic axes.

    The left panel shows the encoding's own tables, which are rounded at the end. The right one shows the usual formula,
    which computes the angles in that dtype.

    Args:
        encoding: One that rotates by angles, or adds their sines and cosines.
        up_to: The last position, in tokens.
        dtypes: Some of "float32", "bfloat16" and "float16", one line each.

    Raises:
        ValueError: The encoding has no angles.
    """
    pos = np.unique(np.geomspace(1, up_to, 240).astype(int))
    figure, axes = grammar.sheet(9.4, 4.4, columns=2, sharey=True)
    titles = (tr("posenc: float64 angles, then rounded"), tr("most code: angles computed in the dtype"))
    for formula, title, panel in zip((False, True), titles, axes[0], strict=True):
        for i, (dtype, shade) in enumerate(zip(dtypes, _by_dtype(encoding, len(dtypes)), strict=True)):
            error = measure.phase_error(encoding, pos, dtype, formula=formula)
            shown = np.where(error > 0, error, np.nan)  # a logarithmic axis cannot show an error of 0
            panel.plot(pos, shown, color=shade, linestyle=DASHES[i % len(DASHES)], label=dtype)
        panel.axhline(np.pi, color=grammar.SOFT, linewidth=0.9)
        grammar.log_axis(panel.xaxis)
        panel.set(yscale="log", xlabel=tr("position (tokens)"), title=title)
        panel.margins(x=0.02)
    axes[0, 0].set_ylabel(tr("largest phase error (radians)"))
    axes[0, 0].annotate(
        tr("half a rotation: the angle is arbitrary"), (1, np.pi), (0, -11), textcoords="offset points", fontsize=9
    )
    grammar.head(figure, tr("Phase error by position: {encoding}", encoding=grammar.label_of(encoding)))
    axes[0, 1].legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def _by_dtype(encoding: Encoding, n: int) -> list[str]:
    return grammar.shades(grammar.colour_of(encoding), n)[::-1]
