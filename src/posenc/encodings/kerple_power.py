"""KERPLE's power kernel: scores fall with a power of the distance."""

from typing import Any

import torch
from torch import Tensor, nn

from posenc.families import Bias, floating, wide
from posenc.registry import register


@register(
    "kerple_power",
    paper="Chi et al., KERPLE: Kernelized Relative Positional Embedding for Length Extrapolation",
    year=2022,
    arxiv="2205.09921",
    formula="score - r1_h·|i - j|^(r2_h),  r1 > 0,  0 < r2 < 2",
    parameters="2·H",
    cost="one term a score",
    serves=("long", "text"),
    example={"n_heads": 4},
    traits={
        "distinct": {"float32": 65_536, "bfloat16": 359, "float16": 1_811},
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
class KERPLEPower(Bias):
    """Subtract a learned multiple of a learned power of the distance.

    Power 1 is ALiBi. The kernel is conditionally positive definite up to power 2, so r2 stays below 2: r1 is learned as
    its logarithm and r2 as the logit of its half. The authors' code clamps both. Source: Chi 2022, the power variant.

    Args:
        n_heads: Number of query heads.

    Raises:
        ValueError: n_heads is below 1.

    >>> kerple = KERPLEPower(n_heads=1)
    >>> with torch.no_grad(): _ = kerple.log_r1.zero_(), kerple.logit_r2.zero_()  # r1 = r2 = 1
    >>> kerple.dense(torch.arange(3))[0, 0, 2].tolist()
    [-2.0, -1.0, -0.0]
    """

    by_distance = True

    def __init__(self, *, n_heads: int) -> None:
        super().__init__(n_heads=n_heads)
        self.log_r1 = nn.Parameter(torch.empty(n_heads))
        self.logit_r2 = nn.Parameter(torch.empty(n_heads))
        self.reset_parameters()

    def at(self, h: Tensor, q: Any, k: Any) -> Tensor:
        """Return -r1_h |q - k|^(r2_h)."""
        distance = floating((q - k).abs())
        r1, r2 = wide(self.log_r1)[h].exp(), 2 * wide(self.logit_r2)[h].sigmoid()
        return -r1 * distance**r2

    def reset_parameters(self) -> None:
        """Draw r1 from U(0, 2) and r2 from U(0, 2), neither below 0.01."""
        with torch.no_grad():
            self.log_r1.uniform_(0.0, 2.0).clamp_(min=0.01).log_()
            self.logit_r2.uniform_(0.005, 0.995).logit_()
