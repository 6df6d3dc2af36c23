"""tAPE: sinusoids whose frequencies depend on the width and the length."""

from jaxtyping import Float64
from torch import Tensor

from posenc import frequencies
from posenc.encoding import Pos
from posenc.encodings.sinusoidal import waves
from posenc.families import Additive, OfLength, geometric
from posenc.registry import register


@register(
    "tape",
    paper="Foumani et al., Improving Position Encoding of Transformers for Multivariate Time Series Classification",
    year=2023,
    arxiv="2305.16642",
    formula="PE[p, 2k] = sin(p·ω_k·D/L),  PE[p, 2k+1] = cos(same),  ω_k = base^(-2k/D)",
    parameters="0",
    cost="one addition to the embeddings",
    aliases=("time_absolute",),
    used_by=("ConvTran",),
    serves=("text",),
    example={"d_model": 32},
    variants=({"length": 100, "d_model": 15},),
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
        "length_dependent": True,
        "learned": 0,
        "cost": "token",
    },
)
class TAPE(OfLength, Additive):
    """Add sinusoids whose angles are stretched by d_model / length.

    With a small d_model, plain sinusoids hardly distinguish neighbouring positions; with a large one, their similarity
    does not fall with the distance. The paper spreads them over the actual length of the series. The vectors therefore
    depend on the length. Source: Foumani 2023, section 4.1.

    Args:
        d_model: Width of the token embeddings.
        base: 10,000 in the paper.
        length: L; None to set it later by `resolve(seq_len)`.

    Raises:
        ValueError: d_model or length is below 1, base is not above 1, or the encoding is placed before the length is
            known.

    >>> import torch
    >>> TAPE(d_model=2, length=4).vectors(torch.tensor([2])).numpy().round(4)  # sin 1, cos 1
    array([[0.8415, 0.5403]])
    """

    def __init__(self, *, d_model: int, base: float = 10000.0, length: int | None = None) -> None:
        super().__init__(d_model=d_model)
        self.base = frequencies.check_base(base, self.name)
        self._set_length(length)

    def vectors(self, pos: Pos) -> Float64[Tensor, "*batch seq d_model"]:
        """Return stretched sinusoids, sines and cosines in turn."""
        inv_freq = geometric(-(-self.d_model // 2), base=self.base, width=self.d_model)
        stretched = inv_freq.to(pos.device) * (self.d_model / self.given_length())
        return waves(pos.double()[..., None] * stretched, self.d_model)
