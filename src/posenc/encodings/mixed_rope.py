"""RoPE-Mixed: each pair of each key head learns a direction of the image along which it rotates."""

import math

import torch
from jaxtyping import Float64
from torch import Tensor

from posenc import frequencies
from posenc.families import Rotary, geometric, wide_parameter
from posenc.kernels.eager import Pairing
from posenc.registry import register


@register(
    "mixed_rope",
    paper="Heo et al., Rotary Position Embedding for Vision Transformer",
    year=2024,
    arxiv="2403.13298",
    formula="pair k of head h rotates by y·ω^y_{h,k} + x·ω^x_{h,k}",
    parameters="n_kv_heads * head_dim",
    cost="two products and one sum for each lane of q and k",
    aliases=("rope_mixed",),
    used_by=("RoPE-ViT",),
    serves=("image",),
    example={"n_kv_heads": 4, "head_dim": 64},
    variants=({"pairing": "interleaved", "base": 100.0, "head_dim": 8},),
    traits={
        "distinct": {"float32": 65_536, "bfloat16": 65_536, "float16": 65_536},
        "longest": None,
        "real_positions": True,
        "smooth": False,
        "bounded": True,
        "shift_invariant": True,
        "symmetric": False,
        "recency": False,
        "linear_shift": True,
        "length_dependent": False,
        "learned": 256,
        "cost": "token",
    },
)
class MixedRoPE(Rotary):
    """Rotate each pair of dimensions by its own learned mixture of row and column.

    Axial RoPE measures only along the axes; here a pair can follow any direction. Queries of a group use the
    frequencies of their key head. Source: Heo 2024, section 3.2; its code starts half of a head's pairs along one
    random direction and half across it.

    Args:
        n_kv_heads: Number of key heads, each with its own frequencies.
        head_dim: Dimensions of one head; a multiple of 4.
        base: 10 in the paper; frequencies start from 1 down to 1 / base.
        pairing: "half" (dimension k with k + head_dim / 2) or "interleaved" (2k with 2k + 1: the authors' code).

    Raises:
        ValueError: head_dim is not a multiple of 4, n_kv_heads is below 1, or base is not above 1.

    >>> MixedRoPE(n_kv_heads=2, head_dim=8).frequencies().shape
    torch.Size([2, 2, 4])
    """

    n_axes = 2
    keeps_float32 = True

    def __init__(self, *, n_kv_heads: int, head_dim: int, base: float = 10.0, pairing: Pairing = "half") -> None:
        self._count(n_kv_heads=n_kv_heads, head_dim=head_dim)
        if head_dim % 4:
            raise ValueError(
                f"{self.name}: head_dim must be a multiple of 4, because pairs start along two directions; got "
                f"head_dim={head_dim}."
            )
        super().__init__(head_dim=head_dim, pairing=pairing)
        self.n_kv_heads, self.base = n_kv_heads, frequencies.check_base(base, self.name)
        self.inv_freq = wide_parameter(n_kv_heads, 2, head_dim // 2)
        self.reset_parameters()

    def frequencies(self) -> Float64[Tensor, "n_kv_heads 2 n_pairs"]:
        """Return radians per row and per column, for each key head."""
        return self.inv_freq.double()

    def reset_parameters(self) -> None:
        """Draw a direction for each head; half of its pairs start along it, half across it."""
        size = geometric(self.head_dim // 4, base=self.base, width=self.head_dim // 2)
        with torch.no_grad():
            along = torch.rand_like(self.inv_freq[:, 0, :1]).double() * 2 * math.pi
            direction = torch.cat((along.expand(-1, len(size)), (along + math.pi / 2).expand(-1, len(size))), dim=-1)
            spread = size.repeat(2).to(direction.device)
            self.inv_freq.copy_(torch.stack((direction.sin(), direction.cos()), dim=1) * spread)
