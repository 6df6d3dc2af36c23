"""Positions wrap at the longest document's length instead of starting anew at each document.

Report: https://github.com/pytorch/torchtitan/pull/2849
"""

import torch

STYLE = "packed_position_fn"
SPEC = {"kind": "positions", "packed": True}
EXPECT = "positions.packed.modulo_wrap"


def positions(cu_seqlens):
    lengths = cu_seqlens.diff()
    return torch.arange(int(lengths.sum())) % int(lengths.max())


def build():
    return positions
