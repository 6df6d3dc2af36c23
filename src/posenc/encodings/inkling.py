"""Inkling: learned curves over the distance, which each query mixes for itself."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from posenc.config.values import short
from posenc.encoding import Placed, Pos
from posenc.encodings.query_temperature import log_temperature
from posenc.families import Bias, ReadsTokens, no_autocast
from posenc.registry import register


@register(
    "inkling",
    paper="Thinking Machines, Inkling (code)",
    year=2026,
    arxiv=None,
    formula="score + τ_i·Σ_r (W_h x_i)_r·P[r, i - j] for 0 ≤ i - j < extent,  τ_i = 1 + α·ln max((i + 1)/L, 1)",
    parameters="H·d_rel·D + d_rel·extent",
    cost="a product of width D for each of H·d_rel mixes of a token, one of width d_rel for each distance, a look-up",
    aliases=("relative_logits",),
    used_by=("Inkling", "Inkling 2"),
    serves=("long", "text"),
    example={"d_model": 16, "n_heads": 4, "d_rel": 3, "extent": 40},
    variants=({"d_rel": 1, "extent": 7},),
    traits={
        "distinct": {"float32": 41, "bfloat16": 41, "float16": 41},
        "longest": None,
        "real_positions": False,
        "smooth": False,
        "bounded": True,
        "shift_invariant": True,
        "symmetric": False,
        "recency": False,
        "linear_shift": None,
        "length_dependent": False,
        "learned": 312,
        "cost": "score",
    },
)
class Inkling(ReadsTokens, Bias):
    """Add a curve over the distance: each query mixes a few curves that all heads share.

    The weights of the mix come from the token, not from q. Keys ahead and keys `extent` or more positions behind get no
    bias, so only content distinguishes them: Inkling has no other encoding in its layers. Its temperature also
    multiplies the queries: `Compose(QueryTemperature(law="inkling", ...), Inkling(temperature=..., ...))`. Inkling 2
    also clips the length of the mix, which is not included. The scale of q·k (1 / head_dim in Inkling, whose q and k
    are normalised) is `attend`'s `scale`. A cache stores the mixes of old tokens, although no later query needs them.
    Source: transformers' code of Inkling and Inkling 2.

    Args:
        d_model: Width of the tokens that `place` reads: the input of the attention layer.
        n_heads: Number of query heads, each with its own mix.
        d_rel: Number of curves.
        extent: Number of distances in a curve, from 0; in layers with a window the models use the window's size.
        temperature: α, the growth of the term with the logarithm of the position beyond L; 0.1 in the models.
        original_max_len: L, in positions; 128,000 in Inkling 2.

    Raises:
        ValueError: The tokens' shape does not match the positions and d_model, or temperature is negative.
        TypeError: `place` gets no tokens, or positions are not integers.

    >>> inkling = Inkling(d_model=1, n_heads=1, d_rel=1, extent=2)
    >>> with torch.no_grad(): _ = inkling.weight.fill_(1.0), inkling.profiles.copy_(torch.tensor([[3.0, 5.0]]))
    >>> placed, q = inkling.place(torch.arange(3), torch.tensor([[[1.0], [2.0], [4.0]]])), torch.ones(1, 1, 3, 4)
    >>> inkling.bias(q, q, placed, placed)[0, 0].tolist()
    [[3.0, 0.0, 0.0], [10.0, 6.0, 0.0], [0.0, 20.0, 12.0]]
    """

    accepts_real = False

    def __init__(
        self,
        *,
        d_model: int,
        n_heads: int,
        d_rel: int = 16,
        extent: int = 1024,
        temperature: float = 0.0,
        original_max_len: int = 128000,
    ) -> None:
        super().__init__(n_heads=n_heads)
        self._count(d_model=d_model, d_rel=d_rel, extent=extent, original_max_len=original_max_len)
        if not isinstance(temperature, (int, float)):
            raise TypeError(f"{self.name}: temperature must be a number; got {short(temperature)}.")
        if not 0 <= temperature < math.inf:
            raise ValueError(f"{self.name}: temperature must be finite and not negative; got {temperature=}.")
        self.d_model, self.d_rel, self.extent = d_model, d_rel, extent
        self.temperature, self.original_max_len = temperature, original_max_len
        self.weight = nn.Parameter(torch.empty(n_heads * d_rel, d_model))
        self.profiles = nn.Parameter(torch.empty(d_rel, extent))
        self.reset_parameters()

    def parts(self, pos: Pos, x: Tensor | None, past: Placed | None, dtype: torch.dtype) -> tuple[Any, ...]:
        """Return the positions, and the mixes (batch, seq_len, n_heads) of each curve, times the temperature."""
        assert x is not None  # place() has checked it
        tokens, _ = self.clear(x, dtype)
        with no_autocast(x.device):
            mixes = (tokens @ self.weight.to(dtype).T).unflatten(-1, (self.n_heads, self.d_rel))
        if self.temperature:
            mixes = mixes * log_temperature(pos, self.temperature, self.original_max_len).to(dtype)[..., None, None]
        return *super().parts(pos, x, past, dtype), *mixes.unbind(-1)

    def at(self, h: Tensor, q: Any, k: Any) -> Tensor:
        """Return the sum of the curves at q - k, each times its mix; `q` and `k` begin with positions."""
        distance, mixes = (q[0] - k[0]).long(), q[1:]
        seen, place = (distance >= 0) & (distance < self.extent), distance.clamp(0, self.extent - 1)
        total = torch.zeros_like(mixes[0])
        for mix, curve in zip(mixes, self.profiles.to(mixes[0].dtype), strict=True):
            total = total + mix * curve[place]
        return torch.where(seen, total, 0.0)

    def reset_parameters(self) -> None:
        """Draw both from N(0, 0.02), as the models' code draws its weights."""
        nn.init.normal_(self.weight, std=0.02)
        nn.init.normal_(self.profiles, std=0.02)

    def _broadcast(self, placed: Placed, k_placed: Placed) -> Tensor:
        """Mix all curves of each query at once and look up the distances: `at` for whole rows."""
        q_pos, *mixes = self._by_head(placed)
        distance = (q_pos[..., :, None] - self._by_head(k_placed)[0][..., None, :]).long()
        with no_autocast(distance.device):
            curves = torch.stack(mixes, -1) @ self.profiles.to(mixes[0].dtype)
        place = distance.clamp(0, self.extent - 1).expand(*curves.shape[:-1], -1)
        return torch.where((distance >= 0) & (distance < self.extent), curves.gather(-1, place), 0.0)
