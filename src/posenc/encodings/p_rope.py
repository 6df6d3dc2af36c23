"""p-RoPE: RoPE without its slowest pairs."""

import torch
from jaxtyping import Float64
from torch import Tensor

from posenc import frequencies
from posenc.config.values import short
from posenc.families import Rotary, number
from posenc.kernels.eager import Pairing
from posenc.registry import register


@register(
    "p_rope",
    paper="Barbero et al., Round and Round We Go! What Makes Rotary Positional Encodings Useful?",
    year=2024,
    arxiv="2410.06205",
    formula="RoPE with ω_k = base^(-2k/d) for k < ⌊p·d/2⌋, else 0",
    parameters="0",
    cost="as RoPE",
    aliases=("proportional", "proportional_rope"),
    used_by=("Gemma 4 (layers of full attention)", "LFM3"),
    serves=("text", "long"),
    example={"head_dim": 64},
    variants=({"head_dim": 8, "share": 0.25, "pairing": "interleaved"},),
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
class ProportionalRoPE(Rotary):
    """Rotate the fastest pairs of dimensions as RoPE does, and leave the others without position.

    The slowest pairs carry information that does not depend on position, and rotating them would spoil it in long
    texts. Unlike in `RoPE(rotary_dim=...)`, the exponent runs over the whole head, so the pairs that rotate keep the
    frequencies that they have in RoPE. Source: Barbero 2024, section 6; Gemma 4 and LFM3, rope_type "proportional" of
    transformers.

    Args:
        head_dim: Dimensions of one head.
        share: p, the share of the pairs that rotate, from 0 (NoPE) to 1 (RoPE), rounded down to whole pairs; 0.75 in
            the paper, 0.25 in Gemma 4.
        base: 10,000; 1,000,000 in Gemma 4.
        pairing: "half" (pair k is dimensions k and k + head_dim / 2: Gemma 4) or "interleaved" (2k and 2k + 1).

    Raises:
        ValueError: head_dim is odd, share is outside 0 to 1, or base is not above 1.

    >>> ProportionalRoPE(head_dim=8, share=0.5).frequencies().tolist()
    [[1.0, 0.1, 0.0, 0.0]]
    """

    def __init__(self, *, head_dim: int, share: float = 0.75, base: float = 10000.0, pairing: Pairing = "half") -> None:
        super().__init__(head_dim=head_dim, pairing=pairing)
        if not 0 <= number(self.name, "share", share) <= 1:
            raise ValueError(
                f"{self.name}: share must be from 0 to 1, because it is the share of the pairs that rotate; got "
                f"share={short(share)}."
            )
        self.share, self.base = share, frequencies.check_base(base, self.name)
        rotating = frequencies.proportional(head_dim=head_dim, base=self.base, share=share)
        self._inv_freq = tuple(rotating.tolist())

    def frequencies(self) -> Float64[Tensor, "1 n_pairs"]:
        """Return radians per position of each pair, zero for those that do not rotate."""
        return torch.tensor([self._inv_freq], dtype=torch.float64, device="cpu")
