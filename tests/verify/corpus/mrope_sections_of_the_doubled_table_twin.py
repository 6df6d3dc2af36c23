"""M-RoPE with the sections [16, 24, 24] on 64 frequencies.

The correct twin of mrope_sections_of_the_doubled_table.py.
"""

import torch

STYLE = "mrope_fn"
SPEC = {"encoding": "mrope", "head_dim": 128, "base": 1000000.0, "section": [16, 24, 24], "interleaved": False}
EXPECT = "pass"


SECTIONS = [16, 24, 24]


def angles(position_ids):
    inv_freq = 1000000.0 ** (-torch.arange(64).float() / 64)
    ends = torch.tensor(SECTIONS).cumsum(0)
    axis = torch.bucketize(torch.arange(64), ends, right=True)
    return position_ids.T.float()[:, axis] * inv_freq


def build():
    return angles
