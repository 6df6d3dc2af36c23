"""VO-RoPE: values rotated by their positions, and outputs rotated back."""

from posenc.encodings.rope import RoPE
from posenc.families import Given, ValueRotary
from posenc.kernels.eager import Pairing, Side
from posenc.registry import register


@register(
    "vo_rope",
    paper="Su, Transformer Upgrade Road 19: the second type of rotary encoding (blog, kexue.fm/archives/10862)",
    year=2025,
    formula="o_i = R(p_i)ᵀ Σ_j a_ij R(p_j) v_j = Σ_j a_ij R(p_j - p_i) v_j,  R that of RoPE",
    parameters="0",
    cost="two products and one sum for each lane of v and of the output",
    aliases=("value_rope", "second_rope"),
    used_by=("DeepSeek-V4 (with RoPE on q and on keys that are the values)",),
    serves=("text",),
    example={"head_dim": 64},
    variants=(
        {"head_dim": 8, "pairing": "interleaved"},
        {"rotary_dim": 32, "rotary_side": "last", "pairing": "interleaved"},
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
class VORoPE(ValueRotary):
    """Rotate values by their positions as RoPE rotates keys, and outputs back by the positions of their queries.

    A value's contribution then depends on its distance from the query, while scores have no position. A cache holds
    rotated values: apply `rotate_v` once, then `attend(..., rotated=True)`. `Compose(RoPE(...), VORoPE(...))` is the
    author's QKVO-RoPE. With v = k it is the attention of DeepSeek-V4: rotated keys serve as rotated values, so one
    tensor is cached. Source: Su 2025.

    Args:
        head_dim: Width of the values and outputs of one head.
        base: 10,000.
        rotary_dim: Number of dimensions that rotate; None means all. 64 of 512 in DeepSeek-V4.
        rotary_side: "first" or "last": which dimensions rotate. "last" in DeepSeek-V4.
        pairing: As in `RoPE`; "interleaved" in DeepSeek-V4.
        inv_freq: Frequencies that replace the formula, as in `RoPE`.

    Raises:
        ValueError: A width is odd or larger than head_dim, base is not above 1, or the frequencies have the wrong
            shape.

    >>> import torch
    >>> vo, v = VORoPE(head_dim=2), torch.ones(1, 1, 1, 2)
    >>> here, there = vo.place(torch.tensor([7])), vo.place(torch.tensor([8]))
    >>> vo.unrotate_out(vo.rotate_v(v, there), here).flatten().numpy().round(4)  # as RoPE at position 8 - 7
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
        inv_freq: Given | None = None,
    ) -> None:
        rope = RoPE(
            head_dim=head_dim,
            base=base,
            rotary_dim=rotary_dim,
            rotary_side=rotary_side,
            pairing=pairing,
            inv_freq=inv_freq,
        )
        super().__init__(rope)
        self.head_dim, self.rotary_dim, self.base = head_dim, rope.rotary_dim, rope.base
        self.rotary_side, self.pairing, self.inv_freq = rotary_side, pairing, rope.inv_freq
