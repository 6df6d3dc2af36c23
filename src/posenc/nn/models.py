"""Small Transformers for studies and examples; each takes any encoding in one argument."""

from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from posenc import positions
from posenc.attention import attend
from posenc.encoding import Encoding, Placed


class Cache:
    """What a decoder remembers of the tokens it has read: turned keys, values, placed positions."""

    def __init__(self) -> None:
        self.keys: dict[int, Tensor] = {}
        self.values: dict[int, Tensor] = {}
        self.placed: dict[int, Placed] = {}

    def __len__(self) -> int:
        return self.keys[0].shape[2] if self.keys else 0

    def append(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Add keys and values of one layer and return all of them."""
        if layer in self.keys:
            k, v = torch.cat((self.keys[layer], k), 2), torch.cat((self.values[layer], v), 2)
        self.keys[layer], self.values[layer] = k, v
        return k, v

    def append_placed(self, layer: int, placed: Placed) -> Placed:
        """Add placed positions and return all of them."""
        self.placed[layer] = self.placed[layer].cat(placed) if layer in self.placed else placed
        return self.placed[layer]


class Embedding(nn.Module):
    """Token embedding times sqrt(d_model), then position, then dropout (Vaswani 2017, section 3.4).

    Tokens start at a standard deviation of 0.02 after the product, as learned positions do; sinusoids are larger
    by far, and yet train better so than beside tokens of size 1 (a few hundred steps of the study's model).
    """

    def __init__(self, *, vocab_size: int, d_model: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, d_model)
        nn.init.normal_(self.tokens.weight, std=0.02 * d_model**-0.5)
        self.scale, self.dropout = d_model**0.5, dropout

    def forward(
        self, tokens: Int[Tensor, "batch seq"], encoding: Encoding, placed: Placed
    ) -> Float[Tensor, "batch seq d_model"]:
        """Embed tokens that `encoding` has placed."""
        x = encoding.embed(self.tokens(tokens) * self.scale, placed)
        return F.dropout(x, self.dropout, self.training)


class Attention(nn.Module):
    """Multi-head attention of `x` to itself, or to `memory`."""

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
        """Project, turn, remember, attend."""
        q, k, v = self.project(x, x if memory is None else memory)
        q, k = encoding.rotate(q, k, placed, k_placed.last(k.shape[2]))
        if cache is not None:
            k, v = cache.append(layer, k, v)
        dropout_p = self.dropout if self.training else 0.0
        out = attend(
            q, k, v, encoding, placed, k_placed,
            rotated=True, causal=causal, mask=mask, document_ids=document_ids, dropout_p=dropout_p,
        )  # fmt: skip
        return self.out(out.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class Memory(NamedTuple):
    """What a decoder looks at: the encoder's output, and how position enters there."""

    x: Tensor
    encoding: Encoding
    q_placed: Placed
    k_placed: Placed
    mask: Tensor | None


class Block(nn.Module):
    """A pre-norm layer: attention, attention to an encoder if there is one, a two-layer network."""

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
        """Run the layer; `options` are those of `Attention`."""
        x = x + self.dropout(self.attention(self.norm(x), encoding, placed, k_placed, **options))
        if self.cross is not None and self.cross_norm is not None and memory is not None:
            seen = {"memory": memory.x, "mask": memory.mask, "causal": False}
            looked = self.cross(self.cross_norm(x), memory.encoding, memory.q_placed, memory.k_placed, **seen)
            x = x + self.dropout(looked)
        return x + self.dropout(self.mlp(self.mlp_norm(x)))  # type: ignore[no-any-return]


class LanguageModel(nn.Module):
    """A pre-norm decoder over tokens, with any position encoding.

    Args:
        vocab_size: Number of tokens.
        d_model: Width.
        n_layers: Blocks.
        n_heads: Heads of the queries; `n_kv_heads` of keys and values (as many if left out).
        encoding: Any `Encoding`; a `PerLayer` gives each block its own. One that depends on the length is resolved
            for the tokens of a call; to decode with a cache, resolve it beforehand.
        dropout: On embeddings, attention weights and residual branches.

    >>> from posenc import RoPE
    >>> model = LanguageModel(vocab_size=10, d_model=8, n_layers=1, n_heads=2, encoding=RoPE(head_dim=4))
    >>> model(torch.tensor([[1, 2, 3]])).shape
    torch.Size([1, 3, 10])
    """

    def __init__(
        self,
        *,
        vocab_size: int,
        d_model: int,
        n_layers: int,
        n_heads: int,
        encoding: Encoding,
        n_kv_heads: int | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.encoding = encoding
        self.embedding = Embedding(vocab_size=vocab_size, d_model=d_model, dropout=dropout)
        self.blocks = nn.ModuleList(
            Block(d_model=d_model, n_heads=n_heads, n_kv_heads=n_kv_heads, dropout=dropout) for _ in range(n_layers)
        )
        self.norm = nn.LayerNorm(d_model)
        self.head = nn.Linear(d_model, vocab_size, bias=False)

    def forward(
        self,
        tokens: Int[Tensor, "batch seq"],
        pos: Tensor | None = None,
        *,
        cache: Cache | None = None,
        mask: Bool[Tensor, "..."] | None = None,
        document_ids: Int[Tensor, "..."] | None = None,
        last: int | None = None,
    ) -> Float[Tensor, "batch out vocab"]:
        """Return the logits of the next token.

        Args:
            tokens: (batch, seq).
            pos: Positions; counted on from the last ones in the cache, row by row, if left out.
            cache: Remembers what was read, so that the next call may go on from there.
            mask: As in `attend`, over all keys.
            document_ids: As in `attend`.
            last: Return the logits of the last so many tokens only.
        """
        if pos is None:
            pos = positions.arange(tokens.shape[1], device=tokens.device)
            if cache:
                pos = cache.placed[0].pos[..., -1:] + 1 + pos
        # a cache outlives this call, so there the caller says what length to resolve for
        whole = self.encoding.resolve(tokens.shape[1]) if cache is None else self.encoding
        placed = None if whole.reads_x else _place_both(whole, pos, None, cache, 0)
        first = _place(whole, pos, self.embedding.tokens(tokens)) if placed is None else placed[0]
        x = self.embedding(tokens, whole, first)
        for i, block in enumerate(self.blocks):
            here, everywhere = _place_both(whole, pos, x, cache, i) if placed is None else placed
            encoding, q_placed = whole.layer(i, here)
            k_placed = whole.layer(i, everywhere)[1]
            x = block(x, encoding, q_placed, k_placed, cache=cache, layer=i, mask=mask, document_ids=document_ids)
        x = x if last is None else x[:, x.shape[1] - last :]
        return self.head(self.norm(x))  # type: ignore[no-any-return]


class EncoderDecoder(nn.Module):
    """A pre-norm translation model: a bidirectional encoder and a causal decoder that looks at it.

    Args:
        vocab_size: Number of tokens, shared by both sides.
        d_model: Width.
        n_layers: Blocks of the encoder, and again of the decoder.
        n_heads: Heads.
        encoding: Any `Encoding`, used by encoder and decoder alike.
        cross: The encoding between decoder and encoder; NoPE if left out.
        dropout: As in `LanguageModel`.

    >>> from posenc import Sinusoidal
    >>> model = EncoderDecoder(vocab_size=10, d_model=8, n_layers=1, n_heads=2, encoding=Sinusoidal(d_model=8))
    >>> model(torch.tensor([[1, 2, 3]]), torch.tensor([[4, 5]])).shape
    torch.Size([1, 2, 10])
    """

    def __init__(
        self,
        *,
        vocab_size: int,
        d_model: int,
        n_layers: int,
        n_heads: int,
        encoding: Encoding,
        cross: Encoding | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.encoding, self.cross = encoding, Encoding() if cross is None else cross
        self.embedding = Embedding(vocab_size=vocab_size, d_model=d_model, dropout=dropout)
        self.encoder = nn.ModuleList(Block(d_model=d_model, n_heads=n_heads, dropout=dropout) for _ in range(n_layers))
        self.decoder = nn.ModuleList(
            Block(d_model=d_model, n_heads=n_heads, cross=True, dropout=dropout) for _ in range(n_layers)
        )
        self.encoder_norm, self.norm = nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        self.head = nn.Linear(d_model, vocab_size, bias=False)

    def encode(
        self, tokens: Int[Tensor, "batch src"], mask: Bool[Tensor, "batch src"] | None = None
    ) -> Float[Tensor, "batch src d_model"]:
        """Return what the decoder will look at; `mask` is True for real tokens."""
        pos = positions.arange(tokens.shape[1], device=tokens.device)
        whole = self.encoding.resolve(tokens.shape[1])
        placed = _place(whole, pos, self.embedding.tokens(tokens))
        x = self.embedding(tokens, whole, placed)
        seen = None if mask is None else mask[:, None, None, :]
        for i, block in enumerate(self.encoder):
            placed = _place(whole, pos, x) if whole.reads_x else placed
            encoding, here = whole.layer(i, placed)
            x = block(x, encoding, here, here, causal=False, mask=seen)
        return self.encoder_norm(x)  # type: ignore[no-any-return]

    def forward(
        self,
        source: Int[Tensor, "batch src"],
        target: Int[Tensor, "batch tgt"],
        mask: Bool[Tensor, "batch src"] | None = None,
    ) -> Float[Tensor, "batch tgt vocab"]:
        """Return the logits of the next target token; `mask` is True for real source tokens."""
        return self.decode(self.encode(source, mask), target, mask)

    def decode(
        self,
        encoded: Float[Tensor, "batch src d_model"],
        target: Int[Tensor, "batch tgt"],
        mask: Bool[Tensor, "batch src"] | None = None,
    ) -> Float[Tensor, "batch tgt vocab"]:
        """Return the logits of the next target token, given what `encode` returned."""
        pos, k_pos = (positions.arange(t.shape[1], device=target.device) for t in (target, encoded))
        whole, cross = self.encoding.resolve(target.shape[1]), self.cross.resolve(encoded.shape[1])
        placed = _place(whole, pos, self.embedding.tokens(target))
        x = self.embedding(target, whole, placed)
        seen, k_cross = None if mask is None else mask[:, None, None, :], _place(cross, k_pos, encoded)
        memory = Memory(encoded, cross, _place(cross, pos, x), k_cross, seen)
        for i, block in enumerate(self.decoder):
            placed = _place(whole, pos, x) if whole.reads_x else placed
            encoding, here = whole.layer(i, placed)
            x = block(x, encoding, here, here, memory=memory)
        return self.head(self.norm(x))  # type: ignore[no-any-return]


def _place(encoding: Encoding, pos: Tensor, x: Tensor | None, past: Placed | None = None) -> Placed:
    """Place positions; those of an encoding that reads the tokens get the tokens' batch."""
    if not encoding.reads_x or x is None:
        return encoding.place(pos, past=past)
    return encoding.place(pos if pos.ndim > 1 else pos.expand(x.shape[0], -1), x, past=past)


def _place_both(
    encoding: Encoding, pos: Tensor, x: Tensor | None, cache: Cache | None, layer: int
) -> tuple[Placed, Placed]:
    """Place the new positions; return them and all that the cache knows."""
    past = cache.placed.get(layer) if cache is not None else None
    placed = _place(encoding, pos, x, past)
    return placed, placed if cache is None else cache.append_placed(layer, placed)
