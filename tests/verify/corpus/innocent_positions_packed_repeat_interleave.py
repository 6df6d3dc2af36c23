"""Each document's first place is repeated and taken away; int32."""

import torch

STYLE = "packed_position_fn"
SPEC = {"kind": "positions", "packed": True}
EXPECT = "pass"


def positions(cu_seqlens):
    lengths = cu_seqlens[1:] - cu_seqlens[:-1]
    first = torch.repeat_interleave(cu_seqlens[:-1], lengths)
    return (torch.arange(len(first)) - first).int()


def build():
    return positions
