"""Learnable Fourier features of positions on one or several axes."""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from posenc.encoding import Pos
from posenc.families import Additive, no_autocast, wide_parameter
from posenc.registry import register


@register(
    "learnable_fourier",
    paper="Li et al., Learnable Fourier Features for Multi-Dimensional Spatial Positional Encoding",
    year=2021,
    arxiv="2106.02795",
    formula="x_p + W_2·GELU(W_1·[cos(W_r p) ‖ sin(W_r p)]/√F + b_1) + b_2",
    parameters="F/2·n + F·h + h + h·D + D",
    cost="a two-layer network a position, once a forward pass",
    aliases=("lff",),
    serves=("image", "text"),
    example={"d_model": 32},
    variants=({"n_axes": 2, "n_features": 8, "hidden": 16},),
    traits={
        "distinct": {"float32": 65_536, "bfloat16": 65_536, "float16": 65_536},
        "longest": None,
        "real_positions": True,
        "smooth": False,
        "bounded": True,
        "shift_invariant": False,
        "symmetric": False,
        "recency": False,
        "linear_shift": False,
        "length_dependent": False,
        "learned": 2_128,
        "cost": "token",
    },
)
class LearnableFourier(Additive):
    """Add the output of a small network on learned sines and cosines of the position.

    The features by themselves approximate a Gaussian kernel of the Euclidean distance with width gamma; the network
    shapes it. All axes form one group of the paper. The frequencies stay in float32 whatever the module is cast to.
    Source: Li 2021, section 3, algorithm 1.

    Args:
        d_model: Width of the token embeddings.
        n_axes: Number of coordinates of a position.
        n_features: F, even; None means d_model, rounded up to an even number.
        hidden: Width of the network's hidden layer; None means d_model.
        gamma: Width of the kernel, in positions: frequencies start from N(0, 1 / gamma²).

    Raises:
        ValueError: A width is below 1, n_features is odd, or gamma is not positive.

    >>> LearnableFourier(d_model=4, n_axes=2).vectors(torch.zeros(3, 2)).shape
    torch.Size([3, 4])
    """

    keeps_float32 = True

    def __init__(
        self,
        *,
        d_model: int,
        n_axes: int = 1,
        n_features: int | None = None,
        hidden: int | None = None,
        gamma: float = 10.0,
    ) -> None:
        super().__init__(d_model=d_model)
        n_features = 2 * -(-d_model // 2) if n_features is None else n_features
        hidden = d_model if hidden is None else hidden
        self._count(n_axes=n_axes, n_features=n_features, hidden=hidden)
        self._measure(gamma=gamma)
        if n_features % 2:
            raise ValueError(
                f"{self.name}: n_features must be even, because each frequency has a cosine and a sine; "
                f"got n_features={n_features}."
            )
        self.n_axes, self.n_features, self.hidden, self.gamma = n_axes, n_features, hidden, gamma
        self.weight_r = wide_parameter(n_features // 2, n_axes)
        self.weight_1, self.bias_1 = wide_parameter(hidden, n_features), wide_parameter(hidden)
        self.weight_2, self.bias_2 = wide_parameter(d_model, hidden), wide_parameter(d_model)
        self.reset_parameters()

    def vectors(self, pos: Pos) -> Float[Tensor, "*batch seq d_model"]:
        """Return the network's output for each position."""
        coordinates = pos.double() if self.n_axes > 1 else pos.double()[..., None]
        angle = coordinates @ self.weight_r.double().T
        features = torch.cat((angle.cos(), angle.sin()), -1) * self.n_features**-0.5
        with no_autocast(pos.device):
            middle = F.gelu(F.linear(features.to(self.weight_1.dtype), self.weight_1, self.bias_1))
            return F.linear(middle, self.weight_2, self.bias_2)

    def reset_parameters(self) -> None:
        """Draw the frequencies from N(0, 1 / gamma²) and the network as `nn.Linear` does."""
        nn.init.normal_(self.weight_r, std=1 / self.gamma)
        for weight, bias in ((self.weight_1, self.bias_1), (self.weight_2, self.bias_2)):
            reach = weight.shape[1] ** -0.5
            nn.init.uniform_(weight, -reach, reach)
            nn.init.uniform_(bias, -reach, reach)
