"""The count is not set back when the next document begins.

Report: https://github.com/tenstorrent/tt-metal/pull/36808
"""

import torch

STYLE = "packed_position_fn"
SPEC = {"kind": "positions", "packed": True}
EXPECT = "positions.packed_not_reset"


def positions(cu_seqlens):
    starts = set(cu_seqlens.tolist())
    out, origin = [], 0
    for place in range(int(cu_seqlens[-1])):
        if place in starts:
            origin = cu_seqlens[0].item()
        out.append(place - origin)
    return torch.tensor(out, dtype=torch.int32)


def build():
    return positions
