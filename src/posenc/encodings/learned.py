"""Learned vectors, one a position."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.nn import functional as F

from posenc import positions
from posenc.families import Additive, with_table
from posenc.families.resizing import Rule, resized_rows
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
    used_by=("BERT", "GPT-2", "RoBERTa and OPT (offset 2)", "ViT"),
    serves=("text",),
    example={"d_model": 32, "max_len": 128},
    variants=({"offset": 2, "padding_idx": 1},),
    traits={
        "distinct": {"float32": 128, "bfloat16": 128, "float16": 128},
        "longest": 127,
        "real_positions": False,
        "smooth": False,
        "bounded": True,
        "shift_invariant": False,
        "symmetric": False,
        "recency": False,
        "linear_shift": False,
        "length_dependent": False,
        "learned": 4_096,
        "cost": "token",
    },
)
class Learned(Additive):
    """Add a learned vector for each position.

    There is nothing beyond `max_len`: a later position is an error, not a guess; `resized` makes a longer table.
    Position -1 marks padding, where the offset leaves a row for it: `positions.padded` makes such positions, and
    with offset=2 and padding_idx=1 the rows are RoBERTa's. Source: Gehring 2017, section 3.1; Devlin 2018
    (1810.04805).

    Args:
        d_model: Width of the token embeddings.
        max_len: How many positions there are.
        offset: Rows before that of position 0, as OPT, BART and RoBERTa have 2.
        init_std: Standard deviation of the initial values.
        padding_idx: One of the rows before that of position 0, counted from the table's first, that starts at zero
            and gets no gradient; None for none.

    Raises:
        ValueError: A position outside 0..max_len - 1 (on the CPU; a GPU's own index check speaks there), except
            for -1 where there is an offset.
        TypeError: Positions that are not integers.

    >>> Learned(d_model=4, max_len=8)(torch.zeros(1, 3, 4), torch.arange(3)).shape
    torch.Size([1, 3, 4])
    """

    accepts_real = False

    def __init__(
        self,
        *,
        d_model: int,
        max_len: int,
        offset: int = 0,
        init_std: float = 0.02,
        padding_idx: int | None = None,
    ) -> None:
        super().__init__(d_model=d_model)
        self._count(max_len=max_len)
        self._count(least=0, offset=offset, padding_idx=padding_idx or 0)
        if padding_idx is not None and padding_idx >= offset:
            raise ValueError(
                f"{self.name}: padding_idx must be one of the offset={offset} rows before that of position 0; "
                f"got padding_idx={padding_idx}."
            )
        self.max_len, self.offset, self.init_std, self.padding_idx = max_len, offset, init_std, padding_idx
        self.weight = nn.Parameter(torch.empty(max_len + offset, d_model))
        self.reset_parameters()

    def vectors(self, pos: Int64[Tensor, "*batch seq"]) -> Float[Tensor, "*batch seq d_model"]:
        """Look up the rows."""
        start, why = -1 if self.offset else 0, f"the table was made with max_len={self.max_len}"
        positions.check_range(pos, self.max_len, self.name, why, start=start)
        # where nobody may look, a wrong position meets the look-up's own check and no other position's row
        row = torch.where(pos >= start, pos + self.offset, self.weight.shape[0])
        return F.embedding(row, self.weight, self.padding_idx)

    def resized(self, max_len: int, *, keep: int = 0, rule: Rule = "ends") -> "Learned":
        """Return a longer or shorter table by linear interpolation; rows of the offset stay as they are.

        Long-CLIP makes 248 rows of CLIP's 77 by `resized(248, keep=20, rule="steps")`: the first 20 are trained best,
        and the other 57 are stretched four times. Source: Zhang 2024 (2403.15378), section 3.1, and its code.

        Args:
            max_len: How many positions there will be.
            keep: How many of the first rows stay as they are; the others are stretched over the rest.
            rule: Where the new rows lie among the old ones: "ends" (the default: the first is the first, the last the
                last; torch's align_corners), "cells" (both tables span the same length; torch's default) or "steps"
                (row i at i times old / new, continued behind the last row: Long-CLIP), or a mapping of arguments
                of torch's interpolate, {"mode": "nearest"}.

        Raises:
            ValueError: A max_len below 1, a keep that leaves nothing to stretch, or an unknown rule.

        >>> table = Learned(d_model=1, max_len=3)
        >>> _ = table.weight.data.copy_(torch.tensor([[5.0], [0.0], [4.0]]))
        >>> [table.resized(5, keep=1, rule=rule).weight.data.flatten().tolist() for rule in ("cells", "steps")]
        [[5.0, 0.0, 1.0, 3.0, 4.0], [5.0, 0.0, 2.0, 4.0, 6.0]]
        """
        self._count(max_len=max_len)
        self._count(least=0, keep=keep)
        if keep and keep >= min(self.max_len, max_len):
            raise ValueError(
                f"{self.name}: keep must leave rows to stretch, of the {self.max_len} that there are and of the "
                f"{max_len} that are wanted; got keep={keep}."
            )
        before, others = self.weight.detach().tensor_split((self.offset + keep,))
        twin = with_table(self, torch.cat((before, resized_rows(others, max_len - keep, rule, self.name))))
        twin.max_len = max_len
        return twin

    def reset_parameters(self) -> None:
        """Draw the table from N(0, init_std); the row for padding is zero."""
        nn.init.normal_(self.weight, std=self.init_std)
        if self.padding_idx is not None:
            nn.init.zeros_(self.weight[self.padding_idx])
