"""FIRE: a small network of the distance as a fraction of the query's position."""

import math
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from posenc.families import Bias, floating, size, wide
from posenc.families.networks import without_head_dim
from posenc.positions.checks import is_plain
from posenc.private import within_transform
from posenc.registry import register

_PIECE = 2**19  # numbers of all heads computed at a time: few enough for a processor's cache
_LANES = 4  # separate sums: neighbours share a segment, and each addition to one sum would wait for the previous one


@register(
    "fire",
    paper="Li et al., Functional Interpolation for Relative Positions Improves Long Context Transformers",
    year=2023,
    arxiv="2310.04418",
    formula="score + w2_h·relu(w1·t + b1) + b2_h,  t = ψ(|i - j|) / ψ(max(i, L)),  ψ(x) = log(c·x + 1)",
    parameters="(H + 2)·width + H + 2",
    cost="a logarithm a pair, a look-up in width + 1 line segments a score",
    serves=("long", "text"),
    example={"n_heads": 4, "width": 4, "init_threshold": 2.0},  # small, so that few positions reach it
    variants=({"n_heads": 3, "width": 5, "init_c": 1.0, "init_threshold": 3.0},),
    traits={
        "distinct": {"float32": 5, "bfloat16": 2, "float16": 2},
        "longest": None,
        "real_positions": True,
        "smooth": False,
        "bounded": True,
        "shift_invariant": False,
        "symmetric": False,
        "recency": False,
        "linear_shift": None,
        "length_dependent": False,
        "learned": 30,
        "cost": "score",
    },
)
class FIRE(Bias):
    """Add a learned function of the distance divided by the query's position.

    Up to the threshold L the divisor is L itself, so short texts depend only on distances. Beyond L, far positions map
    to ratios that training has covered. Keys ahead count by |i - j|, and i by |i|; the paper is causal. c is learned
    as its logarithm, which keeps it positive. L is learned as a factor that starts at 1, so an optimiser step changes L
    in proportion; its absolute value is used, as in the paper's own code.

    A network of one input with one hidden ReLU layer is linear between any two of its knots, the inputs at which a
    unit switches. So the line segments are computed once, each pair finds its segment once for all heads, and a score
    is a slope times t plus an intercept: no tensor of q_len x k_len x width is formed. Source: Li 2023, section 3.

    Args:
        n_heads: Number of query heads.
        width: Hidden units of the network; 32 in the paper.
        init_c: Initial c, per position.
        init_threshold: Initial L, in positions.
        eps: Added to the denominator.

    Raises:
        TypeError: A number has the wrong type.
        ValueError: n_heads or width is below 1, or a number is not above zero.

    >>> fire = FIRE(n_heads=1, width=1, init_c=1.0, init_threshold=3.0)
    >>> with torch.no_grad(): _ = [p.fill_(1.0) for p in (fire.w1, fire.w2)], [p.zero_() for p in (fire.b1, fire.b2)]
    >>> fire.dense(torch.arange(4)).detach()[0, 0, 3]  # log 4, log 3, log 2, log 1, over log 4
    tensor([1.0000, 0.7925, 0.5000, 0.0000])
    """

    def __init__(
        self,
        *,
        n_heads: int,
        width: int = 32,
        init_c: float = 0.1,
        init_threshold: float = 512.0,
        eps: float = 1e-6,
    ) -> None:
        super().__init__(n_heads=n_heads)
        self._count(width=width)
        self.width, self.eps = width, size(self.name, "eps", eps)
        self.init_c = size(self.name, "init_c", init_c)
        self.init_threshold = size(self.name, "init_threshold", init_threshold)
        self.w1 = nn.Parameter(torch.empty(width))
        self.b1 = nn.Parameter(torch.empty(width))
        self.w2 = nn.Parameter(torch.empty(n_heads, width))
        self.b2 = nn.Parameter(torch.empty(n_heads))
        self.log_c = nn.Parameter(torch.empty(1))  # FSDP shards no scalars
        self.threshold_scale = nn.Parameter(torch.empty(1))
        self.reset_parameters()

    def at(self, h: Tensor, q: Any, k: Any) -> Tensor:
        """Return f_h(ψ(|q - k|) / (ψ(max(|q|, |L|)) + eps))."""
        c, threshold = wide(self.log_c)[0].exp(), self.init_threshold * wide(self.threshold_scale)[0].abs()
        reach = torch.maximum(floating(q.abs()), threshold)
        t = torch.log1p(c * floating(q - k).abs()) / (torch.log1p(c * reach) + self.eps)
        plain = is_plain(t) and is_plain(h) and not within_transform()  # a transform would need rules for _Lines
        column = without_head_dim(h, t) if plain else None
        if column is None:
            return self._units(h, t)
        lines: Tensor = _Lines.apply(column, *(found.to(t.dtype) for found in self.lines(h.flatten())))
        return lines.movedim(0, -h.ndim)

    def lines(self, h: Int64[Tensor, " heads"]) -> tuple[Tensor, Tensor, Tensor]:
        """Return the knots (width,) in order, and each head's slopes and intercepts (heads, width + 1) between them.

        Segment s begins behind s knots. Computed in float64. Slopes and intercepts carry gradients; knots need none,
        since the function is continuous there.
        """
        w1, b1, w2, b2 = (p.double() for p in (self.w1, self.b1, self.w2[h], self.b2[h]))
        with torch.no_grad():
            knots, order = torch.where(w1 == 0, torch.inf, -b1 / w1).sort()
            passed = order.argsort() < torch.arange(self.width + 1, device=h.device)[:, None]
            rises, falls = w1 > 0, w1 < 0
            active = ((rises & passed) | (falls & ~passed) | (~rises & ~falls & (b1 > 0))).double()
        return knots, (w2 * w1) @ active.T, b2[:, None] + (w2 * b1) @ active.T

    def _units(self, h: Tensor, t: Tensor) -> Tensor:
        """Return f_h(t) unit by unit, by scalar operations only, so that a compiler or a score_mod can trace it."""
        w1, b1, w2 = (wide(p) for p in (self.w1, self.b1, self.w2))
        total = wide(self.b2)[h]
        for unit in range(self.width):
            total = total + w2[h, unit] * torch.relu(w1[unit] * t + b1[unit])
        return total

    def reset_parameters(self) -> None:
        """Draw the network as torch draws linear layers; set c and L to their initial values."""
        with torch.no_grad():
            for parameter, inputs in ((self.w1, 1), (self.b1, 1), (self.w2, self.width), (self.b2, self.width)):
                parameter.uniform_(-(inputs**-0.5), inputs**-0.5)
            self.log_c.fill_(math.log(self.init_c))
            self.threshold_scale.fill_(1.0)


class _Lines(torch.autograd.Function):
    """f_h(t) by segments, one piece at a time, so that only the result has its size, forwards and backwards."""

    @staticmethod
    def forward(
        ctx: Any,
        t: Float[Tensor, "*pairs"],
        knots: Float[Tensor, " width"],
        slopes: Float[Tensor, "heads segments"],
        intercepts: Float[Tensor, "heads segments"],
    ) -> Float[Tensor, "heads *pairs"]:
        x, heads = t.reshape(-1), slopes.shape[0]
        segment = torch.bucketize(x, knots)
        out = x.new_empty(heads, x.numel())
        for piece in _pieces(heads, x.numel()):
            here = segment[piece].expand(heads, -1)
            torch.addcmul(intercepts.gather(1, here), slopes.gather(1, here), x[piece], out=out[:, piece])
        ctx.save_for_backward(t, segment, slopes)
        return out.view(heads, *t.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        t, segment, slopes = ctx.saved_tensors
        x, heads = t.reshape(-1), slopes.shape[0]
        grad, d_t = grad.reshape(heads, -1), torch.empty_like(x)
        sums, moments = slopes.new_zeros(2, heads, slopes.shape[1] * _LANES, dtype=torch.float64)
        lanes = segment * _LANES
        lanes[: x.numel() // _LANES * _LANES].view(-1, _LANES).add_(torch.arange(_LANES, device=x.device))
        for piece in _pieces(heads, x.numel()):
            d_out = grad[:, piece]
            torch.sum(slopes.gather(1, segment[piece].expand(heads, -1)).mul_(d_out), 0, out=d_t[piece])
            here = lanes[piece].expand(heads, -1)
            nothing = slopes.new_zeros(sums.shape)  # one piece at a time, so that long sums run in float64
            sums += nothing.scatter_add(1, here, d_out)
            moments += nothing.scatter_add(1, here, d_out * x[piece])
        d_slopes, d_intercepts = (
            total.unflatten(1, (-1, _LANES)).sum(-1).to(slopes.dtype) for total in (moments, sums)
        )
        return d_t.view(t.shape), None, d_slopes, d_intercepts


def _pieces(heads: int, n: int) -> list[slice]:
    step = max(_PIECE // heads, 1)
    return [slice(begin, begin + step) for begin in range(0, n, step)]
