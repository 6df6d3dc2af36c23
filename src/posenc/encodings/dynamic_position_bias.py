"""Dynamic position bias: a network of the distance for each head."""

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from posenc.families import Bias, check_word, floating, wide
from posenc.families.networks import of_heads, tabulated
from posenc.registry import register

_NORM_EPS = 1e-5  # the default of torch's LayerNorm, which the authors train with


@register(
    "dynamic_position_bias",
    paper="Wang et al., CrossFormer: A Versatile Vision Transformer Hinging on Cross-scale Attention",
    year=2021,
    arxiv="2108.00154",
    formula="score + w_h·relu(LN(W·relu(LN(.. w (i - j) + b))))",
    parameters="(depth - 1)·width² + width·(n_axes + 3·depth + H) + H",
    cost="a network of depth·width² a distance, and a look-up a score",
    aliases=("dpb",),
    used_by=("CrossFormer",),
    serves=("image", "text"),
    example={"n_heads": 4, "width": 8},
    variants=({"depth": 2, "log_distance": True}, {"n_axes": 2, "depth": 2}),
    traits={
        "distinct": {"float32": 257, "bfloat16": 3, "float16": 5},
        "longest": None,
        "real_positions": True,
        "smooth": False,
        "bounded": True,
        "shift_invariant": True,
        "symmetric": False,
        "recency": False,
        "linear_shift": None,
        "length_dependent": False,
        "learned": 244,
        "cost": "score",
    },
)
class DynamicPositionBias(Bias):
    """Add a number for each head that a small network computes from the distance.

    So every distance has a bias, including distances absent from training. The authors' network is `depth` blocks of a
    linear layer, LayerNorm and ReLU, and a linear layer to the heads. Its input is rows and columns (`n_axes=2`). Its
    width is a quarter of d_model in the paper, a sixteenth in their code. Other libraries offer it for text, with SiLU
    and without LayerNorm. It runs once per distinct distance, not per pair. Source: Wang 2021, section 3.3.

    Args:
        n_heads: Number of query heads.
        width: Units of each hidden layer.
        depth: Hidden layers; 3 in the authors' code.
        log_distance: True gives the network sign(d) log(1 + |d|).
        n_axes: Axes of the positions; the network's input is the distance along each.
        norm: False omits LayerNorm.
        activation: "relu" or "silu".

    Raises:
        TypeError: A number has the wrong type.
        ValueError: n_heads, width, depth or n_axes is below 1, or the activation is unknown.

    >>> bias = DynamicPositionBias(n_heads=1, width=1, depth=1, norm=False)
    >>> with torch.no_grad(): _ = [p.fill_(1.0) for p in bias.parameters()]  # relu(d + 1) + 1
    >>> bias.dense(torch.arange(3)).detach()[0, 0].tolist()
    [[2.0, 1.0, 1.0], [3.0, 2.0, 1.0], [4.0, 3.0, 2.0]]
    """

    by_distance = True

    def __init__(
        self,
        *,
        n_heads: int,
        width: int = 64,
        depth: int = 3,
        log_distance: bool = False,
        n_axes: int = 1,
        norm: bool = True,
        activation: Literal["relu", "silu"] = "relu",
    ) -> None:
        super().__init__(n_heads=n_heads)
        self._count(width=width, depth=depth, n_axes=n_axes)
        check_word(self.name, "activation", activation, "relu", "silu")
        self.width, self.depth, self.log_distance, self.n_axes = width, depth, log_distance, n_axes
        self.norm, self.activation = norm, activation
        if n_axes > 1:
            self.by_distance = False
        self.w_in = nn.Parameter(torch.empty(width, n_axes))
        self.b_in = nn.Parameter(torch.empty(width))
        self.w_mid = nn.Parameter(torch.empty(depth - 1, width, width)) if depth > 1 else None
        self.b_mid = nn.Parameter(torch.empty(depth - 1, width)) if depth > 1 else None
        self.ln_g = nn.Parameter(torch.empty(depth, width)) if norm else None
        self.ln_b = nn.Parameter(torch.empty(depth, width)) if norm else None
        self.w_out = nn.Parameter(torch.empty(n_heads, width))
        self.b_out = nn.Parameter(torch.empty(n_heads))
        self.reset_parameters()

    def at(self, h: Tensor, q: Any, k: Any) -> Tensor:
        """Return the network's output at q - k for head h."""
        along = [q - k] if self.n_axes == 1 else [a - b for a, b in zip(q, k, strict=True)]
        return tabulated(self._network, h, along)

    def _network(self, h: Tensor, along: Sequence[Tensor]) -> Tensor:
        inputs = torch.stack(torch.broadcast_tensors(*map(floating, along)), -1)
        if self.log_distance:
            inputs = inputs.sign() * inputs.abs().log1p()
        dtype = torch.promote_types(inputs.dtype, wide(self.w_in).dtype)
        x = F.linear(inputs.to(dtype), self.w_in.to(dtype), self.b_in.to(dtype))
        for layer in range(self.depth):
            if self.ln_g is not None and self.ln_b is not None:
                gain, shift = self.ln_g[layer].to(dtype), self.ln_b[layer].to(dtype)
                x = F.layer_norm(x, (self.width,), gain, shift, _NORM_EPS)
            x = F.silu(x) if self.activation == "silu" else F.relu(x)
            if layer < self.depth - 1 and self.w_mid is not None and self.b_mid is not None:
                x = F.linear(x, self.w_mid[layer].to(dtype), self.b_mid[layer].to(dtype))
        w_out, b_out = self.w_out.to(dtype), self.b_out.to(dtype)
        return of_heads(x, w_out, h) + b_out[h]

    def reset_parameters(self) -> None:
        """Draw the layers as torch draws linear ones; LayerNorm starts as the identity."""
        of_width = (self.w_mid, self.b_mid, self.w_out, self.b_out)
        layers = [*((p, self.n_axes) for p in (self.w_in, self.b_in)), *((p, self.width) for p in of_width)]
        for parameter, inputs in layers:
            if parameter is not None:
                nn.init.uniform_(parameter, -(inputs**-0.5), inputs**-0.5)
        if self.ln_g is not None and self.ln_b is not None:
            nn.init.ones_(self.ln_g)
            nn.init.zeros_(self.ln_b)
