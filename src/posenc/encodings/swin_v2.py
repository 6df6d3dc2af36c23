"""Swin v2: a small network of the logarithm of the difference in rows and columns of two patches."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from posenc.families import Bias, floating, wide
from posenc.families.networks import of_heads, tabulated
from posenc.families.windows import rows_and_columns
from posenc.registry import register


@register(
    "swin_v2",
    paper="Liu et al., Swin Transformer V2: Scaling Up Capacity and Resolution",
    year=2021,
    arxiv="2111.09883",
    formula="score + 16·σ(w2_h·relu(W1 δ + b1)),  δ = sign(Δ)·log(1 + 8·|Δ| / (window - 1)) / log 8 on each axis",
    parameters="width·(H + 3)",
    cost="a network of that width for each difference of rows and columns, and a look-up a score",
    aliases=("log_cpb", "continuous_bias"),
    used_by=("Swin v2",),
    serves=("image",),
    example={"n_heads": 4, "width": 16},
    variants=({"window": (5, 9), "pretrained_window": (3, 4)},),
    traits={
        "distinct": {"float32": 65_536, "bfloat16": 111, "float16": 462},
        "longest": None,
        "real_positions": True,
        "smooth": True,
        "bounded": True,
        "shift_invariant": True,
        "symmetric": False,
        "recency": False,
        "linear_shift": None,
        "length_dependent": False,
        "learned": 112,
        "cost": "score",
    },
)
class SwinV2(Bias):
    """Add the output of a network on the logarithmic differences of rows and of columns.

    A network has no last row, so a model can use windows that it was not trained with. `pretrained_window` then scales
    the differences as in training, and pairs may be further apart than either window. The published models use cosine
    similarity with a learned scale instead of q·k: normalise q and k, multiply q by that scale, and pass scale=1.0 to
    `attend`. Source: Liu 2021, section 3.3, with the constants of the authors' code, 8 and 16.

    Args:
        n_heads: Number of query heads.
        window: Rows and columns of the window; a side of 1 counts as 2.
        pretrained_window: The window in which the network was trained, if it differs.
        width: Units of the network's hidden layer.

    Raises:
        ValueError: A size is below 1.
        TypeError: A size is not an integer.
        IndexError: Where values cannot be read (in compiled code), as many tokens as a window has are not within one.

    >>> swin = SwinV2(n_heads=1, window=(1, 8), width=1)
    >>> with torch.no_grad(): _ = [p.fill_(1.0) for p in swin.parameters()]
    >>> swin.dense(torch.tensor([[0, 0], [0, 7]])).detach()[0, 0].div(16).logit()
    tensor([[1.0000, 0.0000],
            [2.0566, 1.0000]])
    """

    n_axes = 2

    def __init__(
        self,
        *,
        n_heads: int,
        window: tuple[int, int] = (8, 8),
        pretrained_window: tuple[int, int] | None = None,
        width: int = 512,
    ) -> None:
        super().__init__(n_heads=n_heads)
        self._count(width=width)
        self.window, self.pretrained_window, self.width = rows_and_columns(self, "window", window), None, width
        if pretrained_window is not None:
            self.pretrained_window = rows_and_columns(self, "pretrained_window", pretrained_window)
        self.w1 = nn.Parameter(torch.empty(width, 2))
        self.b1 = nn.Parameter(torch.empty(width))
        self.w2 = nn.Parameter(torch.empty(n_heads, width))
        self.reset_parameters()

    def at(self, h: Tensor, q: Any, k: Any) -> Tensor:
        """Return 16 σ(w2_h · relu(W1 δ + b1))."""
        return tabulated(self._network, h, (q[0] - k[0], q[1] - k[1]), self.window)

    def _network(self, h: Tensor, along: Sequence[Tensor]) -> Tensor:
        trained = self.pretrained_window or self.window
        down, right = (_logarithm(d, side) for d, side in zip(along, trained, strict=True))
        inputs = torch.stack(torch.broadcast_tensors(down, right), -1)
        dtype = torch.promote_types(inputs.dtype, wide(self.w1).dtype)
        hidden = F.linear(inputs.to(dtype), self.w1.to(dtype), self.b1.to(dtype)).relu()
        return 16 * of_heads(hidden, self.w2.to(dtype), h).sigmoid()

    def reset_parameters(self) -> None:
        """Draw the weights from N(0, 0.02), truncated at two; the shift starts at zero."""
        nn.init.trunc_normal_(self.w1, std=0.02)
        nn.init.zeros_(self.b1)
        nn.init.trunc_normal_(self.w2, std=0.02)


def _logarithm(difference: Tensor, side: int) -> Tensor:
    """Return sign(Δ) log2(1 + 8 |Δ| / (side - 1)) / log2(8)."""
    exact = floating(difference)
    return exact.sign() * torch.log2(1 + exact.abs() * (8 / max(side - 1, 1))) / 3
