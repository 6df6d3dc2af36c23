"""NoPE: no position encoding at all."""

from posenc.encoding import Encoding
from posenc.registry import register


@register(
    "nope",
    paper="Haviv et al., Transformer Language Models without Positional Encodings Still Learn Positional Information",
    year=2022,
    arxiv="2203.16634",
    formula="scores = q·k / √d",
    parameters="0",
    cost="none",
    aliases=("none",),
    used_by=("Llama 4 (every fourth layer)", "SmolLM3 (every fourth layer)"),
    serves=("text", "long"),
    example={},
    variants=({"n_axes": 2},),
    traits={
        "distinct": {"float32": 1, "bfloat16": 1, "float16": 1},
        "longest": None,
        "real_positions": True,
        "smooth": True,
        "bounded": True,
        "shift_invariant": True,
        "symmetric": True,
        "recency": False,
        "linear_shift": None,
        "length_dependent": False,
        "learned": 0,
        "cost": "nothing",
    },
)
class NoPE(Encoding):
    """Add nothing anywhere: only the causal mask gives the order.

    This is the contract itself, `Encoding`, under its own name. A causal decoder still learns its position, since the
    mask alone determines how many tokens each token attends to; a bidirectional model ignores order. Source: Haviv
    2022; Kazemnejad 2023 (2305.19466).

    Args:
        n_axes: Axes of the positions, which NoPE ignores, so that it can replace any other encoding.

    Raises:
        ValueError: n_axes is below 1.

    >>> NoPE().score_scale(head_dim=64)
    0.125
    """

    def __init__(self, *, n_axes: int = 1) -> None:
        super().__init__()
        self._count(n_axes=n_axes)
        self.n_axes = n_axes
