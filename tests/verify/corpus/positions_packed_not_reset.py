"""Packed documents are counted through as if they were one.

Report: https://github.com/pytorch/torchtitan/issues/2559
"""

import torch

STYLE = "packed_position_fn"
SPEC = {"kind": "positions", "packed": True}
EXPECT = "positions.packed_not_reset"


def positions(cu_seqlens: torch.Tensor) -> torch.Tensor:
    total = int(cu_seqlens[-1])
    place = torch.arange(total, device=cu_seqlens.device)
    return place - cu_seqlens[0]


def build():
    return positions
