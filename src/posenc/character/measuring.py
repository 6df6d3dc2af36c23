"""Measure all traits of an encoding, and compare them with the declarations of its card."""

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

SEEDS = (2017, 2018, 2019)  # for parameters and projections; the first draws contain both signs
SMOOTH = 0.4  # of the diameter; rotations by an eighth give 0.38, and random points are further apart
LINEAR = 1e-6  # relative error on held-out positions
ROUNDINGS = 0.02  # allowed relative difference of a declared count of distinct positions

_Found = TypeVar("_Found")
_MISSING = object()


@dataclass(frozen=True)
class Character:
    """Measured properties of an encoding; None if a property cannot be measured or does not apply.

    The signature of a position consists of the encoding's results there for a fixed content: the embedded token, the
    rotated query, the rotated value and, one number per head, the bias of a query for a key at position 0, and the
    mapped score of zero between them. With several axes, axis 0 moves and the others stay at 0. An encoding that
    depends on the length is resolved for 1,024.

    Args:
        distinct: The number of positions from 0 on (for a bias: distances) before the first repeated signature, as
            stored in each dtype. At most 65,536, which means that or more.
        longest: The largest accepted position; None if there is no limit.
        real_positions: Fractional positions are accepted.
        smooth: Signatures of neighbours among 0..4096 are nearer than 0.4 of the diameter of all.
        step: The largest step between neighbours, relative to the diameter.
        bounded: No value of a signature up to position 1,000,000 exceeds 1.5 times the largest below 1,024; up to
            10,000 for an encoding that reads the tokens.
        shift_invariant: Scores and rotated values do not change when all positions move by the same amount.
        symmetric: They do not change when query and key swap positions, so direction has no effect.
        recency: Looking back, the score of the same content never rises with distance, and falls, in every draw.
        linear_shift: There is a matrix T(k) with PE(p + k) = T(k) PE(p), for vectors, rotated queries or values.
        residual: The relative error of such a matrix, fitted by least squares, on other positions.
        length_dependent: It must be resolved for a length, or differs between lengths.
        learned: The number of learned parameters, in all layers of a `PerLayer`.
        cost: The unit that the work grows with: "nothing", "token" (numbers are computed for each token) or "score"
            (also for each pair of tokens).
        per_token: The numbers that one layer with its embeddings computes for each token, after placing.
        per_score: The numbers that it computes for each pair, in all heads.
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
        """Return all measurements as JSON values."""
        return asdict(self)

    def traits(self) -> dict[str, Any]:
        """Return the traits that a card declares: all but the numbers behind smooth, linear_shift and cost."""
        return {trait: value for trait, value in self.as_dict().items() if trait in TRAITS}


def measure(encoding: Encoding) -> Character:
    """Measure the properties of an encoding.

    Args:
        encoding: Any `Encoding`; it is copied, not changed, and the global random state is not used. For a `PerLayer`,
            the first layer is measured.

    Returns:
        The traits and the numbers behind them, each None if it cannot be measured.

    >>> from posenc import ALiBi
    >>> alibi = measure(ALiBi(n_heads=4))
    >>> alibi.recency, alibi.symmetric, alibi.distinct["bfloat16"]
    (True, True, 257)
    """
    learned = sum(p.numel() for p in encoding.parameters())
    stored = [Probe(encoding, torch.float32, seed=seed) for seed in (SEEDS if learned else SEEDS[:1])]
    exact = [Probe(encoding, torch.float64, seed=seed) for seed in SEEDS]  # the projections are random as well
    step = _attempt(lambda: max(map(largest_step, stored)))
    moved = _attempt(lambda: _worst(map(shift_change, exact)))
    residual = _attempt(lambda: _worst(map(shift_residual, exact[: len(stored)])))
    cost, per_token, per_score = _attempt(lambda: count_work(stored[0])) or (None, None, None)
    return Character(
        # scores are sums of products, whose last bit in float32 depends on the processor: computed in float64, rounded
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
    """Compare a card's declared traits with the measurement of its example.

    Returns:
        A sentence for each trait that is wrong, missing or unknown.
    """
    found = measure(card.cls(**card.example)).traits()
    unknown = [trait for trait in card.traits if trait not in TRAITS]
    sentences = [f"{card.name}: {trait!r} is not a trait. The traits are {', '.join(TRAITS)}." for trait in unknown]
    for trait, value in found.items():
        declared = card.traits.get(trait, _MISSING)
        if declared is _MISSING:
            sentences.append(f"{card.name}: does not declare {trait}; measured {value!r}. Declare it.")
        elif not _agree(declared, value):
            sentences.append(f"{card.name}: declares {trait}={declared!r}; measured {value!r}. Fix one of them.")
    return sentences


def _agree(declared: Any, value: Any) -> bool:
    """Return whether a declaration equals the measurement; counts may differ a little, by rounding on the processor."""
    if isinstance(declared, Mapping) and isinstance(value, Mapping):
        return declared.keys() == value.keys() and all(abs(declared[k] - n) <= ROUNDINGS * n for k, n in value.items())
    return isinstance(declared, bool) == isinstance(value, bool) and bool(declared == value)


def _attempt(look: Callable[[], _Found]) -> _Found | None:
    """Return the result of a measurement, or None if the encoding refuses it."""
    try:
        return look()
    except (*REFUSALS, TypeError):
        return None


def _worst(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)
