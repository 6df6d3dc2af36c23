"""Sines without cosines."""

from typing import Literal

from jaxtyping import Float64
from torch import Tensor

from posenc import frequencies
from posenc.encoding import Pos
from posenc.families import Additive, geometric
from posenc.registry import register


@register(
    "sine",
    paper="folklore: binary digits made continuous",
    year=2017,
    formula="x_p[i] + sin(p / 2^i),  or sin(p / base^(i/(D-1)))",
    parameters="0",
    cost="one addition to the embeddings",
    aliases=("sine_only",),
    serves=("textbook",),
    example={"d_model": 32},
    variants=({"spectrum": "geometric"}, {"d_model": 1, "spectrum": "geometric"}),
    traits={
        "distinct": {"float32": 65_536, "bfloat16": 65_536, "float16": 65_536},
        "longest": None,
        "real_positions": True,
        "smooth": True,
        "bounded": True,
        "shift_invariant": False,
        "symmetric": False,
        "recency": False,
        "linear_shift": False,
        "length_dependent": False,
        "learned": 0,
        "cost": "token",
    },
)
class Sine(Additive):
    """Add one sine per dimension, each slower than the one before.

    The vectors are smooth and bounded. But without cosines no matrix maps the vector of p to that of p + k;
    `Sinusoidal` adds them.

    Args:
        d_model: Width of the token embeddings.
        spectrum: "octaves" (dimension i has sin(p / 2^i)) or "geometric" (sin(p / base^(i / (d_model - 1)))).
        base: 10,000; used only by "geometric".

    Raises:
        ValueError: d_model is below 1, base is not above 1, or the spectrum is unknown.

    >>> import torch
    >>> Sine(d_model=2).vectors(torch.tensor([1])).numpy().round(4)
    array([[0.8415, 0.4794]])
    """

    def __init__(
        self, *, d_model: int, spectrum: Literal["octaves", "geometric"] = "octaves", base: float = 10000.0
    ) -> None:
        super().__init__(d_model=d_model)
        if spectrum not in ("octaves", "geometric"):
            raise ValueError(f"{self.name}: spectrum must be 'octaves' or 'geometric'; got {spectrum!r}.")
        self.spectrum, self.base = spectrum, frequencies.check_base(base, self.name)

    def vectors(self, pos: Pos) -> Float64[Tensor, "*batch seq d_model"]:
        """Return one sine per dimension."""
        base, width = (2.0, 2) if self.spectrum == "octaves" else (self.base, 2 * max(self.d_model - 1, 1))
        inv_freq = geometric(self.d_model, base=base, width=width)
        return (pos.double()[..., None] * inv_freq.to(pos.device)).sin()
