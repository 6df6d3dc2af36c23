"""M-RoPE by an axis number for each pair and one gather; float64; small head."""

import torch

AXIS = torch.tensor([0, 1, 2]).repeat_interleave(torch.tensor([8, 16, 16]))
PERIOD = 123456.0 ** (torch.arange(40, dtype=torch.float64) / 40)


def angles(position_ids):
    chosen = position_ids.t().double().gather(1, AXIS.expand(position_ids.shape[1], -1))
    return chosen / PERIOD


def build():
    return angles


STYLE = "mrope_fn"
SPEC = {"encoding": "mrope", "head_dim": 80, "base": 123456.0, "section": [8, 16, 16]}
EXPECT = "pass"
