"""Rotation of queries and keys, compared with a copy of them: inputs and candidates."""

import sys
from collections.abc import Callable
from functools import cached_property, partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from posenc import positions
from posenc.bench.candidates import CHECKED, Candidate, Inputs
from posenc.bench.rows import DTYPES, ROTATIONS, Row
from posenc.definitions.rotary import rope
from posenc.encodings import RoPE

HEAD_DIM, N_HEADS, N_KV_HEADS = 128, 32, 8
LAST = 4095  # the position of a decoded token
Pair = tuple[Tensor, Tensor]
Rotate = Callable[[], Pair]


class Rotation(Inputs):
    """Rotation of all dimensions of q and k.

    Args:
        row: With "pairing" among its options; "transposed" lays memory out as (batch, seq, heads, head_dim).
    """

    def __init__(self, row: Row) -> None:
        super().__init__(row)
        self.q, self.k = self.learned = self._fill(torch.randn)
        for one in self.learned:
            one.requires_grad_(row.mode == "train")
        self.slopes, self.out = self._fill(torch.randn), self._fill(torch.empty)
        self.half = row.options["pairing"] == "half"  # partners are half the width apart instead of neighbours
        self.pos = torch.tensor([LAST]) if row.length == 1 else positions.arange(row.length)
        self.rope = RoPE(head_dim=HEAD_DIM, pairing=row.options["pairing"])
        self.placed = self.rope.place(self.pos)

    def _fill(self, make: Callable[..., Tensor]) -> Pair:
        """Return queries and keys (batch, heads, seq, head_dim), with the memory layout of the row."""
        row, transposed = self.row, self.row.options.get("transposed", False)

        def one(heads: int) -> Tensor:
            order = (row.length, heads) if transposed else (heads, row.length)
            made = make(row.batch, *order, HEAD_DIM, dtype=DTYPES[row.dtype])
            return made.transpose(1, 2) if transposed else made

        return one(N_HEADS), one(N_KV_HEADS)

    def tables(self) -> Pair:
        """Return cosines and sines (seq, head_dim) in float32, one number per dimension, as in most libraries."""
        cos, sin = (torch.cat((t, t), -1) if self.half else t.repeat_interleave(2, -1) for t in self.placed.parts)
        return cos, sin

    @cached_property
    def expected(self) -> list[Tensor]:
        """Multiply by the matrices of the definition, or gradients by their transposes, in float64."""
        make = partial(rope, head_dim=HEAD_DIM, pairing=self.row.options["pairing"])
        matrices = torch.from_numpy(np.stack([make(float(p))[0] for p in self.pos[-CHECKED:]]))
        given, product = (self.learned, "sij,bhsj->bhsi")
        if self.row.mode == "train":
            given, product = (self.slopes, "sij,bhsi->bhsj")
        return [torch.einsum(product, matrices, x[:, :, -CHECKED:].detach().double()) for x in given]

    def copy(self, times: int = 1) -> Callable[[], object]:
        """Copy both into existing memory."""
        pairs = [*zip(self.out, (self.q, self.k), strict=True)] * times
        return lambda: [into.copy_(x) for into, x in pairs]

    def rotate_(self, backend: str) -> Rotate:
        """Rotate in place, always in the same memory."""
        own = self.q.clone(), self.k.clone()

        def run() -> Pair:
            self.rope.rotate_(*own, self.placed, backend=backend)
            return own

        return run

    def rotate(self, backend: str = "auto", *, given: bool = False) -> Rotate:
        """Rotate into new memory, or into existing memory."""
        out = self.out if given else None
        return lambda: self.rope.rotate(self.q, self.k, self.placed, out=out, backend=backend)

    def transformers(self) -> Rotate:
        """Run the function of transformers' Llama, or of its Cohere, which pairs neighbours; tables in q's dtype."""
        model = "llama" if self.half else "cohere"
        apply = import_module(f"transformers.models.{model}.modeling_{model}").apply_rotary_pos_emb
        cos, sin = (t[None].to(self.q.dtype) for t in self.tables())
        return lambda: apply(self.q, self.k, cos, sin)

    def rotary_embedding_torch(self) -> Rotate:
        """Run rotary-embedding-torch, which caches its angles."""
        from rotary_embedding_torch import RotaryEmbedding  # type: ignore[import-untyped]

        rotate = partial(RotaryEmbedding(dim=HEAD_DIM).rotate_queries_or_keys, offset=int(self.pos[0]))
        return lambda: (rotate(self.q), rotate(self.k))

    def x_transformers(self) -> Rotate:
        """Run x-transformers' function with given angles."""
        from x_transformers.x_transformers import RotaryEmbedding, apply_rotary_pos_emb  # type: ignore[import-untyped]

        angles, scale = RotaryEmbedding(HEAD_DIM)(self.pos[None])
        return lambda: (apply_rotary_pos_emb(self.q, angles, scale), apply_rotary_pos_emb(self.k, angles, scale))

    def timm(self) -> Rotate:
        """Run timm's function, with tables in float32 as in its models.

        Its layers are loaded as a package under another name: `import timm` needs torchvision, the function does not.
        """
        found = find_spec("timm")
        if found is None or found.origin is None:
            raise ImportError("no module named 'timm'")
        layers = sys.modules.setdefault("_posenc_timm_layers", ModuleType("_posenc_timm_layers"))
        layers.__path__ = [str(Path(found.origin).parent / "layers")]
        apply = import_module("_posenc_timm_layers.pos_embed_sincos").apply_rot_embed_cat
        cos, sin = self.tables()
        both = torch.cat((sin, cos), -1)
        return lambda: (apply(self.q, both, half=self.half), apply(self.k, both, half=self.half))

    def complex_product(self) -> Rotate:
        """Multiply complex numbers in float32, as Meta's Llama does, in one line of torch."""
        factors = torch.complex(*self.placed.parts)

        def one(x: Tensor) -> Tensor:
            pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
            return torch.view_as_real(pairs * factors).flatten(-2).to(x.dtype)

        return lambda: (one(self.q), one(self.k))

    candidates: ClassVar = {
        "copy": Candidate("copy into given memory", copy),
        "copies": Candidate("two copies", partial(copy, times=2), learns=False),
        "compiled": Candidate("posenc, compiled", lambda s: torch.compile(s.rotate(), fullgraph=True)),
        "transformers": Candidate("transformers", transformers),
        "transformers, compiled": Candidate("transformers, compiled", lambda s: torch.compile(s.transformers())),
        "rotary-embedding-torch": Candidate("rotary-embedding-torch", rotary_embedding_torch),
        "x-transformers": Candidate("x-transformers", x_transformers),
        "timm": Candidate("timm", timm),
        "complex product": Candidate("complex product", complex_product),
    }
    for backend in ROTATIONS:
        candidates[f"rotate_:{backend}"] = Candidate(f"posenc in place, {backend}", partial(rotate_, backend=backend))
        candidates[f"out:{backend}"] = Candidate(
            f"posenc out=, {backend}", partial(rotate, backend=backend, given=True)
        )
        candidates[f"rotate:{backend}"] = Candidate(f"posenc, {backend}", partial(rotate, backend=backend))
