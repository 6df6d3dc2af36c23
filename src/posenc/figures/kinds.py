"""The kinds of figures of one encoding, by name, for `posenc plot --kind`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from posenc import measure
from posenc.encoding import Encoding
from posenc.figures import scores, vectors, waves
from posenc.figures.grammar import Drawing, drawn
from posenc.languages import tr


@dataclass(frozen=True)
class Kind:
    """One kind of figure.

    Args:
        draw: Draws it for an encoding and a number of positions or distances.
        measures: Measures only the first and the last of them; raises if the kind does not fit the encoding.
        said: Its content, in a few words.
        many: The default number of positions or distances, if the encoding accepts so many.
    """

    draw: Callable[[Encoding, int], Drawing]
    measures: Callable[[Encoding, int], object]
    said: str
    many: int


def _vectors(encoding: Encoding, n: int) -> object:
    return measure.heat_map(encoding, [0, n - 1])


def _bias(encoding: Encoding, n: int) -> object:
    return measure.bias_curve(encoding, [0, n - 1])


_DOT = "dot product of the middle position with all others"
KINDS: dict[str, Kind] = {
    "bias": Kind(scores.bias_curves, _bias, "bias by distance, one line per head", 129),
    "bias-matrix": Kind(
        scores.bias_matrix,
        lambda e, n: measure.bias_matrix(e, [0, n - 1]),
        "bias of each query and key, by head",
        64,
    ),
    "distances": Kind(
        lambda e, _: scores.effective_distance(e),
        lambda e, n: measure.effective_distance(e, n),
        "mapped distance by query and key",
        64,
    ),
    "heatmap": Kind(vectors.heat_map, _vectors, "values by position and dimension", 100),
    "lanes": Kind(
        lambda e, n: vectors.lanes(e, range(0, n, max(n // 5, 1))[:5]),
        _vectors,
        "values of five positions over the dimensions",
        50,
    ),
    "points": Kind(lambda e, n: vectors.points(e, pos=n), _vectors, "positions in the plane of two dimensions", 32),
    "dot": Kind(lambda e, n: vectors.dot_product(e, middle=n // 2, pos=n), _vectors, _DOT, 101),
    "similarity": Kind(vectors.similarity, _vectors, "cosine of each pair of positions", 100),
    "wavelengths": Kind(
        lambda e, _: waves.wavelengths(e),
        lambda e, _: measure.wavelengths(e),
        "wavelength of each pair, in positions",
        2,
    ),
    "profile": Kind(
        lambda e, n: scores.profile(e, distance=n),
        lambda e, n: measure.profile(e, [0, n - 1], n_draws=2),
        "mean score by distance, with band",
        257,
    ),
    "precision": Kind(
        lambda e, _: scores.precision(e),
        lambda e, _: measure.phase_error(e, [1], "float32"),
        "phase error by position and dtype",
        2,
    ),
}
_FIRST = {"rotary": "profile"}  # the default kind of a family; for other families, the first kind that fits


def kinds_of(encoding: Encoding) -> list[str]:
    """Return the kinds of figure that fit an encoding, the default one first.

    >>> from posenc import ALiBi
    >>> kinds_of(ALiBi(n_heads=8))
    ['bias', 'bias-matrix', 'profile']
    """
    found = [name for name in KINDS if fits(encoding, name)]
    first = _FIRST.get(encoding.family)
    return sorted(found, key=lambda name: name != first)


def fits(encoding: Encoding, kind: str) -> bool:
    """Return whether a kind of figure fits an encoding, by trying its measurement."""
    return _works(encoding, KINDS[kind], 2)


def _works(encoding: Encoding, kind: Kind, n: int) -> bool:
    try:
        kind.measures(encoding, n)
    except (ValueError, TypeError, NotImplementedError):
        return False
    return True


def _reach(encoding: Encoding, kind: Kind) -> int:
    """Return the number of positions to draw: the kind's default, or fewer if a table or a window ends earlier."""
    if _works(encoding, kind, kind.many):
        return kind.many
    works, fails = 2, kind.many
    while fails - works > 1:
        middle = (works + fails) // 2
        works, fails = (middle, fails) if _works(encoding, kind, middle) else (works, middle)
    return works


def kind_of(encoding: Encoding, kind: str | None = None) -> str:
    """Return the given kind of figure, or the default one of an encoding.

    Args:
        encoding: Any encoding.
        kind: A name in `KINDS`; if left out, the default kind.

    Raises:
        ValueError: The kind is unknown or does not fit the encoding; the error lists those that fit.
    """
    if kind is not None and kind in KINDS and fits(encoding, kind):
        return kind
    suitable = kinds_of(encoding)
    if not suitable:
        raise ValueError(f"plot: there is nothing to draw for {encoding.name}: no kind of figure fits it.")
    if kind is not None:
        why = f"does not fit {encoding.name}" if kind in KINDS else "is not a kind of figure"
        raise ValueError(f"plot: {kind!r} {why}. These fit {encoding.name}: {', '.join(suitable)}.")
    return suitable[0]


@drawn
def draw(encoding: Encoding, kind: str | None = None, *, seed: int | None = None) -> Drawing:
    """Draw the given kind of figure of an encoding, or its default one.

    Args:
        encoding: Any encoding.
        kind: A name in `KINDS`; if left out, the default kind.
        seed: The random seed of learned numbers that are not trained yet, for a note below the figure; no note if left
            out.

    Raises:
        ValueError: The kind is unknown or does not fit the encoding.
    """
    found = KINDS[kind_of(encoding, kind)]
    figure = found.draw(encoding, _reach(encoding, found))
    if seed is not None and any(True for _ in encoding.parameters()):
        note = tr("learned numbers as freshly initialised (seed {seed}); training changes them", seed=seed)
        figure.supxlabel(note, x=0.99, ha="right", fontsize=8)
    return figure
