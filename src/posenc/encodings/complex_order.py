"""Complex order embeddings: tokens rotate in the complex plane with their position."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from posenc import kernels
from posenc.encoding import Placed, Pos
from posenc.families import Embedded, geometric, wide_parameter
from posenc.registry import register


@register(
    "complex_order",
    paper="Wang et al., Encoding Word Order in Complex Embeddings",
    year=2019,
    arxiv="1912.12333",
    formula="x_p[k] = r_k·e^{i(ω_k·p + φ_k)}, dimensions 2k and 2k + 1 its real and imaginary part",
    parameters="D/2",
    cost="two products and one sum for each lane of the embeddings",
    aliases=("complex",),
    serves=("text",),
    example={"d_model": 32},
    traits={
        "distinct": {"float32": 65_536, "bfloat16": 65_536, "float16": 65_536},
        "longest": None,
        "real_positions": True,
        "smooth": False,
        "bounded": True,
        "shift_invariant": False,
        "symmetric": False,
        "recency": False,
        "linear_shift": True,
        "length_dependent": False,
        "learned": 16,
        "cost": "token",
    },
)
class ComplexOrder(Embedded):
    """Rotate pairs of dimensions of the token embeddings by learned angles proportional to the position.

    A word is a function of its position: the token embedding, read as complex numbers, gives the amplitude and the
    initial phase, and the position rotates them. Of the paper's ways to share parameters, this is the one in which
    all words have the same frequencies. The frequencies stay in float32 whatever the module is cast to. RoPE does the
    same to queries and keys; here it happens before any projection. Source: Wang 2019, section 3.

    Args:
        d_model: Width of the token embeddings; even.

    Raises:
        ValueError: d_model is odd.

    >>> complex_order = ComplexOrder(d_model=2)
    >>> with torch.no_grad(): _ = complex_order.inv_freq.fill_(torch.pi / 2)
    >>> complex_order(torch.tensor([[[1.0, 0.0]]]), torch.tensor([1])).detach().numpy().round(4) + 0.0
    array([[[0., 1.]]], dtype=float32)
    """

    keeps_float32 = True

    def __init__(self, *, d_model: int) -> None:
        super().__init__(d_model=d_model)
        if d_model % 2:
            raise ValueError(
                f"{self.name}: d_model must be even, because pairs of dimensions are real and imaginary parts; got "
                f"d_model={d_model}."
            )
        self.inv_freq = wide_parameter(d_model // 2)
        self.reset_parameters()

    def parts(self, pos: Pos, x: Tensor | None, past: Placed | None, dtype: torch.dtype) -> tuple[Any, ...]:
        """Compute cosines and sines of the angles."""
        angle = pos.double()[..., None] * self.inv_freq.double()
        return angle.cos().to(dtype), angle.sin().to(dtype)

    def mix(self, x: Float[Tensor, "*batch seq d_model"], *parts: Tensor) -> Float[Tensor, "*batch seq d_model"]:
        """Return the rotated tokens."""
        return kernels.rotate(x, *parts, pairing="interleaved")

    def reset_parameters(self) -> None:
        """Set the frequencies to RoPE's; the paper does not specify their start."""
        with torch.no_grad():
            self.inv_freq.copy_(geometric(self.d_model // 2, base=10000.0, width=self.d_model))
