"""Swin: a learned number for each head and each difference of rows and columns in a window."""

from typing import Any

import torch
from torch import Tensor, nn

from posenc.families import Bias
from posenc.families.networks import looked_up
from posenc.families.resizing import Rule, resized_differences
from posenc.families.windows import cell, reached, refuse_outside, rows_and_columns, with_tensors
from posenc.registry import register


@register(
    "swin",
    paper="Liu et al., Swin Transformer: Hierarchical Vision Transformer using Shifted Windows",
    year=2021,
    arxiv="2103.14030",
    formula="score + W[Δrow, Δcolumn, h]",
    parameters="(2·window[0] - 1)·(2·window[1] - 1)·H",
    cost="one term a score",
    aliases=("relative_bias_2d", "swin_table"),
    used_by=("Swin", "MaxViT", "CoAtNet"),
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
        "learned": 64_516,
        "cost": "score",
    },
)
class Swin(Bias):
    """Add a learned number that depends on the head and on the difference in rows and columns of two patches.

    The table has the layout of the published one: row (Δrow + rows - 1)(2 columns - 1) + Δcolumn + columns - 1, query
    minus key. Attention within a window is attention over `positions.grid(*window)`; windows are rows of a batch.
    A pair further apart than the window raises an error; `resized` makes a larger table. Source: Liu 2021, section
    3.2, equation 4.

    Args:
        n_heads: Number of query heads.
        window: Rows and columns of the window.

    Raises:
        ValueError: A size is below 1, or a pair is further apart than the window (checked on the CPU; on a GPU the
            index kernel raises).
        TypeError: Positions or sizes are not integers.

    >>> swin = Swin(n_heads=1, window=(1, 2))
    >>> with torch.no_grad(): _ = swin.weight.copy_(torch.tensor([[7.0], [0.0], [5.0]]))
    >>> swin.dense(torch.tensor([[0, 0], [0, 1]]))[0, 0].tolist()
    [[0.0, 7.0], [5.0, 0.0]]
    """

    n_axes = 2
    accepts_real = False

    def __init__(self, *, n_heads: int, window: tuple[int, int] = (7, 7)) -> None:
        super().__init__(n_heads=n_heads)
        self.window = rows_and_columns(self, "window", window)
        rows, columns = self.window
        self.weight = nn.Parameter(torch.empty((2 * rows - 1) * (2 * columns - 1), n_heads))
        self.reset_parameters()

    @property
    def max_len(self) -> int:
        """Positions along the shorter side."""
        return min(self.window)

    def at(self, h: Tensor, q: Any, k: Any) -> Tensor:
        """Return W[Δrow, Δcolumn, h]."""
        apart = q[0] - k[0], q[1] - k[1]
        inside = reached(apart, self.window)
        refuse_outside(inside, self.name, self.window, "`resized` makes a larger table.")
        # where values cannot be read, the index kernel raises for a pair too far apart
        return looked_up(self.weight, torch.where(inside, cell(apart, self.window), self.weight.shape[0]), h)

    def resized(self, window: tuple[int, int], *, rule: Rule = "transformers") -> "Swin":
        """Return a table for another window, interpolated as an image.

        Args:
            window: New rows and columns.
            rule: As for `Learned2D.resized`: "transformers" (the default) is bicubic without antialiasing, as in the
                authors' code; "timm" antialiases.

        Raises:
            ValueError: A size is below 1, or the rule is unknown.
        """
        wanted = rows_and_columns(self, "window", window)
        twin = with_tensors(self, weight=resized_differences(self.weight, self.window, wanted, rule, self.name))
        twin.window = wanted
        return twin

    def reset_parameters(self) -> None:
        """Draw the numbers from N(0, 0.02), truncated at two."""
        nn.init.trunc_normal_(self.weight, std=0.02)
