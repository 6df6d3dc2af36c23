"""Sinusoidal vectors, added to the token embeddings."""

from collections.abc import Sequence
from typing import Literal

import torch
from jaxtyping import Float64
from torch import Tensor

from posenc import frequencies
from posenc.encoding import Pos
from posenc.families import Additive, OwnFrequencies
from posenc.registry import register


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
    example={"d_model": 32},
    variants=(
        {"order": "concatenated", "exponent": "tensor2tensor"},
        {"trainable": True},
    ),
    traits={"shift_invariant": False, "real_positions": True},
)
class Sinusoidal(OwnFrequencies, Additive):
    """Add sines and cosines of geometrically falling frequency.

    PE(p + k) is a rotation of PE(p), the same for every p; that a model will use this is a hope of
    the paper, not a law: the scores see absolute positions. With an odd d_model the last sine has
    no cosine. Source: Vaswani 2017, section 3.5.

    Args:
        d_model: Width of the token embeddings.
        base: 10,000 in the paper.
        order: "alternating" (sin, cos, sin, cos, the paper) or "concatenated" (all sines, then all
            cosines: tensor2tensor, fairseq).
        exponent: "paper" (2k / d_model) or "tensor2tensor" (k / (d_model / 2 - 1), which reaches
            1 / base exactly).
        inv_freq: Frequencies of your own, radians per position, one a sine; replaces the formula.
        trainable: True makes the frequencies learned; they stay in float32 whatever the module is cast to.

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
        order: Literal["alternating", "concatenated"] = "alternating",
        exponent: Literal["paper", "tensor2tensor"] = "paper",
        inv_freq: Tensor | Sequence[float] | None = None,
        trainable: bool = False,
    ) -> None:
        super().__init__()
        if d_model < 1:
            raise ValueError(f"{self.name}: d_model must be at least 1; got d_model={d_model}.")
        choices = {
            "order": (order, ("alternating", "concatenated")),
            "exponent": (exponent, ("paper", "tensor2tensor")),
        }
        for option, (value, allowed) in choices.items():
            if value not in allowed:
                raise ValueError(f"{self.name}: {option} must be one of {allowed}; got {value!r}.")
        self.d_model, self.order, self.exponent = d_model, order, exponent
        self.base = frequencies.check_base(base, self.name)
        self._set_frequencies(self._n_sines, inv_freq, trainable)

    def formula(self) -> Float64[Tensor, " n_sines"]:
        """Return base^(-2k / d_model), or with tensor2tensor's exponent."""
        width = self.d_model if self.exponent == "paper" else max(2 * (self._n_sines - 1), 1)
        return frequencies.geometric(self._n_sines, base=self.base, width=width)

    def vectors(self, pos: Pos) -> Float64[Tensor, "*batch seq d_model"]:
        """Return sines and cosines in the chosen order."""
        angle = pos.double()[..., None] * self.inv_freqs().to(pos.device)
        sin, cos = angle.sin(), angle.cos()[..., : self.d_model // 2]
        if self.order == "concatenated":
            return torch.cat((sin, cos), -1)
        paired = torch.stack((sin[..., : self.d_model // 2], cos), -1).flatten(-2)
        return torch.cat((paired, sin[..., -1:]), -1) if self.d_model % 2 else paired

    @property
    def _n_sines(self) -> int:
        return -(-self.d_model // 2)
