"""Sinusoidal vectors on several axes: images, video, volumes."""

from typing import Literal

import torch
from jaxtyping import Float64
from torch import Tensor

from posenc.encoding import Pos
from posenc.encodings.sinusoidal import Order, Sinusoidal
from posenc.families import Additive
from posenc.registry import register


@register(
    "sinusoidal_nd",
    paper="Parmar et al., Image Transformer",
    year=2018,
    arxiv="1802.05751",
    formula="[sinusoid(p_1) ‖ sinusoid(p_2) ‖ ..], each 2·⌈D/2n⌉ dimensions wide, cut at D",
    parameters="0",
    cost="one addition to the embeddings",
    aliases=("sincos2d", "sinusoidal_2d", "sinusoidal_3d"),
    used_by=("DETR", "MAE"),
    serves=("image", "video"),
    example={"d_model": 32},
    variants=({"n_axes": 3}, {"d_model": 30, "order": "concatenated", "exponent": "tensor2tensor"}),
    traits={
        "distinct": {"float32": 65_536, "bfloat16": 65_536, "float16": 65_536},
        "longest": None,
        "real_positions": True,
        "smooth": True,
        "bounded": True,
        "shift_invariant": False,
        "symmetric": False,
        "recency": False,
        "linear_shift": True,
        "length_dependent": False,
        "learned": 0,
        "cost": "token",
    },
)
class SinusoidalND(Additive):
    """Add the concatenated sinusoids of all axes.

    Axis 0 comes first; `positions.grid` makes it the row. Projects differ here: MAE puts the column first; flip the
    last dimension of pos to match. Source: Parmar 2018, section 3.1; the widths for a d_model that does not divide
    evenly, the package positional-encodings.

    Args:
        d_model: Width of the token embeddings.
        n_axes: 2 for images, 3 for video.
        base: 10,000 in the papers.
        order: "alternating" (sin, cos, sin, cos) or "concatenated" (sines, then cosines), within each axis.
        exponent: "paper" or "tensor2tensor", as in `Sinusoidal`, over the dimensions of one axis.

    Raises:
        ValueError: d_model is too small for the axes, or an option has a value that is not listed here.

    >>> SinusoidalND(d_model=4).vectors(torch.tensor([[0, 1]])).numpy().round(4)
    array([[0.    , 1.    , 0.8415, 0.5403]])
    """

    def __init__(
        self,
        *,
        d_model: int,
        n_axes: int = 2,
        base: float = 10000.0,
        order: Order = "alternating",
        exponent: Literal["paper", "tensor2tensor"] = "paper",
    ) -> None:
        super().__init__(d_model=d_model)
        self._count(n_axes=n_axes)
        share = 2 * -(-d_model // (2 * n_axes))
        if d_model <= share * (n_axes - 1):
            raise ValueError(
                f"{self.name}: each of n_axes={n_axes} axes needs {share} dimensions of its own; got d_model={d_model}."
            )
        self.n_axes, self.order, self.exponent = n_axes, order, exponent
        self.axis = Sinusoidal(d_model=share, base=base, order=order, exponent=exponent)
        self.base = self.axis.base

    def vectors(self, pos: Pos) -> Float64[Tensor, "*batch seq d_model"]:
        """Return the sinusoids of all axes, concatenated."""
        axes = pos.unbind(-1) if self.n_axes > 1 else (pos,)
        return torch.cat([self.axis.vectors(p) for p in axes], -1)[..., : self.d_model]
