"""RoPE++: every other head scores by the imaginary part that RoPE omits."""

import torch
from jaxtyping import Float64
from torch import Tensor

from posenc import frequencies
from posenc.encoding import Placed
from posenc.families import Given, OwnFrequencies, Rotary, check_tokens, geometric
from posenc.kernels.eager import Pairing
from posenc.registry import register


@register(
    "rope_pp",
    paper="Liu et al., Beyond Real: Imaginary Extension of Rotary Position Embeddings for Long-Context LLMs",
    year=2025,
    arxiv="2512.07525",
    formula="RoPE in even heads; in odd ones q rotates by p·ω - π/2: score = -Im Σ conj(q)·k·e^(-iω(i - j))",
    parameters="0",
    cost="two products and one sum for each lane of q and k",
    aliases=("rope++", "imaginary_rope"),
    serves=("long", "text"),
    example={"n_heads": 4, "head_dim": 64},
    variants=({"n_heads": 2, "head_dim": 8, "pairing": "interleaved"},),
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
class RoPEPlusPlus(OwnFrequencies, Rotary):
    """Rotate queries of even heads as RoPE does, and those of odd heads a quarter rotation less.

    The product of complex pairs has a real part, which is RoPE's score, and an imaginary part, in which far keys weigh
    more. Both come from the same q and k: pass every projected query twice, `q.repeat_interleave(2, dim=1)`, so that
    heads 2h and 2h + 1 are its two parts and share a key head. Keys and their cache are RoPE's. With the original
    number of projections, this is the paper's "equal cache"; with half of them (and of k and v), its "equal heads".
    Source: Liu 2025, section 3, and the authors' code for the order of heads.

    Args:
        n_heads: Number of query heads passed in, counting both copies: an even number.
        head_dim: Dimensions of one head, all of which rotate.
        base: 10,000 in RoPE; larger for longer contexts.
        pairing: "half" (dimension k with k + head_dim / 2, as in the authors' code) or "interleaved" (2k with 2k + 1).
        inv_freq: Frequencies that replace the formula, as in `RoPE`: for example YaRN's, as the paper uses for longer
            texts.

    Raises:
        ValueError: n_heads or head_dim is odd, base is not above 1, the frequencies have the wrong shape, or q has
            another number of heads.

    >>> rope, q = RoPEPlusPlus(n_heads=2, head_dim=2), torch.tensor([[[[3.0, 5.0]], [[3.0, 5.0]]]])
    >>> rope.rotate_q(q, rope.place(torch.tensor([0])))[0, :, 0]  # (x, y), and clockwise (y, -x)
    tensor([[ 3.,  5.],
            [ 5., -3.]])
    """

    def __init__(
        self,
        *,
        n_heads: int,
        head_dim: int,
        base: float = 10000.0,
        pairing: Pairing = "half",
        inv_freq: Given | None = None,
    ) -> None:
        super().__init__(head_dim=head_dim, pairing=pairing)
        self._count(n_heads=n_heads)
        if n_heads % 2:
            raise ValueError(
                f"{self.name}: n_heads must be even, because each query has a real and an imaginary head; got "
                f"n_heads={n_heads}. Pass q.repeat_interleave(2, dim=1) and count its heads."
            )
        self.n_heads = n_heads
        self.base = frequencies.check_base(base, self.name)
        self._set_frequencies(head_dim // 2, inv_freq, trainable=False)

    def formula(self) -> Float64[Tensor, " n_pairs"]:
        """Return RoPE's frequencies."""
        return geometric(self.head_dim // 2, base=self.base, width=self.head_dim)

    def frequencies(self) -> Float64[Tensor, "1 n_pairs"]:
        """Return radians per position and pair, for both kinds of heads."""
        return self.inv_freqs()[None]

    def rotate_q(self, q: Tensor, placed: Placed) -> Tensor:
        """Rotate odd heads back by a quarter, then all heads by their angles."""
        self._check_queries(q, placed)
        return self._rotate(self._quarter(q), placed.parts)

    def _check_queries(self, q: Tensor, placed: Placed) -> None:
        check_tokens(self.name, q, self.head_dim, placed.pos.shape)
        if q.ndim != 4 or q.shape[1] != self.n_heads:
            raise ValueError(
                f"{self.name}: made for n_heads={self.n_heads}, each query's real head followed by its imaginary one; "
                f"got q of shape {tuple(q.shape)}. Pass q.repeat_interleave(2, dim=1)."
            )

    def _quarter(self, q: Tensor, *, back: bool = True) -> Tensor:
        """Return queries with each pair (x, y) of odd heads as (y, -x), or as (-y, x)."""
        if self.pairing == "half":
            x, y = q.chunk(2, -1)
            rotated = torch.cat((y, -x), -1)
        else:
            x, y = q.unflatten(-1, (-1, 2)).unbind(-1)
            rotated = torch.stack((y, -x), -1).flatten(-2)
        is_odd = torch.arange(self.n_heads, device=q.device) % 2 == 1
        return torch.where(is_odd[:, None, None], rotated if back else -rotated, q)

    def _unrotate(self, q: Tensor, k: Tensor, placed: Placed, k_placed: Placed) -> tuple[Tensor, Tensor]:
        self._check_queries(q, placed)
        q, k = super()._unrotate(q, k, placed, k_placed)
        return self._quarter(q, back=False), k
