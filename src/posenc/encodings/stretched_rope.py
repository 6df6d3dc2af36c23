"""RoPE with a learned stretch of each pair's frequency."""

import torch
from jaxtyping import Float64
from torch import Tensor

from posenc import frequencies
from posenc.families import Given, OwnFrequencies, Rotary, geometric, wide_parameter
from posenc.kernels.eager import Pairing, Side
from posenc.registry import register


@register(
    "stretched_rope",
    paper="Zhang et al., Group Representational Position Encoding (fixed planes)",
    year=2025,
    arxiv="2512.07805",
    formula="RoPE with ω_k = base^(-2k/d)·e^(s_k)",
    parameters="rotary_dim / 2",
    cost="two products and one sum for each lane of q and k",
    aliases=("lerope",),
    used_by=("Mistral Large 4 (LeRoPE)",),
    serves=("text",),
    example={"head_dim": 64},
    variants=({"pairing": "interleaved", "rotary_dim": 32, "rotary_side": "last"},),
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
        "learned": 32,
        "cost": "token",
    },
)
class StretchedRoPE(OwnFrequencies, Rotary):
    """Rotate as RoPE does, at frequencies with learned factors.

    An optimiser step changes every frequency in proportion, while `RoPE(trainable=True)` changes all by the same
    amount, which is negligible for the fastest pair and many octaves for the slowest. It starts as RoPE, or at
    `inv_freq`. Mistral Large 4 calls it LeRoPE and the stretch alpha. It starts at YaRN's frequencies, uses
    interleaved pairs, and leaves every fourth layer without (`PerLayer`). Source: Zhang 2025 (GRAPE-M on fixed planes,
    whose code learns the logarithms), and transformers' code of Mistral Large 4.

    Args:
        head_dim: Dimensions of one head.
        base: 10,000, for the initial frequencies.
        rotary_dim: Number of dimensions that rotate; None means all.
        rotary_side: "first" or "last": which dimensions rotate.
        pairing: "half" (dimension k with k + rotary_dim / 2) or "interleaved" (2k with 2k + 1).
        inv_freq: Initial frequencies that replace the formula, as in `RoPE`: radians per position, one per pair.

    Raises:
        ValueError: A width is odd or larger than head_dim, base is not above 1, or the number of frequencies is wrong.

    >>> rope = StretchedRoPE(head_dim=4)
    >>> _ = torch.nn.init.constant_(rope.stretch, 0.6931472)  # ln 2
    >>> rope.frequencies().detach().numpy().round(6)
    array([[2.  , 0.02]])
    """

    def __init__(
        self,
        *,
        head_dim: int,
        base: float = 10000.0,
        rotary_dim: int | None = None,
        rotary_side: Side = "first",
        pairing: Pairing = "half",
        inv_freq: Given | None = None,
    ) -> None:
        super().__init__(head_dim=head_dim, rotary_dim=rotary_dim, rotary_side=rotary_side, pairing=pairing)
        self.base = frequencies.check_base(base, self.name)
        self.stretch = wide_parameter(self.rotary_dim // 2)
        self._set_frequencies(self.rotary_dim // 2, inv_freq, trainable=False)

    def formula(self) -> Float64[Tensor, " n_pairs"]:
        """Return RoPE's frequencies."""
        return geometric(self.rotary_dim // 2, base=self.base, width=self.rotary_dim)

    def frequencies(self) -> Float64[Tensor, "1 n_pairs"]:
        """Return the initial frequencies times e^stretch."""
        return (self.inv_freqs().to(self.stretch.device) * self.stretch.double().exp())[None]

    def reset_parameters(self) -> None:
        """Set every stretch to zero."""
        torch.nn.init.zeros_(self.stretch)
