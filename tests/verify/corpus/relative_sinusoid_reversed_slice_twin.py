"""Correct twin of relative_sinusoid_reversed_slice."""

import math

import torch

STYLE = "relative_table_fn"
SPEC = {"encoding": "relative_sinusoid", "dim": 32, "base": 10000.0, "layout": "interleaved"}
EXPECT = "pass"


LONGEST = 500


def build():
    lane = torch.arange(0, 32, 2)
    distance = torch.arange(-(LONGEST - 1), LONGEST).flip(0).float()
    angle = torch.outer(distance, torch.exp(-lane * math.log(10000.0) / 32))
    whole = torch.zeros(2 * LONGEST - 1, 32)
    whole[:, lane] = torch.sin(angle)
    whole[:, lane + 1] = torch.cos(angle)

    def table(n: int) -> torch.Tensor:
        return whole[LONGEST - n : LONGEST + n - 1]

    return table
