"""The position itself, in every dimension."""

from jaxtyping import Float64
from torch import Tensor

from posenc.encoding import Pos
from posenc.families import Additive
from posenc.registry import register


@register(
    "integer",
    paper="folklore: the simplest idea",
    year=2017,
    formula="x_p + p",
    parameters="0",
    cost="one addition to the embeddings",
    aliases=("index", "counting"),
    serves=("textbook",),
    example={"d_model": 32},
    traits={
        "distinct": {"float32": 65_536, "bfloat16": 257, "float16": 2_049},
        "longest": None,
        "real_positions": True,
        "smooth": True,
        "bounded": False,
        "shift_invariant": False,
        "symmetric": False,
        "recency": False,
        "linear_shift": False,
        "length_dependent": False,
        "learned": 0,
        "cost": "token",
    },
)
class Integer(Additive):
    """Add the position, as a number, to every dimension.

    It distinguishes all positions, but it grows without bound: after a few hundred tokens it dominates the token
    embeddings, and bfloat16 cannot represent 257. A layer norm removes it, because it subtracts the mean over the
    dimensions: a model that begins with one has no position.

    Args:
        d_model: Width of the token embeddings.

    Raises:
        ValueError: d_model is below 1.

    >>> import torch
    >>> Integer(d_model=2).vectors(torch.tensor([0, 3])).tolist()
    [[0.0, 0.0], [3.0, 3.0]]
    """

    def __init__(self, *, d_model: int) -> None:
        super().__init__(d_model=d_model)

    def vectors(self, pos: Pos) -> Float64[Tensor, "*batch seq d_model"]:
        """Return the position in every dimension."""
        return pos.double()[..., None].expand(*pos.shape, self.d_model)
