"""A learned number for each head and each distance up to a limit."""

from typing import Any

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from posenc.families import Bias, wide
from posenc.registry import register


@register(
    "relative_bias",
    paper="after Shaw et al., Self-Attention with Relative Position Representations: its clipping, one number a head",
    year=2018,
    arxiv="1803.02155",
    formula="score + W[h, clip(i - j, -K, K)]",
    parameters="H·(2·K + 1)",
    cost="one term a score",
    aliases=("clipped_bias",),
    serves=("text",),
    example={"n_heads": 4, "max_distance": 16},
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
        "learned": 132,
        "cost": "score",
    },
)
class RelativeBias(Bias):
    """Add a learned number that depends on the head and the clipped distance.

    All distances beyond max_distance share one number on each side, so the model can distinguish far tokens from near
    ones but not from each other. Source: the clipping of Shaw 2018, section 3.2.

    Args:
        n_heads: Number of query heads.
        max_distance: K: distances beyond it count as K.

    Raises:
        ValueError: n_heads is below 1, or max_distance is negative.

    >>> bias = RelativeBias(n_heads=1, max_distance=1)
    >>> with torch.no_grad(): _ = bias.weight.copy_(torch.tensor([[7.0, 0.0, 5.0]]))
    >>> bias.dense(torch.arange(3))[0, 0].tolist()
    [[0.0, 7.0, 7.0], [5.0, 0.0, 7.0], [5.0, 5.0, 0.0]]
    """

    accepts_real = False
    by_distance = True

    def __init__(self, *, n_heads: int, max_distance: int = 128) -> None:
        super().__init__(n_heads=n_heads)
        if max_distance < 0:
            raise ValueError(f"{self.name}: max_distance must not be negative; got max_distance={max_distance}.")
        self.max_distance = max_distance
        self.weight = nn.Parameter(torch.empty(n_heads, 2 * max_distance + 1))
        self.reset_parameters()

    def at(self, h: Tensor, q: Any, k: Any) -> Tensor:
        """Return W[h, clip(q - k)]."""
        row = (q - k).long().clamp(-self.max_distance, self.max_distance) + self.max_distance
        return wide(self.weight)[h, row]

    def over(self, distance: Shaped[Tensor, " n"]) -> Float[Tensor, "heads n"]:
        """Return W[h, clip(distance)] of each head, like `at` but by whole rows."""
        row = distance.long().clamp(-self.max_distance, self.max_distance) + self.max_distance
        return wide(self.weight).narrow(0, *self.held).index_select(1, row)

    def reset_parameters(self) -> None:
        """Draw the numbers from N(0, 0.02)."""
        nn.init.normal_(self.weight, std=0.02)
