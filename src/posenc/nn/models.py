"""A language model and a translation model, each with any encoding."""

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from posenc import positions
from posenc.encoding import Encoding, Placed
from posenc.nn.layers import Block, Cache, Embedding, Memory


class LanguageModel(nn.Module):
    """A pre-norm decoder over tokens, with any position encoding.

    Args:
        vocab_size: Number of tokens.
        d_model: Width.
        n_layers: Number of blocks.
        n_heads: Query heads; `n_kv_heads` is the number of key and value heads, by default the same.
        encoding: Any `Encoding`; a `PerLayer` gives each block its own. One that depends on the length is resolved
            for the tokens of a call; to decode with a cache, resolve it beforehand.
        dropout: Applied to embeddings, attention weights and residual branches.

    >>> import torch
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
            pos: Positions; by default they continue from the last ones in the cache, row by row.
            cache: Stores keys and values, so that the next call can continue.
            mask: As in `attend`, over all keys.
            document_ids: As in `attend`.
            last: Return only the logits of this many last tokens.
        """
        if pos is None:
            pos = positions.arange(tokens.shape[1], device=tokens.device)
            if cache:
                pos = cache.placed[0].pos[..., -1:] + 1 + pos
        # a cache outlives this call, so with one the caller sets the length
        seq_len = tokens.shape[1] if cache is None else cache.seq_len
        whole = self.encoding if seq_len is None else self.encoding.resolve(seq_len)
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
    """A pre-norm translation model: a bidirectional encoder and a causal decoder with cross-attention.

    Args:
        vocab_size: Number of tokens, shared by both sides.
        d_model: Width.
        n_layers: Number of blocks of the encoder, and of the decoder.
        n_heads: Number of heads.
        encoding: Any `Encoding`, shared by encoder and decoder.
        cross: The encoding of the cross-attention; by default NoPE.
        dropout: As in `LanguageModel`.

    >>> import torch
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
        """Return the encoder's output; `mask` is True for real tokens."""
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
        """Return the logits of the next target token, given the result of `encode`."""
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
    """Place positions; for an encoding that reads tokens, expand them to the tokens' batch."""
    if not encoding.reads_x or x is None:
        return encoding.place(pos, past=past)
    return encoding.place(pos if pos.ndim > 1 else pos.expand(x.shape[0], -1), x, past=past)


def _place_both(
    encoding: Encoding, pos: Tensor, x: Tensor | None, cache: Cache | None, layer: int
) -> tuple[Placed, Placed]:
    """Place the new positions; return them and all cached ones."""
    past = cache.placed.get(layer) if cache is not None else None
    placed = _place(encoding, pos, x, past)
    return (placed, placed) if cache is None else cache.append_placed(layer, placed)
