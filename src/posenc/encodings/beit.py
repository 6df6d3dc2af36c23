"""BEiT: Swin's table of rows and columns, and three more numbers for the class token."""

from typing import Any

import torch
from torch import Tensor, nn

from posenc import positions
from posenc.encoding import Placed, Pos
from posenc.families import Bias
from posenc.families.networks import looked_up
from posenc.families.resizing import Rule, resized_differences
from posenc.families.windows import cell, reached, refuse_outside, rows_and_columns, with_tensors
from posenc.registry import register


@register(
    "beit",
    paper="Bao et al., BEiT: BERT Pre-Training of Image Transformers",
    year=2021,
    arxiv="2106.08254",
    formula="score + W[Δrow, Δcolumn, h], and one number each for class to patch, patch to class and class to class",
    parameters="((2·window[0] - 1)·(2·window[1] - 1) + 3)·H",
    cost="one term a score",
    used_by=("BEiT", "BEiT-2", "data2vec"),
    serves=("image",),
    example={"n_heads": 4, "window": (64, 64)},
    traits={
        "distinct": {"float32": 64, "bfloat16": 64, "float16": 64},
        "longest": 63,
        "real_positions": False,
        "smooth": False,
        "bounded": True,
        "shift_invariant": True,
        "symmetric": False,
        "recency": False,
        "linear_shift": None,
        "length_dependent": False,
        "learned": 64_528,
        "cost": "score",
    },
)
class BEiT(Bias):
    """Add a learned number for the difference in rows and columns of two patches, and three numbers for a class token.

    The class token stands at (-1, -1), or at (-1, 0), where `positions.grid(rows, columns, n_prefix=1)` puts it. The
    last three rows of the table belong to it: class token to patch, patch to class token, and class token to itself.
    The other rows are Swin's. Moving all patches changes nothing, as long as the class token stays. The paper does not
    mention the table; it is in the authors' code. Source: Bao 2021, and Liu 2021 (2103.14030), section 3.2.

    Args:
        n_heads: Number of query heads.
        window: Rows and columns of patches in an image.

    Raises:
        ValueError: A size is below 1, a token in a negative row is not a class token, or two patches are further apart
            than the table reaches (checked on the CPU; on a GPU the index kernel raises).
        TypeError: Positions or sizes are not integers.

    >>> beit = BEiT(n_heads=1, window=(1, 1))
    >>> with torch.no_grad(): _ = beit.weight.copy_(torch.tensor([[5.0], [1.0], [2.0], [3.0]]))
    >>> beit.dense(torch.tensor([[-1, -1], [0, 0]]))[0, 0].tolist()
    [[3.0, 1.0], [2.0, 5.0]]
    """

    n_axes = 2
    accepts_real = False

    def __init__(self, *, n_heads: int, window: tuple[int, int] = (14, 14)) -> None:
        super().__init__(n_heads=n_heads)
        self.window = rows_and_columns(self, "window", window)
        rows, columns = self.window
        self.weight = nn.Parameter(torch.empty((2 * rows - 1) * (2 * columns - 1) + 3, n_heads))
        self.reset_parameters()

    @property
    def max_len(self) -> int:
        """Positions along the shorter side."""
        return min(self.window)

    def parts(self, pos: Pos, x: Tensor | None, past: Placed | None, dtype: torch.dtype) -> tuple[Any, ...]:
        """Keep the positions; a negative row marks a class token."""
        row, column = pos.unbind(-1)
        there = (row >= 0) | ((row == -1) & (column >= -1) & (column <= 0))
        if positions.may_look(there) and not there.all():
            raise ValueError(
                f"{self.name}: a token in a negative row is the class token, which stands at (-1, -1) or (-1, 0); got "
                f"{tuple(pos[~there][0].tolist())}. Count the rows of patches from 0."
            )
        # where values cannot be read, an invalid token goes beyond the table, so it is not taken for a class token
        return super().parts(torch.stack((row.where(there, len(self.weight)), column), -1), x, past, dtype)

    def at(self, h: Tensor, q: Any, k: Any) -> Tensor:
        """Return W[Δrow, Δcolumn, h], or one of the last three rows."""
        q_class, k_class = q[0] < 0, k[0] < 0
        apart = q[0] - k[0], q[1] - k[1]
        inside = reached(apart, self.window) | q_class | k_class
        refuse_outside(inside, self.name, self.window, "`resized` makes a larger table.")
        end = self.weight.shape[0]
        row = torch.where(inside, cell(apart, self.window), end)  # beyond the table, the index kernel raises
        row = torch.where(k_class, end - 2, row)
        row = torch.where(q_class, end - 3 + 2 * k_class.long(), row)
        return looked_up(self.weight, row, h)

    def resized(self, window: tuple[int, int], *, rule: Rule = "bilinear") -> "BEiT":
        """Return a table for another image size; the class token's numbers stay.

        The authors place the rows at geometrically growing distances, and other code uses cubic interpolation. To
        match either exactly, resize the table with that code.

        Args:
            window: New rows and columns.
            rule: As for `Learned2D.resized`; "bilinear" (the default) is the rule of Hugging Face's models.

        Raises:
            ValueError: A size is below 1, or the rule is unknown.
        """
        wanted = rows_and_columns(self, "window", window)
        patches, last = self.weight.detach().tensor_split((-3,))
        table = torch.cat((resized_differences(patches, self.window, wanted, rule, self.name), last))
        twin = with_tensors(self, weight=table)
        twin.window = wanted
        return twin

    def reset_parameters(self) -> None:
        """Draw the numbers from N(0, 0.02), truncated at two."""
        nn.init.trunc_normal_(self.weight, std=0.02)
