"""M-RoPE with the sections of the doubled table, [32, 48, 48], on 64 frequencies: the width is never read.

Report: https://github.com/InfiniTensor/InfiniCore/pull/1350
"""

import torch

STYLE = "mrope_fn"
SPEC = {"encoding": "mrope", "head_dim": 128, "base": 1000000.0, "section": [16, 24, 24], "interleaved": False}
EXPECT = "mrope.section_scale"


SECTIONS = [32, 48, 48]


def angles(position_ids):
    inv_freq = 1000000.0 ** (-torch.arange(64).float() / 64)
    ends = torch.tensor(SECTIONS).cumsum(0)
    axis = torch.bucketize(torch.arange(64), ends, right=True)
    return position_ids.T.float()[:, axis] * inv_freq


def build():
    return angles
