"""ALiBi: scores fall linearly with distance."""

import math
from typing import Any, Literal

import torch
from torch import Tensor

from posenc.families import Bias, floating
from posenc.registry import register


@register(
    "alibi",
    paper="Press et al., Train Short, Test Long: Attention with Linear Biases Enables Input Length Extrapolation",
    year=2021,
    arxiv="2108.12409",
    formula="score - m_h·|i - j|,  m_h = 2^(-8(h+1)/H)",
    parameters="0",
    cost="one term a score",
    used_by=("BLOOM", "MPT", "Falcon-RW", "Baichuan-13B"),
    example={"n_heads": 4},
    variants=({"n_heads": 12}, {"n_heads": 6, "slopes": "geometric"}),
    traits={"shift_invariant": True, "real_positions": True},
)
class ALiBi(Bias):
    """Subtract the distance times a fixed slope, another for each head.

    Symmetric in the distance, which a causal mask makes one-sided. Source: Press 2021, section 3;
    for numbers of heads that are no power of two, the slopes of the authors' code.

    Args:
        n_heads: Heads of the queries.
        slopes: "authors" (2^(-8(h+1)/H) where H is a power of two; otherwise those of the power
            below, then every other one of twice that power) or "geometric" (2^(-8(h+1)/H) for any H).

    Raises:
        ValueError: No heads, or another word for the slopes.

    >>> ALiBi(n_heads=8).dense(torch.arange(3))[0, 0]
    tensor([[-0.0000, -0.5000, -1.0000],
            [-0.5000, -0.0000, -0.5000],
            [-1.0000, -0.5000, -0.0000]])
    """

    def __init__(self, *, n_heads: int, slopes: Literal["authors", "geometric"] = "authors") -> None:
        super().__init__(n_heads=n_heads)
        if slopes not in ("authors", "geometric"):
            raise ValueError(f"{self.name}: slopes must be 'authors' or 'geometric'; got {slopes!r}.")
        self.slopes = slopes

    def at(self, h: Tensor, q: Any, k: Any) -> Tensor:
        """Return -m_h |q - k|."""
        distance = floating((q - k).abs())
        head = h.to(distance.dtype)
        if self.slopes == "geometric":
            exponent = (head + 1) * (8 / self.n_heads)
        else:
            lower = 2 ** math.floor(math.log2(self.n_heads))
            exponent = torch.where(h < lower, head + 1, head - lower + 0.5) * (8 / lower)
        return -torch.exp2(-exponent) * distance
