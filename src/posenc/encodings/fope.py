"""FoPE: each pair of dimensions rotates by a learned mixture of frequencies."""

import math
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor, nn
from torch.nn import functional as F

from posenc import frequencies
from posenc.encoding import Placed, Pos
from posenc.families import Rotary, geometric, no_autocast, number, size, wide_parameter
from posenc.families.angles import tabulate
from posenc.kernels.eager import Pairing
from posenc.registry import register


@register(
    "fope",
    paper="Hua et al., Fourier Position Embedding: Enhancing Attention's Periodic Extension for Length Generalization",
    year=2024,
    arxiv="2412.17739",
    formula="cos(p·ω_k) → Σ_m a_{h,m,k} cos(p·ω_m), sin likewise with b;  pairs with ω_k ≤ 2π/L stay unchanged",
    parameters="2 * n_kv_heads * n_turning²",
    cost="two products and one sum for each lane of q and k",
    aliases=("fourier_rope",),
    used_by=("vLLM (as an option)",),
    serves=("long", "text"),
    example={"n_kv_heads": 4, "head_dim": 64, "original_max_len": 4096},
    variants=({"head_dim": 8, "original_max_len": 100, "pairing": "interleaved"},),
    traits={
        "distinct": {"float32": 65_536, "bfloat16": 65_536, "float16": 65_536},
        "longest": None,
        "real_positions": True,
        "smooth": True,
        "bounded": True,
        "shift_invariant": False,
        "symmetric": False,
        "recency": False,
        "linear_shift": True,
        "length_dependent": False,
        "learned": 4232,
        "cost": "token",
    },
)
class FoPE(Rotary):
    """Rotate pairs of dimensions by mixtures of cosines and sines; pairs of long wavelengths stay unrotated.

    Linear layers and non-linear functions mix frequencies in any case; here each pair has its own Fourier series from
    the start. Pairs that complete no period within the trained length stay fixed. It starts near RoPE. A mixture is not
    a rotation, so scores depend on more than the distance. Source: Hua 2024, section 3; the mixture's start, the
    authors' code.

    Args:
        n_kv_heads: Number of key heads, each with its own mixtures.
        head_dim: Dimensions of one head.
        original_max_len: L, the trained length in positions.
        base: 10,000.
        pairing: "half" (dimension k with k + head_dim / 2) or "interleaved" (2k with 2k + 1).
        init_gain: The mixtures start as the identity plus noise with standard deviation init_gain / √n_turning.

    Raises:
        ValueError: head_dim is odd, n_kv_heads is below 1, base is not above 1, or no pair completes a period within
            the trained length.

    >>> FoPE(n_kv_heads=2, head_dim=8, original_max_len=4096).cos_mix.shape  # 2 pi / 0.001 is beyond 4096
    torch.Size([2, 3, 3])
    """

    keeps_float32 = True
    n_kv_heads: int

    def __init__(
        self,
        *,
        n_kv_heads: int,
        head_dim: int,
        original_max_len: int,
        base: float = 10000.0,
        pairing: Pairing = "half",
        init_gain: float = 0.3,
    ) -> None:
        super().__init__(head_dim=head_dim, pairing=pairing)
        self._count(n_kv_heads=n_kv_heads, original_max_len=original_max_len)
        self.n_kv_heads, self.original_max_len = n_kv_heads, original_max_len
        self.init_gain = number(self.name, "init_gain", init_gain)
        if not 0 <= self.init_gain < math.inf:
            raise ValueError(f"{self.name}: init_gain must be finite and not negative; got init_gain={self.init_gain}.")
        if self.init_gain:
            size(self.name, "init_gain", init_gain)
        self.base = frequencies.check_base(base, self.name)
        self.n_turning = n = self.frequencies().shape[1]
        if n == 0:
            raise ValueError(
                f"{self.name}: original_max_len must be at least 7, because the fastest pair has a period of 2 pi "
                f"positions; got original_max_len={original_max_len}."
            )
        self.cos_mix, self.sin_mix = (wide_parameter(n_kv_heads, n, n) for _ in "cs")
        self.reset_parameters()

    def frequencies(self) -> Float64[Tensor, "1 n"]:
        """Return radians per position of the pairs that complete a period within the trained length."""
        every = geometric(self.head_dim // 2, base=self.base, width=self.head_dim)
        return every[None, every > 2 * math.pi / self.original_max_len]

    def parts(self, pos: Pos, x: Tensor | None, past: Placed | None, dtype: torch.dtype) -> tuple[Any, ...]:
        """Mix the tables, for each key head; pairs that stay fixed have 1 and 0.

        Raises:
            ValueError: The tables would need more than `table_budget` bytes.
        """
        self._afford(pos.numel() * self.n_kv_heads * self.head_dim * dtype.itemsize)
        tables = tabulate(pos, self.frequencies(), dtype=dtype)
        fixed = self.head_dim // 2 - self.n_turning
        with no_autocast(pos.device):
            mixed = (
                torch.einsum("...sm,hmk->...shk", table, mix.to(dtype))
                for table, mix in zip(tables, (self.cos_mix, self.sin_mix), strict=True)
            )
            return tuple(F.pad(table, (0, fixed), value=value) for table, value in zip(mixed, (1.0, 0.0), strict=True))

    def reset_parameters(self) -> None:
        """Start near the identity."""
        n = self.n_turning
        for mix in (self.cos_mix, self.sin_mix):
            nn.init.normal_(mix, std=self.init_gain / math.sqrt(n))
            with torch.no_grad():
                mix.add_(torch.eye(n, dtype=mix.dtype, device=mix.device))
