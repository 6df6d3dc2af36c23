"""Time2Vec: one learned linear function and learned sines."""

import math

import torch
from jaxtyping import Float64
from torch import Tensor

from posenc.encoding import Pos
from posenc.families import Additive, geometric, wide_parameter
from posenc.registry import register


@register(
    "time2vec",
    paper="Kazemi et al., Time2Vec: Learning a Vector Representation of Time",
    year=2019,
    arxiv="1907.05321",
    formula="x_p[0] + ω_0·p + φ_0,  x_p[i] + sin(ω_i·p + φ_i)",
    parameters="2·D",
    cost="one addition to the embeddings",
    aliases=("t2v",),
    serves=("text",),
    example={"d_model": 32},
    traits={
        "distinct": {"float32": 65_536, "bfloat16": 65_536, "float16": 65_536},
        "longest": None,
        "real_positions": True,
        "smooth": True,
        "bounded": False,
        "shift_invariant": False,
        "symmetric": False,
        "recency": False,
        "linear_shift": False,
        "length_dependent": False,
        "learned": 64,
        "cost": "token",
    },
)
class Time2Vec(Additive):
    """Add a learned linear function of the position in dimension 0 and learned sines in the others.

    It was designed for real times. The paper concatenates the vector with the token's features; here it is added.
    Frequencies and phases stay in float32 whatever the module is cast to. The paper does not specify their
    initialisation: here the sines start at geometric frequencies with random phases, and the linear function at one
    per 10,000 positions. Source: Kazemi 2019, equation 1.

    Args:
        d_model: Width of the token embeddings.

    Raises:
        ValueError: d_model is below 1.

    >>> t2v = Time2Vec(d_model=2)
    >>> with torch.no_grad(): _ = t2v.inv_freq.copy_(torch.tensor([2.0, 0.5])), t2v.phase.zero_()
    >>> t2v.vectors(torch.tensor([3]))
    tensor([[6.0000, 0.9975]], dtype=torch.float64, grad_fn=<CatBackward0>)
    """

    keeps_float32 = True

    def __init__(self, *, d_model: int) -> None:
        super().__init__(d_model=d_model)
        self.inv_freq, self.phase = wide_parameter(d_model), wide_parameter(d_model)
        self.reset_parameters()

    def vectors(self, pos: Pos) -> Float64[Tensor, "*batch seq d_model"]:
        """Return the linear function and the sines."""
        angle = pos.double()[..., None] * self.inv_freq.double() + self.phase.double()
        return torch.cat((angle[..., :1], angle[..., 1:].sin()), -1)

    def reset_parameters(self) -> None:
        """Set the frequencies to a geometric sequence and draw the phases from U(-pi, pi)."""
        with torch.no_grad():
            fall = geometric(self.d_model, base=10000.0, width=2 * max(self.d_model - 1, 1))
            self.inv_freq.copy_(fall.roll(1))
            self.inv_freq[0] = 1e-4
            self.phase.uniform_(-math.pi, math.pi)[:1].zero_()
