"""Axial RoPE: each axis of the position rotates its own share of the pairs."""

from collections.abc import Sequence
from typing import Literal

import torch
from jaxtyping import Float64
from torch import Tensor

from posenc import frequencies
from posenc.encodings.mrope import counted
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
    used_by=("Qwen2-VL's image encoder", "EVA-02", "FiT", "Pixtral (dealt)", "FLUX, Wan, CogVideoX (uneven)"),
    serves=("image", "video"),
    example={"head_dim": 64},
    variants=(
        {"n_axes": 4, "head_dim": 16, "pairing": "interleaved"},
        {"trainable": True},
        {"spectrum": "dealt"},
        {"widths": (4, 10, 10), "head_dim": 24, "pairing": "interleaved"},
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
    special care. DINOv3 uses `positions.unit_grid` and frequencies of base 100 times 2 pi. Diffusion models pair
    interleaved, and give time (or the number of an image), row and column widths of their own: (16, 56, 56) in FLUX and
    HunyuanVideo, (44, 42, 42) in Wan, (16, 24, 24) in CogVideoX. Source: the axial form of Heo 2024, section 3.2; the
    dealt frequencies, Pixtral (Agrawal 2024, 2410.07073).

    Args:
        head_dim: Dimensions of one head; must be a multiple of 2 n_axes if there are no widths.
        n_axes: 2 for images, 3 for video; None means the number of widths, or 2.
        base: 10,000, as in text; Heo 2024 uses 100 for images.
        pairing: "half" (pair j is dimensions j and j + head_dim / 2: Qwen2-VL) or "interleaved" (2j and 2j + 1).
        spectrum: "shared" (all axes have the same frequencies, with exponents over the dimensions of one axis) or
            "dealt" (the frequencies of RoPE over the whole head, dealt out to the axes in turn).
        widths: Dimensions of each axis, which add up to head_dim; None means an equal share for each. Every axis has
            frequencies from 1 on, with exponents over its own width.
        inv_freq: Frequencies that replace the formula, or a function that computes them from the indices 0, 1, ..; for
            the pairs of one axis, or for all pairs with widths or spectrum="dealt".
        trainable: True makes the frequencies learned; they stay in float32 whatever the module is cast to.

    Raises:
        ValueError: head_dim is not a multiple of 2 n_axes, the widths are odd, do not add up to head_dim or are dealt,
            base is not above 1, or the frequencies have the wrong shape.

    >>> AxialRoPE(head_dim=8).frequencies().numpy()
    array([[1.  , 0.01, 0.  , 0.  ],
           [0.  , 0.  , 1.  , 0.01]])
    >>> AxialRoPE(head_dim=128, widths=(44, 42, 42), pairing="interleaved").n_axes
    3
    """

    def __init__(
        self,
        *,
        head_dim: int,
        n_axes: int | None = None,
        base: float = 10000.0,
        pairing: Pairing = "half",
        spectrum: Literal["shared", "dealt"] = "shared",
        widths: Sequence[int] | None = None,
        inv_freq: Given | None = None,
        trainable: bool = False,
    ) -> None:
        self.widths = None if widths is None else counted(self.name, widths, "dimensions", "widths")
        n_axes = n_axes if n_axes is not None else 2 if self.widths is None else len(self.widths)
        self._count(n_axes=n_axes, head_dim=head_dim)
        if self.widths is None and head_dim % (2 * n_axes):
            raise ValueError(
                f"{self.name}: head_dim must be a multiple of {2 * n_axes}, because {n_axes} axes share its pairs of "
                f"dimensions evenly; got head_dim={head_dim}, n_axes={n_axes}. Pass widths for other shares."
            )
        super().__init__(head_dim=head_dim, pairing=pairing)
        check_word(self.name, "spectrum", spectrum, "shared", "dealt")
        self.n_axes, self.base, self.spectrum = n_axes, frequencies.check_base(base, self.name), spectrum
        self._check_widths()
        self._set_frequencies(len(self.formula()), inv_freq, trainable)

    def formula(self) -> Float64[Tensor, " n_frequencies"]:
        """Return base^(-2k / width), over the dimensions of each axis, of one axis or of the whole head."""
        share = self.head_dim // self.n_axes if self.spectrum == "shared" else self.head_dim
        return torch.cat([geometric(w // 2, base=self.base, width=w) for w in self.widths or (share,)])

    def frequencies(self) -> Float64[Tensor, "n_axes n_pairs"]:
        """Return a matrix of blocks: each axis rotates its own pairs."""
        inv_freq, n = self.inv_freqs(), self.n_axes
        if self.widths is not None:
            each = list(inv_freq[None].split([w // 2 for w in self.widths], 1))
        else:
            each = [inv_freq[None]] * n if self.spectrum == "shared" else [inv_freq[None, axis::n] for axis in range(n)]
        blocks: Tensor = torch.block_diag(*each)
        return blocks

    def _check_widths(self) -> None:
        if (widths := self.widths) is None:
            return
        if len(widths) != self.n_axes:
            raise ValueError(
                f"{self.name}: widths must have one number for each axis; got n_axes={self.n_axes}, widths={widths}. "
                "Leave n_axes out."
            )
        if min(widths) < 2 or any(w % 2 for w in widths) or sum(widths) != self.head_dim:
            hint = " Sections count pairs: double them." if 2 * sum(widths) == self.head_dim else ""
            raise ValueError(
                f"{self.name}: widths must be even numbers of dimensions that add up to head_dim={self.head_dim}; "
                f"got widths={widths}, which add up to {sum(widths)}.{hint}"
            )
        if self.spectrum == "dealt":
            raise ValueError(
                f"{self.name}: dealt frequencies go to the axes in turn, so all axes have equally many; got "
                f"spectrum='dealt', widths={widths}. Leave widths out."
            )
