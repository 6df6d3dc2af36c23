"""Learned vectors, one per position."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.nn import functional as F

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

    The table ends at `max_len`: a later position raises an error; `resized` makes a longer table. Position -1 marks
    padding if the offset leaves a row for it: `positions.padded` makes such positions, and with offset=2 and
    padding_idx=1 the rows are RoBERTa's. Source: Gehring 2017, section 3.1; Devlin 2018 (1810.04805).

    Args:
        d_model: Width of the token embeddings.
        max_len: Number of positions.
        offset: Rows before that of position 0; 2 in OPT, BART and RoBERTa.
        init_std: Standard deviation of the initial values.
        padding_idx: Index in the table of a row before that of position 0, which starts at zero and gets no gradient;
            None for no such row.

    Raises:
        ValueError: A position is outside 0..max_len - 1, except -1 with an offset (checked on the CPU; on a GPU the
            index kernel raises).
        TypeError: Positions are not integers.

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

    @property
    def _first_pos(self) -> int:  # type: ignore[override]  # not set on construction: older pickles lack it
        return -1 if self.offset else 0

    def vectors(self, pos: Int64[Tensor, "*batch seq"]) -> Float[Tensor, "*batch seq d_model"]:
        """Look up the rows."""
        # where values cannot be read, the index kernel raises for a wrong position
        row = torch.where(pos >= self._first_pos, pos + self.offset, self.weight.shape[0])
        return F.embedding(row, self.weight, self.padding_idx)

    def resized(self, max_len: int, *, keep: int = 0, rule: Rule = "ends") -> "Learned":
        """Return a longer or shorter table by linear interpolation; the rows of the offset stay unchanged.

        Long-CLIP makes 248 rows from CLIP's 77 by `resized(248, keep=20, rule="steps")`: the first 20 are trained best,
        and the other 57 are stretched by 4. Source: Zhang 2024 (2403.15378), section 3.1, and its code.

        Args:
            max_len: New number of positions.
            keep: Number of first rows that stay unchanged; the others are stretched over the rest.
            rule: Where the new rows lie among the old ones: "ends" (the default: first on first, last on last;
                torch's align_corners), "cells" (both tables span the same length; torch's default) or "steps"
                (row i at i times old / new, extrapolated beyond the last row: Long-CLIP), or a mapping of arguments
                of torch's interpolate, such as {"mode": "nearest"}.

        Raises:
            ValueError: max_len is below 1, keep leaves no rows to stretch, or the rule is unknown.

        >>> table = Learned(d_model=1, max_len=3)
        >>> _ = table.weight.data.copy_(torch.tensor([[5.0], [0.0], [4.0]]))
        >>> [table.resized(5, keep=1, rule=rule).weight.data.flatten().tolist() for rule in ("cells", "steps")]
        [[5.0, 0.0, 1.0, 3.0, 4.0], [5.0, 0.0, 2.0, 4.0, 6.0]]
        """
        self._count(max_len=max_len)
        self._count(least=0, keep=keep)
        if keep and keep >= min(self.max_len, max_len):
            raise ValueError(
                f"{self.name}: keep must leave rows to stretch, both of the {self.max_len} old rows and of the "
                f"{max_len} new ones; got keep={keep}."
            )
        before, others = self.weight.detach().tensor_split((self.offset + keep,))
        twin = with_table(self, torch.cat((before, resized_rows(others, max_len - keep, rule, self.name))))
        twin.max_len = max_len
        return twin

    def cropped(self, max_len: int) -> "Learned":
        """Return the table of the first positions, such as nanoGPT's crop_block_size makes for a shorter model.

        The rows of the offset stay, and the tables share nothing.

        Raises:
            ValueError: max_len is below 1 or above the number of positions.

        >>> table = Learned(d_model=4, max_len=8, offset=2)
        >>> bool((table.cropped(3).weight == table.weight[:5]).all())
        True
        """
        self._count(max_len=max_len)
        if max_len > self.max_len:
            raise ValueError(
                f"{self.name}: cropped keeps at most the table's own {self.max_len} positions; got max_len={max_len}. "
                "`resized` makes a longer table."
            )
        twin = with_table(self, self.weight.detach()[: self.offset + max_len].clone())
        twin.max_len = max_len
        return twin

    def reset_parameters(self) -> None:
        """Draw the table from N(0, init_std); the row for padding is zero."""
        nn.init.normal_(self.weight, std=self.init_std)
        if self.padding_idx is not None:
            nn.init.zeros_(self.weight[self.padding_idx])
