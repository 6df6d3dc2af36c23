"""Correct twin of positions_packed_modulo."""

import torch

STYLE = "packed_position_fn"
SPEC = {"kind": "positions", "packed": True}
EXPECT = "pass"


def positions(cu_seqlens):
    lengths = cu_seqlens.diff()
    return torch.cat([torch.arange(n) for n in lengths.tolist()])


def build():
    return positions
