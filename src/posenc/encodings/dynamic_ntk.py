"""Dynamic NTK: RoPE whose base grows with the text."""

from jaxtyping import Float64
from torch import Tensor

from posenc import frequencies
from posenc.families import OfLength, Rotary, Scaled, geometric, size
from posenc.kernels.eager import Pairing, Side
from posenc.registry import register


@register(
    "dynamic_ntk",
    paper="emozilla, Dynamically Scaled RoPE (as Peng et al., YaRN, section 3.4, describes it)",
    year=2023,
    arxiv="2309.00071",
    formula="RoPE with base·(s·n/L - (s - 1))^(d/(d-2)) at n > L positions",
    parameters="0",
    cost="two products and one sum for each lane of q and k",
    aliases=("dynamic",),
    used_by=("InternLM2", "Qwen (as an option)"),
    serves=("long",),
    example={"head_dim": 64, "factor": 2.0, "original_max_len": 2048},
    variants=({"head_dim": 8, "pairing": "interleaved", "length": 10_000},),
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
class DynamicNTK(OfLength, Scaled, Rotary):
    """Rotate as RoPE does, with a base that grows once the text is longer than the trained length.

    Short texts rotate as in training. Since frequencies depend on the length, `resolve(seq_len)` fixes them. Keys
    cached under other frequencies must be rotated further: see `rephase`. Source: emozilla 2023; the form of
    transformers and vLLM.

    Args:
        head_dim: Dimensions of one head.
        original_max_len: L, the trained length in positions.
        factor: s: how fast the base grows; 1 stretches only to the text's length.
        base: 10,000.
        rotary_dim: Number of dimensions that rotate; None means all.
        rotary_side: "first" or "last": which dimensions rotate.
        pairing: "half" (dimension k with k + rotary_dim / 2) or "interleaved" (2k with 2k + 1).
        attention_factor: The gain, which multiplies the rotated dimensions of q and of k.
        score_factor: Additional factor on all scores.
        length: n, in positions; None to set it later by `resolve(seq_len)`.

    Raises:
        ValueError: A width is odd or larger than head_dim, base is not above 1, factor is below 1, or the encoding is
            placed before the length is known.

    >>> rope = DynamicNTK(head_dim=128, factor=8.0, original_max_len=2048).resolve(4096)
    >>> round(rope.stretched_base())  # 10000 * 9^(128/126)
    93194
    """

    def __init__(
        self,
        *,
        head_dim: int,
        original_max_len: int,
        factor: float = 1.0,
        base: float = 10000.0,
        rotary_dim: int | None = None,
        rotary_side: Side = "first",
        pairing: Pairing = "half",
        attention_factor: float = 1.0,
        score_factor: float = 1.0,
        length: int | None = None,
    ) -> None:
        super().__init__(head_dim=head_dim, rotary_dim=rotary_dim, rotary_side=rotary_side, pairing=pairing)
        self._count(original_max_len=original_max_len)
        self.factor, self.original_max_len = size(self.name, "factor", factor), original_max_len
        if factor < 1:
            raise ValueError(f"{self.name}: factor must be at least 1, because the base grows; got factor={factor}.")
        self.base = frequencies.check_base(base, self.name)
        self._set_factors(attention_factor, score_factor)
        self._set_length(length)

    def stretched_base(self) -> float:
        """Return the base for the length.

        Raises:
            ValueError: No length is set yet.
        """
        return frequencies.dynamic_base(
            self.base,
            width=self.rotary_dim,
            factor=self.factor,
            seq_len=self.given_length(),
            original_max_len=self.original_max_len,
        )

    def frequencies(self) -> Float64[Tensor, "1 n_pairs"]:
        """Return radians per position of each pair, for the length."""
        return geometric(self.rotary_dim // 2, base=self.stretched_base(), width=self.rotary_dim)[None]
