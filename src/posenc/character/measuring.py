"""All traits of an encoding at once, and what its card declares held against them."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import torch

from posenc.character.scores import EXACT, count_work, falls_with_distance, is_symmetric, shift_change
from posenc.character.signatures import (
    accepts_real,
    count_distinct,
    depends_on_length,
    is_bounded,
    largest_step,
    shift_residual,
)
from posenc.encoding import Encoding
from posenc.probe import REFUSALS, Probe
from posenc.registry import TRAITS, Card

SEEDS = (2017, 2018, 2019)  # of what is learned and of the projections; among the first draws are both signs
SMOOTH = 0.4  # of the diameter; a turn by an eighth steps 0.38, and points at random are further apart
LINEAR = 1e-6  # of the signatures' size, left over on held-out positions
ROUNDINGS = 0.02  # of a count of distinct positions: a declaration within it is right

_Found = TypeVar("_Found")
_MISSING = object()


@dataclass(frozen=True)
class Character:
    """What was measured of an encoding; None where it cannot be measured or does not apply.

    A position's signature is what becomes of the same content there: the vector of a token, a turned query, a rotated
    value, or, one number a head, the bias of a query against a key at position 0, and what a score map makes of a score
    of zero between them. With several axes, axis 0 moves and the others stay at 0. What depends on the length is
    resolved for 1,024.

    Args:
        distinct: How many positions from 0 on (for a bias: distances) have signatures that all differ, as stored in
            each dtype: the first that repeats another one. At most 65,536, which means that or more.
        longest: The largest position that is not refused; None if there is none.
        real_positions: Fractional positions are accepted.
        smooth: The signatures of neighbours among 0..4096 are nearer than 0.4 of the diameter of all.
        step: The largest of those steps between neighbours, as a part of the diameter.
        bounded: No lane of a signature up to position 1,000,000 is beyond 1.5 times the largest below 1,024; up to
            10,000, of an encoding that reads the tokens.
        shift_invariant: Scores, and what queries get of values, stay as they are when all positions move.
        symmetric: They stay as they are when query and key change places and keep their content: blind to direction.
        recency: Looking back, the score of the same content never rises with distance, and falls, in every draw.
        linear_shift: There is a matrix T(k) with PE(p + k) = T(k) PE(p), of vectors, turned queries or values.
        residual: What such a matrix, fitted by least squares, leaves over on other positions, as a part of their size.
        length_dependent: It must be resolved for a length, or means different things at different lengths.
        learned: How many numbers are learned, by all layers of a `PerLayer`.
        cost: What grows with the text: "nothing", "token" (numbers are computed for each token) or "score" (and for
            each pair of tokens).
        per_token: How many numbers one layer with its embeddings computes for each token, once they are placed.
        per_score: How many it computes for each pair, in all heads.
    """

    distinct: Mapping[str, int] | None
    longest: int | None
    real_positions: bool | None
    smooth: bool | None
    step: float | None
    bounded: bool | None
    shift_invariant: bool | None
    symmetric: bool | None
    recency: bool | None
    linear_shift: bool | None
    residual: float | None
    length_dependent: bool | None
    learned: int
    cost: str | None
    per_token: float | None
    per_score: float | None

    def as_dict(self) -> dict[str, Any]:
        """Return all that was measured as plain JSON values."""
        return asdict(self)

    def traits(self) -> dict[str, Any]:
        """Return what a card declares: everything but the numbers behind smooth, linear_shift and cost."""
        return {trait: value for trait, value in self.as_dict().items() if trait in TRAITS}


def measure(encoding: Encoding) -> Character:
    """Measure the character of an encoding.

    Args:
        encoding: Any `Encoding`; it is copied, not changed, and no global random state is touched. Of a `PerLayer`
            the first layer is measured.

    Returns:
        The traits and the numbers behind them, each None where it cannot be measured.

    >>> from posenc import ALiBi
    >>> alibi = measure(ALiBi(n_heads=4))
    >>> alibi.recency, alibi.symmetric, alibi.distinct["bfloat16"]
    (True, True, 257)
    """
    learned = sum(p.numel() for p in encoding.parameters())
    stored = [Probe(encoding, torch.float32, seed=seed) for seed in (SEEDS if learned else SEEDS[:1])]
    exact = [Probe(encoding, torch.float64, seed=seed) for seed in SEEDS]  # the projections are drawn, too
    step = _attempt(lambda: max(map(largest_step, stored)))
    moved = _attempt(lambda: _worst(map(shift_change, exact)))
    residual = _attempt(lambda: _worst(map(shift_residual, exact[: len(stored)])))
    cost, per_token, per_score = _attempt(lambda: count_work(stored[0])) or (None, None, None)
    return Character(
        # a score is a sum of products, whose last bit in float32 is another on another processor: rounded afterwards
        distinct=_attempt(lambda: count_distinct(exact[: len(stored)] if encoding.reads_qk else stored)),
        longest=_attempt(lambda: stored[0].longest),
        real_positions=_attempt(lambda: accepts_real(stored[0])),
        smooth=None if step is None else step < SMOOTH,
        step=step,
        bounded=_attempt(lambda: all(map(is_bounded, stored))),
        shift_invariant=None if moved is None else moved < EXACT,
        symmetric=_attempt(lambda: all(map(is_symmetric, exact))),
        recency=_attempt(lambda: all(map(falls_with_distance, exact))),
        linear_shift=None if residual is None else residual < LINEAR,
        residual=residual,
        length_dependent=_attempt(lambda: depends_on_length(encoding)),
        learned=learned,
        cost=cost,
        per_token=per_token,
        per_score=per_score,
    )


def check(card: Card) -> list[str]:
    """Hold what a card declares against what is measured on its example.

    Returns:
        A sentence for each trait that is declared wrongly, not at all, or under no known name.
    """
    found = measure(card.cls(**card.example)).traits()
    unknown = [trait for trait in card.traits if trait not in TRAITS]
    sentences = [f"{card.name}: {trait!r} is no trait. The traits are {', '.join(TRAITS)}." for trait in unknown]
    for trait, value in found.items():
        said = card.traits.get(trait, _MISSING)
        if said is _MISSING:
            sentences.append(f"{card.name}: does not declare {trait}; measured {value!r}. Declare it.")
        elif not _agree(said, value):
            sentences.append(f"{card.name}: declares {trait}={said!r}; measured {value!r}. Mend one of them.")
    return sentences


def _agree(said: Any, value: Any) -> bool:
    """Whether a declaration is what was measured; counts by dtype hang on roundings, which processors may do apart."""
    if isinstance(said, Mapping) and isinstance(value, Mapping):
        return said.keys() == value.keys() and all(abs(said[k] - n) <= ROUNDINGS * n for k, n in value.items())
    return isinstance(said, bool) == isinstance(value, bool) and bool(said == value)


def _attempt(look: Callable[[], _Found]) -> _Found | None:
    """Return what a measurement finds, or None where the encoding refuses it."""
    try:
        return look()
    except (*REFUSALS, TypeError):
        return None


def _worst(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)
