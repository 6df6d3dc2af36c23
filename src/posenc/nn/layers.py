"""The layers of small Transformers, and a decoder's cache."""

from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from posenc.attention import attend
from posenc.encoding import Encoding, Placed


class Cache:
    """A decoder's cache: rotated keys and values, and placed positions."""

    seq_len: int | None = None  # length of the whole sequence, for encodings that depend on it; None if unknown

    def __init__(self) -> None:
        self.keys: dict[int, Tensor] = {}
        self.values: dict[int, Tensor] = {}
        self.placed: dict[int, Placed] = {}

    def __len__(self) -> int:
        return self.keys[0].shape[2] if self.keys else 0

    def append(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Add keys and values of one layer, and return all cached ones."""
        if layer in self.keys:
            k, v = torch.cat((self.keys[layer], k), 2), torch.cat((self.values[layer], v), 2)
        self.keys[layer], self.values[layer] = k, v
        return k, v

    def append_placed(self, layer: int, placed: Placed) -> tuple[Placed, Placed]:
        """Add placed positions, and return those of the new tokens and all cached ones."""
        self.placed[layer] = self.placed[layer].cat(placed) if layer in self.placed else placed
        return placed, self.placed[layer]


class Embedding(nn.Module):
    """Token embedding times sqrt(d_model), then position, then dropout (Vaswani 2017, section 3.4).

    Tokens start with a standard deviation of 0.02 after the product, like learned positions. Sinusoids are far larger,
    but train better with such tokens than with tokens of size 1 (a few hundred steps of the study's model).
    """

    def __init__(self, *, vocab_size: int, d_model: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, d_model)
        nn.init.normal_(self.tokens.weight, std=0.02 * d_model**-0.5)
        self.scale, self.dropout = d_model**0.5, dropout

    def forward(
        self, tokens: Int[Tensor, "batch seq"], encoding: Encoding, placed: Placed
    ) -> Float[Tensor, "batch seq d_model"]:
        """Embed tokens with positions that `encoding` has placed."""
        x = encoding.embed(self.tokens(tokens) * self.scale, placed)
        return F.dropout(x, self.dropout, self.training)


class Attention(nn.Module):
    """Multi-head attention of `x` over itself, or over `memory`."""

    def __init__(self, *, d_model: int, n_heads: int, n_kv_heads: int | None = None, dropout: float = 0.0) -> None:
        super().__init__()
        n_kv_heads = n_heads if n_kv_heads is None else n_kv_heads
        if min(d_model, n_heads, n_kv_heads) < 1 or d_model % n_heads or n_heads % n_kv_heads:
            raise ValueError(
                "Attention: n_heads must divide d_model, and n_kv_heads must divide n_heads; "
                f"got d_model={d_model}, n_heads={n_heads}, n_kv_heads={n_kv_heads}."
            )
        self.head_dim, self.dropout = d_model // n_heads, dropout
        self.q = nn.Linear(d_model, d_model, bias=False)
        self.kv = nn.Linear(d_model, 2 * n_kv_heads * self.head_dim, bias=False)
        self.out = nn.Linear(d_model, d_model, bias=False)

    def project(self, x: Tensor, memory: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return q of x, k and v of memory, as (batch, heads, seq, head_dim)."""
        q, kv = self.q(x), self.kv(memory)
        heads = (t.unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for t in (q, *kv.chunk(2, -1)))
        q, k, v = heads
        return q, k, v

    def forward(
        self,
        x: Float[Tensor, "batch seq d_model"],
        encoding: Encoding,
        placed: Placed,
        k_placed: Placed,
        *,
        memory: Float[Tensor, "batch k_len d_model"] | None = None,
        cache: Cache | None = None,
        layer: int = 0,
        causal: bool = True,
        mask: Tensor | None = None,
        document_ids: Tensor | None = None,
    ) -> Float[Tensor, "batch seq d_model"]:
        """Project, rotate, update the cache, attend."""
        q, k, v = self.project(x, x if memory is None else memory)
        kv_placed = placed if memory is None else k_placed  # of the tokens behind k and v
        q, k = encoding.rotate(q, k, placed, kv_placed)
        v = encoding.rotate_v(v, kv_placed)
        if cache is not None:
            k, v = cache.append(layer, k, v)
        dropout_p = self.dropout if self.training else 0.0
        out = attend(
            q, k, v, encoding, placed, k_placed,
            rotated=True, causal=causal, mask=mask, document_ids=document_ids, dropout_p=dropout_p,
        )  # fmt: skip
        return self.out(out.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class Memory(NamedTuple):
    """Arguments of cross-attention: the encoder's output, the encoding, and placed positions."""

    x: Tensor
    encoding: Encoding
    q_placed: Placed
    k_placed: Placed
    mask: Tensor | None


class Block(nn.Module):
    """A pre-norm layer: self-attention, optional cross-attention, and a two-layer network."""

    def __init__(
        self,
        *,
        d_model: int,
        n_heads: int,
        n_kv_heads: int | None = None,
        cross: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.norm, self.mlp_norm = nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        self.attention = Attention(d_model=d_model, n_heads=n_heads, n_kv_heads=n_kv_heads, dropout=dropout)
        self.cross_norm = nn.LayerNorm(d_model) if cross else None
        self.cross = Attention(d_model=d_model, n_heads=n_heads, dropout=dropout) if cross else None
        self.mlp = nn.Sequential(nn.Linear(d_model, 4 * d_model), nn.ReLU(), nn.Linear(4 * d_model, d_model))
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        x: Float[Tensor, "batch seq d_model"],
        encoding: Encoding,
        placed: Placed,
        k_placed: Placed,
        *,
        memory: Memory | None = None,
        **options: Any,
    ) -> Float[Tensor, "batch seq d_model"]:
        """Run the layer; `options` are arguments of `Attention`."""
        x = x + self.dropout(self.attention(self.norm(x), encoding, placed, k_placed, **options))
        if self.cross is not None and self.cross_norm is not None and memory is not None:
            seen = {"memory": memory.x, "mask": memory.mask, "causal": False}
            attended = self.cross(self.cross_norm(x), memory.encoding, memory.q_placed, memory.k_placed, **seen)
            x = x + self.dropout(attended)
        return x + self.dropout(self.mlp(self.mlp_norm(x)))  # type: ignore[no-any-return]
