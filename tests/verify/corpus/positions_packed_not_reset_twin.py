"""Correct twin of positions_packed_not_reset."""

import torch

STYLE = "packed_position_fn"
SPEC = {"kind": "positions", "packed": True}
EXPECT = "pass"


def positions(cu_seqlens: torch.Tensor) -> torch.Tensor:
    total = int(cu_seqlens[-1])
    place = torch.arange(total, device=cu_seqlens.device)
    return place - cu_seqlens[torch.searchsorted(cu_seqlens, place.to(cu_seqlens), right=True) - 1]


def build():
    return positions
