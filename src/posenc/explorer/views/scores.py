"""Views of scores: score by distance, bias, and mapped distances."""

import math

import numpy as np
from numpy.typing import NDArray

from posenc import measure
from posenc.encoding import Encoding
from posenc.explorer.frames import Frame
from posenc.explorer.views import fitting
from posenc.explorer.views.controls import COLUMNS, ROWS, Control, length
from posenc.explorer.views.subjects import Subject
from posenc.explorer.views.vectors import no_vectors
from posenc.explorer.views.view import (
    Floats,
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
from posenc.families import Bias
from posenc.languages import tr

_MOST_HEADS = 16  # curves in one picture
_MOST_PAIRS = 2**24  # numbers of all heads, computed together
_MOST_TOKENS = 2**19  # in all texts that are drawn: about a second for the slowest encoding
_LEAST_DRAWS = 4
POINTS = Control("points", "int", 512, "The number of distances that are computed.", min=2, max=4096, log=True)


def _no_profile(encoding: Encoding) -> str | None:
    return refusal(encoding, "profile", lambda: measure.profile(encoding, [0, 1], n_draws=2))


def _profile(subject: Subject, asked: Values) -> Frame:
    wanted, asked = asked["draws"], settle("profile", subject, asked)
    distance = spread(asked["length"], asked["points"])
    found = measure.profile(
        subject.encoding, distance.astype(int), content=asked["content"], n_draws=asked["draws"], seed=0
    )
    n_heads = len(found.mean)
    series = [
        Series(_named(h, n_heads, tr("score")), distance, found.mean[h], found.low[h], found.high[h])
        for h in range(min(n_heads, _MOST_HEADS))
    ]
    title = {
        "same": tr("{name:s}: score by distance, q = k drawn at random", name=subject.encoding.name),
        "independent": tr(
            "{name:s}: score by distance, q and k independent drawn at random", name=subject.encoding.name
        ),
    }[asked["content"]]
    lines = [
        chosen("distance", asked["length"], asked["points"]),
        f"values = measure.profile(encoding, distance, content={asked['content']!r}, n_draws={asked['draws']}, seed=0)",
    ]
    head = {
        "title": title,
        "x": axis(tr("distance"), tr("tokens")),
        "y": axis(tr("score")),
        "notes": [
            tr("Means of {draws:d} draws; the band contains 90 % of them.", draws=asked["draws"]),
            *_fewer(subject.encoding, wanted, asked),
            *_of_heads(n_heads),
        ],
        "code": code(subject, lines, subject.plot("profile")),
    }
    return of_lines(head, series)


def _fewer(encoding: Encoding, wanted: int, asked: Values) -> list[str]:
    """Return a note if fewer draws were taken than requested."""
    if asked["draws"] == wanted:
        return []
    return [
        tr(
            "Only {draws:d} of {wanted:d} draws were taken: each draw of {name:s} needs a whole text of {length:,} "
            "tokens. A shorter length allows more; the Python code has no limit.",
            draws=asked["draws"],
            wanted=wanted,
            name=encoding.name,
            length=asked["length"],
        )
    ]


def _no_bias(encoding: Encoding) -> str | None:
    return refusal(encoding, "bias_matrix", lambda: measure.bias_matrix(encoding, [0]))


def settle(view: str, subject: Subject, asked: Values) -> Values:
    """Return the values with the encoding's limits applied: number of draws, curves or matrix, mapped distances or not.

    An encoding that reads whole texts needs one text per draw, as long as the largest distance, so long texts get
    fewer draws.
    """
    if view == "profile" and (subject.encoding.reads_x or subject.encoding.rescores):
        return {**asked, "draws": min(asked["draws"], max(_LEAST_DRAWS, _MOST_TOKENS // asked["length"]))}
    if view == "bias" and not _has_curve(subject.encoding):
        return {**asked, "draw": "matrix"}  # without distances there are no curves over them
    return {**asked, "maps": _maps(subject.encoding)} if view == "distances" else asked


def _bias(subject: Subject, asked: Values) -> Frame:
    matrix = settle("bias", subject, asked)["draw"] == "matrix"
    return (_bias_matrix if matrix else _bias_curves)(subject, asked)


def _bias_curves(subject: Subject, asked: Values) -> Frame:
    end, most = asked["length"], asked["points"]
    distance = spread(end, most)
    lines = [chosen("distance", end, most)]
    if asked["ahead"]:
        distance = np.concatenate((-distance[:0:-1], distance))
        lines += ["distance = np.concatenate((-distance[:0:-1], distance))"]
    values = measure.bias_curve(subject.encoding, distance.astype(int), q_pos=end - 1)
    lines += [f"values = measure.bias_curve(encoding, distance, q_pos={end - 1})"]
    head = {
        "title": tr("{name:s}: bias by distance", name=subject.encoding.name),
        "x": axis(tr("distance"), tr("tokens")),
        "y": axis(tr("bias")),
        "notes": _of_heads(len(values)),
        "code": code(subject, lines, subject.plot("bias")),
    }
    return of_lines(head, _curves(distance, values))


def _bias_matrix(subject: Subject, asked: Values) -> Frame:
    encoding, end, head = subject.encoding, asked["length"], asked["head"]
    n_heads = len(measure.bias_matrix(encoding, [0]))
    if head >= n_heads:
        raise ValueError(
            tr(
                "explore: head must be from 0 to {last:d}, the heads of {name:s}; got {got:d}.",
                last=n_heads - 1,
                name=encoding.name,
                got=head,
            )
        )
    room = max(1, math.isqrt(_MOST_PAIRS // n_heads))  # all heads are computed together
    q_most, k_most = min(asked["rows"], room), min(asked["columns"], room)
    q_pos, k_pos = spread(end, q_most), spread(end, k_most)
    values = _of_head(encoding, head, q_pos.astype(int), k_pos.astype(int), end)
    lines = [chosen("q_pos", end, q_most), chosen("k_pos", end, k_most)]
    lines += [f"values = measure.bias_matrix(encoding, q_pos, k_pos)[{head}]"]
    header = {
        "title": tr("{name:s}: bias of head {head:d} for each query and key", name=encoding.name, head=head),
        "x": axis(tr("key position"), tr("tokens")),
        "y": axis(tr("query position"), tr("tokens")),
        "notes": [],
        "code": code(subject, lines, subject.plot("bias-matrix")),
    }
    return of_matrix(header, values, q_pos, k_pos, (end, end))


def _of_head(encoding: Encoding, head: int, q_pos: NDArray[np.int64], k_pos: NDArray[np.int64], end: int) -> Floats:
    """Return the matrix of one head; computed by distance if there are fewer distances than pairs."""
    by_distance = isinstance(encoding, Bias) and encoding.by_distance and encoding.n_axes == 1
    if not by_distance or 2 * end > len(q_pos) * len(k_pos):
        return measure.bias_matrix(encoding, q_pos, k_pos)[head]  # type: ignore[no-any-return]
    curve = measure.bias_curve(encoding, np.arange(1 - end, end), q_pos=end - 1)[head]
    found: Floats = curve[q_pos[:, None] - k_pos + end - 1]
    return found


def _curves(x: Floats, values: Floats) -> list[Series]:
    shown = range(min(len(values), _MOST_HEADS))
    return [Series(_named(h, len(values), tr("bias")), x, values[h]) for h in shown]


def _named(head: int, n_heads: int, single: str) -> str:
    return tr("head {head:d}", head=head) if n_heads > 1 else single


def _of_heads(n_heads: int) -> list[str]:
    if n_heads <= _MOST_HEADS:
        return []
    return [tr("Heads 0 to {last:d} of {n_heads:d} are shown.", last=_MOST_HEADS - 1, n_heads=n_heads)]


def _has_curve(encoding: Encoding) -> bool:
    if (known := fitting.has_bias_curve(encoding)) is not None:
        return known
    return refusal(encoding, "bias_curve", lambda: measure.bias_curve(encoding, [0])) is None


def _maps(encoding: Encoding) -> bool:
    if (known := fitting.maps_distances(encoding)) is not None:
        return known
    return refusal(encoding, "effective_distance", lambda: measure.effective_distance(encoding, 1)) is None


def _no_distances(encoding: Encoding) -> str | None:
    return None if _maps(encoding) else no_vectors(encoding)


def _distances(subject: Subject, asked: Values) -> Frame:
    return (_effective if _maps(subject.encoding) else _dots)(subject, asked)


def _effective(subject: Subject, asked: Values) -> Frame:
    end = asked["length"]
    q_pos, k_pos = spread(end, asked["rows"]), spread(end, asked["columns"])
    values = measure.effective_distance(subject.encoding, q_pos.astype(int), k_pos.astype(int))
    lines = [chosen("q_pos", end, asked["rows"]), chosen("k_pos", end, asked["columns"])]
    lines += ["values = measure.effective_distance(encoding, q_pos, k_pos)"]
    head = {
        "title": tr("{name:s}: distance after mapping", name=subject.encoding.name),
        "x": axis(tr("key position"), tr("tokens")),
        "y": axis(tr("query position"), tr("tokens")),
        "notes": [],
        "code": code(subject, lines, subject.plot("distances")),
    }
    return of_matrix(head, values, q_pos, k_pos, (end, end))


def _dots(subject: Subject, asked: Values) -> Frame:
    end = asked["length"]
    middle = end // 2
    pos = spread(end, asked["points"])
    found = measure.by_distance(subject.encoding, middle, pos.astype(int))
    lines = [chosen("pos", end, asked["points"]), f"found = measure.by_distance(encoding, {middle}, pos)"]
    lines += ["values = [found.dot, found.cosine]"]
    head = {
        "title": tr(
            "{name:s}: vector of position {position:,} compared with all others",
            name=subject.encoding.name,
            position=middle,
        ),
        "x": axis(tr("position"), tr("tokens")),
        "y": axis(tr("dot product")),
        "notes": [],
        "middle": middle,
        "code": code(subject, lines, subject.plot("dot")),
    }
    return of_lines(
        head,
        [
            Series(tr("dot product"), pos, found.dot, group="dot product"),
            Series(tr("cosine"), pos, found.cosine, group="cosine"),
        ],
    )


PROFILE = View(
    "profile",
    "Score by distance",
    "The score of a query and a key by their distance, for random contents: the mean and a 90 % band.",
    (
        length(512),
        Control(
            "content",
            "choice",
            "same",
            "Whether q and k are the same draw.",
            ("same", "independent"),
        ),
        Control("draws", "int", 64, "The number of random contents.", min=2, max=1024, log=True),
        POINTS,
    ),
    _profile,
    _no_profile,
    fitting.has_profile,
)
BIAS = View(
    "bias",
    "Bias",
    "The term added to the scores: by distance for each head, or for each query and key of one head.",
    (
        length(128),
        Control("draw", "choice", "curves", "A curve for each head, or the matrix of one.", ("curves", "matrix")),
        Control("head", "int", 0, "The head whose matrix is shown.", min=0, max=1023),
        Control("ahead", "bool", False, "Also show keys after the query."),
        POINTS,
        ROWS,
        COLUMNS,
    ),
    _bias,
    _no_bias,
    fitting.has_bias,
)
DISTANCES = View(
    "distances",
    "Distances",
    "The vector of the middle position compared with all others; or mapped distances, if the encoding maps them.",
    (length(256), POINTS, ROWS, COLUMNS),
    _distances,
    _no_distances,
    fitting.has_distances,
)
