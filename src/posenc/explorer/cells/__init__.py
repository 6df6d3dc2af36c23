"""Explain the value of a cell: the lines of the definition with the numbers substituted."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from posenc import measure
from posenc.config.values import short
from posenc.definitions.written import number
from posenc.encoding import Encoding
from posenc.explorer.cells import lanes, pairs, profile
from posenc.explorer.cells.explanation import Explanation
from posenc.languages import tr

__all__ = ["EXPLAINED", "Explanation", "explain"]

Asked = Mapping[str, Any]


def explain(view: str, encoding: Encoding, formula: str, asked: Asked, row: float, column: float) -> Explanation:
    """Explain one cell.

    Args:
        view: A key of `EXPLAINED`.
        encoding: The encoding of the view.
        formula: The encoding's formula in one line.
        asked: The values of the view's controls.
        row: The value of the cell's row: a position, or the index of a curve.
        column: The value of its column: a lane, a pair, a position or a distance.

    Raises:
        ValueError: There is no such cell, or the view does not explain its cells.
    """
    if view not in EXPLAINED:
        raise ValueError(
            tr(
                "explore: {name:s} must be one of {choices:s}; got {got:s}.",
                name="view",
                choices=", ".join(EXPLAINED),
                got=short(view),
            )
        )
    with torch.no_grad():
        return EXPLAINED[view](encoding, formula, asked, row, column)


def _heat(encoding: Encoding, formula: str, asked: Asked, row: float, column: float) -> Explanation:
    end, head = asked["length"], asked["head"]
    pos = _whole("row", row, end)
    if asked["unit"] == "pair":
        pair = _whole("column", column, measure.by_pair(encoding, [pos], head=head).shape[1])
        return lanes.explain_pair(encoding, formula, pos, pair, asked["part"], head)
    lane = _whole("column", column, lanes.lanes_at(encoding, np.array([pos]), end, head).shape[1])
    return lanes.explain_lane(encoding, formula, pos, lane, head, end)


def _similarity(encoding: Encoding, formula: str, asked: Asked, row: float, column: float) -> Explanation:
    both = [_whole(name, at, asked["length"]) for name, at in (("row", row), ("column", column))]
    vectors = measure.heat_map(encoding, both)
    value = float(measure.similarity(vectors, cosine=asked["cosine"])[0, 1])
    names = tr("position {position:s}", position=number(both[0])), tr("position {position:s}", position=number(both[1]))
    return pairs.explain_product(vectors, formula, names, value, cosine=asked["cosine"])


def _distances(encoding: Encoding, formula: str, asked: Asked, row: float, column: float) -> Explanation:
    pos = _whole("column", column, asked["length"])
    if asked["maps"]:
        q_pos = _whole("row", row, asked["length"])
        value = float(measure.effective_distance(encoding, [q_pos], [pos])[0, 0])
        return pairs.explain_distance(encoding, formula, q_pos, pos, value)
    middle, cosine = asked["length"] // 2, _whole("row", row, 2) == 1
    found = measure.by_distance(encoding, middle, [pos])
    value = float((found.cosine if cosine else found.dot)[0])
    names = tr("position {position:s}", position=number(pos)), tr("position {position:s}", position=number(middle))
    return pairs.explain_product(measure.heat_map(encoding, [pos, middle]), formula, names, value, cosine=cosine)


def _bias(encoding: Encoding, formula: str, asked: Asked, row: float, column: float) -> Explanation:
    end = asked["length"]
    if asked["draw"] == "matrix":
        q_pos, k_pos = _whole("row", row, end), _whole("column", column, end)
        with profile.Draws() as seen:  # the text is as long as in the picture
            values = measure.bias_matrix(encoding, [q_pos, end - 1], [k_pos, end - 1])[:, 0, 0]
        head = _whole("head", asked["head"], len(values))
    else:
        if not -end < column < end or column != int(column):
            raise ValueError(tr("explore: column must be a distance within {end:,}; got {got:g}.", end=end, got=column))
        q_pos, k_pos = end - 1, end - 1 - int(column)  # the query position of the curves
        last = 1 - end if asked["ahead"] else 0
        with profile.Draws() as seen:
            values = measure.bias_curve(encoding, [int(column), last], q_pos=q_pos)[:, 0]
        head = _whole("row", row, len(values))
    text = seen.found[0] if encoding.reads_x else None
    return pairs.explain_bias(encoding, formula, q_pos, k_pos, head, float(values[head]), text)


def _profile(encoding: Encoding, formula: str, asked: Asked, row: float, column: float) -> Explanation:
    distance = _whole("column", column, asked["length"])
    n_heads = len(measure.profile(encoding, [0], n_draws=1, q_pos=0).mean)
    at_end = {**asked, "q_pos": asked["length"] - 1}
    return profile.explain_score(encoding, formula, at_end, distance, _whole("row", row, n_heads))


def _wavelengths(encoding: Encoding, formula: str, asked: Asked, row: float, column: float) -> Explanation:
    frequencies = measure.frequencies_of(encoding)
    flat = frequencies.reshape(-1, frequencies.shape[-1])
    line, pair = _whole("row", row, len(flat)), _whole("column", column, flat.shape[1])
    frequency = abs(float(flat[line, pair]))
    why = Explanation(formula, float(measure.wavelengths(encoding).reshape(flat.shape)[line, pair]))
    why.step(
        tr(
            "Pair {pair:d} has the frequency {frequency:s} radians per position.",
            pair=pair,
            frequency=number(frequency),
        )
    )
    if frequency == 0:
        why.step(tr("It does not rotate, so it has no wavelength."))
        return why
    length = 2 * np.pi / frequency
    why.end(
        length,
        tr(
            "A rotation is 2π radians: 2π / {frequency:s} = {wavelength:s} positions.",
            frequency=number(frequency),
            wavelength=number(length),
        ),
    )
    rotations = number(asked["length"] / length)
    why.step(tr("Within {length:,} positions it makes {n:s} rotations.", length=asked["length"], n=rotations))
    return why


def _whole(name: str, value: float, end: int) -> int:
    """Return a number as an integer from 0 to end - 1.

    Raises:
        ValueError: The number is not whole or out of range.
    """
    if value != int(value) or not 0 <= value < end:
        raise ValueError(
            tr(
                "explore: {name:s} must be a whole number from 0 to {last:,}; got {got:g}.",
                name=name,
                last=end - 1,
                got=value,
            )
        )
    return int(value)


EXPLAINED: dict[str, Callable[[Encoding, str, Asked, float, float], Explanation]] = {
    "heat": _heat,
    "similarity": _similarity,
    "distances": _distances,
    "bias": _bias,
    "profile": _profile,
    "wavelengths": _wavelengths,
}
