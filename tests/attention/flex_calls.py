"""Calls of attention for the tests of FlexAttention."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import posenc
from posenc import positions
from posenc.attention.call import Call
from posenc.attention.checked import make_call
from strategies import normal

NOPE = posenc.NoPE()


def tensors(q_len: int, k_len: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    """Four heads of queries, two of keys; values of another width."""
    return (
        normal(2, 4, q_len, 8, seed=1, dtype=dtype),
        normal(2, 2, k_len, 8, seed=2, dtype=dtype),
        normal(2, 2, k_len, 6, seed=3, dtype=dtype),
    )


def called(q_len: int, k_len: int, encoding: posenc.Encoding = NOPE, device: str = "cpu", **options: Any) -> Call:
    q, k, v = (t.to(device) for t in tensors(q_len, k_len))
    pos = positions.arange(q_len, device=device), positions.arange(k_len, device=device)
    given_options = {"causal": True, "mask": None, "window": None, "document_ids": None, **options}
    plain = {"scale": None, "dropout_p": 0.0, "backend": "auto"}
    return make_call(q, k, v, encoding, *pos, rotated=False, **{**given_options, **plain})
