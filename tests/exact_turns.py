"""What a RoPE turns, from its definition: float64 matrices, one a position."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

import posenc
from posenc.definitions.rotary import rope as defined


def turned(rope: posenc.RoPE, x: Tensor, pos: Tensor) -> Tensor:
    """Return queries or keys (batch, heads, seq, head_dim) turned by positions (seq,) or (batch, seq)."""
    said = rope.options()
    names = ("head_dim", "base", "rotary_dim", "rotary_side", "pairing", "attention_factor")
    options: Any = {name: said[name] for name in names}
    if rope.trainable:  # which are kept in float32
        options["inv_freq"] = rope.frequencies()[0].detach().double().numpy()

    @cache
    def matrix(p: float) -> Tensor:
        return torch.from_numpy(defined(p, **options)[0])

    rows = pos.expand(x.shape[0], -1).tolist()
    turns = torch.stack([torch.stack([matrix(p) for p in row]) for row in rows])
    return torch.einsum("bnij,bhnj->bhni", turns, x.double())
