"""Sandwich: the dot product of two sinusoids as a bias."""

import math
from typing import Any

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from posenc import frequencies
from posenc.families import Bias, floating
from posenc.positions.checks import may_look
from posenc.registry import register

_SPREAD = 8  # a table of all distances pays up to this many times the number requested


@register(
    "sandwich",
    paper="Chi et al., Dissecting Transformer Length Extrapolation via the Lens of Receptive Field Analysis",
    year=2022,
    arxiv="2212.10356",
    formula="score + H/(8h)·Σ_k cos((i - j)·base^(-2k/d)),  h = 1 .. H,  k = 0 .. d/2 - 1",
    parameters="0",
    cost="d/2 cosines a score",
    serves=("text", "long"),
    example={"n_heads": 4},
    variants=({"n_heads": 3, "width": 8},),
    traits={
        "distinct": {"float32": 14_656, "bfloat16": 18, "float16": 67},
        "longest": None,
        "real_positions": True,
        "smooth": True,
        "bounded": True,
        "shift_invariant": True,
        "symmetric": True,
        "recency": False,
        "linear_shift": None,
        "length_dependent": False,
        "learned": 0,
        "cost": "score",
    },
)
class Sandwich(Bias):
    """Add the dot product of the sinusoids of the two positions, with a factor for each head.

    This is the inner product of sinusoidal embeddings without the cross terms with the tokens. It falls with the
    distance, with ripples. The paper's printed sum omits the fastest cosine; its code and this class include it.
    Source: Chi 2022, section 5.

    Args:
        n_heads: Number of query heads.
        width: d: twice the number of cosines; 128 in the paper, whatever the model's width.
        base: 10,000.

    Raises:
        ValueError: n_heads is below 1, width is odd, or base is not above 1.

    >>> Sandwich(n_heads=8, width=2).dense(torch.tensor([0, 1]))[0, 0, 0]  # 1 and cos 1
    tensor([1.0000, 0.5403])
    """

    by_distance = True

    def __init__(self, *, n_heads: int, width: int = 128, base: float = 10000.0) -> None:
        super().__init__(n_heads=n_heads)
        if width < 2 or width % 2:
            raise ValueError(f"{self.name}: width must be even, because it is twice the cosines; got width={width}.")
        self.width, self.base = width, frequencies.check_base(base, self.name)
        self._inv_freq = tuple(frequencies.geometric(width // 2, base=self.base, width=width).tolist())

    def at(self, h: Tensor, q: Any, k: Any) -> Tensor:
        """Return the sum of cosines times n_heads / (8 (h + 1))."""
        distance = floating(q - k)
        wide = distance.double()
        wave = torch.zeros_like(wide)
        for inv_freq in self._inv_freq:
            wave = wave + (wide * inv_freq).cos()  # one at a time: all cosines at once need too much memory
        return (wave * self.n_heads / (8 * (h.double() + 1))).to(distance.dtype)

    def over(self, distance: Shaped[Tensor, " n"]) -> Float[Tensor, "heads n"]:
        """Return the sums of cosines; for integer distances as one product of tables, by the angle sum identity."""
        if distance.is_floating_point() or not may_look(distance):
            return super().over(distance)
        least, most = (int(end) for end in distance.aminmax())
        if most - least > _SPREAD * distance.numel():  # the table would be far larger than the request
            return super().over(distance.double()).float()
        inv_freq = distance.new_tensor(self._inv_freq, dtype=torch.float64)
        step = math.isqrt(most - least) + 1  # one table has this many distances, the other every step-th
        far = torch.arange(least, most + 1, step, device=distance.device)[:, None] * inv_freq
        near = torch.arange(step, device=distance.device)[:, None] * inv_freq
        waves = (far.cos() @ near.cos().T - far.sin() @ near.sin().T).flatten()[distance - least]
        share = self.n_heads / (8 * (self._heads(distance.device).double() + 1))
        return (share[:, None] * waves).float()
