"""CAPE: sinusoids of positions that are randomly shifted and scaled in training."""

import math

import torch
from jaxtyping import Float64
from torch import Tensor

from posenc import frequencies
from posenc.encoding import Pos
from posenc.encodings.sinusoidal import waves
from posenc.families import Additive, geometric
from posenc.registry import register


@register(
    "cape",
    paper="Likhomanenko et al., CAPE: Encoding Relative Positions with Continuous Augmented Positional Embeddings",
    year=2021,
    arxiv="2106.03143",
    formula="sinusoid of λ·(p + Δ + ε_p) in training, of p in evaluation;  Δ, ε_p uniform, log λ uniform",
    parameters="0",
    cost="one addition to the embeddings; random numbers while training",
    aliases=("augmented",),
    serves=("text",),
    example={"d_model": 32},
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
class CAPE(Additive):
    """Add sinusoids of positions that training shifts, jitters and scales at random.

    A model that never sees the same absolute position twice must rely on differences. Each sequence (a row of `pos`)
    draws one shift and one scale, each token one jitter, from torch's generator whenever the module places positions
    in training mode. Evaluation is deterministic. The paper centres and scales positions first: pass such positions,
    which are real numbers. Source: Likhomanenko 2021, section 3.

    Args:
        d_model: Width of the token embeddings.
        base: 10,000.
        max_global_shift: Δ is drawn from U(-max_global_shift, max_global_shift), in positions.
        max_local_shift: ε_p is drawn from U(-max_local_shift, max_local_shift), in positions; 0.5 keeps the order of
            neighbours.
        max_global_scaling: log λ is drawn from U(-log max_global_scaling, log max_global_scaling).

    Raises:
        ValueError: d_model is below 1, base is not above 1, a shift is negative, or the scaling is below 1.

    >>> cape = CAPE(d_model=2)
    >>> cape.eval().vectors(torch.tensor([1])).numpy().round(4)
    array([[0.8415, 0.5403]])
    """

    def __init__(
        self,
        *,
        d_model: int,
        base: float = 10000.0,
        max_global_shift: float = 5.0,
        max_local_shift: float = 0.5,
        max_global_scaling: float = 1.03,
    ) -> None:
        super().__init__(d_model=d_model)
        finite = math.isfinite(max_global_shift + max_local_shift + max_global_scaling)
        if not (finite and max_global_shift >= 0 and max_local_shift >= 0 and max_global_scaling >= 1):
            raise ValueError(
                f"{self.name}: shifts must be at least 0, the scaling at least 1, and all of them finite; got "
                f"max_global_shift={max_global_shift}, max_local_shift={max_local_shift}, "
                f"max_global_scaling={max_global_scaling}. Pass 0, 0 and 1 to disable the augmentation."
            )
        self.base = frequencies.check_base(base, self.name)
        self.max_global_shift, self.max_local_shift = max_global_shift, max_local_shift
        self.max_global_scaling = max_global_scaling

    def augment(self, pos: Pos) -> Float64[Tensor, "*pos"]:
        """Return positions with the random shift, jitter and scale of one training step."""

        def draw(reach: float, *shape: int) -> Tensor:
            return (torch.rand(shape, dtype=torch.float64, device=pos.device) * 2 - 1) * reach

        row = (*pos.shape[:-1], 1)
        moved = pos.double() + draw(self.max_global_shift, *row) + draw(self.max_local_shift, *pos.shape)
        return moved * draw(math.log(self.max_global_scaling), *row).exp()

    def vectors(self, pos: Pos) -> Float64[Tensor, "*batch seq d_model"]:
        """Return sines and cosines in turn, of augmented positions in training mode."""
        inv_freq = geometric(-(-self.d_model // 2), base=self.base, width=self.d_model)
        exact = self.augment(pos) if self.training else pos.double()
        return waves(exact[..., None] * inv_freq.to(pos.device), self.d_model)
