"""RoPE: queries and keys turned by their positions."""

import math

from jaxtyping import Float64
from torch import Tensor

from posenc import frequencies
from posenc.families import OwnFrequencies, Rotary
from posenc.kernels.eager import Pairing, Side
from posenc.registry import register


@register(
    "rope",
    paper="Su et al., RoFormer: Enhanced Transformer with Rotary Position Embedding",
    year=2021,
    arxiv="2104.09864",
    formula="score = q_iᵀ R((j - i)·ω) k_j,  ω_k = base^(-2k/d)",
    parameters="0",
    cost="two products and one sum for each lane of q and k",
    aliases=("rotary", "roformer"),
    used_by=("Llama", "Mistral", "Qwen", "Gemma", "DeepSeek", "GPT-NeoX", "GPT-J", "Phi"),
    example={"head_dim": 64},
    variants=(
        {"head_dim": 8},
        {"pairing": "interleaved"},
        {"rotary_dim": 32},
        {"rotary_dim": 32, "rotary_side": "last", "pairing": "interleaved"},
        {"trainable": True},
        {"attention_factor": 1.25, "rotary_dim": 32},
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
class RoPE(OwnFrequencies, Rotary):
    """Turn pairs of lanes of q and k by angles proportional to their positions.

    The score then depends on the distance alone, keys can be cached after the turn, and values stay
    untouched. Frequencies run over the rotated width, as in GPT-J and GPT-NeoX. Source: Su 2021,
    section 3.2 and equation 15.

    Args:
        head_dim: Lanes of one head.
        base: 10,000 in the paper; larger for longer contexts.
        rotary_dim: How many lanes turn; None means all.
        rotary_side: "first" or "last": which ones.
        pairing: "half" (lane k with k + rotary_dim / 2: GPT-NeoX, Llama in Hugging Face) or
            "interleaved" (2k with 2k + 1: the paper, GPT-J, Meta's Llama).
        inv_freq: Frequencies of your own, radians per position, one a pair, or a function that makes them of
            the pairs' numbers 0, 1, ..; replaces the formula.
        trainable: True makes the frequencies learned; they stay in float32 whatever the module is cast to.
        attention_factor: The gain: what multiplies the turned lanes of q and of k, as YaRN and LongRoPE want it;
            scores get its square.

    Raises:
        ValueError: An odd width, one beyond head_dim, a base not above 1, frequencies that do not fit, or a gain that
            is not positive.

    >>> import torch
    >>> rope = RoPE(head_dim=2)
    >>> q, _ = rope.rotate(torch.ones(1, 1, 1, 2), torch.ones(1, 1, 1, 2), rope.place(torch.tensor([1])))
    >>> q.flatten().numpy().round(4)
    array([-0.3012,  1.3818], dtype=float32)
    """

    def __init__(
        self,
        *,
        head_dim: int,
        base: float = 10000.0,
        rotary_dim: int | None = None,
        rotary_side: Side = "first",
        pairing: Pairing = "half",
        inv_freq: frequencies.Given | None = None,
        trainable: bool = False,
        attention_factor: float = 1.0,
    ) -> None:
        super().__init__(head_dim=head_dim, rotary_dim=rotary_dim, rotary_side=rotary_side, pairing=pairing)
        self.base = frequencies.check_base(base, self.name)
        if not 0 < attention_factor < math.inf:
            raise ValueError(
                f"{self.name}: attention_factor must be positive and finite, because it multiplies q and k; "
                f"got {attention_factor}. 1.0 leaves them as long as they are."
            )
        self.attention_factor = float(attention_factor)
        self._set_frequencies(self.rotary_dim // 2, inv_freq, trainable)

    def formula(self) -> Float64[Tensor, " n_pairs"]:
        """Return base^(-2k / rotary_dim)."""
        return frequencies.geometric(self.rotary_dim // 2, base=self.base, width=self.rotary_dim)

    def frequencies(self) -> Float64[Tensor, "1 n_pairs"]:
        """Return radians per position of each pair, as the one row of a matrix for one axis."""
        return self.inv_freqs()[None]

    def gain(self) -> float:
        """Return attention_factor."""
        return self.attention_factor
