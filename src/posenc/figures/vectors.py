"""Figures of position vectors: heat map, values by dimension, points in the plane, dot products, similarity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import ArrayLike

from posenc import measure
from posenc.encoding import Encoding
from posenc.families import Rotary, ValueRotary
from posenc.figures import grammar
from posenc.figures.grammar import Drawing, drawn
from posenc.languages import tr
from posenc.measure.asking import pairs_of

_MANY, _FEW = 16, 5  # points that all get a label; labels if there are more points
_LANES = 256  # dimensions that fit the usual height with a few pixels each


@drawn
def heat_map(encoding: Encoding, pos: ArrayLike | int = 100) -> Drawing:
    """Draw the vector of each position: position on x, dimension on y, zero in white.

    Args:
        encoding: One that adds vectors to tokens, changes them, or rotates q and k.
        pos: The number of positions, or the positions.

    Raises:
        ValueError: The encoding has no position vectors.
    """
    values = measure.heat_map(encoding, grammar.line_of(pos))
    figure, ((axes,),) = grammar.sheet(7.2, 5.0 if values.shape[1] <= _LANES else 7.4)
    grammar.paint(axes, values.T, grammar.coordinates(pos), np.arange(values.shape[1]), meaning=tr("value"))
    axes.set(xlabel=tr("position (tokens)"), ylabel=tr("dimension (number)"), title=_subject(encoding))
    return figure


def _subject(encoding: Encoding) -> str:
    """Return an encoding with what its vectors are."""
    label = grammar.label_of(encoding)
    return {
        "rotary": tr("{encoding}: rotated query, 1 in the first dimension of each pair", encoding=label),
        "values": tr("{encoding}: rotated value, 1 in the first dimension of each pair", encoding=label),
        "embedded": tr("{encoding}: output for a token of ones", encoding=label),
    }.get(encoding.family, tr("{encoding}: the vector added at each position", encoding=label))


@drawn
def lanes(encoding: Encoding, pos: Sequence[int] = (0, 10, 20, 30, 40)) -> Drawing:
    """Draw the values of some positions over the dimensions, one panel per position, all on one scale.

    Args:
        encoding: As for `heat_map`.
        pos: The positions, one panel each.

    Raises:
        ValueError: The encoding has no position vectors.
    """
    values = measure.heat_map(encoding, list(pos))
    figure, axes = grammar.sheet(7.2, 1.0 + 1.05 * len(values), rows=len(values), sharex=True, sharey=True)
    for p, row, panel in zip(pos, values, axes[:, 0], strict=True):
        panel.plot(np.arange(len(row)), row, color=grammar.colour_of(encoding), linewidth=1.0)
        panel.axhline(0, color=grammar.SOFT, linewidth=0.8)
        panel.set_ylabel(tr("position {position}", position=p), rotation=0, ha="right", va="center")
        panel.margins(x=0.01)
    axes[0, 0].set_title(tr("Value in each dimension: {encoding}", encoding=grammar.label_of(encoding)))
    axes[-1, 0].set_xlabel(tr("dimension (number)"))
    return figure


@drawn
def points(*encodings: Encoding, pos: ArrayLike | int = 32, lanes: Sequence[tuple[int, int]] | None = None) -> Drawing:
    """Draw positions as points in the plane of two dimensions, joined in order; one panel per encoding.

    Args:
        encodings: As for `heat_map`.
        pos: The number of positions, or the positions.
        lanes: For each encoding the dimensions on x and on y; if left out, a rotated pair, or two that vary.

    Raises:
        ValueError: An encoding has no position vectors or no such dimension, or no encoding is given.
    """
    looks = grammar.looks(encodings)
    chosen = [_choose(encoding, grammar.line_of(pos)) for encoding in encodings] if lanes is None else list(lanes)
    columns = min(len(encodings), 3)
    rows = -(-len(encodings) // columns)
    side = 4.6 if len(encodings) == 1 else 3.1
    figure, axes = grammar.sheet(side * columns + 0.3, (side + 0.2) * rows, rows, columns)
    for encoding, look, pair, panel in zip(encodings, looks, chosen, axes.flat, strict=False):
        where = measure.points(encoding, grammar.line_of(pos), pair)
        _join(panel, where, grammar.coordinates(pos), look["color"])
        on_x, on_y = (tr("dimension {number}", number=number) for number in pair)
        panel.set(xlabel=on_x, ylabel=on_y, title=grammar.label_of(encoding, 32))
    for panel in axes.flat[len(encodings) :]:
        panel.set_axis_off()
    return figure


@drawn
def dot_product(*encodings: Encoding, middle: int = 50, pos: ArrayLike | int = 101, cosine: bool = False) -> Drawing:
    """Draw the dot product of one position's vector with the vectors of others.

    Args:
        encodings: As for `heat_map`.
        middle: The position that is compared, in tokens.
        pos: The number of other positions, or these positions.
        cosine: Draw the cosine of the angle between them instead.

    Raises:
        ValueError: An encoding has no position vectors, or no encoding is given.
    """
    figure, ((axes,),) = grammar.sheet(7.2, 4.2)
    for encoding, look in zip(encodings, grammar.looks(encodings), strict=True):
        found = measure.by_distance(encoding, middle, grammar.line_of(pos))
        axes.plot(grammar.coordinates(pos), found.cosine if cosine else found.dot, **look)
    axes.axvline(middle, color=grammar.SOFT, linewidth=0.9, linestyle=grammar.DASHES[1])
    axes.set(xlabel=tr("position (tokens)"), ylabel=tr("cosine") if cosine else tr("dot product"))
    axes.margins(x=0.01)
    title = tr("Dot product of position {middle} with all others", middle=middle)
    if cosine:
        title = tr("Cosine of position {middle} with all others", middle=middle)
    grammar.name_lines(axes, title, encodings)
    return figure


@drawn
def similarity(encoding: Encoding, pos: ArrayLike | int = 100, *, cosine: bool = True) -> Drawing:
    """Draw the cosine, or the dot product, of the vectors of each pair of positions, as a matrix.

    Args:
        encoding: As for `heat_map`.
        pos: The number of positions, or the positions.
        cosine: False draws dot products.

    Raises:
        ValueError: The encoding has no position vectors.
    """
    figure, ((axes,),) = grammar.sheet(6.4, 5.0)
    found = measure.similarity(measure.heat_map(encoding, grammar.line_of(pos)), cosine=cosine)
    x = grammar.coordinates(pos)
    label = grammar.label_of(encoding)
    if cosine:
        grammar.paint(axes, found, x, x, meaning=tr("cosine"), limit=1.0)
        axes.set_title(tr("Cosine of positions: {encoding}", encoding=label))
    else:
        grammar.paint(axes, found, x, x, meaning=tr("dot product"))
        axes.set_title(tr("Dot product of positions: {encoding}", encoding=label))
    axes.set(xlabel=tr("position (tokens)"), ylabel=tr("position (tokens)"), aspect="equal")
    return figure


@drawn
def sentence_similarity(vectors: Mapping[str, ArrayLike], words: Sequence[str]) -> Drawing:
    """Draw the cosines between a sentence's embeddings, one panel per way to encode positions.

    Args:
        vectors: For each panel's title, the embeddings (n, d_model) of the words.
        words: The sentence, n words.

    Raises:
        ValueError: There are no vectors, or not one for each word.
    """
    if not vectors or any(len(np.asarray(v)) != len(words) for v in vectors.values()):
        raise ValueError(
            "sentence_similarity: each panel needs one vector per word; got "
            f"{ {title: len(np.asarray(v)) for title, v in vectors.items()} } for {len(words)} words."
        )
    n = len(vectors)
    figure, axes = grammar.sheet(0.8 + 3.4 * n, 4.6, columns=n, sharey=True)
    here = np.arange(len(words))
    for (title, rows), panel in zip(vectors.items(), axes[0], strict=True):
        found = measure.similarity(np.asarray(rows), cosine=True)
        mesh = grammar.tint(panel, found, here, here, 1.0)
        panel.set_xticks(here, words, rotation=60, ha="right", rotation_mode="anchor")
        panel.set(title=title, xlabel=tr("word (in order)"), aspect="equal")
        panel.tick_params(length=0)
    axes[0, 0].set_yticks(here, words)
    axes[0, 0].set_ylabel(tr("word (in order)"))
    axes[0, 0].invert_yaxis()
    grammar.bar(mesh, list(axes[0]), tr("cosine of embeddings"), shrink=0.75)
    grammar.head(figure, tr("Similarity of the embeddings of a sentence"))
    return figure


def _choose(encoding: Encoding, pos: Any) -> tuple[int, int]:
    """Return the first rotated pair of dimensions; else the first two dimensions, or the last two that vary."""
    rotation = encoding.rope if isinstance(encoding, ValueRotary) else encoding
    if isinstance(rotation, Rotary):
        first, second = pairs_of(rotation)
        return int(first[0]), int(second[0])
    moves = np.ptp(measure.heat_map(encoding, pos), axis=0) > 0
    if moves[:2].all() or moves.sum() < 2:  # with one varying dimension no pair is better
        return 0, 1
    first, second = np.flatnonzero(moves)[-2:]
    return int(first), int(second)


def _join(panel: Axes, where: Any, names: Any, colour: str) -> None:
    """Draw points in order, from light to dark, with labels for some of them."""
    panel.plot(where[:, 0], where[:, 1], color=colour, linewidth=0.9, alpha=0.55)
    panel.scatter(where[:, 0], where[:, 1], color=grammar.shades(colour, len(where)), s=18, zorder=3)
    panel.set_aspect("equal", adjustable="datalim")
    panel.margins(x=0.22, y=0.16)
    places: dict[tuple[float, ...], list[int]] = {}
    for index, point in enumerate(where.round(9) + 0.0):  # turns -0 into 0
        places.setdefault(tuple(point), []).append(index)
    groups = list(places.values())
    for group in [groups[i] for i in grammar.spread(len(groups), _FEW if len(groups) > _MANY else _MANY)]:
        label = ", ".join(f"{names[i]:g}" for i in group[:2]) + (", …" if len(group) > 2 else "")
        panel.annotate(
            label,
            where[group[0]],
            xytext=tuple(10.0 * _outwards(where, group[0], alone=len(group) == 1)),
            textcoords="offset points",
            ha="center",
            va="center",
            fontsize=8.5,
            color=grammar.INK,
        )


def _outwards(where: Any, index: int, *, alone: bool) -> Any:
    """Return the direction of a label: across the line, away from the mean of all points, so that it hides nothing."""
    out = where[index] - where.mean(0)
    if alone:
        along = where[min(index + 1, len(where) - 1)] - where[max(index - 1, 0)]
        across = np.array([along[1], -along[0]])
        out = across if across @ out >= 0 else -across
    else:
        out = np.array([0.0, out[1]])  # a label of several positions is long, so it goes above or below
    length = float(np.hypot(*out))
    return out / length if length else np.array([0.0, 1.0])
