"""Learned vectors, one a position."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.nn import functional as F

from posenc import positions
from posenc.families import Additive
from posenc.registry import register


@register(
    "learned",
    paper="Gehring et al., Convolutional Sequence to Sequence Learning",
    year=2017,
    arxiv="1705.03122",
    formula="x_p + W[p + offset]",
    parameters="(max_len + offset)·D",
    cost="one table look-up and one addition",
    aliases=("learned_absolute", "wpe"),
    used_by=("BERT", "GPT-2", "OPT (offset 2)", "ViT"),
    example={"d_model": 32, "max_len": 128},
    variants=({"offset": 2},),
    traits={"shift_invariant": False, "real_positions": False},
)
class Learned(Additive):
    """Add a learned vector for each position.

    There is nothing beyond `max_len`: a later position is an error, not a guess. Source: Gehring
    2017, section 3.1; Devlin 2018 (1810.04805).

    Args:
        d_model: Width of the token embeddings.
        max_len: How many positions there are.
        offset: Rows before that of position 0, as OPT and BART have 2.
        init_std: Standard deviation of the initial values.

    Raises:
        ValueError: A position outside 0..max_len - 1 (on the CPU; a GPU's own index check speaks there).
        TypeError: Positions that are not integers.

    >>> Learned(d_model=4, max_len=8)(torch.zeros(1, 3, 4), torch.arange(3)).shape
    torch.Size([1, 3, 4])
    """

    accepts_real = False

    def __init__(self, *, d_model: int, max_len: int, offset: int = 0, init_std: float = 0.02) -> None:
        super().__init__()
        if d_model < 1 or max_len < 1 or offset < 0:
            raise ValueError(
                f"{self.name}: d_model and max_len must be at least 1 and offset at least 0; "
                f"got d_model={d_model}, max_len={max_len}, offset={offset}."
            )
        self.d_model, self.max_len, self.offset, self.init_std = d_model, max_len, offset, init_std
        self.weight = nn.Parameter(torch.empty(max_len + offset, d_model))
        self.reset_parameters()

    def vectors(self, pos: Int64[Tensor, "*batch seq"]) -> Float[Tensor, "*batch seq d_model"]:
        """Look up the rows."""
        positions.check_range(pos, self.max_len, self.name, f"the table was made with max_len={self.max_len}")
        return F.embedding(pos + self.offset, self.weight)

    def reset_parameters(self) -> None:
        """Draw the table from N(0, init_std)."""
        nn.init.normal_(self.weight, std=self.init_std)
