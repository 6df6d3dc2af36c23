"""T5: a learned number for each head and bucket of distances."""

from typing import Any

import torch
from jaxtyping import Float, Int64, Shaped
from torch import Tensor, nn

from posenc.families import Bias, wide
from posenc.positions.checks import is_plain
from posenc.registry import register


@register(
    "t5",
    paper="Raffel et al., Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer",
    year=2019,
    arxiv="1910.10683",
    formula="score + W[bucket(i - j), h]",
    parameters="n_buckets·H",
    cost="one term a score",
    aliases=("t5_bias", "relative_position_bias"),
    used_by=("T5", "Flan-T5", "UL2", "MPNet"),
    serves=("text",),
    example={"n_heads": 4},
    variants=(
        {"bidirectional": True, "n_buckets": 16, "max_distance": 20},
        {"score_scale": 1.0},
    ),
    traits={
        "distinct": {"float32": 17, "bfloat16": 17, "float16": 17},
        "longest": None,
        "real_positions": False,
        "smooth": False,
        "bounded": True,
        "shift_invariant": True,
        "symmetric": False,
        "recency": False,
        "linear_shift": None,
        "length_dependent": False,
        "learned": 128,
        "cost": "score",
    },
)
class T5(Bias):
    """Add a learned number that depends on the head and on a bucket of the distance.

    Half of the buckets hold one distance each. The others grow logarithmically up to max_distance, and all larger
    distances share the last bucket. The published models do not divide q·k by √d: use `score_scale=1.0` for them.
    Bucket edges are compared as integers, so no logarithm is rounded. Source: Raffel 2019, section 2.1, and the
    authors' code.

    Args:
        n_heads: Number of query heads.
        n_buckets: Total number of buckets.
        max_distance: The distance at which the logarithm ends; all larger distances share the last bucket.
        bidirectional: False puts keys ahead of the query into bucket 0; True gives them the upper half of the
            buckets.
        score_scale: The factor on q·k; None means head_dim ** -0.5.

    Raises:
        ValueError: n_buckets is too small, or max_distance is within the exact buckets.

    >>> T5(n_heads=1).bucket(torch.tensor([-1, 0, 15, 16, 19, 200])).tolist()
    [0, 0, 15, 16, 17, 31]
    """

    accepts_real = False
    by_distance = True

    def __init__(
        self,
        *,
        n_heads: int,
        n_buckets: int = 32,
        max_distance: int = 128,
        bidirectional: bool = False,
        score_scale: float | None = None,
    ) -> None:
        super().__init__(n_heads=n_heads)
        one_way = n_buckets // 2 if bidirectional else n_buckets
        if n_buckets < (4 if bidirectional else 2) or (bidirectional and n_buckets % 2):
            raise ValueError(
                f"{self.name}: n_buckets must be at least 2 per direction, and even when bidirectional; "
                f"got n_buckets={n_buckets}, bidirectional={bidirectional}."
            )
        if max_distance <= one_way // 2:
            raise ValueError(
                f"{self.name}: max_distance must exceed the {one_way // 2} distances that have a bucket of "
                f"their own; got max_distance={max_distance}."
            )
        self.n_buckets, self.max_distance = n_buckets, max_distance
        self.bidirectional, self._scale = bidirectional, score_scale
        self._edges = _edges(one_way, max_distance)
        self.weight = nn.Parameter(torch.empty(n_buckets, n_heads))
        self.reset_parameters()

    def bucket(self, distance: Int64[Tensor, "*any"]) -> Int64[Tensor, "*any"]:
        """Return the bucket of each distance (query minus key; behind is positive)."""
        behind = distance.abs() if self.bidirectional else distance.clamp(min=0)
        exact = (self.n_buckets // 2 if self.bidirectional else self.n_buckets) // 2
        if is_plain(distance):
            edges = (*range(1, exact + 1), *self._edges[1:])
            bucket = torch.bucketize(behind, behind.new_tensor(edges), right=True)
        else:
            bucket = behind.clamp(max=exact)
            for edge in self._edges[1:]:  # the same by comparisons only, which a score_mod can trace
                bucket = bucket + (behind >= edge)
        return bucket + (distance < 0) * (self.n_buckets // 2) if self.bidirectional else bucket

    def at(self, h: Tensor, q: Any, k: Any) -> Tensor:
        """Return W[bucket(q - k), h]."""
        return wide(self.weight)[self.bucket((q - k).long()), h]

    def over(self, distance: Shaped[Tensor, " n"]) -> Float[Tensor, "heads n"]:
        """Return W[bucket(distance)] of each head, like `at` but by whole rows."""
        rows = wide(self.weight).T.narrow(0, *self.held)
        return rows.index_select(1, self.bucket(distance.long()))

    def score_scale(self, head_dim: int) -> float:
        """Return the scale given, or head_dim ** -0.5."""
        return super().score_scale(head_dim) if self._scale is None else float(self._scale)

    def options(self) -> dict[str, Any]:
        """Return the constructor's arguments; score_scale is also a method, so its value is stored as `_scale`."""
        return super().options() | {"score_scale": self._scale}

    def reset_parameters(self) -> None:
        """Draw the numbers from N(0, 0.02)."""
        nn.init.normal_(self.weight, std=0.02)


def _edges(n_buckets: int, max_distance: int) -> tuple[int, ...]:
    """Return the first distance of each logarithmic bucket.

    Bucket e + m starts at the least whole n with n >= e (M / e)^(m / w), for e exact and w
    logarithmic buckets: n^w e^m >= e^w M^m, a comparison of integers.
    """
    exact = n_buckets // 2
    width = n_buckets - exact
    edges = []
    for m in range(width):
        n = max(exact, int(exact * (max_distance / exact) ** (m / width)) - 2)  # slightly below the edge
        while n**width * exact**m < exact**width * max_distance**m:
            n += 1
        edges.append(n)
    return tuple(edges)
