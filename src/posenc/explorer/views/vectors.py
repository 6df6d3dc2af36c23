"""Views of position vectors: the heat map, points in the plane, and similarity."""

import numpy as np

from posenc import measure
from posenc.encoding import Encoding
from posenc.explorer.cells.lanes import lanes_at, looks_around
from posenc.explorer.frames import Frame
from posenc.explorer.views import fitting
from posenc.explorer.views.controls import COLUMNS, ROWS, Control, length, read_integer, read_list
from posenc.explorer.views.subjects import Subject
from posenc.explorer.views.view import (
    Series,
    Values,
    View,
    axis,
    chosen,
    code,
    of_lines,
    of_matrix,
    refusal,
    spread,
)
from posenc.families import Rotary
from posenc.languages import tr

_PARTS = {"cos": "waves.real", "sin": "waves.imag", "angle": "np.angle(waves)"}
_MOST_POINTS = 4096


def _no_lanes(encoding: Encoding) -> str | None:
    return refusal(encoding, "heat_map", lambda: measure.heat_map(encoding, [0]))


def no_vectors(encoding: Encoding) -> str | None:
    """Return the reason why an encoding has no position vectors, or None if it has."""
    if looks_around(encoding):
        return tr(
            "{name:s} adds values that depend on neighbouring tokens, so a position has no own vector.",
            name=encoding.name,
        )
    return refusal(encoding, "heat_map", lambda: measure.heat_map(encoding, [0]))


def _heat(subject: Subject, asked: Values) -> Frame:
    pos = spread(asked["length"], asked["rows"])
    where, head = pos.astype(int), asked["head"]
    of_head = f", head={head}" if head else ""
    lines = [chosen("pos", asked["length"], asked["rows"])]
    if asked["unit"] == "pair":
        waves = measure.by_pair(subject.encoding, where, head=head)
        values = {"cos": waves.real, "sin": waves.imag, "angle": np.angle(waves)}[asked["part"]]
        lines += [f"waves = measure.by_pair(encoding, pos{of_head})", f"values = {_PARTS[asked['part']]}"]
    else:
        values = lanes_at(subject.encoding, where, asked["length"], head)
        whole = looks_around(subject.encoding)
        lines += [
            f"values = measure.heat_map(encoding, np.arange({asked['length']}){of_head})[pos]"
            if whole
            else f"values = measure.heat_map(encoding, pos{of_head})"
        ]
    shape, columns = (asked["length"], values.shape[1]), spread(values.shape[1], asked["columns"])
    if len(columns) < shape[1]:
        values = values[:, columns.astype(int)]
        lines += [chosen("columns", shape[1], asked["columns"]), "values = values[:, columns]"]
    name, paired = subject.encoding.name, asked["unit"] == "pair"
    header = {
        "title": tr("{name:s} {part:s} by position and pair", name=name, part=asked["part"])
        if paired
        else tr("{name:s} by position and lane", name=name),
        "x": axis(tr("pair") if paired else tr("lane")),
        "y": axis(tr("position"), tr("tokens")),
        "notes": [_note(subject.encoding)] if asked["unit"] == "lane" else [],
        "code": code(subject, lines, subject.plot("heatmap")),
    }
    return of_matrix(header, values, pos, columns, shape)


def _note(encoding: Encoding) -> str:
    if isinstance(encoding, Rotary):
        return tr("The picture shows a rotated query, with 1 in the first lane of each pair and 0 in the second.")
    if encoding.family == "values":
        return tr("The picture shows a rotated value, with 1 in the first lane of each pair and 0 in the second.")
    if encoding.family == "additive":
        return tr("The picture shows the vector that is added to the token at each position.")
    return tr("The picture shows the output for a token vector of ones at each position.")


def _vectors(subject: Subject, asked: Values, most: int) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Return the chosen positions, their vectors, and the Python lines that compute them."""
    pos = spread(asked["length"], most)
    lines = [chosen("pos", asked["length"], most), "vectors = measure.heat_map(encoding, pos)"]
    return pos, measure.heat_map(subject.encoding, pos.astype(int)), lines


def _points(subject: Subject, asked: Values) -> Frame:
    pos, vectors, lines = _vectors(subject, asked, _MOST_POINTS)
    notes = []
    if asked["lanes"] in ("pca", "pca3"):
        n = 3 if asked["lanes"] == "pca3" else 2
        found = measure.project(vectors, n)
        points, names = found.points, [tr("component {i:d}", i=i + 1) for i in range(n)]
        share = 100 * float(found.share[:n].sum())
        notes = [tr("The {n:d} components explain {share:.1f} % of the variance.", n=n, share=share)]
        lines += [f"values = measure.project(vectors, {n}).points"]
    else:
        lanes = _lanes(asked["lanes"], vectors.shape[1])
        points, names = vectors[:, lanes], [tr("lane {lane:d}", lane=lane) for lane in lanes]
        lines += [f"values = vectors[:, {list(lanes)}]"]
    z = points[:, 2] if points.shape[1] == 3 else None
    head = {
        "kind": "points",
        "title": tr("{name:s}: positions as points", name=subject.encoding.name),
        **{key: axis(name) for key, name in zip("xyz", names, strict=False)},
        "notes": notes,
        "code": code(subject, lines, subject.plot("points")),
    }
    frame = of_lines(head, [Series(tr("positions"), points[:, 0], points[:, 1], z=z)])
    frame.header["along"] = len(frame.arrays)
    frame.header["arrays"].append({"name": "position"})
    frame.arrays.append(pos)
    return frame


def _lanes(text: str, width: int) -> tuple[int, ...]:
    lanes = tuple(read_integer("lanes", part) for part in read_list("lanes", text, 3))
    if len(lanes) < 2 or not all(0 <= lane < width for lane in lanes):
        raise ValueError(
            tr(
                "explore: lanes must be two or three of the lanes 0 to {last:d}, pca or pca3; got {got:s}. Write 0,1.",
                last=width - 1,
                got=text,
            )
        )
    return lanes


def _similarity(subject: Subject, asked: Values) -> Frame:
    most = min(asked["rows"], asked["columns"])
    pos, vectors, lines = _vectors(subject, asked, most)
    cosine = asked["cosine"]
    lines += [f"values = measure.similarity(vectors, cosine={cosine})"]
    head = {
        "title": tr("{name:s}: cosine of the vectors of two positions", name=subject.encoding.name)
        if cosine
        else tr("{name:s}: dot product of the vectors of two positions", name=subject.encoding.name),
        "x": axis(tr("position"), tr("tokens")),
        "y": axis(tr("other position"), tr("tokens")),
        "notes": [],
        "code": code(subject, lines, subject.plot("similarity")),
    }
    return of_matrix(head, measure.similarity(vectors, cosine=cosine), pos, pos, (asked["length"], asked["length"]))


HEAT = View(
    "heat",
    "Heat map",
    "The values at each position, by dimension (lane) or by pair of dimensions.",
    (
        length(512),
        Control("unit", "choice", "lane", "A column is one dimension (lane) or one pair.", ("lane", "pair")),
        Control("part", "choice", "cos", "The value of a pair: cosine, sine or angle.", ("cos", "sin", "angle")),
        Control("head", "int", 0, "The key head, if each has its own rotation.", min=0, max=1023),
        ROWS,
        COLUMNS,
    ),
    _heat,
    _no_lanes,
    fitting.has_lanes,
)
POINTS = View(
    "points",
    "Points",
    "Each position as a point, joined in order: two or three dimensions, or the principal components.",
    (
        length(64, most=_MOST_POINTS),
        Control("lanes", "text", "0,1", "Two or three dimensions, separated by commas; or pca; or pca3.", max=64),
    ),
    _points,
    no_vectors,
    fitting.has_vectors,
)
SIMILARITY = View(
    "similarity",
    "Similarity",
    "The dot product or cosine of the vectors of two positions.",
    (length(256), Control("cosine", "bool", False, "Divide by the lengths of the vectors."), ROWS, COLUMNS),
    _similarity,
    no_vectors,
    fitting.has_vectors,
)
