"""LongRoPE: RoPE with two searched lists of factors, one for short texts and one for long ones."""

from collections.abc import Sequence

import torch
from jaxtyping import Float64
from torch import Tensor

from posenc import frequencies
from posenc.families import OfLength, Rotary, Scaled, geometric, numbers, size
from posenc.kernels.eager import Pairing, Side
from posenc.registry import register


@register(
    "longrope",
    paper="Ding et al., LongRoPE: Extending LLM Context Window Beyond 2 Million Tokens",
    year=2024,
    arxiv="2402.13753",
    formula="RoPE with ω_k/λ_k,  λ = the short list up to L positions, else the long one",
    parameters="0",
    cost="two products and one sum for each lane of q and k",
    aliases=("su_scaled",),
    used_by=("Phi-3", "Phi-3.5", "Phi-4-mini", "MiniCPM3"),
    serves=("long",),
    example={"head_dim": 4, "short_factors": (1.0, 1.5), "long_factors": (1.0, 8.0), "original_max_len": 2048},
    variants=({"pairing": "interleaved", "length": 10_000, "attention_factor": 1.1, "long_attention_factor": 1.2},),
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
        "length_dependent": True,
        "learned": 0,
        "cost": "token",
    },
)
class LongRoPE(OfLength, Scaled, Rotary):
    """Rotate as RoPE does, with each frequency divided by its own factor, which depends on the length.

    The lists of factors come from a search. Since frequencies depend on the length, `resolve(seq_len)` fixes them. Keys
    cached under the short list must be rotated further when a text outgrows it: see `rephase`. Source: Ding 2024,
    section 3; the switch at the trained length, the code of Phi-3 and transformers.

    Args:
        head_dim: Dimensions of one head.
        short_factors: λ for texts of up to original_max_len positions, one per pair of dimensions.
        long_factors: λ for longer texts.
        original_max_len: L, the trained length in positions.
        base: 10,000.
        rotary_dim: Number of dimensions that rotate; None means all.
        rotary_side: "first" or "last": which dimensions rotate.
        pairing: "half" (dimension k with k + rotary_dim / 2) or "interleaved" (2k with 2k + 1).
        attention_factor: The gain, which multiplies the rotated dimensions of q and of k
            (`frequencies.longrope_gain` derives it).
        long_attention_factor: The gain used with the long list; None means attention_factor.
        score_factor: Additional factor on all scores.
        length: Length of the text, in positions; None to set it later by `resolve(seq_len)`.

    Raises:
        ValueError: A list does not have a positive number for each pair, a width is odd or larger than head_dim, base
            is not above 1, or the encoding is placed before the length is known.

    >>> rope = LongRoPE(head_dim=4, short_factors=(1.0, 1.0), long_factors=(2.0, 4.0), original_max_len=100)
    >>> rope.resolve(100).frequencies().tolist(), rope.resolve(101).frequencies().tolist()
    ([[1.0, 0.01]], [[0.5, 0.0025]])
    """

    def __init__(
        self,
        *,
        head_dim: int,
        short_factors: Sequence[float] | Tensor,
        long_factors: Sequence[float] | Tensor,
        original_max_len: int,
        base: float = 10000.0,
        rotary_dim: int | None = None,
        rotary_side: Side = "first",
        pairing: Pairing = "half",
        attention_factor: float = 1.0,
        long_attention_factor: float | None = None,
        score_factor: float = 1.0,
        length: int | None = None,
    ) -> None:
        super().__init__(head_dim=head_dim, rotary_dim=rotary_dim, rotary_side=rotary_side, pairing=pairing)
        self._count(original_max_len=original_max_len)
        self._set_factors(attention_factor, score_factor)
        if long_attention_factor is not None:
            size(self.name, "long_attention_factor", long_attention_factor)
        self.short_factors = numbers(self.name, "short_factors", short_factors)
        self.long_factors = numbers(self.name, "long_factors", long_factors)
        for option in ("short_factors", "long_factors"):
            factors = getattr(self, option)
            if len(factors) != self.rotary_dim // 2:
                raise ValueError(
                    f"{self.name}: {option} must hold {self.rotary_dim // 2} numbers, one per pair; got {len(factors)}."
                )
            for i, factor in enumerate(factors):
                size(self.name, f"{option}[{i}]", factor)
        self.original_max_len, self.long_attention_factor = original_max_len, long_attention_factor
        self.base = frequencies.check_base(base, self.name)
        self._set_length(length)

    def frequencies(self) -> Float64[Tensor, "1 n_pairs"]:
        """Return radians per position of each pair, for the length."""
        plain = geometric(self.rotary_dim // 2, base=self.base, width=self.rotary_dim)
        factors = self.long_factors if self._is_long() else self.short_factors
        return (plain / torch.tensor(factors, dtype=torch.float64, device="cpu"))[None]

    def gain(self) -> float:
        """Return the attention factor for the length."""
        if self.long_attention_factor is None or not self._is_long():
            return self.attention_factor
        return float(self.long_attention_factor)

    def _is_long(self) -> bool:
        return self.given_length() > self.original_max_len
