"""The position in binary digits."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from posenc import positions
from posenc.families import Additive
from posenc.registry import register


@register(
    "binary",
    paper="folklore: binary counting, which sinusoids make continuous",
    year=2017,
    formula="x_p[i] + bit_{D-1-i}(p)",
    parameters="0",
    cost="one addition to the embeddings",
    aliases=("bits",),
    serves=("textbook",),
    example={"d_model": 32},
    traits={
        "distinct": {"float32": 65_536, "bfloat16": 65_536, "float16": 65_536},
        "longest": 4_294_967_295,
        "real_positions": False,
        "smooth": False,
        "bounded": True,
        "shift_invariant": False,
        "symmetric": False,
        "recency": False,
        "linear_shift": False,
        "length_dependent": False,
        "learned": 0,
        "cost": "token",
    },
)
class Binary(Additive):
    """Add the position's binary digits, the most significant first.

    Every position below 2^d_model has its own vector. But neighbours may differ in every dimension
    (1 is 01 and 2 is 10), and no dimension measures the distance between two positions.

    Args:
        d_model: Width of the token embeddings, and the number of digits.

    Raises:
        ValueError: A position is negative or needs more than d_model digits (checked on the CPU; where values cannot
            be read, such a position becomes NaN).
        TypeError: Positions are not integers.

    >>> Binary(d_model=3).vectors(torch.tensor([1, 6])).tolist()
    [[0.0, 0.0, 1.0], [1.0, 1.0, 0.0]]
    """

    accepts_real = False

    def __init__(self, *, d_model: int) -> None:
        super().__init__(d_model=d_model)

    def vectors(self, pos: Int64[Tensor, "*batch seq"]) -> Float[Tensor, "*batch seq d_model"]:
        """Return the digits as 0.0 and 1.0."""
        end = 2 ** min(self.d_model, 63)
        positions.check_range(pos, end, self.name, f"d_model={self.d_model} dimensions hold that many digits")
        # int64 has 63 digits; a shift by more is undefined, and digit 63 of a position is 0
        shift = torch.arange(self.d_model - 1, -1, -1, device=pos.device).clamp(max=63)
        digits = ((pos[..., None] >> shift) & 1).to(torch.float32)
        return digits.where(((pos >= 0) & (pos <= end - 1))[..., None], torch.nan)
