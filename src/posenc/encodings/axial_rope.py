"""Axial RoPE: each axis of the position rotates its own share of the pairs."""

from typing import Literal

import torch
from jaxtyping import Float64
from torch import Tensor

from posenc import frequencies
from posenc.families import Given, OwnFrequencies, Rotary, check_word, geometric
from posenc.kernels.eager import Pairing
from posenc.registry import register


@register(
    "axial_rope",
    paper="Heo et al., Rotary Position Embedding for Vision Transformer; after Su et al., RoFormer",
    year=2024,
    arxiv="2403.13298",
    formula="score = q_iᵀ R((p_j - p_i)·ω) k_j,  pair k of axis a rotated by p_a·base^(-2k·n/d)",
    parameters="0",
    cost="two products and one sum for each lane of q and k",
    aliases=("rope_2d", "rope_nd", "vision_rope"),
    used_by=("Qwen2-VL's image encoder", "EVA-02", "FiT", "Pixtral (dealt)"),
    serves=("image", "video"),
    example={"head_dim": 64},
    variants=(
        {"n_axes": 4, "head_dim": 16, "pairing": "interleaved"},
        {"trainable": True},
        {"spectrum": "dealt"},
    ),
    traits={
        "distinct": {"float32": 65_536, "bfloat16": 65_536, "float16": 65_536},
        "longest": None,
        "real_positions": True,
        "smooth": True,
        "bounded": True,
        "shift_invariant": True,
        "symmetric": False,
        "recency": False,
        "linear_shift": True,
        "length_dependent": False,
        "learned": 0,
        "cost": "token",
    },
)
class AxialRoPE(OwnFrequencies, Rotary):
    """Rotate one share of the pairs of dimensions by the row, another by the column, and so on.

    Scores depend only on the differences along each axis; axis 0 has the first pairs. Images whose sides differ need no
    special care. DINOv3 uses `positions.unit_grid` and frequencies of base 100 times 2 pi. Source: the axial form of
    Heo 2024, section 3.2; the dealt frequencies, Pixtral (Agrawal 2024, 2410.07073).

    Args:
        head_dim: Dimensions of one head; must be a multiple of 2 n_axes.
        n_axes: 2 for images, 3 for video.
        base: 10,000, as in text; Heo 2024 uses 100 for images.
        pairing: "half" (pair j is dimensions j and j + head_dim / 2: Qwen2-VL) or "interleaved" (2j and 2j + 1).
        spectrum: "shared" (all axes have the same frequencies, with exponents over the dimensions of one axis) or
            "dealt" (the frequencies of RoPE over the whole head, dealt out to the axes in turn).
        inv_freq: Frequencies that replace the formula, or a function that computes them from the indices 0, 1, ..; for
            the pairs of one axis, or for all pairs with spectrum="dealt".
        trainable: True makes the frequencies learned; they stay in float32 whatever the module is cast to.

    Raises:
        ValueError: head_dim is not a multiple of 2 n_axes, base is not above 1, or the frequencies have the wrong
            shape.

    >>> AxialRoPE(head_dim=8).frequencies().numpy()
    array([[1.  , 0.01, 0.  , 0.  ],
           [0.  , 0.  , 1.  , 0.01]])
    """

    def __init__(
        self,
        *,
        head_dim: int,
        n_axes: int = 2,
        base: float = 10000.0,
        pairing: Pairing = "half",
        spectrum: Literal["shared", "dealt"] = "shared",
        inv_freq: Given | None = None,
        trainable: bool = False,
    ) -> None:
        self._count(n_axes=n_axes, head_dim=head_dim)
        if head_dim % (2 * n_axes):
            raise ValueError(
                f"{self.name}: head_dim must be a multiple of {2 * n_axes}, because {n_axes} axes share its pairs of "
                f"dimensions evenly; got head_dim={head_dim}, n_axes={n_axes}."
            )
        super().__init__(head_dim=head_dim, pairing=pairing)
        check_word(self.name, "spectrum", spectrum, "shared", "dealt")
        self.n_axes, self.base, self.spectrum = n_axes, frequencies.check_base(base, self.name), spectrum
        self._set_frequencies(self._width // 2, inv_freq, trainable)

    def formula(self) -> Float64[Tensor, " n_frequencies"]:
        """Return base^(-2k / width), over the dimensions of one axis or of the whole head."""
        return geometric(self._width // 2, base=self.base, width=self._width)

    def frequencies(self) -> Float64[Tensor, "n_axes n_pairs"]:
        """Return a matrix of blocks: each axis rotates its own pairs."""
        inv_freq, n = self.inv_freqs(), self.n_axes
        each = [inv_freq[None]] * n if self.spectrum == "shared" else [inv_freq[None, axis::n] for axis in range(n)]
        blocks: Tensor = torch.block_diag(*each)
        return blocks

    @property
    def _width(self) -> int:
        return self.head_dim // self.n_axes if self.spectrum == "shared" else self.head_dim
