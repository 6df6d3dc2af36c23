"""The figures that one encoding can have, by name: what `posenc plot --kind` draws."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from posenc import measure
from posenc.encoding import Encoding
from posenc.figures import scores, vectors, waves
from posenc.figures.grammar import Drawing


@dataclass(frozen=True)
class Kind:
    """One kind of figure.

    Args:
        draw: Draws it for an encoding and a number of positions or distances.
        measures: Measures the first and the last of them alone; refuses what the figure does not fit.
        said: What it shows, in a few words.
        many: How many positions or distances there are, where the encoding reaches that far.
    """

    draw: Callable[[Encoding, int], Drawing]
    measures: Callable[[Encoding, int], object]
    said: str
    many: int


def _vectors(encoding: Encoding, n: int) -> object:
    return measure.heat_map(encoding, [0, n - 1])


def _bias(encoding: Encoding, n: int) -> object:
    return measure.bias_curve(encoding, [0, n - 1])


_DOT = "dot product of the middle position with the others"
KINDS: dict[str, Kind] = {
    "bias": Kind(scores.bias_curves, _bias, "bias by distance, a line a head", 129),
    "bias-matrix": Kind(
        scores.bias_matrix,
        lambda e, n: measure.bias_matrix(e, [0, n - 1]),
        "bias of each query and key, by head",
        64,
    ),
    "distances": Kind(
        lambda e, _: scores.effective_distance(e),
        lambda e, n: measure.effective_distance(e, n),
        "the distance that scores see",
        64,
    ),
    "heatmap": Kind(vectors.heat_map, _vectors, "the numbers by position and lane", 100),
    "lanes": Kind(
        lambda e, n: vectors.lanes(e, range(0, n, max(n // 5, 1))[:5]),
        _vectors,
        "the numbers of five positions over the lanes",
        50,
    ),
    "points": Kind(lambda e, n: vectors.points(e, pos=n), _vectors, "positions in the plane of two lanes", 32),
    "dot": Kind(lambda e, n: vectors.dot_product(e, middle=n // 2, pos=n), _vectors, _DOT, 101),
    "similarity": Kind(vectors.similarity, _vectors, "cosine of every two positions", 100),
    "wavelengths": Kind(
        lambda e, _: waves.wavelengths(e), lambda e, _: measure.wavelengths(e), "positions per turn of each pair", 2
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
_FIRST = {"rotary": "profile"}  # what a family is drawn as; the others take the first kind that fits


def kinds_of(encoding: Encoding) -> list[str]:
    """Return the kinds of figure that fit an encoding, the one that says most first.

    >>> from posenc import ALiBi
    >>> kinds_of(ALiBi(n_heads=8))
    ['bias', 'bias-matrix', 'profile']
    """
    found = [name for name in KINDS if fits(encoding, name)]
    first = _FIRST.get(encoding.family)
    return sorted(found, key=lambda name: name != first)


def fits(encoding: Encoding, kind: str) -> bool:
    """Whether a kind of figure can be drawn of an encoding; asked of the measurement itself."""
    return _works(encoding, KINDS[kind], 2)


def _works(encoding: Encoding, kind: Kind, n: int) -> bool:
    try:
        kind.measures(encoding, n)
    except (ValueError, TypeError, NotImplementedError):
        return False
    return True


def _reach(encoding: Encoding, kind: Kind) -> int:
    """Return how many positions the figure shows: those of its kind, or as many as a table or a window holds."""
    if _works(encoding, kind, kind.many):
        return kind.many
    works, fails = 2, kind.many
    while fails - works > 1:
        middle = (works + fails) // 2
        works, fails = (middle, fails) if _works(encoding, kind, middle) else (works, middle)
    return works


def kind_of(encoding: Encoding, kind: str | None = None) -> str:
    """Return the kind of figure that is asked for, or the one that says most of an encoding.

    Args:
        encoding: Any.
        kind: A name in `KINDS`; left out, the first that fits.

    Raises:
        ValueError: Nothing has that name, or it does not fit; those that do are listed.
    """
    if kind is not None and kind in KINDS and fits(encoding, kind):
        return kind
    suitable = kinds_of(encoding)
    if not suitable:
        raise ValueError(f"plot: there is nothing to draw of {encoding.name}: no kind of figure fits it.")
    if kind is not None:
        why = f"does not fit {encoding.name}" if kind in KINDS else "is no kind of figure"
        raise ValueError(f"plot: {kind!r} {why}. These fit {encoding.name}: {', '.join(suitable)}.")
    return suitable[0]


def draw(encoding: Encoding, kind: str | None = None) -> Drawing:
    """Draw one kind of figure of an encoding, or the one that says most.

    Args:
        encoding: Any.
        kind: As for `kind_of`.

    Raises:
        ValueError: As `kind_of` does.
    """
    found = KINDS[kind_of(encoding, kind)]
    return found.draw(encoding, _reach(encoding, found))
