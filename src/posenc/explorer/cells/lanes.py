"""Explain the value of one lane, or one pair, at one position of the heat map."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from posenc import measure
from posenc.defined import card_of, definition_of
from posenc.definitions.written import number
from posenc.encoding import Encoding
from posenc.encodings import CPVT
from posenc.explorer.cells.explanation import Explanation, Floats
from posenc.families import Rotary
from posenc.languages import tr
from posenc.measure.asking import embedding, embeds, exact, pairs_of, place, read_positions, rotating
from posenc.measure.vectors import wave_lanes

_MOST_AROUND = 4096  # positions computed together
_WHO = "explore"


def lanes_at(encoding: Encoding, pos: NDArray[np.int64], end: int, head: int) -> Floats:
    """Return rows of the heat map; compute all positions if the neighbours of a position matter.

    Raises:
        ValueError: Neighbours matter, and there are too many positions.
    """
    if not looks_around(encoding):
        return measure.heat_map(encoding, pos, head=head)
    if end > _MOST_AROUND:
        raise ValueError(
            tr(
                "explore: length must be at most {most:,} for {name:s}, whose values depend on neighbouring positions; "
                "got {got:,}.",
                most=_MOST_AROUND,
                name=encoding.name,
                got=end,
            )
        )
    found: Floats = measure.heat_map(encoding, np.arange(end), head=head)[pos]
    return found


def looks_around(encoding: Encoding) -> bool:
    """Return whether an encoding's values at a position depend on neighbouring positions."""
    return any(isinstance(m, CPVT) for m in encoding.modules())


def explain_lane(encoding: Encoding, formula: str, pos: int, lane: int, head: int, end: int) -> Explanation:
    """Explain one lane of the heat map at one position.

    Args:
        encoding: The encoding of the picture.
        formula: The encoding's formula in one line.
        pos: The row's position.
        lane: The column's lane.
        head: The key head.
        end: The number of positions in the picture.
    """
    value = float(lanes_at(encoding, np.array([pos]), end, head)[0, lane])
    why = Explanation(formula, value)
    why.step(tr("Row: position p = {p:s}. Column: lane {lane:d}.", p=number(pos), lane=lane))
    reach = max((m.kernel_size // 2 for m in encoding.modules() if isinstance(m, CPVT)), default=0)
    around = range(max(0, pos - reach), min(end, pos + reach + 1))
    one, at = _member(encoding, around)
    define, card, row = definition_of(one), card_of(one), around.index(pos)
    if define is not None and card is not None:
        if card.family == "additive":
            why.follow(define, (row, lane), at)
        elif card.family == "embedded":
            why.step(tr("The picture shows a token vector of ones."))
            why.follow(define, (row, lane), np.ones((len(at), one.d_model)), at)
        elif isinstance(one, Rotary):
            _explain_rotation(why, one, at[row], lane, head)
    return why.or_code(one.name).rounded()


def explain_pair(encoding: Encoding, formula: str, pos: int, pair: int, part: str, head: int) -> Explanation:
    """Explain the cosine, the sine or the angle of one pair at one position."""
    found = measure.by_pair(encoding, [pos], head=head)[0, pair]
    why = Explanation(formula, {"cos": found.real, "sin": found.imag, "angle": float(np.angle(found))}[part])
    why.step(tr("Row: position p = {p:s}. Column: pair {pair:d}.", p=number(pos), pair=pair))
    one, at = _member(encoding, [pos])
    if (both := _both(why, one, at, pair, head)) is not None:
        cos, sin = both
        if part == "angle":
            angle = float(np.arctan2(sin, cos))
            numbers = {"sin": number(sin), "cos": number(cos), "angle": number(angle)}
            why.end(angle, tr("The angle is atan2({sin:s}, {cos:s}) = {angle:s}.", **numbers))
        elif part == "cos":
            why.end(cos, tr("The picture shows the cosine."))
        else:
            why.end(sin, tr("The picture shows the sine."))
    return why.or_code(one.name).rounded()


def _member(encoding: Encoding, pos: Any) -> tuple[Any, Floats]:
    """Return the member that computes the lanes, in float64, and the positions in the form that a definition takes."""
    at = read_positions(_WHO, encoding, pos)
    model = exact(encoding, at)
    placed = place(model, at)
    members = embedding(*model.layer(0, placed)) if embeds(model, at) else rotating(*model.layer(0, placed))
    return members[0][0], at.numpy()


def _both(why: Explanation, one: Any, at: Floats, pair: int, head: int) -> tuple[float, float] | None:
    """Follow the definition to the cosine and sine of a pair; return None if it has no such elements."""
    define, card = definition_of(one), card_of(one)
    if define is None or card is None:
        return None
    if card.family == "embedded":  # tokens of (1, 0)
        unit = np.tile([1.0, 0.0], one.d_model // 2)[None]
        return why.follow(define, (0, 2 * pair), unit, at), why.follow(define, (0, 2 * pair + 1), unit, at)
    if card.family == "additive":
        cos, sin = (int(lanes[pair]) for lanes in wave_lanes(one))
        return why.follow(define, (0, cos), at), why.follow(define, (0, sin), at)
    if not isinstance(one, Rotary):
        return None
    first, second = (int(lanes[pair]) for lanes in pairs_of(one))
    define, p, heads = _matrix(one, at[0], head)
    return why.follow(define, (*heads, first, first), p), why.follow(define, (*heads, second, first), p)


def _matrix(one: Any, at: Any, head: int) -> tuple[Any, Any, tuple[int, ...]]:
    """Return the definition of a rotation, its position argument, and the leading head index of its cells."""
    define = definition_of(one)
    assert define is not None
    p = float(at) if one.n_axes == 1 else at.astype(float)
    own_heads = np.ndim(define(p)[0]) > 2
    return define, p, (head,) if own_heads else ()


def _explain_rotation(why: Explanation, one: Any, at: Any, lane: int, head: int) -> None:
    """Explain one lane of a rotated query that has 1 in the first lane of each pair."""
    define, p, heads = _matrix(one, at, head)
    query = torch.zeros(one.head_dim).index_fill_(0, pairs_of(one)[0], 1.0).double().numpy()
    row = define(p)[0][(*heads, lane)]
    met = np.flatnonzero(row * query)
    why.step(tr("A query with 1 in the first lane of each pair, and 0 elsewhere, is multiplied by R(p)."))
    for column in met[:2] if len(met) else [lane]:
        why.step(tr("The element R[{row:d}, {column:d}].", row=lane, column=int(column)))
        why.follow(define, (*heads, lane, int(column)), p)
    if len(met) == 1:
        value, names = float(row[met[0]]), {"lane": lane, "column": int(met[0])}
        why.end(
            value,
            tr("Lane {lane:d} is R[{row:d}, {column:d}] · 1 = {value:s}.", **names, row=lane, value=number(value)),
        )
    elif not len(met):
        why.end(0.0, tr("The query is 0 wherever row {row:d} of R is not, so lane {lane:d} is 0.", row=lane, lane=lane))
    else:
        why.dot(row, query, tr("Row {row:d} of R times the query", row=lane))
