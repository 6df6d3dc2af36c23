"""Sinusoidal vectors, added to the token embeddings."""

import math
from typing import Literal

import torch
from jaxtyping import Float64
from torch import Tensor, nn

from posenc import frequencies
from posenc.encoding import Pos
from posenc.families import Additive, Given, OwnFrequencies, geometric, wide
from posenc.registry import register

Order = Literal["alternating", "concatenated"]


def waves(
    angle: Float64[Tensor, "*batch seq n_sines"], d_model: int, order: Order = "alternating"
) -> Float64[Tensor, "*batch seq d_model"]:
    """Return sines and cosines of angles in one vector; with an odd d_model the last sine has no cosine.

    Args:
        angle: In radians, ceil(d_model / 2) per position.
        d_model: Number of dimensions.
        order: "alternating" (sin, cos, sin, cos) or "concatenated" (all sines, then all cosines).
    """
    sin, cos = angle.sin(), angle.cos()[..., : d_model // 2]
    if order == "concatenated":
        return torch.cat((sin, cos), -1)
    paired = torch.stack((sin[..., : d_model // 2], cos), -1).flatten(-2)
    return torch.cat((paired, sin[..., -1:]), -1) if d_model % 2 else paired


@register(
    "sinusoidal",
    paper="Vaswani et al., Attention Is All You Need",
    year=2017,
    arxiv="1706.03762",
    formula="PE[p, 2k] = sin(p·base^(-2k/D)),  PE[p, 2k+1] = cos(p·base^(-2k/D))",
    parameters="0",
    cost="one addition to the embeddings",
    aliases=("sincos", "absolute"),
    used_by=("Transformer (2017)", "Whisper's encoder", "Marian translation models"),
    serves=("text",),
    example={"d_model": 32},
    variants=(
        {"order": "concatenated", "exponent": "tensor2tensor"},
        {"trainable": True, "learned_scale": 0.5},
    ),
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
        "learned": 0,
        "cost": "token",
    },
)
class Sinusoidal(OwnFrequencies, Additive):
    """Add sines and cosines of geometrically falling frequency.

    PE(p + k) is a rotation of PE(p), the same for every p. The paper hopes that models use this, but the scores still
    depend on absolute positions. With an odd d_model the last sine has no cosine. Source: Vaswani 2017, section 3.5.

    Args:
        d_model: Width of the token embeddings.
        base: 10,000 in the paper.
        order: "alternating" (sin, cos, sin, cos, the paper) or "concatenated" (all sines, then all
            cosines: tensor2tensor, fairseq).
        exponent: "paper" (2k / d_model) or "tensor2tensor" (k / (d_model / 2 - 1), which reaches
            1 / base exactly).
        inv_freq: Frequencies that replace the formula, in radians per position, one per sine, or a function that
            computes them from the sines' indices 0, 1, ...
        trainable: True makes the frequencies learned; they stay in float32 whatever the module is cast to.
        learned_scale: Initial value of a learned factor on all dimensions, or None for no factor; x-transformers starts
            at d_model^-0.5, so that the vectors do not dominate small token embeddings.

    Raises:
        ValueError: An option has a value that is not listed here.

    >>> Sinusoidal(d_model=4).vectors(torch.tensor([1])).numpy().round(4)
    array([[0.8415, 0.5403, 0.01  , 1.    ]])
    """

    def __init__(
        self,
        *,
        d_model: int,
        base: float = 10000.0,
        order: Order = "alternating",
        exponent: Literal["paper", "tensor2tensor"] = "paper",
        inv_freq: Given | None = None,
        trainable: bool = False,
        learned_scale: float | None = None,
    ) -> None:
        super().__init__(d_model=d_model)
        choices = {
            "order": (order, ("alternating", "concatenated")),
            "exponent": (exponent, ("paper", "tensor2tensor")),
        }
        for option, (value, allowed) in choices.items():
            if value not in allowed:
                raise ValueError(f"{self.name}: {option} must be one of {allowed}; got {value!r}.")
        self.order, self.exponent = order, exponent
        if learned_scale is not None and not math.isfinite(learned_scale):
            raise ValueError(f"{self.name}: learned_scale must be finite; got {learned_scale}.")
        self.base, self.learned_scale = frequencies.check_base(base, self.name), learned_scale
        if learned_scale is not None:
            self.scale = nn.Parameter(torch.empty(1))  # FSDP shards no scalars
        self._set_frequencies(self._n_sines, inv_freq, trainable)

    def formula(self) -> Float64[Tensor, " n_sines"]:
        """Return base^(-2k / d_model), or with tensor2tensor's exponent."""
        width = self.d_model if self.exponent == "paper" else max(2 * (self._n_sines - 1), 1)
        return geometric(self._n_sines, base=self.base, width=width)

    def vectors(self, pos: Pos) -> Float64[Tensor, "*batch seq d_model"]:
        """Return sines and cosines in the chosen order."""
        angle = pos.double()[..., None] * self.inv_freqs().to(pos.device)
        vectors = waves(angle, self.d_model, self.order)
        return vectors if self.learned_scale is None else vectors * wide(self.scale)

    def reset_parameters(self) -> None:
        """Reset the parameters to their initial values."""
        super().reset_parameters()
        if self.learned_scale is not None:
            nn.init.constant_(self.scale, self.learned_scale)

    @property
    def _n_sines(self) -> int:
        return -(-self.d_model // 2)
