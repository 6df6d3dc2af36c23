"""The position itself, in every lane."""

from jaxtyping import Float64
from torch import Tensor

from posenc.encoding import Pos
from posenc.families import Additive
from posenc.registry import register


@register(
    "integer",
    paper="folklore: the first thing one tries",
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
    """Add the position, as a number, to every lane.

    It tells all positions apart and grows without bound: a few hundred tokens in, the tokens drown in it,
    and bfloat16 cannot store 257. A layer norm takes it away again, because it subtracts what is common to all
    lanes: a model that begins with one sees nothing of it.

    Args:
        d_model: Width of the token embeddings.

    Raises:
        ValueError: A d_model below 1.

    >>> import torch
    >>> Integer(d_model=2).vectors(torch.tensor([0, 3])).tolist()
    [[0.0, 0.0], [3.0, 3.0]]
    """

    def __init__(self, *, d_model: int) -> None:
        super().__init__(d_model=d_model)

    def vectors(self, pos: Pos) -> Float64[Tensor, "*batch seq d_model"]:
        """Return the position in every lane."""
        return pos.double()[..., None].expand(*pos.shape, self.d_model)
