"""Selective RoPE: each token decides how far it rotates all that come after it."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from posenc import frequencies, kernels
from posenc.encoding import Placed, Pos
from posenc.families import (
    Budgeted,
    ReadsTokens,
    check_groups,
    check_tokens,
    geometric,
    no_autocast,
    wide_parameter,
)
from posenc.positions.checks import has_float64
from posenc.registry import register

_TAPS = 4  # tokens that the convolution reads: the token itself and three before it
_EPS = 1e-6  # under the root of the length by which tokens are divided, as in the authors' code


@register(
    "selective_rope",
    paper="Movahedi et al., Selective Rotary Position Embedding",
    year=2025,
    arxiv="2511.17388",
    formula="pair k of token i rotates by ω_k·Σ_{t≤i} φ_k(x_t),  φ = conv4(W_out·W_in·x/|x|),  ω_k = base^(-2k/d)",
    parameters="rank·D + n_kv_heads·d/2·(rank + 4)",
    cost="two thin products and a convolution for each token, a running sum and a rotation as RoPE's",
    aliases=("selective_rotary",),
    serves=("text",),
    example={"d_model": 16, "n_kv_heads": 4, "head_dim": 8, "rank": 3},
    variants=({"n_kv_heads": 1, "head_dim": 2, "base": 100.0},),
    traits={
        "distinct": {"float32": 65_536, "bfloat16": 65_536, "float16": 65_536},
        "longest": None,
        "real_positions": False,
        "smooth": False,
        "bounded": True,
        "shift_invariant": True,
        "symmetric": False,
        "recency": False,
        "linear_shift": True,
        "length_dependent": False,
        "learned": 160,
        "cost": "token",
    },
)
class SelectiveRoPE(ReadsTokens, Budgeted):
    """Rotate queries and keys by angles that are summed from the tokens: a score sees those between key and query.

    RoPE advances each pair of dimensions by the same angle at each token. Here a token's advance φ is computed from the
    input of the attention layer: each head's share of it at length 1, a product of low rank, and a causal convolution
    over four tokens, each pair by itself. The sum follows the order of the sequence, as causal masks do. Positions only
    show where a text begins, or padding stands: where they do not rise. The convolution does not reach beyond such a
    place. The sum needs no restart, because queries and keys of a text contain the same sum of earlier tokens, which
    cancels. A rotated key depends on the tokens up to its own and can be cached; `past` continues the sum and the
    convolution.

    Sums are computed in float64 and kept as a cosine and a sine, which lose whole rotations only. A token that is not
    finite counts as zero. Source: Movahedi 2025 and the authors' code (timurcarstensen/selective-rope), in the form
    that all of its configurations share; its options (a sigmoid gate on φ, a learned bias, a projection of full rank,
    trained ω) are left out. Departures: the convolution stops where a text begins, and the query heads of a group share
    the angles of their key head.

    Args:
        d_model: Width of the tokens that are read: the input of the attention layer; a multiple of n_kv_heads.
        n_kv_heads: Key heads, each with angles of its own.
        head_dim: Dimensions of one head, an even number.
        rank: Rank of the product W_out·W_in that reads the tokens.
        base: Base of the fixed ω, in radians per unit of the summed φ; the first pair has 1, the others less.

    Raises:
        ValueError: An odd head_dim, a d_model that is no multiple of n_kv_heads, a base not above 1, tokens of another
            shape than positions and d_model require, or tables above `table_budget`.
        TypeError: Placing without tokens.

    >>> enc = SelectiveRoPE(d_model=1, n_kv_heads=1, head_dim=2, rank=1)
    >>> with torch.no_grad(): _ = enc.w_in.fill_(1), enc.w_out.fill_(1), enc.conv.copy_(torch.tensor([0, 0, 0, 0.5]))
    >>> text = torch.tensor([1.0, 9.0, -1.0])[None, :, None]  # of which the direction counts: half a radian each
    >>> placed = enc.place(torch.arange(3), text)
    >>> enc.rotate_q(torch.tensor([1.0, 0]).expand(1, 1, 3, 2), placed)[0, 0, :, 1].asin()
    tensor([0.5000, 1.0000, 0.5000], grad_fn=<AsinBackward0>)
    """

    family = "rotary"
    keeps_float32 = True
    accepts_real = False

    def __init__(self, *, d_model: int, n_kv_heads: int, head_dim: int, rank: int = 32, base: float = 500000.0) -> None:
        super().__init__()
        self._count(d_model=d_model, n_kv_heads=n_kv_heads, head_dim=head_dim, rank=rank)
        if head_dim % 2:
            raise ValueError(f"{self.name}: head_dim must be even, because pairs rotate; got head_dim={head_dim}.")
        if d_model % n_kv_heads:
            raise ValueError(
                f"{self.name}: d_model must be a multiple of n_kv_heads, because each head's share of a token gets "
                f"length 1; got d_model={d_model} and n_kv_heads={n_kv_heads}."
            )
        self.d_model, self.n_kv_heads, self.head_dim, self.rank = d_model, n_kv_heads, head_dim, rank
        self.base = frequencies.check_base(base, self.name)
        n_pairs = head_dim // 2
        self.w_in, self.w_out = wide_parameter(rank, d_model), wide_parameter(n_kv_heads * n_pairs, rank)
        self.conv = wide_parameter(n_kv_heads * n_pairs, _TAPS)  # the last column is for the token itself
        self.reset_parameters()

    def parts(self, pos: Pos, x: Tensor | None, past: Placed | None, dtype: torch.dtype) -> tuple[Any, ...]:
        """Return cosines and sines (batch, seq_len, n_kv_heads, n_pairs), and what the convolution reads of tokens.

        Raises:
            ValueError: They would take more than `table_budget` bytes.
        """
        assert x is not None  # place() has looked
        self._afford(x.shape[0] * x.shape[1] * (self.n_kv_heads * self.head_dim + self.rank) * dtype.itemsize)
        widest = torch.float64 if has_float64(x.device) else dtype
        with no_autocast(x.device):
            read = self._read(x, dtype)
            speed = geometric(self.head_dim // 2, base=self.base, width=self.head_dim).to(x.device, widest)
            advance = self._convolved(read, pos, past).unflatten(-1, (self.n_kv_heads, -1))
        angle = (advance.to(widest) * speed).cumsum(1)
        if past is not None and past.pos.numel():
            cos, sin, _ = past.last(1).parts
            angle = angle + torch.atan2(sin.to(widest), cos.to(widest))
        return angle.cos().to(dtype), angle.sin().to(dtype), read

    def _read(self, x: Tensor, dtype: torch.dtype) -> Float[Tensor, "batch seq rank"]:
        """Return W_in·x/|x|, where each head's share of x is divided by its own length."""
        tokens, _ = self.clear(x, dtype)
        shares: Tensor = tokens.unflatten(-1, (self.n_kv_heads, -1))
        unit = shares * (shares.square().sum(-1, keepdim=True) + _EPS).rsqrt()
        return unit.flatten(-2) @ self.w_in.to(dtype).T

    def _convolved(self, read: Tensor, pos: Pos, past: Placed | None) -> Float[Tensor, "batch seq channels"]:
        """Return φ: of each token and the three before it, as far back as positions rise."""
        n = read.shape[1]
        texts = Placed(pos, (read,))
        if past is not None:
            before = past.last(min(_TAPS - 1, past.pos.shape[-1]))
            texts = Placed(before.pos, (before.parts[2].to(read.dtype),)).cat(texts)
        missing = n + _TAPS - 1 - texts.pos.shape[-1]  # tokens of zeros, which add nothing
        where = F.pad(texts.pos, (missing, 0))
        channels = F.pad(texts.parts[0], (0, 0, missing, 0)) @ self.w_out.to(read.dtype).T
        rises = where[:, 1:] > where[:, :-1]
        linked = rises.new_ones(())
        advance = channels.new_zeros(())
        for back, weight in enumerate(self.conv.to(read.dtype).flip(-1).unbind(-1)):
            begin = _TAPS - 1 - back
            if back:
                linked = linked & rises[:, begin : begin + n]
            advance = advance + channels[:, begin : begin + n] * weight * linked[..., None]
        return advance

    def rotate_q(self, q: Tensor, placed: Placed) -> Tensor:
        """Rotate queries by the angles of their own tokens."""
        return self._rotate(q, placed, 1)

    def rotate_k(self, k: Tensor, placed: Placed) -> Tensor:
        """Rotate keys by the angles of their own tokens."""
        return self._rotate(k, placed, 1)

    def reset_parameters(self) -> None:
        """Draw all weights as torch does those of linear layers and convolutions, and so the authors' module."""
        for weight in (self.w_in, self.w_out, self.conv):
            nn.init.uniform_(weight, -(weight.shape[1] ** -0.5), weight.shape[1] ** -0.5)

    def _rotate(self, x: Tensor, placed: Placed, sense: int) -> Tensor:
        check_tokens(self.name, x, self.head_dim, placed.pos.shape)
        check_groups(self.name, x, self.n_kv_heads)
        cos, sin = (t.movedim(-2, -3) for t in placed.parts[:2])
        return kernels.rotate(x, cos, sense * sin, pairing="half")

    def _unrotate(self, q: Tensor, k: Tensor, placed: Placed, k_placed: Placed) -> tuple[Tensor, Tensor]:
        return self._rotate(q, placed, -1), self._rotate(k, k_placed, -1)
