"""The position as a fraction of the length."""

from typing import Literal

from jaxtyping import Float64
from torch import Tensor

from posenc.encoding import Pos
from posenc.families import Additive, OfLength
from posenc.registry import register


@register(
    "normalised",
    paper="folklore: counting that stays below one",
    year=2017,
    formula="x_p + p / L,  or p / (L - 1)",
    parameters="0",
    cost="one addition to the embeddings",
    aliases=("normalized", "fraction"),
    serves=("textbook",),
    example={"d_model": 32},
    variants=({"over": "last"}, {"length": 100}),
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
        "length_dependent": True,
        "learned": 0,
        "cost": "token",
    },
)
class Normalised(OfLength, Additive):
    """Add the position over the length of the sequence, to every dimension.

    The value stays below one within the sequence. But the same token moves when the sequence grows, and the step
    between neighbours shrinks, so values learned at one length are wrong at another. As with `Integer`, a layer norm
    removes what is common to all dimensions.

    Args:
        d_model: Width of the token embeddings.
        over: "length" (p / L, so that the last token is below 1) or "last" (p / (L - 1), so that the last token is
            at 1; a sequence of one token is at 0).
        length: L; None to set it later by `resolve(seq_len)`.

    Raises:
        ValueError: d_model or length is below 1, the word for `over` is unknown, or the encoding is placed before the
            length is known.

    >>> import torch
    >>> Normalised(d_model=1).resolve(4).vectors(torch.arange(4)).flatten().tolist()
    [0.0, 0.25, 0.5, 0.75]
    """

    def __init__(self, *, d_model: int, over: Literal["length", "last"] = "length", length: int | None = None) -> None:
        super().__init__(d_model=d_model)
        if over not in ("length", "last"):
            raise ValueError(f"{self.name}: over must be 'length' or 'last'; got {over!r}.")
        self.over = over
        self._set_length(length)

    def vectors(self, pos: Pos) -> Float64[Tensor, "*batch seq d_model"]:
        """Return the fraction in every dimension."""
        whole = self.given_length() if self.over == "length" else max(self.given_length() - 1, 1)
        return (pos.double() / whole)[..., None].expand(*pos.shape, self.d_model)
