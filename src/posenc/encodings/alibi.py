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
    variants=({"n_heads": 12}, {"n_heads": 6, "slopes": "geometric", "bias_max": 16.0}, {"sides": "one-sided"}),
    traits={
        "distinct": {"float32": 65_536, "bfloat16": 257, "float16": 2_049},
        "longest": None,
        "real_positions": True,
        "smooth": True,
        "bounded": False,
        "shift_invariant": True,
        "symmetric": True,
        "recency": True,
        "linear_shift": None,
        "length_dependent": False,
        "learned": 0,
        "cost": "score",
    },
)
class ALiBi(Bias):
    """Subtract the distance times a fixed slope, another for each head.

    Symmetric in the distance, so that it serves encoders too; one-sided, it leaves keys ahead alone, and a model
    that sees them can tell before from after. Behind a causal mask both are the same. Source: Press 2021, section 3;
    for numbers of heads that are no power of two, the slopes of the authors' code.

    Args:
        n_heads: Heads of the queries.
        slopes: "authors" (2^(-8(h+1)/H) where H is a power of two; otherwise those of the power
            below, then every other one of twice that power) or "geometric" (2^(-8(h+1)/H) for any H).
        bias_max: Exponent of the slowest slope, 8 in the paper; MPT's configurations call it alibi_bias_max.
        sides: "symmetric" (-m_h |i - j|) or "one-sided" (-m_h max(i - j, 0)).

    Raises:
        ValueError: No heads, a bias_max that is not positive, or another word for the slopes or the sides.

    >>> ALiBi(n_heads=8).dense(torch.arange(3))[0, 0]
    tensor([[-0.0000, -0.5000, -1.0000],
            [-0.5000, -0.0000, -0.5000],
            [-1.0000, -0.5000, -0.0000]])
    """

    def __init__(
        self,
        *,
        n_heads: int,
        slopes: Literal["authors", "geometric"] = "authors",
        bias_max: float = 8.0,
        sides: Literal["symmetric", "one-sided"] = "symmetric",
    ) -> None:
        super().__init__(n_heads=n_heads)
        if slopes not in ("authors", "geometric"):
            raise ValueError(f"{self.name}: slopes must be 'authors' or 'geometric'; got {slopes!r}.")
        if sides not in ("symmetric", "one-sided"):
            raise ValueError(f"{self.name}: sides must be 'symmetric' or 'one-sided'; got {sides!r}.")
        self._measure(bias_max=bias_max)
        self.slopes, self.bias_max, self.sides = slopes, bias_max, sides

    def at(self, h: Tensor, q: Any, k: Any) -> Tensor:
        """Return -m_h |q - k|, or -m_h max(q - k, 0)."""
        distance = floating((q - k).abs() if self.sides == "symmetric" else (q - k).clamp(min=0))
        head = h.to(distance.dtype)
        if self.slopes == "geometric":
            exponent = (head + 1) * (self.bias_max / self.n_heads)
        else:
            lower = 2 ** math.floor(math.log2(self.n_heads))
            exponent = torch.where(h < lower, head + 1, head - lower + 0.5) * (self.bias_max / lower)
        return -torch.exp2(-exponent) * distance
