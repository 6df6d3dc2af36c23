"""Attention with each position bias, compared with plain SDPA: inputs and candidates."""

from collections.abc import Callable
from functools import cached_property, partial
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention as sdpa

import posenc
from posenc import attention, positions, registry
from posenc.bench.candidates import CHECKED, Candidate, Inputs
from posenc.bench.rows import DTYPES, Row
from posenc.encoding import Placed

N_HEADS, HEAD_DIM = 8, 64
OPTIONS = {"shaw": {"max_distance": 64}}  # of encodings
Forward = Callable[[], Tensor]


class Attention(Inputs):
    """Causal attention of one query, or of as many queries as keys.

    Args:
        row: With "encoding" among its options; "documents" packs that many into the sequence, "window" is `attend`'s.
        empty: Leave the memory of q, k and v uninitialised, for calls that compute nothing.

    Raises:
        ValueError: The encoding is not in this version, or refuses its options.
    """

    def __init__(self, row: Row, *, empty: bool = False) -> None:
        super().__init__(row)
        device, n = torch.device(row.device), row.length
        dims = registry.Dims(d_model=N_HEADS * HEAD_DIM, n_heads=N_HEADS, head_dim=HEAD_DIM, max_len=n)
        name = row.options["encoding"]
        self.encoding = registry.create(name, dims=dims, **OPTIONS.get(name, {})).to(device)
        with torch.no_grad():
            for parameter in self.encoding.parameters():  # a learned table of zeros could be skipped
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
        q_len = 1 if row.mode == "decode" else n
        draw = partial(torch.empty if empty else torch.randn, dtype=DTYPES[row.dtype], device=device)
        drawn = (draw(row.batch, N_HEADS, length, HEAD_DIM) for length in (q_len, n, n, q_len))
        self.q, self.k, self.v, self.slopes = drawn
        for one in (self.q, self.k, self.v):
            one.requires_grad_(row.mode == "train")
        self.learned = [self.q, self.k, self.v, *(p for p in self.encoding.parameters() if p.requires_grad)]
        self.pos, ids = positions.arange(n, device=device), None
        if documents := row.options.get("documents"):
            ids = self.pos * documents // n
            self.pos = positions.packed(ids)
        self.options: dict[str, Any] = {"window": row.options.get("window"), "document_ids": ids}
        self.q_bytes = self.q.nbytes

    def place(self) -> tuple[Placed, Placed]:
        """Place the positions of queries and keys."""
        placed = self.encoding.place(self.pos)
        return (placed.last(1) if self.row.mode == "decode" else placed), placed

    def verdicts(self) -> list[attention.Verdict]:
        """Return the verdicts of `explain` for this call, without computing it."""
        with torch.set_grad_enabled(self.row.mode == "train"):
            return attention.explain(self.q, self.k, self.v, self.encoding, *self.place(), **self.options)

    @property
    def taken(self) -> str:
        """The backend that `attend` chooses by itself."""
        return next((v.backend for v in self.verdicts() if v.verdict == "taken"), "none")

    @cached_property
    def expected(self) -> list[Tensor]:
        """Attend from the last queries with every score in float64; only these queries see the last keys and values."""
        n = min(CHECKED, self.q.shape[2])
        last, (placed, k_placed) = (slice(None), slice(None), slice(-n, None)), self.place()
        with torch.set_grad_enabled(self.row.mode == "train"):
            given = self.q[last], self.k, self.v, self.encoding, placed.last(n), k_placed
            out = posenc.attend(*given, backend="reference-float64", **self.options)
        if self.row.mode != "train":
            return [out]
        if n == self.row.length:
            return list(torch.autograd.grad(out, self.learned, self.slopes))
        return [grad[last] for grad in torch.autograd.grad(out, self.learned[:3], self.slopes[last])]

    def attend(self, backend: str = "auto") -> Forward:
        """Run `posenc.attend`."""
        fixed = None if self.row.mode == "train" else self.place()
        options = self.options | {"backend": backend}

        def forward() -> Tensor:
            placed = fixed or self.place()  # learned parts of place() need a new graph in every step
            return posenc.attend(self.q, self.k, self.v, self.encoding, *placed, **options)

        return forward

    def through_sdpa(self, bias: Callable[[], Any]) -> Forward:
        """Add a bias matrix, built in each call, with -inf ahead of each query, as most projects do."""
        q_len, k_len = self.q.shape[2], self.row.length
        ahead = torch.ones(q_len, k_len, dtype=torch.bool, device=self.q.device).triu(k_len - q_len + 1)
        scale = self.encoding.score_scale(HEAD_DIM)

        def forward() -> Tensor:
            mask = bias().masked_fill(ahead, -torch.inf).to(self.q.dtype)
            return sdpa(self.q, self.k, self.v, attn_mask=mask, scale=scale)

        return forward

    def transformers(self) -> Forward:
        """Run transformers' own T5 bias, computed in each call as in its first layer, with the encoding's table."""
        from transformers import T5Config
        from transformers.models.t5.modeling_t5 import T5Attention

        layer = T5Attention(T5Config(num_heads=N_HEADS, is_decoder=True), has_relative_attention_bias=True, layer_idx=0)
        layer.relative_attention_bias.weight = self.encoding.weight
        return self.through_sdpa(lambda: layer.compute_bias(self.row.length, self.row.length))

    def x_transformers(self) -> Forward:
        """Run x-transformers' ALiBi and its attention by SDPA; it keeps the matrix from call to call."""
        from x_transformers.attend import Attend  # type: ignore[import-untyped]
        from x_transformers.x_transformers import AlibiPositionalBias  # type: ignore[import-untyped]

        bias, n = AlibiPositionalBias(heads=N_HEADS).to(self.q.device), self.row.length
        attend = Attend(causal=True, heads=N_HEADS, flash=True)
        return lambda: attend(self.q, self.k, self.v, attn_bias=bias(n, n).to(self.q.dtype))[0]

    candidates: ClassVar = {
        "plain": Candidate("plain SDPA", lambda s: partial(sdpa, s.q, s.k, s.v, is_causal=s.row.mode != "decode")),
        "attend:auto": Candidate("posenc, auto: {0.taken}", attend),
        "attend:flex": Candidate("posenc, flex", partial(attend, backend="flex")),
        "compiled": Candidate("posenc, compiled", lambda s: torch.compile(s.attend(), fullgraph=True)),
        "dense": Candidate("SDPA, mask built", lambda s: s.through_sdpa(lambda: s.encoding.bias(s.q, s.k, *s.place()))),
        "transformers": Candidate("transformers T5, SDPA", transformers),
        "x-transformers": Candidate("x-transformers ALiBi", x_transformers),
    }
