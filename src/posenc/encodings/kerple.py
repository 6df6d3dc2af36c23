"""KERPLE: scores fall with the logarithm of the distance."""

from typing import Any

import torch
from torch import Tensor, nn

from posenc.families import Bias, floating, wide
from posenc.registry import register


@register(
    "kerple",
    paper="Chi et al., KERPLE: Kernelized Relative Positional Embedding for Length Extrapolation",
    year=2022,
    arxiv="2205.09921",
    formula="score - r1_h·log(1 + r2_h·|i - j|),  r1, r2 > 0",
    parameters="2·H",
    cost="one term a score",
    aliases=("kerple_log",),
    serves=("long", "text"),
    example={"n_heads": 4},
    traits={
        "distinct": {"float32": 65_536, "bfloat16": 67, "float16": 360},
        "longest": None,
        "real_positions": True,
        "smooth": True,
        "bounded": False,
        "shift_invariant": True,
        "symmetric": True,
        "recency": True,
        "linear_shift": None,
        "length_dependent": False,
        "learned": 8,
        "cost": "score",
    },
)
class KERPLE(Bias):
    """Subtract a learned multiple of the logarithm of the distance.

    This is the logarithmic kernel of the paper. r1 and r2 are learned as logarithms, which keeps them positive; the
    authors' code clamps them. Source: Chi 2022, the logarithmic variant.

    Args:
        n_heads: Number of query heads.

    Raises:
        ValueError: n_heads is below 1.

    >>> kerple = KERPLE(n_heads=1)
    >>> with torch.no_grad(): _ = kerple.log_r1.zero_(), kerple.log_r2.zero_()
    >>> kerple.dense(torch.arange(2)).exp()[0, 0, 1]
    tensor([0.5000, 1.0000], grad_fn=<SelectBackward0>)
    """

    by_distance = True

    def __init__(self, *, n_heads: int) -> None:
        super().__init__(n_heads=n_heads)
        self.log_r1 = nn.Parameter(torch.empty(n_heads))
        self.log_r2 = nn.Parameter(torch.empty(n_heads))
        self.reset_parameters()

    def at(self, h: Tensor, q: Any, k: Any) -> Tensor:
        """Return -r1_h log(1 + r2_h |q - k|)."""
        distance = floating((q - k).abs())
        r1, r2 = wide(self.log_r1)[h].exp(), wide(self.log_r2)[h].exp()
        return -r1 * torch.log1p(r2 * distance)

    def reset_parameters(self) -> None:
        """Draw r1 from U(0, 2) and r2 from U(0, 1), as the authors' code does."""
        with torch.no_grad():
            self.log_r1.uniform_(0.0, 2.0).clamp_(min=0.01).log_()
            self.log_r2.uniform_(0.0, 1.0).clamp_(min=0.01).log_()
