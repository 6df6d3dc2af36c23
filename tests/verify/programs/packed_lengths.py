"""Positions of documents packed into one row."""

import torch


def positions(cu_seqlens):
    lengths = cu_seqlens.diff()
    total = int(cu_seqlens[-1])
    place = torch.arange(total)
    return place - torch.repeat_interleave(cu_seqlens[:-1].long(), lengths.long())


def build():
    return positions


STYLE = "packed_position_fn"
SPEC = {"kind": "positions", "packed": True}
EXPECT = "pass"
