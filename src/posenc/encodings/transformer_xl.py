"""Transformer-XL: queries times a projected sinusoid of the distance."""

from typing import Any

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from posenc import frequencies
from posenc.encoding import Placed, Pos
from posenc.encodings.sinusoidal import Order
from posenc.families import ContentBias, check_word, geometric, no_autocast, of_each_head
from posenc.registry import register


@register(
    "transformer_xl",
    paper="Dai et al., Transformer-XL: Attentive Language Models beyond a Fixed-Length Context",
    year=2019,
    arxiv="1901.02860",
    formula="((q_i + u)·k_j + (q_i + v)·W_R r_{i-j}) / √d",
    parameters="H·d·(D + 2)",
    cost="a product of width D for each score",
    aliases=("xl", "txl"),
    used_by=("Transformer-XL", "XLNet", "Conformer"),
    serves=("text", "long"),
    example={"d_model": 16, "n_heads": 4, "head_dim": 8},
    variants=({"order": "alternating"},),
    traits={
        "distinct": {"float32": 65_536, "bfloat16": 65_536, "float16": 65_536},
        "longest": None,
        "real_positions": True,
        "smooth": True,
        "bounded": True,
        "shift_invariant": True,
        "symmetric": False,
        "recency": False,
        "linear_shift": None,
        "length_dependent": False,
        "learned": 576,
        "cost": "score",
    },
)
class TransformerXL(ContentBias):
    """Add to each score the products of the query and two learned vectors with the key and the distance.

    r is the sinusoid of the distance. It is never computed for pairs: by the angle sum identities,
    (q + v)·W r_{i-j} is a product of a vector of i and a vector of j, for any positions. Source: Dai 2019, section 3.3.

    Args:
        d_model: Width of the sinusoid; even.
        n_heads: Number of query heads.
        head_dim: Dimensions of one head.
        base: 10,000 in the paper.
        order: Of the sinusoid's entries and the weight's columns: "concatenated" (all sines, then all cosines), or
            "alternating" as in Conformers, whose linear_pos.weight, unflattened to (n_heads, head_dim, d_model), fits.

    Raises:
        ValueError: d_model is odd, order is another word, or q has another n_heads or head_dim.

    >>> xl = TransformerXL(d_model=4, n_heads=2, head_dim=4)
    >>> q, p = torch.ones(1, 2, 3, 4), xl.place(torch.arange(3))
    >>> xl.bias(q, q, p, p).shape
    torch.Size([1, 2, 3, 3])
    """

    by_distance = True

    def __init__(
        self, *, d_model: int, n_heads: int, head_dim: int, base: float = 10000.0, order: Order = "concatenated"
    ) -> None:
        super().__init__()
        check_word(self.name, "order", order, "concatenated", "alternating")
        if d_model % 2 or min(d_model, n_heads, head_dim) < 1:
            raise ValueError(
                f"{self.name}: d_model must be even, because each frequency has a sine and a cosine, and all widths "
                f"at least 1; got d_model={d_model}, n_heads={n_heads}, head_dim={head_dim}."
            )
        self.d_model, self.n_heads, self.head_dim = d_model, n_heads, head_dim
        self.base, self.order = frequencies.check_base(base, self.name), order
        self.u = nn.Parameter(torch.empty(n_heads, head_dim))
        self.v = nn.Parameter(torch.empty(n_heads, head_dim))
        self.weight = nn.Parameter(torch.empty(n_heads, head_dim, d_model))
        self.reset_parameters()

    def parts(self, pos: Pos, x: Tensor | None, past: Placed | None, dtype: torch.dtype) -> tuple[Any, ...]:
        """Compute sines and cosines of the positions themselves."""
        inv_freq = geometric(self.d_model // 2, base=self.base, width=self.d_model)
        angle = pos.double()[..., None] * inv_freq.to(pos.device)
        return angle.sin().to(dtype), angle.cos().to(dtype)

    def bias(
        self, q: Tensor, k: Tensor, placed: Placed, k_placed: Placed
    ) -> Float[Tensor, "batch n_heads q_len k_len"]:
        """Return (u·k_j + (q_i + v)·W r_{i-j}) / √d."""
        self.check_heads(q)
        sin, cos = (part.unsqueeze(-3) for part in placed.parts)  # (..., 1, q_len, d_model / 2)
        k_sin, k_cos = (part.unsqueeze(-3) for part in k_placed.parts)
        dtype = sin.dtype
        with no_autocast(q.device):  # half precision would round the angles' products
            q, k = q.to(dtype), of_each_head(k.to(dtype), self.n_heads)
            u, v, weight = (t.to(dtype) for t in (self.u, self.v, self._by_sines()))
            a, b = ((q + v[:, None]) @ weight).chunk(2, dim=-1)
            # a sin(i - j) + b cos(i - j), with the sines and cosines of the difference written out
            of_query = torch.cat((a * sin + b * cos, b * sin - a * cos), -1)
            of_key = torch.cat((k_cos, k_sin), -1)
            by_distance = of_query @ of_key.mT
            by_content = u[:, None] @ k.mT
            return (by_content + by_distance) * self.score_scale(self.head_dim)

    def vectors(self, distance: Shaped[Tensor, " n"], dtype: torch.dtype) -> Float[Tensor, "heads n head_dim"]:
        """Return W r of each distance."""
        sin, cos = self.parts(distance, None, None, dtype)
        return torch.cat((sin, cos), 1) @ self._by_sines().to(dtype).mT

    def _by_sines(self) -> Tensor:
        """Return the weight with the columns of all sines first."""
        concatenated, weight = self.order == "concatenated", self.weight
        return weight if concatenated else torch.cat((weight[..., 0::2], weight[..., 1::2]), -1)

    def queries(self, q: Float[Tensor, "batch heads q_len head_dim"]) -> Float[Tensor, "batch heads q_len head_dim"]:
        """Return q + v."""
        return q + self.v.to(q.dtype)[:, None]

    def of_keys(self, k: Float[Tensor, "batch kv_heads k_len head_dim"]) -> Float[Tensor, "batch heads k_len"]:
        """Return u·k."""
        k = of_each_head(k, self.n_heads)
        return (k @ self.u.to(k.dtype)[..., None]).squeeze(-1)

    def reset_parameters(self) -> None:
        """Draw u, v and W_R from N(0, 0.02)."""
        for parameter in (self.u, self.v, self.weight):
            nn.init.normal_(parameter, std=0.02)
