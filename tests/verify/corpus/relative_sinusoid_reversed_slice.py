"""The table is reversed over its longest length and then cut at the front: the distances are 499, 498..

Report: https://github.com/espnet/espnet/pull/2816
"""

import math

import torch

STYLE = "relative_table_fn"
SPEC = {"encoding": "relative_sinusoid", "dim": 32, "base": 10000.0, "layout": "interleaved"}
EXPECT = "relative_sinusoid.slice_of_reversed_table"


LONGEST = 500


def build():
    lane = torch.arange(0, 32, 2)
    distance = torch.arange(-(LONGEST - 1), LONGEST).flip(0).float()
    angle = torch.outer(distance, torch.exp(-lane * math.log(10000.0) / 32))
    whole = torch.zeros(2 * LONGEST - 1, 32)
    whole[:, lane] = torch.sin(angle)
    whole[:, lane + 1] = torch.cos(angle)

    def table(n: int) -> torch.Tensor:
        return whole[: 2 * n - 1]

    return table
