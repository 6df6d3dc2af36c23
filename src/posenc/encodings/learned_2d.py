"""Learned vectors, one per patch of an image."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.nn import functional as F

from posenc import positions
from posenc.families import Additive, with_table
from posenc.families.resizing import Rule, resized_image
from posenc.registry import register


@register(
    "learned_2d",
    paper="Dosovitskiy et al., An Image is Worth 16x16 Words: Transformers for Image Recognition at Scale",
    year=2020,
    arxiv="2010.11929",
    formula="x_p + W[n_prefix + row·width + column]",
    parameters="(n_prefix + height·width)·D",
    cost="one table look-up and one addition",
    aliases=("vit", "patches"),
    used_by=("ViT", "DeiT", "CLIP", "DINO"),
    serves=("image",),
    example={"d_model": 8, "height": 128, "width": 128, "n_prefix": 1},
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
        "learned": 131_080,
        "cost": "token",
    },
)
class Learned2D(Additive):
    """Add a learned vector for each patch of an image, and for class tokens before it.

    Patches are at (row, column), and the tokens before the image at (-1, 0), (-1, 1), ..:
    `positions.grid(height, width, n_prefix=1)` makes these positions. The table has the layout of timm's `pos_embed`.
    `resized` interpolates it for another image size. Source: Dosovitskiy 2020, section 3.1; the interpolation,
    section 3.2.

    Args:
        d_model: Width of the token embeddings.
        height: Rows of patches.
        width: Columns of patches.
        n_prefix: Tokens before the patches, such as a class token.
        init_std: Standard deviation of the initial values.

    Raises:
        ValueError: A size is below 1, or a position is neither a patch nor a token before them (checked on the CPU).
        TypeError: Positions are not integers.

    >>> table = Learned2D(d_model=4, height=2, width=3, n_prefix=1)
    >>> bool((table.vectors(torch.tensor([[1, 2]])) == table.weight[6]).all())
    True
    """

    n_axes = 2
    accepts_real = False

    def __init__(self, *, d_model: int, height: int, width: int, n_prefix: int = 0, init_std: float = 0.02) -> None:
        super().__init__(d_model=d_model)
        self._count(height=height, width=width)
        self._count(least=0, n_prefix=n_prefix)
        self.height, self.width, self.n_prefix, self.init_std = height, width, n_prefix, init_std
        self.weight = nn.Parameter(torch.empty(n_prefix + height * width, d_model))
        self.reset_parameters()

    @property
    def max_len(self) -> int:
        """Positions along the shorter side."""
        return min(self.height, self.width)

    def vectors(self, pos: Int64[Tensor, "*batch seq 2"]) -> Float[Tensor, "*batch seq d_model"]:
        """Look up the rows."""
        row, column = pos.unbind(-1)
        patch = row >= 0
        there = torch.where(patch, (row < self.height) & (column < self.width), (row == -1) & (column < self.n_prefix))
        there &= column >= 0
        self._check_cells(pos, there)
        # where values cannot be read, the index kernel raises for a wrong position
        cell = torch.where(patch, self.n_prefix + row * self.width + column, column)
        return F.embedding(torch.where(there, cell, self.weight.shape[0]), self.weight)

    def resized(self, height: int, width: int, *, rule: Rule = "timm") -> "Learned2D":
        """Return a table for another image size; the tokens before the patches keep their rows.

        Programs interpolate by different rules, and only the rule of a model's own code reproduces its published
        results.

        Args:
            height: Rows of patches.
            width: Columns of patches.
            rule: "timm" (the default: bicubic with antialiasing; OpenCLIP too), "transformers" (bicubic without
                antialiasing: ViT, DINOv2, CLIP, SigLIP), "torchvision" (bicubic, corners aligned), "dinov2" (the
                authors' code: bicubic, by the scale (new + 0.1) / old), "siglip2" (bilinear with antialiasing),
                "qwen3_vl" (bilinear, corners aligned) or "bilinear", or a mapping of arguments of torch's interpolate:
                mode, antialias, align_corners.

        Raises:
            ValueError: A size is below 1, or the rule is unknown.
        """
        self._count(height=height, width=width)
        prefix, patches = self.weight.detach().tensor_split((self.n_prefix,))
        scaled = resized_image(patches, (self.height, self.width), (height, width), rule, self.name)
        twin = with_table(self, torch.cat((prefix, scaled)))
        twin.height, twin.width = height, width
        return twin

    def reset_parameters(self) -> None:
        """Draw the table from N(0, init_std)."""
        nn.init.normal_(self.weight, std=self.init_std)

    def _check_cells(self, pos: Tensor, there: Tensor) -> None:
        if positions.may_look(pos) and not there.all():
            raise ValueError(
                f"{self.name}: positions must be patches of {self.height} x {self.width}, or (-1, i) for one of "
                f"{self.n_prefix} tokens before them; got {tuple(pos[~there][0].tolist())}. `resized` makes a larger "
                "table."
            )
