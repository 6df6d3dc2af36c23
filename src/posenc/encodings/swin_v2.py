"""Swin v2: a small network of the logarithm of how many rows and columns lie between two patches."""

from typing import Any

import torch
from torch import Tensor, nn

from posenc import positions
from posenc.families import Bias, floating, no_autocast, wide
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
    """Add what a network of two inputs says of the logarithmic difference of rows and of columns.

    A network has no last row, so that a model works in windows that it was not trained in: `pretrained_window` then
    keeps the differences at the size that the network knows, and pairs may be further apart than either. The published
    models compare directions instead of q·k, with a learned scale: normalise q and k, multiply q by that scale, and
    pass scale=1.0 to `attend`. Source: Liu 2021, section 3.3, with the numbers of the authors' code, 8 and 16.

    Args:
        n_heads: Heads of the queries.
        window: Rows and columns of the window; a side of 1 counts as one of 2.
        pretrained_window: The window in which the network was trained, where it is another.
        width: Of the network's hidden layer.

    Raises:
        ValueError: A size below 1.
        TypeError: Sizes that are not integers.

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
        down, right = q[0] - k[0], q[1] - k[1]
        with no_autocast(down.device):  # half precision would round the network's sums
            found = self._tabulated(h, down, right)
            return self._network(h, down, right) if found is None else found

    def _tabulated(self, h: Tensor, down: Tensor, right: Tensor) -> Tensor | None:
        """Return the same from a table of the differences there are: an image has few, and its pairs are many."""
        if down.is_floating_point() or not (positions.may_look(down) and positions.may_look(right)):
            return None
        (top, bottom), (left, end) = (tuple(map(int, t.aminmax())) for t in (down, right))
        columns = end - left + 1
        if (bottom - top + 1) * columns >= down.numel():
            return None
        rows = torch.arange(top, bottom + 1)[:, None].expand(-1, columns)[None]
        cells = self._network(h.reshape(-1, 1, 1), rows, torch.arange(left, end + 1).expand_as(rows)).flatten(1)
        heads = torch.arange(h.numel()).view(h.shape)
        return cells[heads, (down - top) * columns + right - left]

    def _network(self, h: Tensor, down: Tensor, right: Tensor) -> Tensor:
        w1, b1, w2 = (wide(t) for t in (self.w1, self.b1, self.w2))
        dtype = torch.promote_types(w1.dtype, floating(down).dtype)
        trained = self.pretrained_window or self.window
        along = [_logarithm(d, side).to(dtype) for d, side in zip((down, right), trained, strict=True)]
        w1, b1, w2 = (t.to(dtype) for t in (w1, b1, w2[h]))
        hidden = (along[0][..., None] * w1[:, 0] + along[1][..., None] * w1[:, 1] + b1).relu()
        if h.ndim == 3 and h.shape[1:] == (1, 1) and hidden.ndim > 3 and hidden.shape[-4] == 1:  # all heads at once
            return 16 * (hidden.squeeze(-4) @ w2[:, 0, 0].T).movedim(-1, -3).sigmoid()
        return 16 * (hidden * w2).sum(-1).sigmoid()

    def reset_parameters(self) -> None:
        """Draw the weights from N(0, 0.02), cut off at two; the shift starts at zero."""
        nn.init.trunc_normal_(self.w1, std=0.02)
        nn.init.zeros_(self.b1)
        nn.init.trunc_normal_(self.w2, std=0.02)


def _logarithm(difference: Tensor, side: int) -> Tensor:
    """Return sign(Δ) log2(1 + 8 |Δ| / (side - 1)) / log2(8)."""
    exact = floating(difference)
    return exact.sign() * torch.log2(1 + exact.abs() * (8 / max(side - 1, 1))) / 3
