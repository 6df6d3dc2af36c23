"""Positions of documents packed into one row."""

import torch


def positions(cu_seqlens):
    lengths = cu_seqlens.diff()
    total = int(cu_seqlens[-1])
    place = torch.arange(total)
    return place % int(lengths.max())


def build():
    return positions


STYLE = "packed_position_fn"
SPEC = {"kind": "positions", "packed": True}
EXPECT = "positions.packed.modulo_wrap"
